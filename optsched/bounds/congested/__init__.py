"""Parts of the bound `optsched.bounds.congestion`; the theorem and its symbols are there."""
