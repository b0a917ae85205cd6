"""Optimal use of prefix caches, for a given order of service."""
