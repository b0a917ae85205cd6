"""The parts of `state_search`."""
