"""Schedules on several machines, and on machines that cache prefixes (docs/problem.md, Several machines)."""
