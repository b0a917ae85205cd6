"""The parts of `pair_flow`."""
