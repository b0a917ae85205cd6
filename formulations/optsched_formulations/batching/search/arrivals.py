"""When the requests of every class arrive, as the compiled loops take it."""

from __future__ import annotations

import numpy as np

from optsched.model.instance import Instance
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.search.state_steps import Ints


def arrivals(instance: Instance, classes: Classes, scale: int) -> tuple[Ints, Ints]:
    """Return the arrivals after the first in order, and the place in it of the i-th last of every class."""
    order = sorted(range(len(instance.requests)), key=lambda r: instance.requests[r].arrival_ps)
    place = np.zeros((len(classes.members), len(order) + 1), dtype=np.int64)
    if instance.offline:
        return np.zeros(0, dtype=np.int64), place
    for c, members in enumerate(classes.members):
        for last, request in enumerate(reversed(members), start=1):
            place[c, last] = order.index(request)
    start = instance.start_ps
    return np.array([(instance.requests[r].arrival_ps - start) * scale for r in order], dtype=np.int64), place
