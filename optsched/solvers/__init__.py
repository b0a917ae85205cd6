"""Solvers behind one status scheme, one progress protocol and one contract for formulations."""
