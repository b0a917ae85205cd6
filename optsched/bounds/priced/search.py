r"""The search for good prices: a linear programme of which cheapest paths are the cutting planes (Kelley 1960).

For prices that are constant over stretches, the bound z for schedules of at most H batches, and from J₀ on, is the
largest number with

.. math:: z ≤ \sum_{j ≤ J} G_j + \sum_c n_c D_c(J) \qquad (J_0 ≤ J ≤ H)

(`ramp`), where :math:`G_j` is :math:`β_j` less prices of all that a batch can take, :math:`β_j ≤ f(x) - μ_j x` for the
times f of x tokens, and :math:`D_c(J)` is no more than the price of any path that ends by batch J. Prices and paths are
linear in each other, but for a prompt that is filled in chunks, which pays the least price of a token so far: that is a
variable of its own, no larger than any price up to there. The programme starts with paths without pauses, and takes the
cheapest paths at its prices until they cost no less than it thinks. Floating point only finds prices: `proof` says what
they prove.

Only the edges of stretches are taken for J; if J lies between the edges a < J ≤ b, it has D(b) at least, and the sum of
G from a + 1 or b.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import csr_array, vstack

from optsched.bounds.priced.demand import Demand
from optsched.bounds.priced.paths import NEVER
from optsched.bounds.priced.prompt_paths import Prices, Prompt, PromptPaths, ResourceUse
from optsched.bounds.priced.proof import Part, prove
from optsched.model.ints import Ints
from optsched.stopwatch import STOPWATCH

Floats = npt.NDArray[np.float64]

_FINE = 1 << 20
"""The price of all blocks counts in no larger shares of a batch's time."""
_CLOSE = 1e-4
"""Share of the bound that prices may miss."""
_NEWS = 1e-6
"""By how much, in batches, a path has to be cheaper than thought."""
_MILD = 1e-6
"""Weight of prices in the objective, against needlessly large ones."""
_PIVOTS = 10
"""For every row and column: the simplex method takes one at most, unless large numbers make it go round in circles."""


class Effort(NamedTuple):
    """What a search may take: stretches of layers with the same prices, and linear programmes."""

    stretches: int
    rounds: int


_FULL = Effort(96, 20)


class Range(NamedTuple):
    """Numbers of batches for which prices are sought, from ``fewest`` to ``most``; without an end if that is None.

    If ``loss`` is given, a batch in the repeated layer may have that much less than nothing left, in ps: what is proved
    falls with every batch beyond ``fewest``.
    """

    fewest: int
    most: int | None
    loss: int = 0

    @property
    def layers(self) -> int:
        """H."""
        return self.fewest if self.most is None else self.most

    @property
    def repeated_layer(self) -> int | None:
        """The layer in the middle, if there is no end."""
        return self.fewest // 2 if self.most is None else None


def best_prices(
    part: Part, demand: Demand, range_: Range, enough_ps: int, effort: Effort = _FULL
) -> tuple[Prices | None, int]:
    """Return prices that prove most, or enough, of a range and a demand, None if none are found, and rounds taken."""
    programme = _Programme(part, demand, range_, enough_ps, effort.stretches)
    best: Prices | None = None
    best_ps = rounds = 0
    while rounds < effort.rounds and not STOPWATCH.is_over():
        rounds += 1
        solution = programme.solve()
        if solution is None:
            break
        prices = programme.prices(solution)
        paths = part.paths(demand, prices) if part.fits(prices) else {}
        proof = prove(part, demand, prices, paths) if paths else None
        if proof is None:
            break
        value = int(proof.curve[range_.fewest - 1 :].min())
        if best is None or value > best_ps:
            best, best_ps = prices, value
        missing = programme.claimed_ps(solution) - best_ps
        if missing <= _CLOSE * best_ps or not programme.cut(solution, paths):
            break
    return best, rounds


