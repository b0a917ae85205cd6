"""Batching policies, found by name through the entry point in pyproject.toml."""

from types import MappingProxyType

POLICIES = MappingProxyType(
    {
        name: f"optsched.policies.infermax:{name.upper()}"
        for base in ("vllm", "sarathi", "sarathi_pc", "sarathi_nocp", "vllm_hy", "sarathi_nohy")
        for name in (base, f"{base}_ef")
    }
    | {"infermax": "optsched.policies.infermax:INFERMAX"}
    | {"planner": "optsched.policies.planner:PLANNER"}
)
"""Policy name → ``module:attribute``, resolved when it is asked for."""
