r"""The cheapest lives of requests at prices of what batches can take: exact, in 64-bit integers.

Batches are numbered by *layers* j = 1, …, H; one layer may stand for any number of batches in a row, the others for one
each (`ramp`). A block held in a batch of layer j costs :math:`λ_j`, a token run :math:`μ_j`, a token of a prefill
:math:`ν_j` more, a run :math:`ρ_j`. A *life* of a request says which batches generate its tokens, and whether its KV is
kept between two of them. Let :math:`R_{kj}` be the least price of a life up to token k, generated in layer j, with the
attention time that refills take beyond decodes, and n = I + k tokens there are then.

*Decode.* The KV is kept: :math:`R_{k+1,j}` is at most

.. math:: \min_{i<j} \Bigl(R_{ki} + \sum_{i<l<j} λ_l\, \mathrm{blocks}(n - 1)\Bigr) + μ_j + ρ_j + λ_j\,
          \mathrm{blocks}(n).

*Fill.* All n tokens are run after the eviction, some of them perhaps in former batches, which then hold a part of them:

.. math:: \min_{l≤j} \Bigl(\min_{i<l} R_{ki} + n (μ_l + ν_l)\Bigr) + ρ_j + λ_j\, \mathrm{blocks}(n)
          + \mathrm{fill}_n - \mathrm{decode}_n

with l = j where prefills are whole, and attention times fill and decode. Token 1 is a fill after nothing. In the layer
that may be repeated i = j and i = l are possible, too.

That an eviction takes a batch and what a part of a prefill holds is left out, so no life costs less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optsched.bounds.own import fewest_steps, may_refill
from optsched.model.instance import Instance

Ints = npt.NDArray[np.int64]

NEVER = 1 << 61
"""The price of what is not possible; dearer lives than this are taken to cost no more."""


@dataclass(frozen=True)
class Prices:
    """Prices of what batches take, constant over stretches of layers.

    Parameters
    ----------
    widths
        Layers of every stretch.
    memory, tokens, prefill_tokens, runs
        For every stretch the price of a block held, a token run, a token of a prefill besides, and a run; integers ≥ 0,
        in ps / ``scale``.
    repeated
        The stretch, of one layer, that stands for any number of batches in a row; None if all stand for one each.
    scale
        Prices count in 1 / scale ps.
    """

    widths: tuple[int, ...]
    memory: tuple[int, ...]
    tokens: tuple[int, ...]
    prefill_tokens: tuple[int, ...]
    runs: tuple[int, ...]
    repeated: int | None
    scale: int

    def by_layer(self, prices: tuple[int, ...]) -> Ints:
        """Return prices of stretches for every layer."""
        return np.repeat(np.array(prices, dtype=np.int64), self.widths)

    @property
    def layers(self) -> int:
        """H."""
        return sum(self.widths)

    @property
    def repeated_layer(self) -> int | None:
        """The layer that may be repeated, counted from 0."""
        return None if self.repeated is None else sum(self.widths[: self.repeated])


def fill_ps(instance: Instance, tokens: int, step_ps: int) -> int:
    """Return the least attention time of a fill of so many tokens, at so much for each of its steps, in ps."""
    return instance.cost.prefill_sq * tokens**2 + step_ps * fewest_steps(instance, tokens)


@dataclass(frozen=True)
class Prompt:
    """An I that stands for itself and perhaps, in part, for smaller ones.

    Parameters
    ----------
    tokens
        I.
    least
        No smaller prompt is meant.
    """

    tokens: int
    least: int

    def may_refill(self, instance: Instance, generated: int) -> bool:
        """Whether the KV may be filled again when so many tokens are generated."""
        return may_refill(instance, self.least + generated)

    def beyond_ps(self, instance: Instance, generated: int, step_ps: int) -> int:
        """Return by how much a refill takes more attention time than a decode, at least."""
        size, least = self.tokens + generated, self.least + generated
        square = instance.cost.prefill_sq * (size**2 - (size - least) ** 2)
        steps = step_ps * fewest_steps(instance, least)
        return square + steps - instance.cost.decode_ps(size - 1)


@dataclass(frozen=True)
class Takings:
    """What some lives take; arrays have shape (lives, layers) but where noted.

    Parameters
    ----------
    held, decoded, refilled, generated
        Blocks held, tokens run by decodes and by refills, and tokens generated.
    first
        The layer of the first token, shape (lives,).
    extra
        Attention time of refills beyond decodes, in ps, shape (lives,).
    """

    held: Ints
    decoded: Ints
    refilled: Ints
    generated: Ints
    first: Ints
    extra: Ints


class Lives:
    """The cheapest lives of requests with one prompt, by their outputs and the layers of their last tokens.

    Parameters
    ----------
    instance
        Limits, rules and costs.
    prompt, outputs
        I, and all O that are asked for.
    prices
        Prices of what batches take.
    step_ps
        φ, what a prefill step takes.
    """

    def __init__(
        self, instance: Instance, prompt: Prompt, outputs: Sequence[int], prices: Prices, step_ps: int
    ) -> None:
        self._instance, self._prompt, self._step_ps = instance, prompt, step_ps
        self._layers, self._repeated = prices.layers, prices.repeated_layer
        memory, run = prices.by_layer(prices.memory), prices.by_layer(prices.runs)
        token = prices.by_layer(prices.tokens)
        fill = token + prices.by_layer(prices.prefill_tokens)
        until = np.cumsum(memory)
        chunked = instance.rules.chunked_prefill
        self._came: list[Ints] = []
        self._refills: dict[int, tuple[npt.NDArray[np.bool_], Ints, Ints]] = {}
        self.ends: dict[int, Ints] = {}
        wanted = set(outputs)
        first = prompt.tokens * fill
        least = np.minimum.accumulate(first) if chunked else first
        cost = least + run + memory * instance.limits.blocks(prompt.tokens)
        for k in range(1, max(outputs) + 1):
            if k in wanted:
                self.ends[k] = cost
            size = prompt.tokens + k
            blocks = instance.limits.blocks(size - 1)
            kept, came = self._after(cost - blocks * until)
            kept[1:] += blocks * until[:-1]
            if self._repeated is not None:
                kept[self._repeated] = self._again(kept, came, cost)
            decoded = kept + token
            if prompt.may_refill(instance, k):
                gone, since = self._after(cost)
                if self._repeated is not None:
                    gone[self._repeated] = self._again(gone, since, cost)
                paid = gone + size * fill
                ran = np.arange(self._layers)
                if chunked:
                    paid, ran = _running_minimum(paid)
                    since = since[ran]
                paid += prices.scale * prompt.beyond_ps(instance, k, step_ps)
                refilled = paid < decoded
                if refilled.any():
                    decoded = np.where(refilled, paid, decoded)
                    self._refills[k] = refilled, ran, since
            self._came.append(came)
            cost = np.minimum(decoded + run + memory * instance.limits.blocks(size), NEVER)

    def _after(self, costs: Ints) -> tuple[Ints, Ints]:
        """Return the least cost in a layer before each one, and the last such layer."""
        least, where = np.full(self._layers, NEVER), np.zeros(self._layers, dtype=np.int64)
        found, place = _running_minimum(costs)
        least[1:], where[1:] = found[:-1], place[:-1]
        return least, where

    def _again(self, least: Ints, where: Ints, cost: Ints) -> int:
        """Return the least cost before the repeated layer, which may be that of the layer itself; note where."""
        layer = self._repeated
        assert layer is not None
        if cost[layer] <= least[layer]:
            where[layer] = layer
        return int(min(cost[layer], least[layer]))

    def takings(self, output: int, ends: Ints) -> Takings:
        """Return what the cheapest lives take whose last token is generated in given layers."""
        blocks, count = self._instance.limits.blocks, len(ends)
        rows = np.arange(count)
        steps = np.zeros((count, self._layers + 1), dtype=np.int64)
        decoded, refilled, generated = (np.zeros((count, self._layers), dtype=np.int64) for _ in range(3))
        extra = np.zeros(count, dtype=np.int64)
        here = np.array(ends)
        for k in range(output - 1, 0, -1):
            size = self._prompt.tokens + k
            np.add.at(generated, (rows, here), 1)
            _hold(steps, rows, here, here + 1, blocks(size))
            before = self._came[k - 1][here]
            kept = np.ones(count, dtype=np.bool_)
            if k in self._refills:
                refills, ran, since = self._refills[k]
                evicted = refills[here]
                kept = ~evicted
                np.add.at(refilled, (rows[evicted], ran[here][evicted]), size)
                extra[evicted] += self._prompt.beyond_ps(self._instance, k, self._step_ps)
                before = np.where(evicted, since[here], before)
            np.add.at(decoded, (rows[kept], here[kept]), 1)
            _hold(steps, rows[kept], before[kept] + 1, np.maximum(here, before + 1)[kept], blocks(size - 1))
            here = before
        np.add.at(generated, (rows, here), 1)
        _hold(steps, rows, here, here + 1, blocks(self._prompt.tokens))
        held = np.cumsum(steps, axis=1)[:, :-1]
        return Takings(held, decoded, refilled, generated, here, extra)


def _hold(steps: Ints, rows: Ints, begin: Ints, end: Ints, blocks: int) -> None:
    """Note that lives hold blocks in the layers from ``begin`` to before ``end``, as differences."""
    np.add.at(steps, (rows, begin), blocks)
    np.add.at(steps, (rows, end), -blocks)


def _running_minimum(values: Ints) -> tuple[Ints, Ints]:
    """Return the least value up to each position, and the last position that has it."""
    least = np.minimum.accumulate(values)
    return least, np.maximum.accumulate(np.where(values == least, np.arange(len(values)), 0))
