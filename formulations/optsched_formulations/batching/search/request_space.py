r"""A space of states request by request, guided by what a batch can hold: for any number of classes.

*Shares.* Let :math:`π_{ck} ≥ 0` be weights of the items (class c, token k) of which no batch holds more than W
(`packing`; the blocks that items hold, with the cache for W, will do). Then each item in a batch uses the
share :math:`\mathrm{base}\, π_{ck} / W` of the batch's base, and the shares of a batch add up to at most the base.

*Makespan.* What is still to come takes at least the shares and the own time of all tokens that are still to be
generated, a refill's extra time included for a request that waits to be refilled. So a state's cost grows by the extra
time when a request is evicted, by the base less the shares when a batch runs, and, with arrivals, by idle time before
one begins; it never falls. With arrivals the label is the clock. For two ways to one state, costs differ as clocks do.

*Weighted e2e latencies.* Their sum is the sum over all steps of time × weight of the requests unfinished, less what
those that had not arrived yet have waited, a constant; that is the label. Each request needs its shares and own times
of the machine, of which steps give no more than they last; so completions are those of jobs on one machine that may be
preempted, and at best earlier. Of different weights, offline, their weighted sum is least if machine time goes to
the request that needs the least of it per weight (Smith 1956). Of equal weights, with arrivals or without, if it goes
to the one that has the least left to do: then by any moment as many as possible have completed (Schrage 1968), so that
the i-th completion is the earliest possible for every i. No request completes before its *chain*, either: all its
tokens, each in a batch of its own. So the i-th completion of any schedule is at least the later one of the i-th by
shortest remaining time and the i-th of the chains' ends, and both are summed up to the least sum that is still to come.

*Whole batches.* Let the i-th completion be at the end of the J-th batch from now. All that i requests still need is in
these J batches: at least the sum of the i least shares, of which a batch gives at most its base, and at least the sum
of the i least own times. One of the i needs as many batches as the i-th fewest tokens that a request has left, or more.
So with b the base the i-th completion is no earlier than b × max(⌈the sum of i least shares / b⌉, i-th fewest tokens
left) and the sum of the i least own times. This holds with arrivals as well, which only come in between.

*Prices of batches*, for equal weights, offline. The sum of completions is that of the i least own times over all i, or
more, and b × the number of batches, each counted for every request that waits for it; of that number
`pairs.batch_prices` has a lower bound, a sum of what each request costs by itself.

The cost is the label and this bound, and at least the cost of the state before. With arrivals the clock is part of the
state.

*Pauses* are left out offline: the argument of `resident_graph` ends no batch later, and moves no request's last token.
With arrivals requests may pause.
"""

from __future__ import annotations

import numpy as np

from optsched.model.instance import Instance
from optsched.model.ints import Ints
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.pairs.batch_prices import UNIT, BatchPrices, least_batches
from optsched_formulations.batching.search.arrivals import arrivals
from optsched_formulations.batching.search.node_kernel import NO_ARCS
from optsched_formulations.batching.search.request_kernel import (
    BOUND,
    DECODE_TIME,
    EXTRA,
    FILL_TIME,
    ITEM,
    MOST_REQUESTS,
    MOST_TOKENS,
    PAUSES,
    REFILLABLE,
    REST,
    RESTS,
    RUNS,
    SHARE,
    SIZE,
    WAITS,
    Requests,
    time_to_come,
)
from optsched_formulations.batching.search.resident_walk import scale_of
from optsched_formulations.batching.search.state_kernel import NONE
from optsched_formulations.batching.search.state_space import Space
from optsched_formulations.batching.search.weights import weights_of

_BYTES = 8
"""Bytes in a word."""


def too_large(instance: Instance) -> bool:
    """Return whether states do not fit their bytes."""
    return len(instance.requests) > MOST_REQUESTS or max(request.output for request in instance.requests) > MOST_TOKENS


