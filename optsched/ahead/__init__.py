"""Compiling ahead: every loop with the types that it gets in use, so that no later command has to (`processes`)."""
