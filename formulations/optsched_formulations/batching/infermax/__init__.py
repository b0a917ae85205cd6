"""The parts of `infermax_milp`."""
