"""Runs of other systems with several replicas or prefix caches, replayed with ours: one module a kind of file."""
