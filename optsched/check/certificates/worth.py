"""Certificates of kind ``worth``: the makespan of equal machines, of which one serves its part of what is worth most.

The certificate has ``release_ps``, an arrival t0, ``worths``, an integer ≥ 0 for every request of the instance, 0 if it
arrives before t0, and ``ranges`` of numbers of batches. Each entry of these has ``last``, where it ends, and begins
after the one before, the first at 1; the last one has null and no end. An entry has ``memory_ps``, an integer ≥ 0, and
``rates``, a list of objects with ``weight``, an integer ≥ 0, and ``piece_weights`` and ``prefill_step_ps`` as in kind
``machine``. The certificate may have ``ramps``, a list of objects with ``prefill_step_ps``, perhaps ``prompts``, and
the terms of one entry of ``prices`` as in kind ``ramp``; then an entry of ranges may have ``ramps``, too: a list of
objects with ``weight`` and ``ramp``, a place in that list.

All requests that count are served, so one of R machines serves some that are worth at least the R-th part of all. Say
that it has J batches from the first run of one of them to the last end, within a time Z. J is in one of the ranges. No
request on this machine takes more batches than the range allows. By each rate Z is at least J times its base and what
the requests take besides (kind ``volume``), and what they hold, summed over batches, is at most J times the blocks of
the cache. So with weights, whose sum is W, and the price of memory g, ::

    W Z ≥ J (Σ weight base - g) + Σ (Σ weight own + g held / blocks)  over what it serves.

The first term is least at one end of the range; in a range without an end its factor must not be negative. By the
prices of a ramp, too, Z is at least what its layers leave, the sum of G over min(J, H) of them and, as the repeated
layer stands for J - H more batches, as many times its G, and what the requests on this machine take: attention, and
D(J), the least that each pays up to layer min(J, H). See kind ``ramp``, which is about one machine, what it serves,
and whatever else has arrived before t0. D(J) is at least D of the range's end, as it does not increase; without a
repeated layer the range has to end by H. So each ramp adds its weight times the former to the first term, and times
the latter to the second; the first is then affine in J from H on. What the
machine serves is worth no more than the second term and, over all requests that it might serve, what these are worth
beyond their part of it. If W = 0, the inequality has to be false for every Z. The bound is the least Z of all ranges.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any, NamedTuple

from optsched.check.certificates.shared.guard import require_size
from optsched.check.certificates.shared.layers import (
    MOST_LAYERS,
    MOST_STEPS,
    Layers,
    attention_ps,
    computed_together,
    groups_of,
)
from optsched.check.certificates.shared.work import blocks_held, own_ps, rate_of, require_blocks, step_of
from optsched.check.problem import Problem, problem_of
from optsched.check.reading import UnprovedError, shown
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions

MOST_TERMS = 20_000_000
"""Requests times rates of all ranges beyond which nothing is computed."""


def worth_bound(machines: Sequence[Instance], objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return the bound of a ``worth`` certificate; ``machines`` are their problems with all requests each."""
    if objective is not Objective.MAKESPAN:
        raise UnprovedError(f"kind worth bounds the makespan, the objective is {objective.value}")
    if any(
        (each.limits, each.rules, each.cost) != (machines[0].limits, machines[0].rules, machines[0].cost)
        for each in machines
    ):
        raise UnprovedError("kind worth is for equal machines")
    problem = problem_of(machines[0], Restrictions())
    require_blocks(problem)
    release = certificate.get("release_ps")
    if type(release) is not int or all(request.arrival_ps != release for request in problem.requests):
        raise UnprovedError(f"release_ps is {shown(release)}, expected the arrival time of a request")
    counts = _counts(problem, release, certificate.get("worths"))
    ranges = list(_ranges(certificate.get("ranges")))
    terms = len(counts) * sum(1 + len(range_.stated["rates"]) for range_ in ranges)
    if terms > MOST_TERMS:
        raise UnprovedError(f"ranges concern {terms} terms of requests, more than {MOST_TERMS}")
    used = _ramps(problem, counts, ranges, certificate.get("ramps", []))
    listed = sum(max(0, ramp.count - range_.first) for range_, of in zip(ranges, used, strict=True) for _, ramp in of)
    if listed > MOST_TERMS:
        raise UnprovedError(f"ranges concern {listed} layers of ramps, more than {MOST_TERMS}")
    times = [_least_time(problem, counts, len(machines), range_, of) for range_, of in zip(ranges, used, strict=True)]
    known = [time for time in times if time is not None]
    if not known:
        raise UnprovedError("ranges leave no number of batches, expected a bound from one of them")
    return release - min(request.arrival_ps for request in problem.requests) + max(0, min(known))


