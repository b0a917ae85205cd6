"""The parts of `pattern_cg`."""
