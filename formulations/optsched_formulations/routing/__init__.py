"""Several machines: which of them serves which request, and holds which prefix."""
