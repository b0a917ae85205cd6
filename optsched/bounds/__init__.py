"""Combinatorial lower bounds, each a theorem with a certificate that `optsched.check` recomputes."""
