"""The kinds of runs that are known, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cluster import distserve, dynamo_costs, dynamo_replay, preble_e2, sgl_router, sglang_radix, splitwise, vllm_prefix
from cluster.outcome import Outcome, Sources


@dataclass(frozen=True)
class Kind:
    """One kind of file.

    Parameters
    ----------
    recognises
        Whether a document is of this kind.
    outcomes
        Replays a document.
    """

    recognises: Callable[[Any], bool]
    outcomes: Callable[[Any, Sources], Iterable[Outcome]]


KINDS = {
    "distserve": Kind(distserve.recognises, distserve.outcomes),
    "dynamo_replay": Kind(dynamo_replay.recognises, dynamo_replay.outcomes),
    "dynamo_costs": Kind(dynamo_costs.recognises, dynamo_costs.outcomes),
    "preble_e2": Kind(preble_e2.recognises, preble_e2.outcomes),
    "sglang_radix": Kind(sglang_radix.recognises, sglang_radix.outcomes),
    "sgl_router": Kind(sgl_router.recognises, sgl_router.outcomes),
    "splitwise": Kind(splitwise.recognises, splitwise.outcomes),
    "vllm_prefix": Kind(vllm_prefix.recognises, vllm_prefix.outcomes),
}
