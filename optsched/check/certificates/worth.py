"""Certificates of kind ``worth``: the makespan of equal machines, of which one serves its part of what is worth most.

The certificate has ``release_ps``, an arrival t0, ``worths``, an integer ≥ 0 for every request of the instance, 0 if it
arrives before t0, and ``ranges`` of numbers of batches. Each entry of these has ``last``, where it ends, and begins
after the one before, the first at 1; the last one has null and no end. An entry has ``memory_ps``, an integer ≥ 0, and
``rates``, a list of objects with ``weight``, an integer ≥ 0, and ``piece_weights`` and ``prefill_step_ps`` as in kind
``machine``.

All requests that count are served, so one of R machines serves some that are worth at least the R-th part of all. Say
that it has J batches from the first run of one of them to the last end, within a time Z. J is in one of the ranges. No
request on this machine takes more batches than the range allows. By each rate Z is at least J times its base and what
the requests take besides (kind ``volume``), and what they hold, summed over batches, is at most J times the blocks of
the cache. So with weights, whose sum is W, and the price of memory g, ::

    W Z ≥ J (Σ weight base - g) + Σ (Σ weight own + g held / blocks)  over what it serves.

The first term is least at one end of the range; in a range without an end its factor must not be negative. What the
machine serves is worth no more than the second term and, over all requests that it might serve, what these are worth
beyond their part of it. If W = 0, the inequality has to be false for every Z. The bound is the least Z of all ranges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from optsched.check.certificates.shared.work import blocks_held, own_ps, rate_of, require_blocks
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
    times = [_least_time(problem, counts, len(machines), range_) for range_ in ranges]
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
    if last is None and each < 0:
        raise UnprovedError(f"memory_ps is {memory} in the range without an end, more than the bases of its rates")
    batches = first * each if last is None else min(first * each, last * each)
    beyond = 0
    for (prompt, output, worth), count in counts.items():
        if last is not None and problem.fewest_steps(prompt) + output - 1 > last:
            continue
        cost = sum(weight * (own_ps(problem, prompt, output, rate) // rate.scale) for weight, rate in rates)
        cost += memory * blocks_held(problem, prompt, output) // problem.blocks
        beyond += count * max(0, worth - cost)
    needed = Fraction(sum(worth * count for (_, _, worth), count in counts.items()), machines) + batches - beyond
    weights = sum(weight for weight, _ in rates)
    if weights:
        return -(-needed.numerator // (needed.denominator * weights))
    if needed <= 0:
        raise UnprovedError(f"a range up to {shown(last)} has no weight and says nothing, expected what it proves")
    return None


def _is_amount(stated: object) -> bool:
    return type(stated) is int and stated >= 0
