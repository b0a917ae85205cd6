"""Orders of requests: weighted sums of a few of their features, rounded to integers of a common scale."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from optsched.model.instance import Instance
from optsched.model.ints import Ints
from optsched.model.objectives import Objective

_BITS = 40
"""Features are scaled below 2^40, so that weights of 2^20 leave room for their sum."""


class Feature(IntEnum):
    """What a request is judged by, in time: rows of `features`.

    Its arrival and its deadline; how long its prompt and its decode steps keep a busy machine; the share of the bases
    of batches that its KV takes; and the number of its output tokens, in bases.
    """

    ARRIVAL = 0
    DEADLINE = 1
    FILL = 2
    DECODE = 3
    VOLUME = 4
    OUTPUT = 5


Weights = tuple[int, ...]
"""A weight for every feature."""


def weights(**given: int) -> Weights:
    """Return weights by the features' names, 0 for the others."""
    return tuple(given.get(feature.name.lower(), 0) for feature in Feature)


def features(instance: Instance, objective: Objective) -> Ints:
    """Return the features of all requests, a row each.

    For weighted sums what a request needs counts in proportion to its weight (Smith 1956, Naval Research Logistics
    Quarterly 3), so that the least need per weight comes first.
    """
    cost, limits = instance.cost, instance.limits
    base, token = max(cost.affine, key=lambda piece: piece[1])
    rows = []
    for request in instance.requests:
        prompt, later = request.input, request.output - 1
        read = later * prompt + later * (later - 1) // 2
        due = [slo for slo in (request.slo_e2e_ps, request.slo_ttft_ps) if slo is not None]
        needs = [
            token * prompt + cost.prefill_sq * prompt**2 + cost.prefill_req,
            (token + cost.decode_req) * later + cost.decode_kv * read,
            base * request.kv_volume // limits.kv_tokens,
            base * request.output,
        ]
        if objective == Objective.WEIGHTED_E2E:
            # A weight of 0 is taken as one far below the others.
            needs = [need * 1000 // (1000 * request.weight or 1) for need in needs]
        rows.append([request.arrival_ps, request.arrival_ps + min(due, default=cost.affine[0][0] * 10**6), *needs])
    largest = max(map(max, rows))
    shift = max(0, largest.bit_length() - _BITS)
    return np.array([[value >> shift for value in row] for row in rows], dtype=np.int64).T.copy()


def ranking(rows: Ints, chosen: Weights) -> Ints:
    """Return the weighted sum of the features of every request."""
    ranked: Ints = np.array(chosen, dtype=np.int64) @ rows
    return ranked