class _Programme:
    """The linear programme.

    Its columns are, for every stretch, the prices of each row as shares of ``unit`` that all of it would cost, the
    least price of a token so far, and β; then D for every edge and kind, and z.
    """

    def __init__(self, part: Part, demand: Demand, range_: Range, enough_ps: int, stretches: int) -> None:
        self._part, limits, self._enough_ps = part, part.instance.limits, enough_ps
        self._kinds = [
            (prompt, output, number) for prompt, numbers in demand.numbers.items() for output, number in numbers.items()
        ]
        self._layers, self._repeated, self._loss = range_.layers, range_.repeated_layer, range_.loss
        self._edges = _edges(range_, stretches)
        self._widths = np.diff(self._edges)
        self._stretch = np.repeat(np.arange(len(self._widths)), self._widths)
        self._last = self._edges[self._edges >= range_.fewest].tolist()
        self._unit = max(part.turns[0].time_ps, 1)
        mean = max(1, part.tokens // part.fewest)
        self._all = {"memory": limits.kv_blocks, "tokens": mean, "prefill_tokens": min(mean, limits.prefill_tokens)}
        if limits.batch_requests is not None:
            self._all["runs"] = limits.batch_requests
        count = len(self._widths)
        self._column = {name: count * place for place, name in enumerate((*self._all, "fill", "time"))}
        self._stays = count * len(self._column)
        self._columns = self._stays + len(self._last) * len(self._kinds) + 1
        self._rows: list[csr_array] = []
        self._sides: list[Floats] = []
        self._frame()
        for kind, (prompt, output, _) in enumerate(self._kinds):
            self._offer(kind, *self._unbroken(prompt.tokens, output), None)

    # Rows -----------------------------------------------------------------------------------------------------

    def _add(self, rows: list[dict[int, float]], sides: list[float]) -> None:
        """Add rows, by column, that are at most their sides."""
        if rows:
            places = [(row, column, value) for row, entries in enumerate(rows) for column, value in entries.items()]
            row, column, value = zip(*places, strict=True)
            self._rows.append(csr_array((value, (row, column)), shape=(len(rows), self._columns)))
            self._sides.append(np.array(sides))

    def _frame(self) -> None:
        """Say what prices leave of a batch's time, and what follows for the bound."""
        count, at, mean = len(self._widths), self._column, self._all["tokens"]
        prefill = self._all["prefill_tokens"]
        for batch in self._part.turns:
            rows = [{at["tokens"] + s: batch.tokens / mean, at["time"] + s: 1.0} for s in range(count)]
            if batch.prompts:
                for s, row in enumerate(rows):
                    row[at["prefill_tokens"] + s] = batch.prompts / prefill
            self._add(rows, [batch.time_ps / self._unit] * count)
        rows = [{at["fill"] + s: 1.0, at["tokens"] + s: -1.0} for s in range(count)]
        for s, row in enumerate(rows):
            row[at["prefill_tokens"] + s] = -mean / prefill
        if self._part.instance.rules.chunked_prefill:
            rows += [{at["fill"] + s: 1.0, at["fill"] + s - 1: -1.0} for s in range(1, count)]
        self._add(rows, [0.0] * len(rows))
        spent = [at[name] for name in ("memory", "runs") if name in at]
        if self._repeated is not None:
            s = int(self._stretch[self._repeated])
            self._add([{at["time"] + s: -1.0, **{column + s: 1.0 for column in spent}}], [self._loss / self._unit])
        for end, last in enumerate(self._last):
            for upto in {last, self._last[end - 1] + 1} if end else {last}:
                widths = np.clip(upto - self._edges[:-1], 0, self._widths).tolist()
                row = {self._columns - 1: 1.0}
                for s, width in enumerate(widths):
                    if width:
                        row |= {at["time"] + s: -width, **{column + s: width for column in spent}}
                for kind, (_, _, number) in enumerate(self._kinds):
                    row[self._life(end, kind)] = -number
                self._add([row], [0.0])
            if end:
                kinds = range(len(self._kinds))
                rows = [{self._life(end, kind): 1.0, self._life(end - 1, kind): -1.0} for kind in kinds]
                self._add(rows, [0.0] * len(rows))

    def _life(self, end: int, kind: int) -> int:
        return self._stays + end * len(self._kinds) + kind

    def _offer(self, kind: int, used: ResourceUse, ends: Ints, solution: Floats | None) -> None:
        """Add that D is at most the price of some paths of a kind that end in given layers, where that is news."""
        places = np.searchsorted(self._last, ends + 1)
        use = np.flatnonzero(places < len(self._last))
        if not len(use):
            return
        prompt = self._kinds[kind][0].tokens
        count, mean = len(self._widths), self._all["tokens"]
        decoded, refilled = self._by_stretch(used.decoded[use]), self._by_stretch(used.refilled[use])
        taken = {
            "memory": self._by_stretch(used.held[use]),
            "tokens": decoded + refilled,
            "prefill_tokens": refilled,
            "runs": self._by_stretch(used.generated[use]),
        }
        rows = np.zeros((len(use), self._columns))
        for name, most in self._all.items():
            rows[:, self._column[name] : self._column[name] + count] = -taken[name] / most
        every = np.arange(len(use))
        rows[every, self._column["fill"] + self._stretch[used.first[use]]] -= prompt / mean
        rows[every, self._stays + places[use] * len(self._kinds) + kind] = 1.0
        sides = used.extra[use] / self._unit
        if solution is not None:
            news = rows @ solution > sides + _NEWS * np.maximum(1.0, np.abs(sides))
            rows, sides = rows[news], sides[news]
        if len(sides):
            self._rows.append(csr_array(rows))
            self._sides.append(sides)

    def _by_stretch(self, amounts: Ints) -> Ints:
        return np.add.reduceat(amounts, self._edges[:-1], axis=1)

    def _unbroken(self, prompt: int, output: int) -> tuple[ResourceUse, Ints]:
        """Return paths without pauses that begin, or end, at edges, and the layers of their last tokens."""
        paths = [
            at
            for begin in sorted({*self._edges[:-1].tolist(), *np.maximum(self._edges - output, 0).tolist()})
            for at in self._through(begin, output)
            if at[-1] < self._layers
        ]
        at = np.array(paths, dtype=np.int64).reshape(-1, output)
        held, decoded, generated = (np.zeros((len(at), self._layers), dtype=np.int64) for _ in range(3))
        rows = np.arange(len(at))[:, None]
        np.add.at(held, (rows, at), [self._part.instance.limits.blocks(prompt + k) for k in range(output)])
        np.add.at(generated, (rows, at), 1)
        np.add.at(decoded, (rows, at[:, 1:]), 1)
        none = np.zeros_like(held)
        return ResourceUse(held, decoded, none, generated, at[:, 0], np.zeros(len(at), dtype=np.int64)), at[:, -1]

    def _through(self, begin: int, output: int) -> Iterator[Ints]:
        """Yield the layers of tokens in a row, with some of them in the repeated layer."""
        at, repeated = begin + np.arange(output), self._repeated
        if repeated is None or begin > repeated:
            yield at
            return
        for more in sorted({0, output // 2, output, max(0, begin + output - self._layers)}):
            yield np.where(at > repeated, np.maximum(repeated, at - more), at)

    # Solutions ------------------------------------------------------------------------------------------------

    def solve(self) -> Floats | None:
        """Return an optimum; None if the solver finds none."""
        cost = np.zeros(self._columns)
        cost[-1] = -1.0
        for name, column in self._column.items():
            if name in self._all and name != "tokens":
                cost[column : column + len(self._widths)] = _MILD * self._widths
        lower = np.where(np.arange(self._columns) < self._column["time"], 0.0, -np.inf)
        upper = np.full(self._columns, np.inf)
        upper[-1] = (self._enough_ps - self._part.attention) / self._unit
        rows: Any = vstack(self._rows, format="csr")
        between = list(zip(lower.tolist(), upper.tolist(), strict=True))
        sides, most = np.concatenate(self._sides), _PIVOTS * sum(rows.shape)
        found = linprog(cost, A_ub=rows, b_ub=sides, bounds=between, method="highs-ds", options={"maxiter": most})
        return found.x if found.status == 0 else None

    def claimed_ps(self, solution: Floats) -> float:
        """Return the bound as a solution claims it."""
        return float(solution[-1]) * self._unit + self._part.attention

    def prices(self, solution: Floats) -> Prices:
        """Round prices down to whole ones, in shares of a ps that are fine enough."""
        scale = max(1, -(-_FINE * self._all["memory"] // self._unit))
        count = len(self._widths)

        def whole(name: str) -> tuple[int, ...]:
            if name not in self._all:
                return (0,) * count
            shares = solution[self._column[name] : self._column[name] + count]
            return tuple(int(share * self._unit * scale / self._all[name]) for share in np.maximum(shares, 0.0))

        prices = Prices(
            widths=tuple(self._widths.tolist()),
            memory=whole("memory"),
            tokens=whole("tokens"),
            prefill_tokens=whole("prefill_tokens"),
            runs=whole("runs"),
            repeated=None if self._repeated is None else int(self._stretch[self._repeated]),
            scale=scale,
        )
        if prices.repeated is None:
            return prices
        # Rounded, the repeated layer must still leave a batch its time.
        missing = -min(self._part.rooms(prices)[prices.repeated] + scale * self._loss, 0)
        memory = list(prices.memory)
        memory[prices.repeated] = max(0, memory[prices.repeated] + -missing // self._all["memory"])
        return replace(prices, memory=tuple(memory))

    def cut(self, solution: Floats, paths: Mapping[Prompt, PromptPaths]) -> bool:
        """Add the cheapest paths that end in each stretch; return whether D of the solution exceeds any of them."""
        before = len(self._rows)
        for kind, (prompt, output, _) in enumerate(self._kinds):
            costs = paths[prompt].ends[output]
            ends = np.array([begin + int(costs[begin:end].argmin()) for begin, end in _pairs(self._edges)])
            ends = ends[costs[ends] < NEVER // 2]
            self._offer(kind, paths[prompt].use_of(output, ends), ends, solution)
        return len(self._rows) > before


def _edges(range_: Range, stretches: int) -> Ints:
    found = {range_.fewest, *np.linspace(0, range_.layers, stretches + 1).round().astype(int).tolist()}
    if range_.repeated_layer is not None:
        found |= {range_.repeated_layer, range_.repeated_layer + 1}
    return np.array(sorted(found), dtype=np.int64)


def _pairs(edges: Ints) -> Iterator[tuple[int, int]]:
    return zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
