"""The parts of `token_cpsat`."""
