"""Whether a schedule is legal, and its metrics."""
