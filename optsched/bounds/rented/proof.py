"""What integer prices of windows and rents prove, counted token by token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np

from optsched.bounds.own import BatchTurn, batch_turns, least_left, may_refill
from optsched.bounds.rented.programme import Dual
from optsched.bounds.rented.tenants import Tenants
from optsched.model.instance import Instance, Limits
from optsched.model.ints import Ints

_SCALE = 1 << 16
"""What a price of one is in integers."""
_MOST = 1 << 62
"""All numbers in arrays stay below."""
_MOST_CELLS = 50_000_000
"""Tokens of a group times windows that are looked at."""
_SPARE = 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1.0
"""Shares by which prices are lower than those of the programme, which is solved to about 1e-7: the first that do."""


@dataclass(frozen=True)
class Window:
    """Prices in a window, × scale: of a ps, of a token held, run, and run by a prefill, and of a run."""

    time: int
    memory: int
    tokens: int
    prefill_tokens: int
    runs: int

    def left(self, limits: Limits, batches: Iterable[BatchTurn]) -> int:
        """Return what they leave of a batch: G."""
        held = limits.kv_blocks * limits.kv_block
        room = self.memory * held + self.runs * (limits.batch_requests or 0)
        return least_left(batches, self.time, self.tokens, self.prefill_tokens) - room


@dataclass(frozen=True)
class Lease:
    """Integer prices and rents that the theorem allows.

    Parameters
    ----------
    tenants
        Windows and groups.
    step_ps
        φ, of a prefill step.
    windows
        Prices.
    rents
        Of every group, from its first window on.
    """

    tenants: Tenants
    step_ps: int
    windows: tuple[Window, ...]
    rents: tuple[tuple[int, ...], ...]

    @property
    def certificate(self) -> dict[str, Any]:
        """What `optsched.check` needs to recompute the bound."""
        names = ("time", "memory", "tokens", "prefill_tokens", "runs")
        rows = {name: [getattr(window, name) for window in self.windows] for name in names}
        return {
            "kind": "inflow",
            "prefill_step_ps": self.step_ps,
            "starts": list(self.tenants.starts),
            **{name: row for name, row in rows.items() if name == "time" or any(row)},
            "groups": list(self.tenants.groups),
            "rents": [list(of_group) for of_group in self.rents],
        }

    def value(self) -> int | None:
        """Return the makespan that is proved, in ps; None if that takes more than 64 bits or too long."""
        taken = 0
        for group in range(len(self.rents)):
            of_group = self._taken(group)
            if of_group is None:
                return None
            taken += of_group
        starts = self.tenants.starts
        for window, (begin, end) in zip(self.windows, pairwise(starts), strict=False):
            spent = window.time * (end - begin)
            if spent >= taken:
                return begin - (-taken // window.time if taken else 0)
            taken -= spent
        return starts[-1] - (-taken // self.windows[-1].time)

    def _taken(self, group: int) -> int | None:
        """Return what the requests of a group take, × scale."""
        instance, members = self.tenants.instance, self.tenants.members[group]
        cost = instance.cost
        here = list(zip(self.windows[self.tenants.first[group] :], self.rents[group], strict=True))
        steps = [window.time * self.step_ps + window.runs + rent for window, rent in here]
        by_token = [window.tokens + window.prefill_tokens + window.memory for window, _ in here]
        square = min(window.time for window, _ in here) * cost.prefill_sq
        fill = partial(_fill, instance, set(zip(steps, by_token, strict=True)), square)
        fills = sum(map(fill, (request.input for request in members)))
        begin = min(request.input for request in members) + 1
        end = max(request.peak_tokens for request in members)
        if end < begin:
            return fills
        decode = cost.decode_req - cost.decode_kv
        fixed = [window.tokens + window.runs + rent + window.time * decode for window, rent in here]
        slopes = [window.memory + window.time * cost.decode_kv for window, _ in here]
        most = max(map(abs, fixed)) + max(slopes) * end
        if most >= _MOST or (end - begin + 1) * len(here) > _MOST_CELLS:
            return None
        decodes = _least(fixed, slopes, begin, end)
        if int(decodes[-1]) * len(decodes) >= _MOST:
            return None
        sums = np.concatenate([[0], np.cumsum(decodes)])
        taken = fills
        for request in members:
            first, last = request.input + 1 - begin, request.peak_tokens + 1 - begin
            if first == last:
                continue
            if not may_refill(instance, request.input + 1) or decodes[last - 1] <= fill(request.input + 1):
                taken += int(sums[last] - sums[first])
            else:
                taken += sum(
                    min(decoded, fill(tokens)) if may_refill(instance, tokens) else decoded
                    for tokens, decoded in enumerate(decodes[first:last].tolist(), start=request.input + 1)
                )
        return taken


def _least(fixed: Sequence[int], slopes: Sequence[int], begin: int, end: int) -> Ints:
    """Return the least of lines at integers from ``begin`` to ``end``."""
    places = np.arange(begin, end + 1, dtype=np.int64)
    least = np.full(len(places), np.iinfo(np.int64).max)
    for one, slope in sorted(set(zip(fixed, slopes, strict=True))):
        np.minimum(least, one + slope * places, out=least)
    return least


def _fill(instance: Instance, ways: Iterable[tuple[int, int]], square: int, tokens: int) -> int:
    """Return what a fill takes, × scale, of windows in which steps and tokens take their part, and squares."""
    most = min(instance.limits.prefill_tokens, tokens) if instance.rules.chunked_prefill else tokens
    return min(token * tokens + step * tokens // most for step, token in ways) + square * tokens**2


def lease(tenants: Tenants, step_ps: int, dual: Dual) -> Lease | None:
    """Return the integers nearest to some prices that the theorem allows; None if time has no price in the end."""
    limits, (decodes, prefills) = tenants.instance.limits, batch_turns(tenants.instance, step_ps)
    batches = [*decodes, *prefills]
    rows = zip(dual.memory, dual.tokens, dual.prefill_tokens, dual.runs, strict=True)
    windows = tuple(
        _allowed(limits, batches, ceil(time * _SCALE), *(float(price) * _SCALE for price in row))
        for time, row in zip(dual.time.tolist(), rows, strict=True)
    )
    if not windows[-1].time:
        return None
    lefts = [window.left(limits, batches) for window in windows]
    asked = [0.0] * len(windows)
    for first, members, rents in zip(tenants.first, tenants.members, dual.rents, strict=True):
        for window, rent in enumerate(rents.tolist(), start=first):
            asked[window] += len(members) * rent * _SCALE
    shares = [
        min(1.0, left / rent) * (1 - _SPARE[0]) if rent > 0 else 0.0 for left, rent in zip(lefts, asked, strict=True)
    ]
    exact = tuple(
        tuple(int(rent * _SCALE * shares[window]) for window, rent in enumerate(of_group.tolist(), start=first))
        for first, of_group in zip(tenants.first, dual.rents, strict=True)
    )
    return Lease(tenants, step_ps, windows, exact)


def _allowed(limits: Limits, batches: Sequence[BatchTurn], time: int, *prices: float) -> Window:
    """Return prices in a window, as high as what a batch has allows."""
    lower = (Window(time, *(int(price * (1 - share)) for price in prices)) for share in _SPARE)
    return next(window for window in lower if window.left(limits, batches) >= 0)
