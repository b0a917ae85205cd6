"""What is done to measure a point: the engine's own model and attention, on pages of made-up requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from optsched.calibrate.measurements import MeasurementKind
from optsched.hardware.machine import Machine, Work
from optsched.hardware.measure.grid import Point
from optsched.hardware.run.engine import attention_of
from optsched.hardware.transformer.attention import NoAttention
from optsched.hardware.transformer.cache import PagedCache
from optsched.hardware.transformer.model import Transformer
from optsched.hardware.transformer.plan import Plan, Run, make_plan
from optsched.hardware.transformer.shape import Shape

PAGE_TOKENS = 16
"""Tokens of a page: vLLM's default."""
COLD_BYTES = 2**28
"""More than the caches near a device's cores hold; of a CPU, those that belong to one core."""


class Bench:
    """A model and a cache to measure on.

    Parameters
    ----------
    shape
        Of the model.
    machine
        Where it runs.
    kv_tokens
        Tokens of the cache.
    context
        The most tokens of a request.
    distinct
        How many layers have weights and a cache of their own; the others take these in turn. A layer's
        weights are larger than the caches near a GPU's cores, so that this takes as long.
    seed
        Of weights, inputs and pages.
    """

    def __init__(
        self, shape: Shape, machine: Machine, kv_tokens: int, context: int, *, distinct: int, seed: int
    ) -> None:
        import torch  # noqa: PLC0415  # an extra

        device, share = machine.device, shape.share
        self._machine = machine
        self._model = Transformer(shape, context + 1, device, distinct=distinct, seed=seed)
        self._cache = PagedCache(share, distinct, -(-kv_tokens // PAGE_TOKENS), PAGE_TOKENS, device)
        self._attention = attention_of(machine, self._model, context + 1)
        self._rng = np.random.default_rng(seed)
        self._draw = torch.Generator(device).manual_seed(seed)
        # Zeros would be read, or multiplied, faster than anything else.
        for cache in (self._cache.keys, self._cache.values):
            cache.normal_(generator=self._draw)
        on_device = COLD_BYTES if device.type == "cuda" else 0
        self._swept = torch.zeros(on_device, dtype=torch.uint8, device=device)

    def sweep(self) -> None:
        """Push weights and KV out of a GPU's cache, as in serving the rest of the model does before they return.

        On a CPU that would push out the program, too; there, pages that have not been read for long do.
        """
        self._swept.add_(1)

    def work(self, point: Point) -> Work:
        """Return what is timed for a point; in every call on other pages."""
        makers: Mapping[MeasurementKind, Callable[[Point], Work]] = {
            MeasurementKind.DENSE: self._dense,
            MeasurementKind.DECODE: self._attend,
            MeasurementKind.PREFILL: self._attend,
            MeasurementKind.BATCH: self._batch,
            MeasurementKind.SWAP_OUT: self._swap,
            MeasurementKind.SWAP_IN: self._swap,
        }
        return makers[point.kind](point)

    def _dense(self, point: Point) -> Work:
        plan = self._plan([Run(point.tokens, self._slots(point.tokens), decodes=False, generates=True)])
        return self._forward(point.tokens, plan, attends=False)

    def _batch(self, point: Point) -> Work:
        return self._forward(point.tokens, self._plan(self._runs(point)), attends=True)

    def _attend(self, point: Point) -> Work:
        import torch  # noqa: PLC0415  # an extra

        shape, cache, attention, plan = self._model.shape, self._cache, self._attention, self._plan(self._runs(point))
        size, like = (point.tokens, shape.heads, shape.head_dim), cache.keys
        queries = torch.empty(size, dtype=like.dtype, device=like.device).normal_(generator=self._draw)
        places = [number % len(cache.keys) for number in range(shape.layers)]

        def attend() -> None:
            for place in places:
                attention(queries, cache.keys[place], cache.values[place], plan)

        return attend

    def _swap(self, point: Point) -> Work:
        """Move whole pages, all layers of a token together, between the cache and the host's pinned memory."""
        import torch  # noqa: PLC0415  # an extra

        layers, cache = self._model.shape.layers, self._cache
        slots = torch.from_numpy(self._slots(point.tokens)).to(self._machine.device)
        size = (2, layers, point.tokens, *cache.keys.shape[2:])
        host = torch.zeros(size, dtype=cache.keys.dtype, pin_memory=self._machine.device.type == "cuda")
        places = [number % len(cache.keys) for number in range(layers)]

        def out() -> None:
            for side, part in zip((cache.keys, cache.values), host, strict=True):
                for place, kept in zip(places, part, strict=True):
                    kept.copy_(side[place].index_select(0, slots), non_blocking=True)

        def back() -> None:
            for side, part in zip((cache.keys, cache.values), host, strict=True):
                for place, kept in zip(places, part, strict=True):
                    side[place].index_copy_(0, slots, kept.to(side.device, non_blocking=True))

        return out if point.kind == MeasurementKind.SWAP_OUT else back

    def _forward(self, tokens: int, plan: Plan, *, attends: bool) -> Work:
        import torch  # noqa: PLC0415  # an extra

        text = torch.from_numpy(self._rng.integers(self._model.shape.vocabulary, size=tokens)).to(self._machine.device)
        attention = self._attention if attends else NoAttention()
        return lambda: self._model.next_tokens(text, plan, self._cache, attention)

    def _runs(self, point: Point) -> list[Run]:
        lengths = [point.decode_kv // point.decodes + 1] * point.decodes if point.decodes else []
        total = point.chunk + point.cached
        slots = self._slots(total + sum(lengths))
        runs = [Run(point.chunk, slots[:total], decodes=False, generates=True)] if point.chunk else []
        begin = total
        for length in lengths:
            runs.append(Run(1, slots[begin : begin + length], decodes=True, generates=True))
            begin += length
        return runs

    def _slots(self, tokens: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Draw that number of slots, page by page."""
        pages = self._rng.permutation(self._cache.free_pages)[: -(-tokens // PAGE_TOKENS)]
        return (pages[:, None] * PAGE_TOKENS + np.arange(PAGE_TOKENS)).ravel()[:tokens]

    def _plan(self, runs: list[Run]) -> Plan:
        return make_plan(runs, self._machine.device)
