"""The worst cases of policies that are known (docs/worst-cases.md).

Some were found by `optsched worst`, some built by hand: a construction that makes a policy wait or evict, and lengths
that were searched for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from optsched.calibrate.library import cost_model
from optsched.model.documents import Suite
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.objectives import Objective

_BUDGET = 4096
"""C, and P."""
_TICK = 10**8
"""Arrivals are in units of this, in ps."""


@dataclass(frozen=True)
class Known:
    """An instance on which a policy is bad.

    Parameters
    ----------
    policy, objective
        Whose gap is large, in what.
    kv_tokens
        M.
    requests
        Input, output, and arrival in units of 0.1 ms.
    chunked
        Whether prefills may be chunked.
    """

    policy: str
    objective: Objective
    kv_tokens: int
    requests: tuple[tuple[int, int, int], ...]
    chunked: bool = False

    @property
    def name(self) -> str:
        """Policy, objective and number of requests."""
        rules = "-chunked" if self.chunked else ""
        return f"{self.policy}-{self.objective.value}{rules}-{len(self.requests)}"


_CHAIN = (1, 16, 0), (220, 1, 0)
KNOWN = (
    Known("vllm", Objective.MAKESPAN, 71, (*((1, 17, 0), (71, 1, 0)) * 2, (1, 17, 0), (71, 1, 1), (1, 17, 2))),
    Known("vllm", Objective.MAKESPAN, 4, ((1, 2, 0), (4, 1, 0), (1, 2, 0))),
    Known(
        "sarathi", Objective.MAKESPAN, 327, ((99, 11, 0), (227, 2, 0), (102, 11, 0), (225, 2, 0), (45, 14, 124)), True
    ),
    Known("sarathi", Objective.MAKESPAN, 148, (*((1, 34, 0), (148, 1, 0)) * 2, (1, 34, 0), (148, 1, 2), (1, 34, 2))),
    Known("sarathi", Objective.MAKESPAN, 220, (*_CHAIN, _CHAIN[0])),
    Known("sjf", Objective.MAKESPAN, 231, ((1, 116, 0), (231, 1, 5), (1, 115, 1))),
    Known("larry", Objective.MAKESPAN, 1027, ((1, 3, 2), (1, 3, 0), (1024, 2, 0)), chunked=True),
    Known("larry", Objective.MAKESPAN, 1027, ((1, 3, 0), (1024, 3, 0)), chunked=True),
    Known("srtf", Objective.MAKESPAN, 20, ((3, 2, 0), (2, 2, 0), (16, 2, 0), (1, 4, 0), (4, 2, 0))),
    Known(
        "vllm",
        Objective.MEAN_TTFT,
        128,
        (
            (64, 64, 1208),
            (65, 64, 93),
            (64, 64, 158),
            (64, 64, 1208),
            (64, 64, 0),
            (64, 65, 0),
            (64, 65, 0),
        ),
    ),
    Known("vllm", Objective.MEAN_TTFT, 126, ((63, 64, 0), (70, 1, 0), (70, 1, 0), (70, 1, 0))),
    Known(
        "vllm",
        Objective.MEAN_E2E,
        386,
        ((372, 15, 0), (17, 1, 0), (97, 1, 0), (17, 1, 0), (82, 1, 0), (145, 1, 0), (17, 1, 0)),
    ),
)


def worst_known(profile: str) -> Suite:
    """Return the instances on a cost profile."""
    cost = cost_model(profile)
    return Suite(
        "worst-known",
        "Small instances on which policies are far from the optimum, for most policies two: the worst that is known, "
        "and one of at most four requests. The policy and the objective are in the name (docs/worst-cases.md).",
        tuple(
            Instance(
                f"worst-known-{known.name}",
                Limits(known.kv_tokens, _BUDGET, _BUDGET),
                Rules(chunked_prefill=known.chunked),
                cost,
                tuple(Request(size, length, arrival * _TICK) for size, length, arrival in known.requests),
            )
            for known in KNOWN
        ),
    )
