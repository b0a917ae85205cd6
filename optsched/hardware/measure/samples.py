"""Samples, which are on disk before the next ones are taken, and the table that summarises them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from optsched.calibrate.measurements import HEADER, SIZES, MeasurementKind
from optsched.hardware.measure.grid import Point
from optsched.model.csv_text import read_records
from optsched.model.documents import read_text
from optsched.model.errors import InputError
from optsched.model.lines import append_lines, drop_unended_line
from optsched.model.objectives import percentile

_SAMPLES = (*SIZES, "ns")


class Summary(NamedTuple):
    """A measured point.

    Parameters
    ----------
    point
        What was measured.
    median_ns, p10_ns, p90_ns
        Median and deciles of the samples.
    samples
        How many there are.
    spread
        Largest minus smallest median of a round, in medians of all. It says how far the median can be trusted;
        that a few samples were disturbed, which hardly moves it, p10 and p90 show.
    """

    point: Point
    median_ns: int
    p10_ns: int
    p90_ns: int
    samples: int
    spread: float


def summarize(point: Point, rounds_ns: Sequence[Sequence[int]]) -> Summary:
    """Summarise the rounds of samples of a point; percentile q of n is the ⌈q n / 100⌉-th smallest."""
    times = [time for times in rounds_ns for time in times]
    p10, middle, p90 = (percentile(sorted(times), q) for q in (10, 50, 90))
    medians = [median(times) for times in rounds_ns]
    return Summary(point, middle, p10, p90, len(times), (max(medians) - min(medians)) / max(middle, 1))


def table_text(rows: Iterable[Summary]) -> str:
    """Return the table, ascending by kind and sizes."""
    order = {kind: place for place, kind in enumerate(MeasurementKind)}
    ordered = sorted(rows, key=lambda row: (order[row.point.kind], row.point[1:]))
    lines = [HEADER, *((*row.point, *row[1:5]) for row in ordered)]
    return "".join(",".join(map(str, line)) + "\n" for line in lines)


class Samples:
    """A file of rounds of samples that only grows, a line each.

    Parameters
    ----------
    path
        Made if it is not there. A line that a crash left unfinished is dropped.

    Raises
    ------
    InputError
        If it holds something else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rounds: dict[Point, list[list[int]]] = {}
        if path.exists():
            drop_unended_line(path)
        if not path.exists() or path.stat().st_size == 0:
            append_lines(path, [",".join(_SAMPLES)])
        for number, fields in read_records(read_text(path), str(path), _SAMPLES):
            try:
                kind, *sizes, times = fields
                point = Point(MeasurementKind(kind), *map(int, sizes))
                self._rounds.setdefault(point, []).append([int(time) for time in times.split()])
            except (ValueError, TypeError):
                expected = f"a kind ({', '.join(MeasurementKind)}), five integers, and times"
                raise InputError(f"line {number}", ",".join(fields), expected, str(path)) from None

    def add(self, point: Point, times_ns: Sequence[int]) -> None:
        """Add a round, on disk when this returns."""
        append_lines(self._path, [",".join([*map(str, point), " ".join(map(str, times_ns))])])
        self._rounds.setdefault(point, []).append(list(times_ns))

    def rounds(self, point: Point, most: int) -> int:
        """Return how many rounds of a point there are, up to ``most``."""
        return min(len(self._rounds.get(point, [])), most)

    def row(self, point: Point, rounds: int) -> Summary | None:
        """Return the summary of the latest rounds of a point; None of fewer rounds."""
        latest = self._rounds.get(point, [])[-rounds:]
        return summarize(point, latest) if len(latest) == rounds else None
