"""Exact formulations of LLM-serving scheduling, found by name through the entry point in pyproject.toml."""
