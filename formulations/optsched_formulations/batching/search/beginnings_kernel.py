"""A walk through the batches in which requests begin, towards schedules in which no batch takes too much, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optsched.compiled import compiled, compiled_part
from optsched.model.ints import Ints
from optsched_formulations.batching.layers.bundle import Floats

_SKIPPED = 0.3
"""How often a request of the batch that is to be relieved is left alone."""
_TABU = 10
"""Steps for which a request does not begin again where it did, and as many more at most by lot."""
_DEARER = 1.02
"""What the price of what is too much rises by where no move lowers the cost."""
_ALIKE = 1e-9
"""Costs that differ by no more are the same."""
_NEVER = 1e300


class Needs(NamedTuple):
    """What requests run in successive batches once they have begun.

    ``use[i, r, k]`` is what request r takes of what ``limit[i]`` limits in the batch k after its first, ``output`` how
    many batches it has, and ``alike`` the same number for requests of one class.
    """

    use: Ints
    output: Ints
    alike: Ints
    limit: Ints


class Walk(NamedTuple):
    """Where a walk is, which its steps change.

    Attributes
    ----------
    begin
        By request: the batch in which it begins.
    load, price
        By limit and batch: what requests take, and what each unit beyond the limit costs.
    until
        By request and batch: the step before which it may not begin there.
    """

    begin: Ints
    load: Ints
    price: Floats
    until: Ints


@compiled
def walk_beginnings(needs: Needs, walk: Walk, first: int, steps: int, seed: int) -> bool:
    """Take steps of a walk; return whether no batch takes too much.

    Parameters
    ----------
    first, steps
        The number of the first step, and how many there are at most.
    seed
        Of all random choices.
    """
    np.random.seed(seed)
    output, alike = needs.output, needs.alike
    begin, until = walk.begin, walk.until
    requests, batches = until.shape
    for step in range(first, first + steps):
        crowded = _crowded(needs, walk)
        if crowded < 0:
            return True
        best, alternatives = _NEVER, 0
        one, other, one_at, other_at = -1, -1, 0, 0
        for r in range(requests):
            if not begin[r] <= crowded < begin[r] + output[r] or np.random.random() < _SKIPPED:
                continue
            without = _put(needs, walk, r, begin[r], -1)
            for at in range(batches - output[r] + 1):
                if at == begin[r] or until[r, at] > step:
                    continue
                cost = without + _put(needs, walk, r, at, 1)
                _put(needs, walk, r, at, -1)
                if cost <= best + _ALIKE:
                    alternatives = alternatives + 1 if cost >= best - _ALIKE else 1
                    if np.random.randint(alternatives) == 0:
                        best, one, one_at, other = cost, r, at, -1
            for q in range(requests):
                if alike[q] == alike[r]:
                    continue
                without_both = without + _put(needs, walk, q, begin[q], -1)
                for ends in range(2):
                    # They change places: each begins where the other did, or ends there.
                    at, there = begin[q], begin[r]
                    if ends:
                        at, there = at + output[q] - output[r], there + output[r] - output[q]
                    if min(at, there) < 0 or at + output[r] > batches or there + output[q] > batches:
                        continue
                    if until[r, at] > step or until[q, there] > step or (ends and output[q] == output[r]):
                        continue
                    cost = without_both + _put(needs, walk, r, at, 1) + _put(needs, walk, q, there, 1)
                    _put(needs, walk, q, there, -1)
                    _put(needs, walk, r, at, -1)
                    if cost <= best + _ALIKE:
                        alternatives = alternatives + 1 if cost >= best - _ALIKE else 1
                        if np.random.randint(alternatives) == 0:
                            best, one, one_at, other, other_at = cost, r, at, q, there
                _put(needs, walk, q, begin[q], 1)
            _put(needs, walk, r, begin[r], 1)
        if one >= 0:
            _move(needs, walk, one, one_at, step)
        if other >= 0:
            _move(needs, walk, other, other_at, step)
        if best > -_ALIKE:
            _raise_prices(needs, walk)
    return _crowded(needs, walk) < 0


@compiled_part
def _crowded(needs: Needs, walk: Walk) -> int:
    """Return one of the batches that take too much, dear ones more often; −1 if none does."""
    limits, batches = walk.load.shape
    total = 0.0
    for i in range(limits):
        for t in range(batches):
            if walk.load[i, t] > needs.limit[i]:
                total += walk.price[i, t]
    left, crowded = np.random.random() * total, -1
    for i in range(limits):
        for t in range(batches):
            if walk.load[i, t] > needs.limit[i] and left >= 0:
                left -= walk.price[i, t]
                crowded = t
    return crowded


@compiled_part
def _put(needs: Needs, walk: Walk, request: int, at: int, sign: int) -> float:
    """Let a request begin in a batch, or no longer with the sign −1; return what that costs more."""
    cost = 0.0
    for i in range(len(needs.limit)):
        limit, price = needs.limit[i], walk.price[i]
        for k in range(needs.output[request]):
            before = walk.load[i, at + k]
            after = before + sign * needs.use[i, request, k]
            walk.load[i, at + k] = after
            cost += price[at + k] * (max(0, after - limit) - max(0, before - limit))
    return cost


@compiled_part
def _move(needs: Needs, walk: Walk, request: int, at: int, step: int) -> None:
    before = walk.begin[request]
    _put(needs, walk, request, before, -1)
    _put(needs, walk, request, at, 1)
    walk.until[request, before] = step + _TABU + np.random.randint(_TABU)
    walk.begin[request] = at


@compiled_part
def _raise_prices(needs: Needs, walk: Walk) -> None:
    """Raise the prices where batches take too much, and then all so that they are 1 on average."""
    limits, batches = walk.load.shape
    total = 0.0
    for i in range(limits):
        for t in range(batches):
            if walk.load[i, t] > needs.limit[i]:
                walk.price[i, t] *= _DEARER
            total += walk.price[i, t]
    share = limits * batches / total
    for i in range(limits):
        for t in range(batches):
            walk.price[i, t] *= share
