"""The parts of `class_flow`."""
