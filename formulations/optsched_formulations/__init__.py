"""Exact formulations of LLM-serving scheduling, found by name through the entry point in pyproject.toml."""

from types import MappingProxyType

FORMULATIONS = MappingProxyType({"token_cpsat": "optsched_formulations.batching.token_cpsat:TokenCpSat"})
"""Formulation name → ``module:class``, resolved when it is asked for."""
