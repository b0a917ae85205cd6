r"""Certificates of kind ``inflow``: a makespan bound from prices of time, and rents of the requests that are there.

The certificate has ``starts``, ascending times in ps since the earliest arrival, from 0: the begins of *windows* 0, …,
K, of which the last does not end; prices in ps / ``scale`` for each of them, integers ≥ 0: ``time``, θ for a ps, not 0
in the last one, and, 0 where they are missing, ``memory``, λ for a token that a run holds after its step, ``tokens``,
μ for a token run, ``prefill_tokens``, ν more for one of a prefill step, and ``runs``, ρ; ``prefill_step_ps``, φ from 0
to prefill_req; ``groups``, which has a number of a group for each request; and ``rents``, which has for each group g
integers α_gk ≥ 0 for the windows k from that of its earliest arrival on, a_g.

*Batches pay.* Let B be the tokens that the KV cache holds in whole blocks, N the most runs of a batch, n_g the number
of requests of g, and G_k what kind ``ramp`` says that prices leave of any batch, with θ_k for its ``scale``. It is
required that ::

    G_k ≥ Σ_{g: a_g ≤ k} n_g α_gk.

So θ_k × the duration of a batch that lies in window k is no less than the sum over its runs, at most one of each
request that has arrived, of whose group a_g ≤ k, of ::

    θ_k attention + μ_k tokens + ν_k tokens of a prefill + λ_k tokens held + ρ_k + α_gk,                        (1)

with φ for the prefill_req of each prefill step. Of a batch that crosses windows take each for its part of the duration;
it begins after the arrivals of what it runs, so that all its windows are from a_g on.

*Requests.* A decode after which m tokens are held takes (1) of decode_kv (m - 1) + decode_req attention, at least the
minimum over windows k ≥ a_g, u_g(m): concave in m, and it rises. A fill of m tokens takes prefill steps of c_j ≤ q =
min(P, m) tokens each, q = m if prefills are whole, that add up to m; each holds c_j at least after its step, and its φ,
ρ and rent are no less than c_j / q of them. Their squares add up to m². So the fill takes no less than ::

    F_g(m) = min_{k ≥ a_g} ((μ_k + ν_k + λ_k) m + (θ_k φ + ρ_k + α_gk) m / q) + min_{k ≥ a_g} θ_k prefill_sq m².

A request takes a fill of I, and for each m = I + 1, …, I + O - 1 a decode, or, if it may be evicted, a fill of m: no
less than min(u_g(m), F_g(m)), which is u_g(m) for all of them if F_g(I + 1) is no less than u_g(I + O - 1), for both
rise. What else it runs is left out.

*Time.* Let W be the sum of what all take, and let the last batch end at Z, from the earliest arrival on. Batches do
not overlap, so that W is at most the integral of θ from 0 to Z. So Z is no less than the time at which it reaches W.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from optsched.check.certificates.shared.layers import ROWS, Prices, integers, left_of
from optsched.check.certificates.shared.work import require_blocks, step_of
from optsched.check.problem import Problem
from optsched.check.reading import UnprovedError, shown
from optsched.model.objectives import Objective

_MOST_RENTS = 4_000_000
"""Groups times windows that the checker is ready to look at."""


class _Line(NamedTuple):
    """What something takes of m tokens: ``fixed + slope · m``."""

    fixed: int
    slope: int


def inflow_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return the makespan bound of an ``inflow`` certificate; the module says why it holds."""
    if objective is not Objective.MAKESPAN:
        raise UnprovedError(f"kind inflow bounds the makespan, the objective is {objective.value}")
    require_blocks(problem)
    starts = integers("starts", certificate.get("starts"), 0, None)
    if starts[0] != 0 or any(first >= second for first, second in pairwise(starts)):
        raise UnprovedError(f"starts is {shown(starts)}, expected ascending numbers from 0")
    step = step_of(problem, certificate.get("prefill_step_ps"))
    windows = len(starts)
    rows = [integers("time", certificate.get("time"), 0, windows)]
    rows += [integers(name, certificate.get(name, [0] * windows), 0, windows) for name in ROWS]
    prices = [Prices(*of_window) for of_window in zip(*rows, strict=True)]
    if not prices[-1].time:
        raise UnprovedError("time is 0 in the last window, expected more")
    groups = _groups(problem, starts, certificate)
    _require_paid(problem, step, prices, groups)
    taken = sum(group.taken(problem, step, prices) for group in groups)
    for each, (start, end) in zip(prices, pairwise(starts), strict=False):
        if taken <= each.time * (end - start):
            return start - (-taken // each.time if taken else 0)
        taken -= each.time * (end - start)
    return starts[-1] - (-taken // prices[-1].time)


class _Group:
    """Requests with the same rents; ``first`` is the window of the earliest arrival, where ``rents`` begin."""

    def __init__(self, first: int, shapes: Mapping[tuple[int, int], int], rents: Sequence[int]) -> None:
        self.first, self._shapes, self.rents = first, shapes, rents
        self.number = sum(shapes.values())

    def taken(self, problem: Problem, step: int, prices: Sequence[Prices]) -> int:
        """Return what the requests take, × scale."""
        cost, here = problem.cost, list(zip(prices[self.first :], self.rents, strict=True))
        decode = _envelope(
            [
                _Line(
                    p.tokens + p.runs + rent + p.time * (cost.decode_req - cost.decode_kv),
                    p.memory + p.time * cost.decode_kv,
                )
                for p, rent in here
            ]
        )
        square = min(p.time for p, _ in here) * cost.prefill_sq
        chosen = {_ways(p, rent, step) for p, rent in here}

        def fill(tokens: int) -> int:
            most = min(problem.limits.prefill_tokens, tokens) if problem.chunked else tokens
            return min(way.slope * tokens + way.fixed * tokens // most for way in chosen) + square * tokens**2

        def of(prompt: int, output: int) -> int:
            first, last = prompt + 1, prompt + output - 1
            taken = fill(prompt)
            if output == 1:
                return taken
            if not problem.may_refill(first) or decode.at(last) <= fill(first):
                return taken + decode.total(first, last)
            tokens = range(first, last + 1)
            return taken + sum(min(decode.at(m), fill(m)) if problem.may_refill(m) else decode.at(m) for m in tokens)

        return sum(number * of(*shape) for shape, number in self._shapes.items())


def _ways(prices: Prices, rent: int, step: int) -> _Line:
    """Return what a prefill step in a window takes, by its tokens and for itself."""
    by_token = prices.tokens + prices.prefill_tokens + prices.memory
    return _Line(prices.time * step + prices.runs + rent, by_token)


class _Lowest:
    """The least of some lines, of which line i is the least from ``begins[i]`` on."""

    def __init__(self, lines: Sequence[_Line], begins: Sequence[int]) -> None:
        self._lines, self._begins = lines, begins

    def at(self, tokens: int) -> int:
        """Return the least for a number of tokens."""
        line = self._lines[bisect_right(self._begins, tokens) - 1]
        return line.fixed + line.slope * tokens

    def total(self, first: int, last: int) -> int:
        """Return the sum over numbers of tokens from ``first`` to ``last``."""
        total = 0
        place = bisect_right(self._begins, first) - 1
        while first <= last:
            line = self._lines[place]
            end = last if place + 1 == len(self._begins) else min(last, self._begins[place + 1] - 1)
            number = end - first + 1
            total += number * line.fixed + line.slope * (number * (first + end) // 2)
            first, place = end + 1, place + 1
        return total


def _envelope(lines: Sequence[_Line]) -> _Lowest:
    """Return the least of some lines at integers ≥ 1: slopes fall along it."""
    kept: list[_Line] = []
    begins: list[int] = []
    lowest = {line.slope: line for line in sorted(lines, reverse=True)}
    for slope in sorted(lowest, reverse=True):
        line, begin = lowest[slope], 1
        while kept:
            # The first integer at which this line is no more than the last one kept, whose slope is larger.
            begin = max(1, -((kept[-1].fixed - line.fixed) // (kept[-1].slope - slope)))
            if begin > begins[-1]:
                break
            kept.pop()
            begins.pop()
            begin = 1
        kept.append(line)
        begins.append(begin)
    return _Lowest(kept, begins)


def _groups(problem: Problem, starts: Sequence[int], certificate: Mapping[str, Any]) -> list[_Group]:
    numbers = integers("groups", certificate.get("groups"), 0, len(problem.requests))
    rents = certificate.get("rents")
    if not isinstance(rents, list) or set(numbers) != set(range(len(rents))):
        raise UnprovedError(f"rents is {shown(rents)}, expected a list with one for each group")
    if len(rents) * len(starts) > _MOST_RENTS:
        raise UnprovedError(f"groups × windows is more than {_MOST_RENTS}")
    origin = min(request.arrival_ps for request in problem.requests)
    shapes: list[Counter[tuple[int, int]]] = [Counter() for _ in rents]
    first = [len(starts)] * len(rents)
    for request, number in zip(problem.requests, numbers, strict=True):
        shapes[number][request.input, request.output] += 1
        first[number] = min(first[number], bisect_right(starts, request.arrival_ps - origin) - 1)
    return [
        _Group(begin, served, integers("rents", stated, 0, len(starts) - begin))
        for begin, served, stated in zip(first, shapes, rents, strict=True)
    ]


def _require_paid(problem: Problem, step: int, prices: Sequence[Prices], groups: Sequence[_Group]) -> None:
    """Refuse rents that are more in a window than what prices leave of a batch."""
    rents = [0] * len(prices)
    for group in groups:
        for window, rent in enumerate(group.rents, start=group.first):
            rents[window] += group.number * rent
    for window, (each, rent) in enumerate(zip(prices, rents, strict=True)):
        left = left_of(problem, step, each._replace(memory=each.memory * problem.limits.kv_block))
        if left < rent:
            raise UnprovedError(f"rents of window {window} are {shown(rent)}, but a batch has {shown(left)} left")
