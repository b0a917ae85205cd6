r"""Patterns of a class of identical requests, and the cheapest of them at given prices: exact, in integers.

A *pattern* is all that a request does: the batches :math:`t_1 < … < t_O` that generate its tokens, and which
tokens k ≥ 2 come from a refill after an eviction. Between two tokens with no eviction the KV stays: in the batches
between them it is held *idle*. With an eviction between tokens k and k + 1 no memory is held there, and
:math:`t_{k+1} ≥ t_k + 2`, for the eviction has a batch of its own.

*Rows* say what a batch can take: each gives every step (fill, decode or idle, of a class's token k) a size, and no
batch has more than the row's capacity of it. They are memory, packing inequalities (`packing`), the budgets
C, P and N, and the memory of the fills and that of the decodes of a batch, which matter where a batch has one kind.

*Charges*. With a price of a unit of every row in every batch, a step costs its *extra* time, what it takes beyond the
cheapest way of generating that token, and the prices of what it takes. The cheapest pattern is a cheapest path, in
which an eviction takes a pause of one batch (`optsched.bounds.priced.paths`). :math:`D(J)` is the least cost of a
pattern within J batches.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from optsched.bounds.priced.paths import CheapestPaths, TokenCosts
from optsched.model.instance import Instance
from optsched.model.ints import Ints
from optsched.solvers.formulation import UnsupportedError
from optsched_formulations.batching.costs import Costs, Token
from optsched_formulations.batching.packing import Packing

Floats = npt.NDArray[np.float64]

IMPOSSIBLE = 2**60
"""No possible pattern costs as much."""
_MOST_COST = 2**58
"""Extra times and payments of all requests together stay below."""
_FINE = 2**20
"""Prices count in no smaller shares of a ps."""

ANY, FILLS, DECODES = range(3)
"""Which steps a row counts: of all kinds, of fills, of decodes."""


@dataclass(frozen=True)
class ResourceRow:
    """What a batch can take of something.

    Parameters
    ----------
    name
        Its name in certificates.
    capacity
        The most that a batch takes, in the row's unit.
    steps
        Which steps it counts.
    """

    name: str
    capacity: int
    steps: int


@dataclass(frozen=True)
class Pattern:
    """All that a request does.

    Parameters
    ----------
    owner
        Its class.
    batches
        The batches of its tokens, counted from 0, ascending.
    filled
        Whether a token comes from a fill; the first one does.
    """

    owner: int
    batches: tuple[int, ...]
    filled: tuple[bool, ...]


@dataclass(frozen=True)
class PatternKind:
    """A class of identical requests; arrays are by token, from the first.

    Parameters
    ----------
    shape
        (I, O).
    count
        Number of its requests.
    fill_extra, decode_extra
        Time beyond the cheaper one of the two, in ps, shape (O,); −1 if the step is not possible.
    fill, decode, idle
        What the steps take of every row, shape (O, rows). `idle` at k − 1 is for those that have k tokens.
    """

    shape: tuple[int, int]
    count: int
    fill_extra: Ints
    decode_extra: Ints
    fill: Ints
    decode: Ints
    idle: Ints

    @property
    def output(self) -> int:
        """O."""
        return len(self.fill_extra)


class Network:
    """Classes, rows and times of an instance under one affine piece of the batch time.

    Attributes
    ----------
    hybrid
        Whether a batch may mix fills and decodes.
    kinds
        The classes, in the order in which they are given.
    rows
        What batches can take, those that can bind: memory first, then the packing inequalities.
    base, work
        Time of a batch without its steps, and of the cheapest way of generating all tokens, in ps.
    """

    def __init__(
        self, instance: Instance, members: list[list[int]], piece: int, packings: Sequence[Packing] = ()
    ) -> None:
        self._costs, self._limits = Costs(instance), instance.limits
        self._slope = instance.cost.affine[piece][1]
        self.hybrid = instance.rules.hybrid
        self.base = instance.cost.affine[piece][0]
        tokens = [[(first, k) for k in range(1, instance.requests[first].output + 1)] for first, *_ in members]
        self.rows = self._rows(packings)
        self.kinds = [
            self._kind(len(members[c]), of_class, [[p.weights.get((c, k), 0) for _, k in of_class] for p in packings])
            for c, of_class in enumerate(tokens)
        ]
        self.work = sum(len(members[c]) * self._least(token) for c, of_class in enumerate(tokens) for token in of_class)

    def _rows(self, packings: Sequence[Packing]) -> tuple[ResourceRow, ...]:
        limits, largest = self._limits, self._costs.largest_steps
        capacity = limits.kv_blocks
        rows = [
            ResourceRow("memory", capacity, ANY),
            *(ResourceRow("packing", packing.most, ANY) for packing in packings),
        ]
        if largest > limits.batch_tokens:
            rows.append(ResourceRow("tokens", limits.batch_tokens, ANY))
        if largest > limits.prefill_tokens:
            rows.append(ResourceRow("prefill_tokens", limits.prefill_tokens, FILLS))
        if limits.batch_requests is not None and limits.batch_requests < len(self._costs.requests):
            rows.append(ResourceRow("runs", limits.batch_requests, ANY))
        if not self.hybrid:
            rows += [ResourceRow("fill_memory", capacity, FILLS), ResourceRow("decode_memory", capacity, DECODES)]
        return tuple(rows)

    def _least(self, token: Token) -> int:
        return self._costs.scale * self._costs.least(token, self._slope // self._costs.scale)

    def _kind(self, count: int, tokens: list[Token], weights: list[list[int]]) -> PatternKind:
        """Return a class from its first request's tokens and their weights in the packing inequalities."""
        costs, limits = self._costs, self._limits
        size = np.array([costs.size(token) for token in tokens])
        blocks = np.array([limits.blocks(int(held)) for held in size])
        one, none = np.ones_like(size), np.zeros_like(size)
        weight = iter(np.array(of_tokens) for of_tokens in weights)
        fills: list[Ints] = []
        decodes: list[Ints] = []
        idles: list[Ints] = []
        for row in self.rows:
            match row.name:
                case "memory":
                    parts = blocks, blocks, blocks
                case "packing":
                    parts = (next(weight),) * 3
                case "tokens":
                    parts = size, one, none
                case "prefill_tokens":
                    parts = size, none, none
                case "runs":
                    parts = one, one, none
                case "fill_memory":
                    parts = blocks, none, none
                case _:
                    parts = none, blocks, none
            for column, part in zip((fills, decodes, idles), parts, strict=True):
                column.append(part)
        extra = [
            (
                self._slope * costs.size(token) + costs.scale * costs.fill(token) - self._least(token)
                if token[1] == 1 or costs.can_refill(token)
                else -1,
                self._slope + costs.scale * costs.decode(token) - self._least(token) if token[1] > 1 else -1,
            )
            for token in tokens
        ]
        if max(map(max, extra)) * len(tokens) * len(costs.requests) >= _MOST_COST:
            raise UnsupportedError("times that cannot be added up in 64 bits")
        fill_extra, decode_extra = np.array(extra).T
        return PatternKind(
            (int(size[0]), len(size)),
            count,
            fill_extra,
            decode_extra,
            *(np.stack(part, axis=1) for part in (fills, decodes, idles)),
        )

    @property
    def least_ps(self) -> int:
        """What is known of the makespan without prices."""
        return self.base * self.fewest + self.work

    @cached_property
    def fewest(self) -> int:
        """Least number of batches by what they can take and by the longest request."""
        counts = [kind.output for kind in self.kinds]
        for i, row in enumerate(self.rows):
            least = 0
            for kind in self.kinds:
                fills = np.where(kind.fill_extra < 0, kind.decode[:, i], kind.fill[:, i])
                decodes = np.where(kind.decode_extra < 0, kind.fill[:, i], kind.decode[:, i])
                least += kind.count * int(np.minimum(fills, decodes).sum())
            counts.append(-(-least // row.capacity))
        return max(counts)

    @property
    def unit(self) -> int:
        """A time in ps to which others compare well."""
        return max([self.base, *(extra for extra, _ in self.extras), 1])

    @cached_property
    def extras(self) -> list[tuple[int, int]]:
        """Every positive extra time of a step in ps, and how often it can occur."""
        return [
            (int(extra), kind.count)
            for kind in self.kinds
            for both in zip(kind.fill_extra, kind.decode_extra, strict=True)
            if min(both) >= 0
            for extra in both
            if extra > 0
        ]

    def extra(self, pattern: Pattern) -> int:
        """Return the extra time of a pattern, in ps."""
        kind = self.kinds[pattern.owner]
        return int(np.where(pattern.filled, kind.fill_extra, kind.decode_extra).sum())

    def taken(self, pattern: Pattern) -> tuple[Ints, Ints, Ints]:
        """Return what a pattern takes: rows, batches and amounts, amounts > 0."""
        kind = self.kinds[pattern.owner]
        amounts = np.where(np.array(pattern.filled)[:, None], kind.fill, kind.decode)
        batches = np.array(pattern.batches)
        gaps = [
            (j, k)
            for k, (before, after) in enumerate(zip(pattern.batches, pattern.batches[1:], strict=False))
            if after > before + 1 and not pattern.filled[k + 1]
            for j in range(before + 1, after)
        ]
        if gaps:
            held, tokens = np.array(gaps).T
            amounts, batches = np.concatenate([amounts, kind.idle[tokens]]), np.concatenate([batches, held])
        steps, rows = np.nonzero(amounts)
        return rows, batches[steps], amounts[steps, rows]

    def admits(self, patterns: Sequence[Pattern]) -> bool:
        """Return whether these are the patterns of all requests, and batches can take them together: exactly."""
        if Counter(pattern.owner for pattern in patterns) != Counter({c: q.count for c, q in enumerate(self.kinds)}):
            return False
        total: dict[tuple[int, int], int] = defaultdict(int)
        kinds: dict[int, set[bool]] = defaultdict(set)
        for pattern in patterns:
            for row, batch, amount in zip(*(part.tolist() for part in self.taken(pattern)), strict=True):
                total[row, batch] += amount
            for batch, fill in zip(pattern.batches, pattern.filled, strict=True):
                kinds[batch].add(fill)
        pure = self.hybrid or all(len(steps) == 1 for steps in kinds.values())
        return pure and all(amount <= self.rows[row].capacity for (row, _), amount in total.items())

    def held(self, patterns: Sequence[tuple[Pattern, float]], batches: int) -> dict[tuple[int, int], Floats]:
        """Return how many requests hold (class, tokens) in every batch, if that number run by each pattern."""
        found: dict[tuple[int, int], Floats] = defaultdict(lambda: np.zeros(batches))
        for pattern, times in patterns:
            ends = [
                *(
                    after if not fill else before + 1
                    for before, after, fill in zip(
                        pattern.batches, pattern.batches[1:], pattern.filled[1:], strict=False
                    )
                ),
                pattern.batches[-1] + 1,
            ]
            for k, (begin, end) in enumerate(zip(pattern.batches, ends, strict=True), start=1):
                found[pattern.owner, k][begin:end] += times
        return found

    def room(self, prices: Ints) -> Ints:
        """Return what all that a batch can take costs at most, for every batch; prices have shape (rows, batches)."""
        total = np.zeros((3, prices.shape[1]), dtype=np.int64)
        for row, price in zip(self.rows, prices, strict=True):
            total[row.steps] += row.capacity * price
        kinds = total[FILLS] + total[DECODES] if self.hybrid else np.maximum(total[FILLS], total[DECODES])
        return np.asarray(total[ANY] + kinds)

    def document(self, prices: Ints, scale: int) -> dict[str, Any]:
        """Return prices as certificates have them."""
        named: dict[str, Any] = {"batches": prices.shape[1], "scale": scale, "packings": []}
        for row, price in zip(self.rows, prices.tolist(), strict=True):
            if row.name == "packing":
                named["packings"].append(price)
            elif any(price):
                named[row.name] = price
        return named

    def whole(self, shares: Floats) -> tuple[Ints, int]:
        """Round prices down to whole numbers that can be added up in 64 bits.

        Parameters
        ----------
        shares
            Price in ps of a row's whole capacity, ≥ 0, shape (rows, batches).

        Returns
        -------
        array, int
            Prices in 1 / scale ps, and scale.
        """
        worth = (float(shares.sum()) + self._longest_extra) * sum(kind.count for kind in self.kinds)
        scale = max(1, min(_FINE, int(_MOST_COST / max(worth, 1.0))))
        # Where even whole ps are too fine, less than the price has to do.
        shrink = min(1.0, _MOST_COST / max(worth, 1.0))
        capacity = np.array([row.capacity for row in self.rows], dtype=np.float64)[:, None]
        return np.floor(shares * (scale * shrink) / capacity).astype(np.int64), scale

    @property
    def _longest_extra(self) -> int:
        """No pattern has more extra time, in ps."""
        return max(kind.output * int(max(kind.fill_extra.max(), kind.decode_extra.max())) for kind in self.kinds)


class Shortest:
    """The cheapest patterns of one class at given prices, by the batch of the last token.

    Parameters
    ----------
    network, owner
        The class.
    prices
        Shape (rows, batches).
    scale
        Prices count in 1 / scale ps.

    Attributes
    ----------
    cost
        Least cost of a pattern that ends in a batch, shape (batches,); at least `IMPOSSIBLE` if there is none.
    """

    def __init__(self, network: Network, owner: int, prices: Ints, scale: int) -> None:
        kind = network.kinds[owner]
        self._owner, self._output = owner, kind.output
        fills = kind.fill @ prices + scale * kind.fill_extra[:, None]
        decodes = kind.decode @ prices + scale * kind.decode_extra[:, None]
        idle = np.cumsum(kind.idle @ prices, axis=1)
        none = np.zeros_like(decodes[1:])
        later = [TokenCosts(idle[: kind.output - 1], decodes[1:], fills[1:], none, kind.fill_extra[1:] >= 0)]
        self._paths = CheapestPaths(fills[0], later if len(none) else (), {kind.output}, pause=1)
        self.cost = self._paths.costs[kind.output]

    def patterns(self, ends: Ints) -> list[Pattern]:
        """Return the cheapest patterns that end in some batches."""
        batches, filled = [ends], []
        for step in self._paths.back(self._output, ends):
            filled.append(step.refilled)
            batches.append(step.before)
        filled.append(np.ones(len(ends), dtype=np.bool_))
        return [
            Pattern(self._owner, tuple(when), tuple(ways))
            for when, ways in zip(
                np.stack(batches[::-1], axis=1).tolist(), np.stack(filled[::-1], axis=1).tolist(), strict=True
            )
        ]


def least_extra(network: Network, found: Sequence[Shortest], prices: Ints) -> list[int]:
    r"""Return lower bounds on the extra time of a schedule of J batches, in the prices' unit, as far as prices go.

    That is :math:`E(J) = \sum_c n_c D_c(J) - \sum_{j ≤ J} G_j` (see `pattern_cg`), from the first J in which every
    request has a pattern.
    """
    longest = max(kind.output for kind in network.kinds)
    total = -np.cumsum(network.room(prices))[longest - 1 :]
    for kind, shortest in zip(network.kinds, found, strict=True):
        total += kind.count * np.minimum.accumulate(shortest.cost)[longest - 1 :]
    bounds: list[int] = total.tolist()
    return bounds
