"""Certificates of kind ``volume``: a makespan bound that counts memory, tokens and runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from typing import Any

from optsched.check.certificates.shared.work import fewest_batches, own_ps, rate_of, require_blocks
from optsched.check.problem import Problem
from optsched.check.reading import UnprovedError, shown
from optsched.model.objectives import Objective


def volume_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    r"""Return the makespan bound of a ``volume`` certificate.

    The certificate has ``piece_weights``, one integer ≥ 0 for each affine piece of the batch time and not all
    0, and ``release_ps``, the arrival time t0 of some request. Let S be the requests with T_r ≥ t0, W the sum
    of the weights, and (base, token) the convex combination Σ (w_i / W) (base_i, token_i) of the pieces::

        makespan ≥ ceil(t0 + J base + own) - earliest arrival

    with J from `fewest_batches` and own the sum of `own_ps` over S, which are bounds for S alone.

    Proof sketch. No batch that runs a request of S starts before t0, and batches do not overlap, so the last
    batch ends at t0 plus the durations of these batches or later. The non-attention time of a batch is the
    maximum of the pieces, thus at least their combination, base + token Σ c. There are at least J such
    batches, which gives J base. What remains of their durations, token and attention time, adds up over
    steps; each step of S contributes to one token of its request, the next one that it generates, and each
    token takes at least its cheapest way. Steps of other requests, and of refills that are dropped again,
    only add. The end is an integer, so the sum may be rounded up.
    """
    if objective is not Objective.MAKESPAN:
        raise UnprovedError(f"kind volume bounds the makespan, the objective is {objective.value}")
    require_blocks(problem)
    rate = rate_of(problem, certificate.get("piece_weights"), problem.cost.prefill_req)
    arrivals = [request.arrival_ps for request in problem.requests]
    release = certificate.get("release_ps")
    if type(release) is not int or release not in arrivals:
        raise UnprovedError(f"release_ps is {shown(release)}, expected the arrival time of a request")
    shapes = Counter((r.input, r.output) for r in problem.requests if r.arrival_ps >= release)
    # Times are multiplied by W, so that they are integers.
    own = sum(number * own_ps(problem, *shape, rate) for shape, number in shapes.items())
    busy = Fraction(fewest_batches(problem, shapes) * rate.base + own, rate.scale)
    return ceil(release + busy) - min(arrivals)
