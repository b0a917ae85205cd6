r"""The cheapest paths of requests at prices of what batches can take.

Batches are numbered by *layers* j = 1, …, H; one layer may represent any number of batches in a row, the others for one
each (`ramp`). A block held in a batch of layer j costs :math:`λ_j`, a token run :math:`μ_j`, a token of a prefill
:math:`ν_j` more, a run :math:`ρ_j`. Requests take paths through the layers (`paths`). With n = I + k tokens
that there are when token k + 1 is generated, and attention times fill and decode, a decode costs :math:`μ_j + ρ_j + λ_j
\, \mathrm{blocks}(n)`, and k tokens that are held through a layer :math:`λ_l\, \mathrm{blocks}(n - 1)`. All n tokens
of a fill are run after the eviction, some of them perhaps in former batches, which then hold a part of them:
:math:`n (μ_l + ν_l)`, and in the layer that ends it :math:`ρ_j + λ_j\, \mathrm{blocks}(n) + \mathrm{fill}_n -
\mathrm{decode}_n`. Token 1 is a fill after nothing.

That an eviction takes a batch and what a part of a prefill holds is left out, so no path costs less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from optsched.bounds.own import fewest_steps, may_refill
from optsched.bounds.priced.paths import CheapestPaths, TokenCosts
from optsched.model.instance import Instance
from optsched.model.ints import Ints

_TOGETHER = 1 << 18
"""Tokens in layers of which costs are listed at a time."""


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
        The stretch, of one layer, that represents any number of batches in a row; None if each is one batch.
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

    def stated(self) -> dict[str, Any]:
        """Return prices as certificates have them: rows that are free are left out."""
        rows = {
            "memory": self.memory,
            "tokens": self.tokens,
            "prefill_tokens": self.prefill_tokens,
            "runs": self.runs,
        }
        return {
            "scale": self.scale,
            "widths": list(self.widths),
            "repeated": self.repeated,
            **{name: list(row) for name, row in rows.items() if any(row)},
        }


def fill_ps(instance: Instance, tokens: int, step_ps: int) -> int:
    """Return the least attention time of a fill of a number of tokens, with a price in ps for each of its steps."""
    return instance.cost.prefill_sq * tokens**2 + step_ps * fewest_steps(instance, tokens)


@dataclass(frozen=True)
class Prompt:
    """An I that represents itself and perhaps, in part, smaller ones.

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
        """Whether the KV may be filled again when that number of tokens is generated."""
        return may_refill(instance, self.least + generated)

    def beyond_ps(self, instance: Instance, generated: int, step_ps: int) -> int:
        """Return by how much a refill takes more attention time than a decode, at least."""
        size, least = self.tokens + generated, self.least + generated
        square = instance.cost.prefill_sq * (size**2 - (size - least) ** 2)
        steps = step_ps * fewest_steps(instance, least)
        return square + steps - instance.cost.decode_ps(size - 1)


@dataclass(frozen=True)
class ResourceUse:
    """What some paths take; arrays have shape (paths, layers) but where noted.

    Parameters
    ----------
    held, decoded, refilled, generated
        Blocks held, tokens run by decodes and by refills, and tokens generated.
    first
        The layer of the first token, shape (paths,).
    extra
        Attention time of refills beyond decodes, in ps, shape (paths,).
    """

    held: Ints
    decoded: Ints
    refilled: Ints
    generated: Ints
    first: Ints
    extra: Ints


class PromptPaths:
    """The cheapest paths of requests with one prompt, by their outputs and the layers of their last tokens.

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
        self._instance, self._prompt, self._step_ps, self._layers = instance, prompt, step_ps, prices.layers
        blocks, chunked = instance.limits.blocks, instance.rules.chunked_prefill
        memory, run = prices.by_layer(prices.memory), prices.by_layer(prices.runs)
        token = prices.by_layer(prices.tokens)
        fill = token + prices.by_layer(prices.prefill_tokens)
        until = np.cumsum(memory)

        def costs(begin: int, end: int) -> TokenCosts:
            """Return what tokens begin + 1 to end cost."""
            some = range(begin, end)
            sizes = np.array([prompt.tokens + k for k in some])[:, None]
            after = np.array([blocks(prompt.tokens + k) for k in some])[:, None]
            before = np.array([blocks(prompt.tokens + k - 1) for k in some])[:, None]
            refillable = np.array([prompt.may_refill(instance, k) for k in some])
            beyond = [
                prices.scale * prompt.beyond_ps(instance, k, step_ps) if may else 0
                for k, may in zip(some, refillable.tolist(), strict=True)
            ]
            generated = run + memory * after
            filled = generated + np.array(beyond)[:, None]
            return TokenCosts(before * until, token + generated, sizes * fill, filled, refillable)

        most, together = max(outputs), max(1, _TOGETHER // prices.layers)
        first = prompt.tokens * fill
        self._paths = CheapestPaths(
            (np.minimum.accumulate(first) if chunked else first) + run + memory * blocks(prompt.tokens),
            (costs(k, min(k + together, most)) for k in range(1, most, together)),
            set(outputs),
            chunked=chunked,
            repeated=prices.repeated_layer,
        )
        self.ends = self._paths.costs

    def use_of(self, output: int, ends: Ints) -> ResourceUse:
        """Return what the cheapest paths take whose last token is generated in given layers."""
        blocks, count = self._instance.limits.blocks, len(ends)
        rows = np.arange(count)
        steps = np.zeros((count, self._layers + 1), dtype=np.int64)
        decoded, refilled, generated = (np.zeros((count, self._layers), dtype=np.int64) for _ in range(3))
        extra = np.zeros(count, dtype=np.int64)
        here = ends
        for k, before, after, evicted, ran in self._paths.back(output, ends):
            size, kept = self._prompt.tokens + k, ~evicted
            np.add.at(generated, (rows, after), 1)
            _hold(steps, rows, after, after + 1, blocks(size))
            np.add.at(refilled, (rows[evicted], ran[evicted]), size)
            extra[evicted] += self._prompt.beyond_ps(self._instance, k, self._step_ps)
            np.add.at(decoded, (rows[kept], after[kept]), 1)
            _hold(steps, rows[kept], before[kept] + 1, np.maximum(after, before + 1)[kept], blocks(size - 1))
            here = before
        np.add.at(generated, (rows, here), 1)
        _hold(steps, rows, here, here + 1, blocks(self._prompt.tokens))
        held = np.cumsum(steps, axis=1)[:, :-1]
        return ResourceUse(held, decoded, refilled, generated, here, extra)


def _hold(steps: Ints, rows: Ints, begin: Ints, end: Ints, blocks: int) -> None:
    """Note that paths hold blocks in the layers from ``begin`` to before ``end``, as differences."""
    np.add.at(steps, (rows, begin), blocks)
    np.add.at(steps, (rows, end), -blocks)
