r"""Percentiles of latencies: how many requests any schedule can finish within a given time.

*Theorem.* Let K(x) be how many requests can at most be in time if each has x from its arrival on, until its first token
or until its last, by `late`. If :math:`K(x) < ⌈q n / 100⌉`, then percentile q of the n latencies exceeds x in every
schedule.

*Proof.* If it does not, the ⌈q n / 100⌉ smallest latencies are at most x: that number of requests is in time. ∎

Deadlines :math:`T_r + x` rise with arrivals, so none is put off. A request that is in time within x is so within more:
K rises with x. The bound is the least x at which K(x) is enough, found by bisection to the picosecond, for the rate and
split (`machine`) at which it is largest. It is no less than the percentile of what requests take `alone`, as K counts
none that takes longer, and that of rank n is their largest latency first come, first served.

*Conditions.* Those of `machine`, tested by the same functions; besides,
`optsched.check.certificates.percentile.percentile_bound` computes itself how many requests can be in time, and refuses
a bound that leaves as many as the percentile's rank.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

from optsched.bounds.alone import alone
from optsched.bounds.bound import Bound
from optsched.bounds.late import DueJob, crowded_out
from optsched.bounds.machine import Needs, share_certificate
from optsched.model.instance import Instance
from optsched.model.objectives import Latency, Objective, percentile, percentile_rank


def percentile_bound(instance: Instance, objective: Objective) -> Bound | None:
    """Bound a percentile of latencies; None for another objective."""
    if objective.percentile is None:
        return None
    requests, first_tokens = instance.requests, objective.latency is Latency.TTFT
    least = alone(instance).ttft if first_tokens else alone(instance).e2e
    needs = Needs(instance, [1 if first_tokens else request.output for request in requests])
    order = sorted(range(len(requests)), key=lambda r: requests[r].arrival_ps)
    rank = percentile_rank(objective.percentile, len(requests))

    def enough(needed: list[int], within: int) -> bool:
        """Whether enough requests can have such a latency at most."""
        reachable = ((requests[r].arrival_ps, needed[r]) for r in order if least[r] <= within)
        jobs = [DueJob(arrival, need, arrival + within) for arrival, need in reachable]
        spare = len(jobs) - rank
        return spare >= 0 and next(islice(crowded_out(jobs), spare, None), None) is None

    # Most work first, so that the others hardly ever bound more.
    known = sorted(needs.shares(), key=lambda share: -sum(share[2]))
    bound, best = percentile(least, objective.percentile), known[0][:2]
    for rate, split, needed in known:
        if not enough(needed, bound):
            bound, best = _least(partial(enough, needed), bound), (rate, split)
    return Bound(bound, {**share_certificate("percentile", *best), "bound": bound})


def _least(holds: Callable[[int], bool], low: int) -> int:
    """Return the least number for which something holds; not for ``low``, and from the least on for all."""
    high = 2 * low + 1
    while not holds(high):
        low, high = high, 2 * high + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
