"""What is measured: a geometric grid over where users operate, in an order that the seed decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from types import MappingProxyType
from typing import NamedTuple

from optsched.calibrate.measurements import MeasurementKind
from optsched.model.domain import Tokens, domain


class Point(NamedTuple):
    """A row of the table, before it is measured.

    Parameters
    ----------
    kind
        What is timed.
    tokens
        Tokens run, or moved.
    decodes, decode_kv
        Decode steps, and the KV tokens that all of them read: the sum of their m.
    chunk, cached
        C and m of the prefill step; 0 and 0 if there is none.
    """

    kind: MeasurementKind
    tokens: int
    decodes: int
    decode_kv: int
    chunk: int
    cached: int

    @property
    def held(self) -> int:
        """Tokens that a cache holds while it is measured."""
        return self.tokens + self.decode_kv + self.cached


@domain
class Extent:
    """How far the grid goes.

    Parameters
    ----------
    batch_tokens
        C: tokens of a batch, and of a prefill step.
    batch_requests
        N: decode steps of a batch.
    context
        Tokens of a request.
    """

    batch_tokens: Tokens
    batch_requests: Tokens
    context: Tokens


EXTENTS: Mapping[str, Extent] = MappingProxyType({"cpu": Extent(512, 32, 1024), "cuda": Extent(8192, 256, 16384)})
"""How far the grid goes on a device by default."""
_SWAPPED = 16
"""Tokens of the smallest swap."""
_LEAST_KV = 16
"""Cached tokens of a decode step, at least."""
_LEAST_CACHED = 64
"""Tokens cached before a prefill step, at least, if any are."""


def grid(extent: Extent, kv_tokens: int, seed: int) -> list[Point]:
    """Return the points to measure that a cache of that number of tokens has room for, each once, shuffled.

    Shuffled, so that a machine that becomes slower while it is measured does not seem to be slow with large batches.
    """
    points = dict.fromkeys(point for point in _points(extent) if point.held <= kv_tokens)
    shuffled = sorted(points)
    Random(f"{seed} grid").shuffle(shuffled)
    return shuffled


def _points(extent: Extent) -> Iterator[Point]:
    chunks = [*_powers(1, extent.batch_tokens, 4)]
    cached = [0, *_powers(_LEAST_CACHED, extent.context, 4)]
    lengths = [*_powers(_LEAST_KV, extent.context, 4)]
    batches = [*_powers(1, extent.batch_requests, 2)]
    for tokens in _thirds(extent.batch_tokens):
        yield Point(MeasurementKind.DENSE, tokens, 0, 0, 0, 0)
    for decodes in batches:
        for length in lengths:
            yield Point(MeasurementKind.DECODE, decodes, decodes, decodes * length, 0, 0)
    for chunk in _powers(1, extent.batch_tokens, 2):
        for before in cached:
            if chunk + before <= extent.context:
                yield Point(MeasurementKind.PREFILL, chunk, 0, 0, chunk, before)
    for decodes in (0, *batches[::3], batches[-1]):
        for chunk in (0, *chunks[1:], extent.batch_tokens):
            fitting = min(chunk, extent.batch_tokens - decodes)
            for length in lengths[1::2] if decodes else [0]:
                for before in (0, extent.context // 2) if fitting else [0]:
                    if decodes + fitting and fitting >= 0 and before + fitting <= extent.context:
                        yield Point(
                            MeasurementKind.BATCH, decodes + fitting, decodes, decodes * length, fitting, before
                        )
    for tokens in _powers(_SWAPPED, extent.context, 4):
        yield Point(MeasurementKind.SWAP_OUT, tokens, 0, 0, 0, 0)
        yield Point(MeasurementKind.SWAP_IN, tokens, 0, 0, 0, 0)


def _powers(least: int, most: int, ratio: int) -> Iterator[int]:
    """Yield a geometric series up to ``most``, which is its last number."""
    number = least
    while number < most:
        yield number
        number *= ratio
    yield most


def _thirds(most: int) -> Iterator[int]:
    """Yield 1, 2, 3, 4, 6, 8, 12, 16, … up to ``most``, and that."""
    for power in _powers(1, most, 2):
        for number in (power, power * 3 // 2):
            if number <= most:
                yield number
