"""Warm-ups: tiny questions, each for loops of its own; those of formulations are with these.

They look at no clock, so that however slow the machine is they reach the same loops.
"""

from __future__ import annotations

import numpy as np

from optsched.check import check_schedule, proved_bound
from optsched.methods.bound import bound
from optsched.methods.simulate import simulate
from optsched.model.cluster import CacheMode, CacheRules
from optsched.model.cost import CostModel
from optsched.model.domain import replace
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.metrics import evaluate
from optsched.model.objectives import Objective
from optsched.model.prefixes import PrefixNode, PrefixTree
from optsched.model.restrictions import Restrictions
from optsched.planner.search import RuleSearch
from optsched.simulator.replica import COMPILED_TOKENS

_COST = CostModel(base=1000, token=10, decode_kv=1, decode_req=1, prefill_sq=1, prefill_req=1)
_ROOMY = 2 * COMPILED_TOKENS
_WHOLE = Rules(chunked_prefill=False)


def _tiny(*requests: Request, rules: Rules = _WHOLE, kv_tokens: int = _ROOMY) -> Instance:
    """Return an instance in which only memory binds."""
    return Instance("tiny", Limits(kv_tokens, _ROOMY, _ROOMY), rules, _COST, requests)


def simulation() -> None:
    """Simulate as many tokens as machine code takes over for, and replay the schedule."""
    simulate(_tiny(Request(1, COMPILED_TOKENS)), "vllm")


def cached_machines() -> None:
    """Simulate equal machines with caches, of which the router asks what they hold."""
    cluster = replace(
        _tiny(Request(1, 1)),
        requests=tuple(Request(8, COMPILED_TOKENS // 2, arrival_ps=at, prefix=("a",)) for at in (0, 1)),
        prefixes=PrefixTree((PrefixNode("a", 4),)),
        replicas=2,
        cache=CacheRules(CacheMode.PREFIX),
    )
    simulate(cluster, "vllm_v1", router="lmetric")


def planner() -> None:
    """Plan with every scheme; replay and count the plans."""
    together = _tiny(*[Request(2, 3)] * 3, kv_tokens=8)
    chunked = _tiny(*[Request(2, 3, arrival_ps=at) for at in (0, 0, 1)], rules=Rules(), kv_tokens=8)
    for instance, objective in (
        (together, Objective.MAKESPAN),
        (chunked, Objective.MEAN_TTFT),
        (chunked, Objective.MEAN_E2E),
    ):
        for found in RuleSearch.of(instance, objective, Restrictions(), np.random.default_rng(0)).start():
            plan = found.plan.schedule()
            check_schedule(instance, plan)
            evaluate(instance, plan)


def makespan_prices() -> None:
    """Find prices of what batches can take."""
    bound(_tiny(*[Request(2, 500)] * 2), Objective.MAKESPAN, method="ramp")


def latency_prices() -> None:
    """Find prices of windows of time where requests wait little."""
    requests = (Request(2, 2, arrival_ps=2000 * place) for place in range(64))
    bound(_tiny(*requests), Objective.MEAN_E2E, method="congestion")


def queue_prices() -> None:
    """Find prices of windows of time where prompts queue, and check them."""
    requests = (Request(50, 2, arrival_ps=place) for place in range(64))
    bound(_tiny(*requests), Objective.MEAN_E2E, method="waiting")


def checked_labels() -> None:
    """Check a bound by a search request by request, of more requests than the uncompiled one takes."""
    stated = {"kind": "request_search", "bound": 1, "states": 1, "shares": [0]}
    proved_bound(_tiny(*[Request(1, 1)] * 9), Restrictions(), Objective.MAKESPAN, stated)


def checked_pairs() -> None:
    """Check a bound on the graph of resident sets, too high a one, which the uncompiled search leaves open."""
    stated = {"kind": "resident_search", "bound": 10**6, "item_prices": [0]}
    proved_bound(_tiny(Request(1, 1)), Restrictions(), Objective.MAKESPAN, stated)


def checked_layers() -> None:
    """Check a bound on that graph by number of batches, too high by 1: one batch takes 1000 and a first fill 12."""
    stated = {"kind": "layered_search", "bound": 1013, "pairs": 9, "batches": [{"count": 1, "item_prices": [0]}]}
    proved_bound(_tiny(Request(1, 1)), Restrictions(), Objective.MAKESPAN, stated)
