r"""Certificates of kind ``patterns``: a makespan bound from prices of what batches hold and run.

The instance is offline and prefills run whole. Everything else may bind. An order of first runs or a number of
evictions may restrict schedules further: what holds without them holds with them.

*Times.* ``piece_weights`` has an integer ≥ 0 for each affine piece of the batch time, not all 0. With their sum W,
(base, token) is the combination Σ w_i (base_i, token_i), so times count in ps / W. A batch takes at least base, and
every step its own time: the time of its tokens and its attention. Token k of a request of (I, O) comes from a *fill* of
I + k − 1 tokens, if k = 1 or it may be evicted and refilled at once, or, if k ≥ 2, from a *decode*. The cheaper one is
its work; what a step takes beyond it is its *extra* time. No step generates more than one token, none less than one.
So a schedule of J batches has the makespan::

    makespan ≥ base J + work + E,    E the sum of its extra times.

*Rows.* Group the requests by (I, O), groups in ascending order; the *item* (group, k) is a request of the group that
has KV for I + k − 1 tokens: in the batch that generates its token k, and while it keeps that KV in later batches
without running. A batch takes at most so much of every row:

- ``memory``: the blocks of all items that are held; at most all blocks;
- a packing: the weights of all items that are held; at most the largest weight of items that fit all blocks, each
  request being at most one item. ``packings`` lists weights, each list an integer ≥ 0 for every item, group by group,
  k ascending; a knapsack finds the largest weight;
- ``tokens``: tokens run; at most C;
- ``prefill_tokens``: tokens run by fills; at most P;
- ``runs``: steps; at most N, or all requests;
- ``fill_memory``, ``decode_memory``: blocks of the items that fills, or decodes, generate; at most all blocks.

*Fewest batches.* J is at least each O, and for each row what all items take of it, each in the way that takes least,
over what a batch takes. It is at most Σ O, since every batch runs something and every run generates a token.

*Prices.* Each entry of ``prices`` proves a bound on E for schedules of at most H = ``batches`` batches: it has the
integer ``scale`` ≥ 1, and under the names of the rows H prices ≥ 0 of a row's unit in each batch, in ps / W / scale; a
row that is missing is free. ``packings`` has a list for each packing, or for the first ones. Let G(j) be the prices of
all that batch j takes at most: without hybrid batches, only the dearer ones of the rows of fills (``prefill_tokens``,
``fill_memory``) and that of decodes (``decode_memory``) count. Let every request pay, besides its extra times, the
prices of all that it takes. The payments of batch j are G(j) at most.

A request's life goes through batches t(1) < … < t(O). If its KV is kept from token k to the next, it pays for holding
the item in the batches between, and then for a decode. If not, it is evicted in a batch between: t(k + 1) ≥ t(k) + 2.
It pays for a fill, and perhaps for holding the KV before it is evicted, which is left out. So a request that is
finished by batch J pays at least D(J), the cost of the cheapest life within J batches; and with n requests a group::

    scale E ≥ Σ n D(J) - Σ G(j) over j ≤ J.

*Lift.* E is a sum of extra times, each at most as often as its group has requests. So the least such sum that is no
less than what prices prove is a lower bound too, and without one there is no schedule of J batches. Where the sums are
too many, the bound is not lifted.

The bound is the least of base J + work + E over all J that are possible, with E ≥ 0 where no prices say more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Any

from optsched.check.problem import Problem, feasible, pieces_of
from optsched.check.reading import UnprovedError, shown
from optsched.model.objectives import Objective

MOST_STEPS = 500_000_000
"""Items in batches, and ways of filling the blocks, beyond which nothing is computed."""
MOST_BLOCKS = 10_000_000
"""Blocks beyond which no knapsack is listed."""
MOST_SUMS = 50_000
"""Where more sums of extra times matter, the bound is not lifted."""
_NAMED = ("memory", "tokens", "prefill_tokens", "runs", "fill_memory", "decode_memory")
_FILLS, _DECODES = ("prefill_tokens", "fill_memory"), ("decode_memory",)


def patterns_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return the makespan bound of a ``patterns`` certificate; the module says why it holds."""
    _require_covered(problem, objective)
    weights = _naturals("piece_weights", certificate.get("piece_weights"), len(pieces_of(problem.cost)))
    if not any(weights):
        raise UnprovedError(f"piece_weights is {shown(weights)}, expected one that is not 0")
    base = sum(weight * piece[0] for weight, piece in zip(weights, pieces_of(problem.cost), strict=True))
    groups = _groups(problem, weights)
    rows = _rows(problem, groups, certificate.get("packings", []))
    proofs = [_Proof(problem, groups, rows, entry) for entry in _objects("prices", certificate.get("prices"))]
    steps = sum(len(group.items) for group in groups) * sum(proof.batches for proof in proofs)
    if steps > MOST_STEPS:
        raise UnprovedError(f"prices concern {steps} items in batches, more than {MOST_STEPS}")
    extras: dict[int, int] = {}
    for proof in proofs:
        for batches, extra in proof.extras():
            extras[batches] = max(extra, extras.get(batches, 0))

    work = sum(group.requests * item.work for group in groups for item in group.items)
    best: int | None = None
    for batches in range(_fewest(groups, rows), sum(group.requests * len(group.items) for group in groups) + 1):
        least = base * batches + work
        if best is not None and least >= best:
            break
        lifted = _lifted(groups, extras.get(batches, 0))
        if lifted is not None and (best is None or least + lifted < best):
            best = least + lifted
    if best is None:
        raise UnprovedError("prices: they leave no number of batches, but one request after another is a schedule")
    return -(-best // sum(weights))


def _require_covered(problem: Problem, objective: Objective) -> None:
    """Refuse problems that the theorem does not cover."""
    if objective is not Objective.MAKESPAN:
        raise UnprovedError(f"kind patterns bounds the makespan, the objective is {objective.value}")
    if len({request.arrival_ps for request in problem.requests}) > 1:
        raise UnprovedError("kind patterns needs requests that arrive at the same time")
    if problem.chunked:
        raise UnprovedError("kind patterns needs whole prefills, but chunked prefill is allowed")
    if not feasible(problem):
        raise UnprovedError("kind patterns needs requests that can be served alone, some request cannot")


# Reading ---------------------------------------------------------------------------------------------------


def _naturals(name: str, stated: object, count: int) -> list[int]:
    if isinstance(stated, list) and len(stated) == count and all(type(n) is int and n >= 0 for n in stated):
        return stated
    raise UnprovedError(f"{name} is {shown(stated)}, expected {count} integers ≥ 0")


def _objects(name: str, stated: object) -> list[dict[str, Any]]:
    if isinstance(stated, list) and all(isinstance(entry, dict) for entry in stated):
        return stated
    raise UnprovedError(f"{name} is {shown(stated)}, expected a list of objects")


def _lists(name: str, stated: object, most: int | None = None) -> list[Any]:
    if isinstance(stated, list) and (most is None or len(stated) <= most):
        return stated
    expected = "a list of lists" if most is None else f"at most {most} lists"
    raise UnprovedError(f"{name} is {shown(stated)}, expected {expected}")


def _positive(name: str, stated: object, most: float = inf) -> int:
    if type(stated) is int and 1 <= stated <= most:
        return stated
    raise UnprovedError(
        f"{name} is {shown(stated)}, expected an integer {'≥ 1' if most == inf else f'from 1 to {most}'}"
    )


# Items -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Item:
    """A request with KV for ``tokens`` tokens, and the extra times of its ways, None for an impossible one."""

    tokens: int
    blocks: int
    work: int
    fill: int | None
    decode: int | None


@dataclass(frozen=True)
class _Group:
    """Requests of one (I, O), and their items, by k."""

    requests: int
    items: list[_Item]


def _groups(problem: Problem, weights: Sequence[int]) -> list[_Group]:
    cost, scale = problem.cost, sum(weights)
    token = sum(weight * slope for weight, (_, slope) in zip(weights, pieces_of(cost), strict=True))
    found = []
    counts = Counter((request.input, request.output) for request in problem.requests)
    for (prompt, output), requests in sorted(counts.items()):
        items = []
        for tokens in range(prompt, prompt + output):
            first = tokens == prompt
            refill = problem.eviction and tokens <= problem.limits.prefill_tokens
            fill = token * tokens + scale * (cost.prefill_sq * tokens * tokens + cost.prefill_req)
            decode = token + scale * (cost.decode_kv * (tokens - 1) + cost.decode_req)
            ways = [*([fill] if first or refill else []), *([] if first else [decode])]
            items.append(
                _Item(
                    tokens,
                    problem.blocks_of(tokens),
                    min(ways),
                    fill - min(ways) if first or refill else None,
                    None if first else decode - min(ways),
                )
            )
        found.append(_Group(requests, items))
    return found


# Rows ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    """What a batch takes at most, and what an item takes: when filled, when decoded, when kept; by group and k."""

    most: int
    fill: list[list[int]]
    decode: list[list[int]]
    keep: list[list[int]]


def _rows(problem: Problem, groups: Sequence[_Group], packings: object) -> dict[str, _Row]:
    """Return all rows by name, packings as ``packings[0]`` and so on."""
    blocks = [[item.blocks for item in group.items] for group in groups]
    tokens = [[item.tokens for item in group.items] for group in groups]
    one = [[1] * len(group.items) for group in groups]
    none = [[0] * len(group.items) for group in groups]
    runs = len(problem.requests) if problem.runs is None else problem.runs
    rows = {
        "memory": _Row(problem.blocks, blocks, blocks, blocks),
        "tokens": _Row(problem.limits.batch_tokens, tokens, one, none),
        "prefill_tokens": _Row(problem.limits.prefill_tokens, tokens, none, none),
        "runs": _Row(runs, one, one, none),
        "fill_memory": _Row(problem.blocks, blocks, none, none),
        "decode_memory": _Row(problem.blocks, none, blocks, none),
    }
    stated = _lists("packings", packings)
    if stated and problem.blocks > MOST_BLOCKS:
        raise UnprovedError(f"packings need knapsacks of {problem.blocks} blocks, more than {MOST_BLOCKS}")
    if len(stated) * sum(group.requests * len(group.items) for group in groups) * problem.blocks > MOST_STEPS:
        raise UnprovedError(f"packings concern more than {MOST_STEPS} ways of filling the blocks")
    for number, entry in enumerate(stated):
        name = f"packings[{number}]"
        flat = iter(_naturals(name, entry, sum(len(group.items) for group in groups)))
        weights = [[next(flat) for _ in group.items] for group in groups]
        rows[name] = _Row(_heaviest(problem.blocks, groups, weights), weights, weights, weights)
    return rows


def _heaviest(blocks: int, groups: Sequence[_Group], weights: Sequence[Sequence[int]]) -> int:
    """Return the largest weight of items that fit all blocks, each request being at most one item."""
    best = [0] * (blocks + 1)  # by the blocks that may be used
    for group, of_group in zip(groups, weights, strict=True):
        choices = [(item.blocks, weight) for item, weight in zip(group.items, of_group, strict=True) if weight]
        for _ in range(group.requests if choices else 0):
            after = [
                max(
                    best[free], max((best[free - size] + weight for size, weight in choices if size <= free), default=0)
                )
                for free in range(blocks + 1)
            ]
            if after == best:
                break
            best = after
    return best[blocks]


def _fewest(groups: Sequence[_Group], rows: Mapping[str, _Row]) -> int:
    """Return a lower bound on the number of batches of every schedule."""
    counts = [len(group.items) for group in groups]
    for row in rows.values():
        taken = 0
        for group, fills, decodes in zip(groups, row.fill, row.decode, strict=True):
            for item, fill, decode in zip(group.items, fills, decodes, strict=True):
                ways = [*([fill] if item.fill is not None else []), *([decode] if item.decode is not None else [])]
                taken += group.requests * min(ways)
        if taken:
            counts.append(-(-taken // row.most))
    return max(counts)


# Prices ----------------------------------------------------------------------------------------------------


class _Proof:
    """Prices of one entry: what they prove of schedules of at most ``batches`` batches."""

    def __init__(
        self, problem: Problem, groups: Sequence[_Group], rows: Mapping[str, _Row], stated: Mapping[str, Any]
    ) -> None:
        self._hybrid, self._groups, self._rows = problem.hybrid, groups, rows
        most = sum(request.output for request in problem.requests)
        self.batches = _positive("batches", stated.get("batches"), most)
        self._scale = _positive("scale", stated.get("scale"))
        self._prices = {name: _naturals(name, stated[name], self.batches) for name in _NAMED if name in stated}
        packed = _lists("packings of prices", stated.get("packings", []), len(rows) - len(_NAMED))
        for number, entry in enumerate(packed):
            self._prices[f"packings[{number}]"] = _naturals(f"packings[{number}] of prices", entry, self.batches)

    def extras(self) -> list[tuple[int, int]]:
        """Return pairs of a number of batches and what E is at least."""
        cheapest = [list(accumulate(self._cheapest(number), min)) for number in range(len(self._groups))]
        taken = list(accumulate(self._most_paid(batch) for batch in range(self.batches)))
        found = []
        for batch in range(self.batches):
            if all(least[batch] < inf for least in cheapest):
                paid = sum(
                    group.requests * int(least[batch]) for group, least in zip(self._groups, cheapest, strict=True)
                )
                found.append((batch + 1, -((taken[batch] - paid) // self._scale)))
        return found

    def _most_paid(self, batch: int) -> int:
        """Return G of a batch."""

        def paid(names: Iterable[str]) -> int:
            return sum(self._rows[name].most * self._prices[name][batch] for name in names if name in self._prices)

        fills, decodes = paid(_FILLS), paid(_DECODES)
        other = paid(name for name in self._prices if name not in _FILLS + _DECODES)
        return other + (fills + decodes if self._hybrid else max(fills, decodes))

    def _cheapest(self, number: int) -> list[float]:
        """Return what the cheapest life of a request of a group costs that ends in a batch, inf if there is none."""
        items = self._groups[number].items
        fill = self._paid([(prices, self._rows[name].fill[number][0]) for name, prices in self._prices.items()])
        ends: list[float] = list(fill)
        for k in range(1, len(items)):
            item = items[k]
            fill = self._paid([(prices, self._rows[name].fill[number][k]) for name, prices in self._prices.items()])
            decode = self._paid([(prices, self._rows[name].decode[number][k]) for name, prices in self._prices.items()])
            keep = self._paid([(prices, self._rows[name].keep[number][k - 1]) for name, prices in self._prices.items()])
            # Before a batch: the least cost with k tokens and their KV; and without it, evicted in the batch before.
            kept = evicted = inf
            following: list[float] = []
            for batch in range(self.batches):
                cost = inf
                if item.decode is not None and kept < inf:
                    cost = kept + decode[batch] + self._scale * item.decode
                if item.fill is not None and evicted < inf:
                    cost = min(cost, evicted + fill[batch] + self._scale * item.fill)
                following.append(cost)
                if batch:
                    evicted = min(evicted, ends[batch - 1])
                kept = ends[batch] if kept == inf else min(kept + keep[batch], ends[batch])
            ends = following
        return ends

    def _paid(self, taken: Sequence[tuple[list[int], int]]) -> list[int]:
        """Return what a step pays in each batch that takes so much of every row."""
        total = [0] * self.batches
        for prices, amount in taken:
            if amount:
                total = [sum_ + amount * price for sum_, price in zip(total, prices, strict=True)]
        return total


# Lift ------------------------------------------------------------------------------------------------------


def _lifted(groups: Sequence[_Group], extra: int) -> int | None:
    """Return the least sum of extra times that is at least ``extra``; None if there is none."""
    if extra <= 0:
        return 0
    times = Counter[int]()
    for group in groups:
        for item in group.items:
            if item.fill is not None and item.decode is not None:
                times[max(item.fill, item.decode)] += group.requests
    below, beyond = {0}, inf
    for time, count in sorted(times.items()):
        added = set[int]()
        for total in below if time else ():
            for taken in range(1, count + 1):
                if total + taken * time >= extra:
                    beyond = min(beyond, total + taken * time)
                    break
                added.add(total + taken * time)
            if len(below) + len(added) > MOST_SUMS:
                return extra
        below |= added
    return None if beyond == inf else int(beyond)