def request_space(instance: Instance, classes: Classes, seconds: float, prices: BatchPrices | None = None) -> Space:
    """Return the space of an instance that is not `too_large`; weights of items are sought for some time.

    ``prices`` are for instances in which all requests are there from the start.
    """
    scale = scale_of(classes)
    base = classes.base_ps * scale
    token = np.zeros((7, len(classes.kinds), MOST_TOKENS + 3), dtype=np.int64)
    weights, most = weights_of(classes, seconds)
    for item, (c, k) in enumerate(zip(classes.owner, classes.token, strict=True)):
        token[SIZE, c, k], token[ITEM, c, k] = classes.size[item], item
        token[SHARE, c, k] = weights[item] * base // most
        token[EXTRA, c, k] = classes.extra_ps(item) * scale
        token[FILL_TIME, c, k] = classes.fill_ps[item] * scale
        token[DECODE_TIME, c, k] = classes.decode_ps[item] * scale
        token[REFILLABLE, c, k] = k > 1 and classes.evictable[item - 1]
    kinds = [kind for kind, members in zip(classes.kinds, classes.members, strict=True) for _ in members]
    owner = [c for c, members in enumerate(classes.members) for _ in members]
    number = len(owner)
    arrival, place = arrivals(instance, classes, scale)
    # A word for each eight requests, the clock where it belongs to the state, and the last.
    dated = classes.weighted and arrival.size > 0
    words = -(-number // _BYTES) + dated + 1
    source, goal = np.zeros(words, dtype=np.uint64), np.zeros(words, dtype=np.uint64)
    for r, (_, output, _) in enumerate(kinds):
        goal[r // _BYTES] |= np.uint64(output << 8 * (r % _BYTES))
    same = kinds[0][2] if len({weight for *_, weight in kinds}) == 1 else 0
    requests = Requests(
        request=np.array([(c, output, weight) for c, (_, output, weight) in zip(owner, kinds, strict=True)]).T.copy(),
        first=np.cumsum([0, *map(len, classes.members)]).astype(np.int64),
        token=token,
        byte=np.array(
            [
                _time_left(classes, token, share)
                for share in (token[SHARE], np.full_like(token[SHARE], base), np.zeros_like(token[SHARE]))
            ]
        ),
        arrival=arrival,
        place=place,
        batches=_batches_left(classes, prices),
        limits=np.array([classes.capacity, base, classes.weighted, 0, same], dtype=np.int64),
    )
    bound = sum(int(requests.byte[REST, c, 0]) for c in owner)
    if classes.weighted or arrival.size > 0:
        unused = np.zeros(number, dtype=np.int64)
        bound = time_to_come(requests, np.zeros(number, dtype=np.int64), 0, unused, unused.copy())
        requests.limits[BOUND] = bound
    waited = sum(instance.arrivals_ps) * same
    return Space(
        arcs=NO_ARCS,
        requests=requests,
        source=source,
        goal=goal,
        label=0,
        clock=words - 2 if dated else NONE,
        breadth=3 * number + 2,
        scale=scale,
        bound=bound,
        constant_ps=-waited if classes.weighted else 0,
    )


def shares_of(space: Space, classes: Classes) -> list[int]:
    """Return the share of a batch's base of every item."""
    return [int(space.requests.token[SHARE, c, k]) for c, k in zip(classes.owner, classes.token, strict=True)]


def _batches_left(classes: Classes, prices: BatchPrices | None) -> Ints:
    """Return what requests of every class and byte cost with prices, and what all batches pay, from every batch on."""
    if prices is None:
        return np.zeros((0, 0, 0), dtype=np.int64)
    wait, rest = least_batches(classes, prices)
    horizon = len(prices.batch)
    left = np.zeros((len(classes.kinds) + 1, 256, horizon), dtype=np.int64)
    left[-1, 0] = np.cumsum(prices.batch[::-1])[::-1]
    for item, (c, k) in enumerate(zip(classes.owner, classes.token, strict=True)):
        left[c, WAITS + k - 1], left[c, RESTS + k - 1] = wait[:horizon, item], rest[:horizon, item]
        after = rest[1:, item + 1] if classes.following[item] >= 0 else 0
        left[c, RUNS + k] = UNIT + prices.item[:, item] + after
    return left


def _time_left(classes: Classes, token: Ints, share: Ints) -> Ints:
    """Return the time that a request of every class and byte still needs, if tokens have these shares of batches."""
    rest = np.zeros((len(classes.kinds), 256), dtype=np.int64)
    fill = token[FILL_TIME]
    work = np.where(np.arange(token.shape[2]) > 1, token[DECODE_TIME], fill)
    for c, (_, output, _) in enumerate(classes.kinds):
        # After token k, resident: the shares and decodes of the others.
        left = 0
        for k in range(output, -1, -1):
            rest[c, RESTS + k] = rest[c, PAUSES + k] = left
            rest[c, RUNS + k] = left + share[c, k]
            if k < output:
                rest[c, k] = left - work[c, k + 1] + fill[c, k + 1]
            left += share[c, k] + work[c, k]
    return rest
