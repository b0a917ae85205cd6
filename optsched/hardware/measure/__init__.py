"""Measuring the kernels of a transformer on this machine: the table that cost models are fitted to."""
