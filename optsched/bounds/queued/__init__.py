"""Parts of the bound `optsched.bounds.waiting`; the theorem and its symbols are there."""
