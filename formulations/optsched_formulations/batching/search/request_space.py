r"""A space of states request by request, guided by what a batch can hold: for any number of classes.

*Shares.* Let :math:`π_{ck} ≥ 0` be weights of the items (class c, token k) of which no batch holds more than W
(`packing`; the blocks that items hold, with the cache for W, will do). Then each item in a batch uses the
share :math:`\mathrm{base}\, π_{ck} / W` of the batch's base, and the shares of a batch add up to at most the base.

*Makespan.* What is still to come takes at least the shares and the own time of all tokens that are still to be
generated, a refill's extra time included for whoever waits to be refilled. So a state's cost grows by the extra time
when a request is evicted, by the base less the shares when a batch runs, and, with arrivals, by idle time before one
begins; it never falls. With arrivals the label is the clock. For two ways to one state, costs differ as clocks do.

*Weighted e2e latencies, offline.* Their sum is the sum over all steps of time × weight of the requests unfinished; that
is the label. Each request needs its shares and own times of the machine, of which steps give no more than they last:
so what is still to come is at least the weighted sum of completions of these jobs on one machine, which is least if
machine time goes to whoever needs the least of it per weight (Smith 1956). The cost is the label and this bound, and
at least the cost of the state before.

*Pauses* are left out offline: the argument of `resident_graph` ends no batch later, and moves nobody's last token. With
arrivals requests may pause.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from optsched.model.instance import Instance
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.packing import Held, packing
from optsched_formulations.batching.search.arrivals import arrivals
from optsched_formulations.batching.search.node_kernel import NO_ARCS
from optsched_formulations.batching.search.request_kernel import (
    MOST_REQUESTS,
    MOST_TOKENS,
    PAUSES,
    RESTS,
    RUNS,
    Requests,
)
from optsched_formulations.batching.search.resident_prices import scale_of
from optsched_formulations.batching.search.state_space import Space
from optsched_formulations.batching.search.state_steps import Ints

_BYTES = 8
"""Bytes in a word."""


def too_large(instance: Instance) -> bool:
    """Return whether states do not fit their bytes."""
    return len(instance.requests) > MOST_REQUESTS or max(request.output for request in instance.requests) > MOST_TOKENS


def request_space(instance: Instance, classes: Classes, seconds: float) -> Space:
    """Return the space of an instance that is not `too_large`; weights of items are sought for some time."""
    scale = scale_of(classes)
    shape = len(classes.kinds), MOST_TOKENS + 3
    size, share, extra, fill, decode, refillable, items = (np.zeros(shape, dtype=np.int64) for _ in range(7))
    weights, most = _weights(classes, seconds)
    for item, (c, k) in enumerate(zip(classes.owner, classes.token, strict=True)):
        size[c, k], items[c, k] = classes.size[item], item
        share[c, k] = weights[item] * classes.base_ps * scale // most
        extra[c, k] = classes.extra_ps(item) * scale
        fill[c, k], decode[c, k] = classes.fill_ps[item] * scale, classes.decode_ps[item] * scale
        refillable[c, k] = k > 1 and classes.evictable[item - 1]
    rest = _rest(classes, share, fill, decode)
    owner = [c for c, members in enumerate(classes.members) for _ in members]
    number = len(owner)
    time, place = arrivals(instance, classes, scale)
    words = -(-number // _BYTES) + 1
    source, goal = np.zeros(words, dtype=np.uint64), np.zeros(words, dtype=np.uint64)
    for r, c in enumerate(owner):
        goal[r // _BYTES] |= np.uint64(classes.kinds[c][1] << 8 * (r % _BYTES))
    weight = np.array([classes.kinds[c][2] for c in owner], dtype=np.int64)
    needed = np.array([rest[c, 0] for c in owner], dtype=np.int64)
    bound = _smith(needed.tolist(), weight.tolist()) if classes.weighted else int(needed.sum())
    requests = Requests(
        owner=np.array(owner, dtype=np.int64),
        output=np.array([classes.kinds[c][1] for c in owner], dtype=np.int64),
        weight=weight,
        first=np.cumsum([0, *map(len, classes.members)]).astype(np.int64),
        size=size,
        share=share,
        extra=extra,
        fill=fill,
        decode=decode,
        refillable=refillable,
        item=items,
        rest=rest,
        time=time,
        place=place,
        limits=np.array([classes.capacity, classes.base_ps * scale, classes.weighted, bound], dtype=np.int64),
    )
    return Space(
        arcs=NO_ARCS,
        requests=requests,
        source=source,
        goal=goal,
        label=0,
        breadth=3 * number + 2,
        scale=scale,
        bound=bound,
        constant_ps=0,
    )


def shares_of(space: Space, classes: Classes) -> list[int]:
    """Return the share of a batch's base of every item."""
    return [int(space.requests.share[c, k]) for c, k in zip(classes.owner, classes.token, strict=True)]


def _weights(classes: Classes, seconds: float) -> tuple[list[int], int]:
    """Return a weight for every item, and the most that a batch holds."""
    held = [
        Held(len(members), [classes.size[first + k] for k in range(kind[1])])
        for first, members, kind in zip(classes.first, classes.members, classes.kinds, strict=True)
    ]
    found = packing(held, classes.capacity, seconds)
    if found is None:
        return classes.size, classes.capacity
    return [found.weights.get((c, k), 0) for c, k in zip(classes.owner, classes.token, strict=True)], found.most


def _rest(classes: Classes, share: Ints, fill: Ints, decode: Ints) -> Ints:
    """Return the machine time that a request of every class and byte still needs."""
    rest = np.zeros((len(classes.kinds), 256), dtype=np.int64)
    for c, (_, output, _) in enumerate(classes.kinds):
        # After token k, resident: the shares and decodes of the others.
        left = 0
        for k in range(output, -1, -1):
            rest[c, RESTS + k] = rest[c, PAUSES + k] = left
            rest[c, RUNS + k] = left + share[c, k]
            if k < output:
                rest[c, k] = left - (decode[c, k + 1] if k + 1 > 1 else fill[c, 1]) + fill[c, k + 1]
            left += share[c, k] + (decode[c, k] if k > 1 else fill[c, k])
    return rest


def _smith(needed: list[int], weight: list[int]) -> int:
    """Return the least weighted sum of completions on one machine."""
    clock = total = 0
    jobs = [(time, w) for time, w in zip(needed, weight, strict=True) if w]
    for time, w in sorted(jobs, key=lambda job: Fraction(*job)):
        clock += time
        total += w * clock
    return total
