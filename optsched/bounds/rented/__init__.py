"""Parts of the bound `optsched.bounds.inflow`; the theorem and its symbols are there."""