def _counts(problem: Problem, release: int, stated: object) -> Counter[tuple[int, int, int]]:
    """Return how many requests there are of every prompt, output and worth."""
    if not isinstance(stated, list) or len(stated) != len(problem.requests) or not all(map(_is_amount, stated)):
        raise UnprovedError(f"worths is {shown(stated)}, expected {len(problem.requests)} integers ≥ 0")
    found: Counter[tuple[int, int, int]] = Counter()
    for request, worth in zip(problem.requests, stated, strict=True):
        if request.arrival_ps >= release:
            found[request.input, request.output, worth] += 1
        elif worth:
            raise UnprovedError(f"worths has {worth} for a request that arrives before release_ps, expected 0")
    if not any(worth for _, _, worth in found):
        raise UnprovedError("worths are all 0, expected one that is more")
    return found


class _Range(NamedTuple):
    """Numbers of batches from ``first`` to ``last``, which may be None, and what is stated of them."""

    first: int
    last: int | None
    stated: Mapping[str, Any]


def _ranges(stated: object) -> Iterator[_Range]:
    """Yield the ranges, which follow each other."""
    if not isinstance(stated, list) or not stated:
        raise UnprovedError(f"ranges is {shown(stated)}, expected a list of objects")
    first = 1
    for place, entry in enumerate(stated):
        if not isinstance(entry, dict) or not isinstance(entry.get("rates"), list):
            raise UnprovedError(f"ranges has {shown(entry)}, expected an object with a list of rates")
        last = entry.get("last")
        if place + 1 == len(stated):
            if last is not None:
                raise UnprovedError(f"last of the last range is {shown(last)}, expected null")
            yield _Range(first, None, entry)
            return
        if type(last) is not int or last < first:
            raise UnprovedError(f"last is {shown(last)}, expected an integer ≥ {first}")
        yield _Range(first, last, entry)
        first = last + 1


