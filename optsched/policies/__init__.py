"""Batching policies, found by name through the entry point in pyproject.toml."""

from types import MappingProxyType

_TABLE_1 = ("vllm", "sarathi", "sarathi_pc", "sarathi_nocp", "vllm_hy", "sarathi_nohy")
_FAMILIES = {
    "infermax": ("infermax", "vllm_swap"),
    "vllm": ("vllm_v1",),
    "rank": ("rank_org", "rank_i", "rank_o"),
    "fcfs": ("fcfs", "fcfs_hy", "no_preempt", "orca", "static", "fastgen"),
    "larry": ("larry",),
    "shortest": ("sjf", "srtf", "ltr", "trail", "svf", "mc_sf"),
    "round_robin": ("rr", "rr_sjf"),
    "fastserve": ("fastserve", "fastserve_max"),
    "coupled": ("multires", "sync_coupled"),
    "econoserve": ("econoserve_d", "econoserve_sd", "econoserve_sdo", "econoserve"),
    "allocating": ("s3", "pia"),
    "prefix_orders": ("lpm", "preble_local", "preble_local_code", "mooncake"),
}

STARTING = (*(name for base in _TABLE_1 for name in (base, f"{base}_ef")), "infermax")
"""Policies whose schedules exact methods start from."""
STANDARD = (*STARTING, "planner")
"""Policies that tables compare, and exported models start from, unless others are asked for. The planner is not in
`STARTING`: the formulation of that name does more."""

POLICIES = MappingProxyType(
    {name: f"optsched.policies.infermax:{name.upper()}" for base in _TABLE_1 for name in (base, f"{base}_ef")}
    | {name: f"optsched.policies.{family}:{name.upper()}" for family, names in _FAMILIES.items() for name in names}
    | {"planner": "optsched.planner.policy:PLANNER"}
)
"""Policy name → ``module:attribute``, resolved when it is asked for."""
