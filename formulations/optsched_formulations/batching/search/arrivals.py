"""When the requests of every class arrive, as the compiled loops take it."""

from __future__ import annotations

import numpy as np

from optsched.model.instance import Instance
from optsched.model.ints import Ints
from optsched_formulations.batching.memory_only import Classes


def arrivals(instance: Instance, classes: Classes, scale: int) -> tuple[Ints, Ints]:
    """Return arrivals in order with their classes, shape (2, requests), and the place of the i-th last of every class.

    Offline there are none.
    """
    order = sorted(range(len(instance.requests)), key=lambda r: instance.requests[r].arrival_ps)
    place = np.zeros((len(classes.members), len(order) + 1), dtype=np.int64)
    if instance.offline:
        return np.zeros((2, 0), dtype=np.int64), place
    for c, members in enumerate(classes.members):
        for last, request in enumerate(reversed(members), start=1):
            place[c, last] = order.index(request)
    owner = {request: c for c, members in enumerate(classes.members) for request in members}
    arrivals = instance.arrivals_ps
    pairs = [(arrivals[r] * scale, owner[r]) for r in order]
    return np.array(pairs, dtype=np.int64).T.copy(), place
