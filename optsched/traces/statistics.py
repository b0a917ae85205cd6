r"""Statistics of a trace, from which stand-ins for it are drawn (`standin`).

The quantile of level q of n values is the :math:`\lceil q n \rceil`-th smallest, that of level 0 the smallest. A table
holds the quantiles of all `LEVELS`. There is one of the inputs and `BANDS` each of two more: to keep how the lengths
depend on each other, of the outputs in equal parts of the requests, ascending by input; to keep bursts, of the times
between arrivals in equal parts of blocks of some `BLOCK` in a row, ascending by the time that a block takes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from importlib.resources import files
from itertools import pairwise
from random import Random
from typing import Annotated, Final, Literal, TypeVar

from pydantic import Field, TypeAdapter

from optsched.calibrate.library import Source
from optsched.model.documents import dump
from optsched.model.domain import Picoseconds, Tokens, domain
from optsched.model.instance import Request

STATISTICS_FORMAT: Final = "optsched-trace-statistics/1"
SCALE: Final = 2048
LEVELS: Final = (
    *range(0, 1984, 64),
    *range(1984, 2016, 8),
    *range(2016, 2032, 4),
    *range(2032, 2040, 2),
    *range(2040, SCALE + 1),
)
"""Levels of the tables in 1/2048: every 32nd part, and denser near 1, where times between arrivals grow fast."""
BANDS: Final = 16
BLOCK: Final = 125

_T = TypeVar("_T")
_TABLE = Field(min_length=len(LEVELS), max_length=len(LEVELS))
_BANDS = Field(min_length=BANDS, max_length=BANDS)
TokenTable = Annotated[tuple[Tokens, ...], _TABLE]
TimeTable = Annotated[tuple[Picoseconds, ...], _TABLE]


@domain
class Statistics:
    """Statistics of a trace (format ``optsched-trace-statistics/1``).

    Parameters
    ----------
    format, name, description
        The document's format; name and description of the trace.
    source
        Origin of the trace.
    rows
        Number of requests.
    gap_ps
        A table of the times between arrivals, in ps, for each band of blocks.
    input, output
        A table of the inputs; one of the outputs for each band of requests.
    """

    format: Literal["optsched-trace-statistics/1"]
    name: str
    description: str
    source: Source
    rows: Annotated[int, Field(gt=BANDS)]
    gap_ps: Annotated[tuple[TimeTable, ...], _BANDS]
    input: TokenTable
    output: Annotated[tuple[TokenTable, ...], _BANDS]


_STATISTICS = TypeAdapter(Statistics)


def shipped_statistics(name: str) -> Statistics:
    """Return the shipped statistics called ``name``."""
    return _STATISTICS.validate_json((files("optsched.traces") / "fitted" / f"{name}.json").read_bytes())


def render_statistics(statistics: Statistics) -> str:
    """Write a document; equal statistics give equal bytes."""
    return dump(_STATISTICS.dump_python(statistics, mode="json"))


def parts(values: Sequence[_T], number: int) -> list[Sequence[_T]]:
    """Cut values into consecutive parts whose sizes differ by at most 1."""
    size = len(values)
    return [values[k * size // number : (k + 1) * size // number] for k in range(number)]


def quantiles(values: Sequence[int]) -> tuple[int, ...]:
    """Return the table of the values (see the module)."""
    ascending = sorted(values)
    return tuple(ascending[max(-(-level * len(values) // SCALE), 1) - 1] for level in LEVELS)


def spread(table: Sequence[int], count: int) -> list[int]:
    """Return the values of the levels (k + 1/2)/count, k = 0 … count − 1, ascending.

    Between two levels of the table the quantile is linear, rounded to the nearest integer, half up.
    """
    values = []
    segment = 0
    for k in range(count):
        level = (2 * k + 1) * SCALE  # in 1/(2 · count · SCALE)
        while level > LEVELS[segment + 1] * 2 * count:
            segment += 1
        (low, high), (least, most) = LEVELS[segment : segment + 2], table[segment : segment + 2]
        width = (high - low) * 2 * count
        values.append(least + (2 * (most - least) * (level - low * 2 * count) + width) // (2 * width))
    return values


def draw_lengths(statistics: Statistics, rng: Random) -> tuple[int, int]:
    """Draw input and output of a request, independently of all others."""
    level = rng.random()
    return _quantile(statistics.input, level), _quantile(statistics.output[int(level * BANDS)], rng.random())


def _quantile(table: Sequence[int], level: float) -> int:
    """Return the quantile of a level below 1, linear between those of the table."""
    segment = bisect_right(LEVELS, level * SCALE) - 1
    (low, high), (least, most) = LEVELS[segment : segment + 2], table[segment : segment + 2]
    share: float = (level * SCALE - low) / (high - low)
    return round(least + (most - least) * share)


def measure(name: str, description: str, source: Source, requests: Sequence[Request]) -> Statistics:
    """Measure the requests of a trace, ascending by arrival."""
    gaps = [later.arrival_ps - earlier.arrival_ps for earlier, later in pairwise(requests)]
    blocks = sorted(parts(gaps, max(len(gaps) // BLOCK, BANDS)), key=sum)
    by_input = sorted(requests, key=lambda request: request.input)
    return Statistics(
        format=STATISTICS_FORMAT,
        name=name,
        description=description,
        source=source,
        rows=len(requests),
        gap_ps=tuple(quantiles([gap for block in band for gap in block]) for band in parts(blocks, BANDS)),
        input=quantiles([request.input for request in requests]),
        output=tuple(quantiles([request.output for request in band]) for band in parts(by_input, BANDS)),
    )
