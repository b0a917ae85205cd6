"""The windows of time of which prices and rents are sought; the theorem on them is in `optsched.bounds.inflow`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from optsched.bounds.bound import Bound
from optsched.bounds.rented.programme import columns_of, solve
from optsched.bounds.rented.proof import lease
from optsched.bounds.rented.tenants import FEW, tenants
from optsched.bounds.volume import busy_ps
from optsched.model.instance import Instance

_WINDOWS = 16, 24, 32, 40, 48
"""Equal windows where arrivals are many: the most of which the programme is small enough."""
_MOST_COLUMNS = 20_000
"""Numbers of runs in the programme, 5 s; more requests gain nothing: with most of them the machine is full."""
_UNITS = 1_000
"""Into which the machine's work is cut, so that the solver sees numbers near 1."""


def leased_bound(instance: Instance) -> Bound | None:
    """Return what the programme's prices prove; None if it is too large, has no optimum, or numbers are too large."""
    over = (tenants(instance, starts) for starts in _windows(instance))
    *_, held = (None, *takewhile(lambda each: columns_of(each) <= _MOST_COLUMNS, over))
    if held is None:
        return None
    # Prompts in chunks may have a step in every batch; so its cost is the batch's.
    step_ps = 0 if instance.rules.chunked_prefill else instance.cost.prefill_req
    dual = solve(held, step_ps, max(1.0, busy_ps(instance) / _UNITS))
    proof = None if dual is None else lease(held, step_ps, dual)
    value = None if proof is None else proof.value()
    return None if proof is None or value is None else Bound(value, proof.certificate)


def _windows(instance: Instance) -> Iterator[Sequence[int]]:
    """Yield all arrivals, since the earliest; or if they are many, begins of ever more equal windows."""
    arrivals = sorted(set(instance.arrivals_ps))
    if len(arrivals) <= FEW:
        yield arrivals
        return
    for count in _WINDOWS:
        yield sorted({arrivals[-1] * place // count for place in range(count + 1)})
