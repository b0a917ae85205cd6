"""What each paper reports, one module a paper: `findings()` yields a `Finding` for every quantitative claim."""
