"""The parts of `layer_search`."""