def _least_time(
    problem: Problem,
    counts: Mapping[tuple[int, int, int], int],
    machines: int,
    range_: _Range,
    used: Sequence[tuple[int, _Ramp]],
) -> int | None:
    """Return the least Z of a range; None if no machine with that many batches serves what is worth enough."""
    first, last, entry = range_
    memory = entry.get("memory_ps")
    if not _is_amount(memory):
        raise UnprovedError(f"memory_ps is {shown(memory)}, expected an integer ≥ 0")
    assert isinstance(memory, int)
    rates = []
    for stated in entry["rates"]:
        if not isinstance(stated, dict) or not _is_amount(stated.get("weight")):
            raise UnprovedError(f"rates has {shown(stated)}, expected an object with a weight, an integer ≥ 0")
        rates.append(
            (int(stated["weight"]), rate_of(problem, stated.get("piece_weights"), stated.get("prefill_step_ps")))
        )
    each = sum(weight * (rate.base // rate.scale) for weight, rate in rates) - memory
    if last is None and each + sum(weight * ramp.each for weight, ramp in used) < 0:
        raise UnprovedError(f"memory_ps is {memory} in the range without an end, more than the bases of its rates")
    # Beyond the layers of all ramps it is affine in the number of batches.
    layers = max((ramp.count for _, ramp in used), default=1)
    numbers = {*range(first, min(layers, last or layers)), max(first, layers), last or max(first, layers)}
    batches: int = min(
        J * each + sum(weight * ramp.left(J) for weight, ramp in used)
        for J in numbers
        if first <= J and (last is None or last >= J)
    )
    beyond = 0
    for (prompt, output, worth), count in counts.items():
        if last is not None and problem.fewest_steps(prompt) + output - 1 > last:
            continue
        cost = sum(weight * (own_ps(problem, prompt, output, rate) // rate.scale) for weight, rate in rates)
        cost += memory * blocks_held(problem, prompt, output) // problem.blocks
        cost += sum(weight * ramp.taken(prompt, output, last) for weight, ramp in used)
        beyond += count * max(0, worth - cost)
    needed = Fraction(sum(worth * count for (_, _, worth), count in counts.items()), machines) + batches - beyond
    weights = sum(weight for weight, _ in (*rates, *used))
    if weights:
        return -(-needed.numerator // (needed.denominator * weights))
    if needed <= 0:
        raise UnprovedError(f"a range up to {shown(last)} has no weight and says nothing, expected what it proves")
    return None


def _used(range_: _Range, count: int) -> list[tuple[int, int]]:
    """Return the weights of ramps in a range, and their places among ``count`` of them."""
    found, stated = [], range_.stated.get("ramps", [])
    if not isinstance(stated, list):
        raise UnprovedError(f"ramps of a range is {shown(stated)}, expected a list of objects")
    for entry in stated:
        if not isinstance(entry, dict) or not _is_amount(entry.get("weight")):
            raise UnprovedError(f"ramps has {shown(entry)}, expected an object with a weight, an integer ≥ 0")
        if not _is_amount(entry.get("ramp")) or entry["ramp"] >= count:
            raise UnprovedError(f"ramp is {shown(entry.get('ramp'))}, expected a place in ramps, less than {count}")
        found.append((int(entry["weight"]), int(entry["ramp"])))
    return found


class _Ramp:
    """What prices of layers prove of a machine with numbers of batches from some ranges, whatever it serves."""

    def __init__(self, problem: Problem, stated: Mapping[str, Any], ranges: Sequence[_Range]) -> None:
        self._problem, self._step = problem, step_of(problem, stated.get("prefill_step_ps"))
        self._prompts, self._layers = stated.get("prompts"), Layers(problem, stated, self._step)
        self.count = self._layers.count
        self.each = self._layers.of_repeated() // self._layers.scale
        if any(last is None or last > self.count for _, last, _ in ranges) and self._layers.repeated is None:
            raise UnprovedError(f"ramps has one of {self.count} layers, of which none repeats, for a longer range")
        self._ends = {self._end(last) for _, last, _ in ranges}
        lasts = [last for _, last, _ in ranges]
        self._longest = None if None in lasts else max((last for last in lasts if last is not None), default=0)
        self._left: list[int] = []
        self._sizes: list[int] = []
        self._paid: dict[tuple[int, int], list[int]] = {}

    def _end(self, last: int | None) -> int:
        return self.count if last is None else min(last, self.count)

    def compute(self, counts: Mapping[tuple[int, int, int], int], room: int) -> int:
        """Compute what layers leave and requests pay; return for how many tokens in layers, at most ``room``."""
        problem = self._problem
        self._left = list(accumulate(self._layers.rooms()))
        shapes = {
            (prompt, output): 1
            for prompt, output, _ in counts
            if self._longest is None or problem.fewest_steps(prompt) + output - 1 <= self._longest
        }
        if not shapes:
            return 0
        groups = groups_of(problem, shapes, self._prompts)
        steps = (sum(len(group.numbers) for group in groups) + 1) * self.count
        if steps > room:
            raise UnprovedError(f"ramps concern more than {MOST_STEPS} tokens in layers")
        for part in computed_together(groups):
            for layer, paid in enumerate(self._layers.paid(part), start=1):
                for group, of_group in zip(part, paid.tolist() if layer in self._ends else [], strict=False):
                    self._paid[group.prompt, layer] = of_group
        self._sizes = [group.prompt for group in groups]
        return steps

    def left(self, batches: int) -> int:
        """Return what layers leave of a number of batches, at least."""
        scale, more = self._layers.scale, max(0, batches - self.count)
        return self._left[min(batches, self.count) - 1] // scale + more * self.each

    def taken(self, prompt: int, output: int, last: int | None) -> int:
        """Return what a request takes, at least, by the last number of batches of a range."""
        place, layer = bisect_left(self._sizes, prompt), self._end(last)
        high = self._sizes[place]
        paid = Fraction(self._paid[high, layer][output - 1])
        if high != prompt:
            low = self._sizes[place - 1]
            less = self._paid[low, layer][output - 1]
            paid = Fraction((high - prompt) * less + (prompt - low) * paid, high - low)
        return attention_ps(self._problem, prompt, output, self._step) + paid // self._layers.scale


def _ramps(
    problem: Problem, counts: Mapping[tuple[int, int, int], int], ranges: Sequence[_Range], stated: object
) -> list[list[tuple[int, _Ramp]]]:
    """Return the ramps of every range with their weights, and with what requests pay there."""
    if not isinstance(stated, list) or not all(isinstance(entry, dict) for entry in stated):
        raise UnprovedError(f"ramps is {shown(stated)}, expected a list of objects")
    used = [_used(range_, len(stated)) for range_ in ranges]
    if stated and problem.swap:
        raise UnprovedError("ramps do not cover swapping, which is allowed")
    if stated:
        require_size("ramp", problem)
    users: list[list[_Range]] = [[] for _ in stated]
    for range_, of in zip(ranges, used, strict=True):
        for place in {place for _, place in of}:
            users[place].append(range_)
    found, room = [_Ramp(problem, entry, of) for entry, of in zip(stated, users, strict=True)], MOST_STEPS
    layers = sum(ramp.count for ramp in found)
    if layers > MOST_LAYERS:
        raise UnprovedError(f"ramps have {layers} layers, more than {MOST_LAYERS}")
    for ramp in found:
        room -= ramp.compute(counts, room)
    return [[(weight, found[place]) for weight, place in of] for of in used]


def _is_amount(stated: object) -> bool:
    return type(stated) is int and stated >= 0
