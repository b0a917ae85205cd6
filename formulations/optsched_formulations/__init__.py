"""Exact formulations of LLM-serving scheduling, found by name through the entry point in pyproject.toml."""

from types import MappingProxyType

FORMULATIONS = MappingProxyType(
    {
        "small_search": "optsched_formulations.batching.small_search:SmallSearch",
        "state_search": "optsched_formulations.batching.state_search:StateSearch",
        "token_cpsat": "optsched_formulations.batching.token_cpsat:TokenCpSat",
        "infermax_milp": "optsched_formulations.batching.infermax_milp:InfermaxMilp",
        "class_flow": "optsched_formulations.batching.class_flow:ClassFlow",
        "class_flow_mip": "optsched_formulations.batching.class_flow:ClassFlowMip",
        "free_pauses": "optsched_formulations.batching.free_pauses:FreePauses",
        "clock_beam": "optsched_formulations.batching.clock_beam:ClockBeam",
        "core_alone": "optsched_formulations.batching.core_alone:CoreAlone",
        "last_arrivals": "optsched_formulations.batching.last_arrivals:LastArrivals",
        "reinsertion": "optsched_formulations.batching.reinsertion:Reinsertion",
        "unbroken": "optsched_formulations.batching.unbroken:Unbroken",
        "planner": "optsched.planner.formulation:Planner",
        "pair_flow": "optsched_formulations.batching.pair_flow:PairFlow",
        "layer_search": "optsched_formulations.batching.layer_search:LayerSearch",
        "pattern_cg": "optsched_formulations.batching.pattern_cg:PatternCg",
    }
)
"""Formulation name → ``module:class``, resolved when it is asked for."""
