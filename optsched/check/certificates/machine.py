"""Certificates of kind ``machine``: requests share the time of one machine that may be preempted."""

from __future__ import annotations

from bisect import insort_left
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import partial
from math import floor
from typing import Any, NamedTuple

from optsched.check.certificates.alone import latencies_alone
from optsched.check.certificates.shared.work import (
    Rate,
    are_weights,
    blocks_held,
    combination_of,
    own_ps,
    prefill_rate_of,
    rate_of,
    require_blocks,
)
from optsched.check.problem import Problem, tokens_ps
from optsched.check.reading import UnprovedError, shown
from optsched.model.instance import Request
from optsched.model.objectives import Latency, Objective

_RESOURCES = ("memory", "tokens", "runs")


class _Job(NamedTuple):
    """A request on the machine: when it arrives, what it needs, its weight, and the least latency of it alone.

    ``rest`` is what is left of it at its mean busy time at least, times twice its need.
    """

    arrival: int
    need: int
    weight: int
    alone: int
    rest: int


def machine_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return the bound of a ``machine`` certificate.

    The certificate has ``piece_weights``, one integer ≥ 0 for each affine piece of the batch time and not all 0, and
    ``prefill_step_ps``; and ``share_weights`` with an integer ≥ 0 for ``memory``, ``tokens`` and ``runs`` each, not all
    0, runs 0 if there is no limit on them. By the first two (`rate_of`) a batch lasts at least a base, and something
    for every token and its attention. Let every batch give its base to what it does: a share a of it in proportion to
    the blocks that requests hold which generate a token, of all blocks there are; a share b in proportion to tokens
    that are run for the first time, of C; and c in proportion to runs, of the N that are allowed; a + b + c = 1. It
    never gives more than it has. A request is given in all what `_need` says or more, and none of it before it arrives.
    With ``decode_weights`` batches without prefill steps are taken to last as another combination of pieces says, which
    they do, whatever the first leaves them; what a decode is given is then the lesser of two (`_need_of_kinds`).
    So one machine that is preempted at will can give each request its need until it ends in the schedule, for TTFT
    until its first token.

    On such a machine, the least work left first makes as many end by any moment as possible; so the i-th end of any
    schedule is no earlier than the i-th there, nor than the i-th smallest arrival + latency alone. First come, first
    served makes the largest latency least, and the last end. And for a weighted sum the ends are no earlier than mean
    busy time and what is left of the request then (`_rest`), and w / need first, of equal ones the first to come, makes
    the weighted sum of mean busy times least; every request's part is rounded down. With weights of 1 that bounds sums
    of e2e latencies, too.
    """
    latencies = latencies_alone(problem)
    first = objective.latency is Latency.TTFT
    start = min(request.arrival_ps for request in problem.requests)
    needs = needs_of(problem, certificate, [1 if first else request.output for request in problem.requests])
    rests, jobs = [need**2 for need in needs], []
    if objective in {Objective.MEAN_E2E, Objective.WEIGHTED_E2E}:
        until = [needs_of(problem, certificate, [min(r.output, k) for r in problem.requests]) for k in (1, 2)]
        rests = [_rest(problem, *known) for known in zip(problem.requests, needs, *until, strict=True)]
    for request, need, (ttft, e2e), rest in zip(problem.requests, needs, latencies, rests, strict=True):
        weight = request.weight if objective is Objective.WEIGHTED_E2E else 1
        jobs.append(_Job(request.arrival_ps - start, need, weight, ttft if first else e2e, rest))
    jobs.sort(key=lambda job: job.arrival)
    waited = sum(job.weight * job.arrival for job in jobs)
    if objective is Objective.WEIGHTED_E2E:
        return sum(_weighted_ends(jobs)) - waited
    if objective in {Objective.MEAN_TTFT, Objective.MEAN_E2E}:
        earliest = sorted(job.arrival + job.alone for job in jobs)
        ended = sum(max(pair) for pair in zip(earliest, _ends_shortest_first(jobs), strict=True))
        return max(ended, 0 if first else sum(_weighted_ends(jobs))) - waited
    clock, latest = 0, 0
    for job in jobs:
        clock = max(clock, job.arrival) + job.need
        latest = max(latest, clock - job.arrival)
    if objective is Objective.MAKESPAN:
        return clock
    if objective in {Objective.MAX_TTFT, Objective.MAX_E2E}:
        return latest
    raise UnprovedError(f"kind machine says nothing about {objective.value}")


def needs_of(problem: Problem, certificate: Mapping[str, Any], outputs: list[int]) -> list[int]:
    """Return what every request needs until it has generated ``outputs`` tokens, by the weights that are stated."""
    pieces, step = certificate.get("piece_weights"), certificate.get("prefill_step_ps")
    shares = _shares(problem, certificate.get("share_weights"))
    if "decode_weights" in certificate:
        base, token, scale = combination_of(problem, certificate["decode_weights"], "decode_weights")
        rates = prefill_rate_of(problem, pieces, step), Rate(base, token, token, 0, scale)
        need = partial(_need_of_kinds, problem, rates, shares)
    else:
        need = partial(_need, problem, rate_of(problem, pieces, step), shares)
    known: dict[tuple[int, int], int] = {}
    for request, output in zip(problem.requests, outputs, strict=True):
        if (request.input, output) not in known:
            known[request.input, output] = need(request.input, output)
    return [known[request.input, output] for request, output in zip(problem.requests, outputs, strict=True)]


def _shares(problem: Problem, stated: object) -> tuple[Fraction, ...]:
    """Return the shares of the base that a block, a token and a run are given."""
    listed: list[Any] = [stated.get(name) for name in _RESOURCES] if isinstance(stated, Mapping) else []
    if not are_weights(listed, 3) or (listed[2] and problem.runs is None):
        raise UnprovedError(f"share_weights is {shown(stated)}, expected integers ≥ 0 for memory, tokens and runs")
    require_blocks(problem)
    most = (problem.blocks, problem.limits.batch_tokens, problem.runs or 1)
    return tuple(Fraction(weight, sum(listed) * limit) for weight, limit in zip(listed, most, strict=True))


def _need(problem: Problem, rate: Rate, shares: tuple[Fraction, ...], prompt: int, output: int) -> int:
    """Return the least time that a request is given for its first tokens, rounded down."""
    used = (
        blocks_held(problem, prompt, output),
        prompt + output - 1,
        problem.fewest_steps(prompt) + output - 1,
    )
    given = sum((share * amount for share, amount in zip(shares, used, strict=True)), Fraction(0))
    return floor((own_ps(problem, prompt, output, rate) + rate.base * given) / rate.scale)


def _need_of_kinds(
    problem: Problem, rates: tuple[Rate, Rate], shares: tuple[Fraction, ...], prompt: int, output: int
) -> int:
    """Return the least time that a request is given by batches with prefill steps and without, rounded down.

    The first rate is of batches with one, the second of the others; a decode may be in either. Both give it a constant
    and a multiple of its blocks, besides its attention, so that up to some number of blocks one gives less, and from
    there on the other. A fill is a prefill step. The least one, of I + 1 tokens, may be given less for tokens than the
    last decode is by the first rate. Then every later token is taken to be given the least that the second one may be.
    """
    cost, block, (by_block, by_token, by_run) = problem.cost, problem.limits.kv_block, shares
    rate = rates[0]

    def filled(tokens: int) -> Fraction:
        steps = problem.fewest_steps(tokens)
        return Fraction(rate.prompt * tokens, rate.scale) + cost.prefill_sq * tokens**2 + rate.step * steps

    first, low, high = blocks_held(problem, prompt, 1), prompt + 1, prompt + output - 1
    given = by_block * first + by_token * prompt + by_run * problem.fewest_steps(prompt)
    total = filled(prompt) + rate.base * given / rate.scale
    if high < low:
        return floor(total)
    lines = [
        ((kind.prompt + kind.base * (by_token + by_run)) / kind.scale, kind.base * by_block / kind.scale)
        for kind in rates
    ]
    refills = problem.eviction and (problem.chunked or low <= problem.limits.prefill_tokens)
    if refills and filled(low) < Fraction(rate.prompt, rate.scale) + cost.decode_kv * (high - 1) + cost.decode_req:
        blocks = blocks_held(problem, low, 1)
        decode = min(constant + slope * blocks for constant, slope in lines)
        refill = filled(low) + rate.base * (by_block * blocks + by_token + by_run) / rate.scale
        each = min(decode + cost.decode_kv * prompt + cost.decode_req, refill)
        return floor(total + (output - 1) * each)
    (constant, slope), (other, steeper) = sorted(lines, key=lambda line: line[1])
    # The steeper one is less while it has fewer blocks than at the crossing.
    turn = floor((constant - other) / (steeper - slope)) * block if steeper > slope else high
    turn = min(max(turn, prompt), high)
    if steeper == slope:
        other = min(constant, other)
    total += (turn - prompt) * other + steeper * (blocks_held(problem, low, turn - prompt) if turn > prompt else 0)
    if turn < high:
        total += (high - turn) * constant + slope * blocks_held(problem, turn + 1, high - turn)
    read = ((high - 1) * high - (prompt - 1) * prompt) // 2
    return floor(total + cost.decode_kv * read + cost.decode_req * (output - 1))


def _rest(problem: Problem, request: Request, need: int, first: int, second: int) -> int:
    """Return what is left of a request at its mean busy time at least, times twice its need.

    ``first`` and ``second`` is what its first token, and its first two, are given at least. Count as much of what it is
    given, for each token no more than for that token, as its need. The first token is given ``first`` or more, at a
    rate of at most 1, so half of that before its end in the mean; and every later one at least as much as the second,
    more than ``second`` - ``first`` - 1. What is given for a token comes half a batch or more before the end of a batch
    in the mean, and no later than that token; after token k come O - k batches. None is shorter than one of one token.
    """
    batch, later = tokens_ps(problem.cost, 1), request.output - 1
    each = max(second - first - 1, 0)
    beyond = need - first - later * each
    halves = sum((first * 2 * later, each * later * later, beyond))
    return max(need**2, first**2 + batch * halves)


def _ends_shortest_first(jobs: list[_Job]) -> list[int]:
    """Return the ends on one machine if the least work left goes first, ascending."""
    ends: list[int] = []
    left: list[int] = []  # descending
    clock = 0
    for position, job in enumerate(jobs):
        clock = max(clock, job.arrival)
        insort_left(left, job.need, key=lambda need: -need)
        until = jobs[position + 1].arrival if position + 1 < len(jobs) else None
        while left and (until is None or clock + left[-1] <= until):
            clock += left.pop()
            ends.append(clock)
        if left and until is not None:
            left[-1] -= until - clock
            clock = until
    return ends


def _weighted_ends(jobs: list[_Job]) -> Iterator[int]:
    """Yield weight × (mean busy time + what is left then) of every job, rounded down, by weight per need."""
    waiting: list[tuple[Fraction, int]] = []  # descending: (need per weight, job)
    left = [job.need for job in jobs]
    squares = [0] * len(jobs)
    clock = 0
    for position, job in enumerate(jobs):
        clock = max(clock, job.arrival)
        if job.weight and job.need:
            insort_left(waiting, (Fraction(job.need, job.weight), position), key=lambda entry: -entry[0])
        elif job.weight:
            yield job.weight * job.arrival
        until = jobs[position + 1].arrival if position + 1 < len(jobs) else None
        while waiting and (until is None or clock < until):
            number = waiting[-1][1]
            spent = left[number] if until is None else min(left[number], until - clock)
            squares[number] += (clock + spent) ** 2 - clock**2
            clock += spent
            left[number] -= spent
            if not left[number]:
                waiting.pop()
                done = jobs[number]
                yield floor(done.weight * Fraction(squares[number] + done.rest, 2 * done.need))
