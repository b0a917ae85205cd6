"""Windows of time, groups of requests with the same rents, and what they take on average."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from optsched.model.instance import Instance, Request

_RATIO = 1.1
"""Outputs of a group differ by less than this factor: rents are of the time that a request has to be there."""
FEW = 64
"""Of no more requests each is a group of its own."""
_CUTS = 4
"""Parts of the decodes of a request of which each counts as holding what they hold on average."""
_MOST_PIECES, _ALL_PIECES = 16, 512
"""Parts of the decodes of a single request that may run in different windows, and of all of them."""


def _bins(requests: int) -> int:
    """Return into how many parts what some requests of a group take is cut, by what it holds."""
    return 1 + (requests.bit_length() - 1) // 2


class Activity(NamedTuple):
    """Runs of a group that count as alike in the linear programme.

    ``number`` of them, each of ``tokens`` tokens, by a prefill or not; ``held`` after it, and its attention in ps.
    """

    group: int
    number: float
    tokens: float
    is_prefill: bool
    held: float
    attention_ps: float


@dataclass(frozen=True)
class Tenants:
    """Requests in groups, over windows.

    Parameters
    ----------
    instance
        What is served.
    starts
        Begins of windows, ps since the earliest arrival, ascending from 0; the last one does not end.
    groups
        The group of every request.
    """

    instance: Instance
    starts: tuple[int, ...]
    groups: tuple[int, ...]

    @cached_property
    def members(self) -> tuple[tuple[Request, ...], ...]:
        """Requests of every group."""
        found: list[list[Request]] = [[] for _ in range(max(self.groups) + 1)]
        for request, group in zip(self.instance.requests, self.groups, strict=True):
            found[group].append(request)
        return tuple(map(tuple, found))

    @cached_property
    def first(self) -> tuple[int, ...]:
        """The window of the earliest arrival of every group."""
        origin = self.instance.start_ps
        arrivals = (min(request.arrival_ps for request in members) - origin for members in self.members)
        return tuple(bisect_right(self.starts, arrival) - 1 for arrival in arrivals)

    def activities(self, step_ps: int) -> Iterator[Activity]:
        """Yield what every group takes, if a prefill step takes φ."""
        cost = self.instance.cost
        alone = len(self.groups) <= FEW
        pieces = min(_MOST_PIECES, _ALL_PIECES // len(self.groups))
        for group, members in enumerate(self.members):
            bins = _bins(len(members))
            for prompts in np.array_split(np.sort([request.input for request in members]), bins):
                fill = float(np.mean(cost.prefill_sq * prompts.astype(np.float64) ** 2 + step_ps))
                prompt = float(prompts.mean())
                yield Activity(group, len(prompts), prompt, True, prompt, fill)
            for number, held in _decodes(members, *((pieces, pieces) if alone else (_CUTS, 1 + bins))):
                attention = cost.decode_kv * (held - 1) + cost.decode_req
                yield Activity(group, number, 1.0, False, held, attention)


def _decodes(members: Sequence[Request], cuts: int, bins: int) -> Iterator[tuple[float, float]]:
    """Yield parts of the decodes of some requests, each cut first: how many, and what they hold on average."""
    parts = []
    for request in members:
        decodes = request.output - 1
        places = sorted({decodes * cut // cuts for cut in range(cuts + 1)})
        parts += [(request.input + (first + last + 1) / 2, last - first) for first, last in pairwise(places)]
    if not parts:
        return
    held, number = np.array(sorted(parts), dtype=np.float64).T
    place = np.minimum((np.cumsum(number) - number / 2) / number.sum() * bins, bins - 0.5).astype(int)
    for piece in np.unique(place):
        here = place == piece
        yield float(number[here].sum()), float(np.average(held[here], weights=number[here]))


def tenants(instance: Instance, starts: Sequence[int]) -> Tenants:
    """Return groups for some windows: single requests if they are few, else alike in window and output."""
    if len(instance.requests) <= FEW:
        return Tenants(instance, tuple(starts), tuple(range(len(instance.requests))))
    numbers: dict[tuple[int, int], int] = {}
    groups, origin = [], instance.start_ps
    for request in instance.requests:
        window = bisect_right(starts, request.arrival_ps - origin) - 1
        key = window, int(np.log(request.output) / np.log(_RATIO))
        groups.append(numbers.setdefault(key, len(numbers)))
    return Tenants(instance, tuple(starts), tuple(groups))
