"""Tables of measurements: CSV whose fields are checked as they are taken, and what times can be true."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from types import MappingProxyType

from optsched.model.csv_text import read_records
from optsched.model.documents import read_text
from optsched.model.errors import InputError, Said

PS = MappingProxyType({"ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12})
"""Picoseconds of each unit of time that a table may have."""
KERNEL_PS = (5 * 10**5, 5 * 10**8)
"""The shortest of a table's GPU kernels takes between 0.5 µs, less than any launch, and 500 µs: a table in another unit
than its reader declares is 1,000 times beside it."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """A line of a table, whose fields are checked as they are taken."""

    path: Path
    line: int
    fields: dict[str, str]

    def error(self, column: str, value: object, expected: str) -> InputError:
        """Return what to raise if a field is wrong."""
        return InputError(f"line {self.line}.{column}", value, expected, str(self.path))

    def text(self, column: str) -> str:
        """Return a field."""
        if column not in self.fields:
            raise InputError(column, Said("nothing"), "a column of this name", str(self.path))
        return self.fields[column]

    def integer(self, column: str, least: int) -> int:
        """Return an integer that is at least ``least``."""
        text = self.text(column)
        if not (text.isascii() and text.isdigit() and int(text) >= least):
            raise self.error(column, text, f"an integer ≥ {least}")
        return int(text)

    def boolean(self, column: str) -> bool:
        """Return True or False."""
        text = self.text(column)
        if text not in {"True", "False"}:
            raise self.error(column, text, "True or False")
        return text == "True"

    def time_ps(self, column: str, unit: str) -> float:
        """Return a time > 0, given in this unit of `PS`, in ps."""
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not (isfinite(value) and value > 0):
            raise self.error(column, text, f"a time > 0 in {unit}")
        return value * PS[unit]


def read_table(path: Path, header: Sequence[str] | None = None) -> Iterator[TableRow]:
    """Yield the rows of a CSV file, or of a packed one (``.gz``), after its header; it may have to be a given one."""
    records = read_records(read_text(path), str(path), header)
    columns = next(records, (1, []))[1] if header is None else header
    for line, record in records:
        if len(record) != len(columns):
            raise InputError(f"line {line}", Said(f"{len(record)} fields"), f"{len(columns)}", str(path))
        yield TableRow(path, line, dict(zip(columns, record, strict=True)))


def require_rows(path: Path, rows: Sequence[object], expected: str) -> None:
    """Raise `InputError` if there are none."""
    if not rows:
        raise InputError("rows", Said("none"), expected, str(path))


def require_plausible(path: Path, field: str, found_ps: float, between_ps: tuple[float, float], unit: str) -> None:
    """Raise `InputError` if a time can only be in another unit.

    Parameters
    ----------
    path, field
        The file, and which time it is.
    found_ps, between_ps
        The time, and the range in which it must lie, in ps.
    unit
        What the file's times are in.
    """
    least, most = between_ps
    if not least <= found_ps <= most:
        scale = PS[unit]
        expected = f"a table in {unit}, where it is {least / scale:g} to {most / scale:g}"
        raise InputError(field, Said(f"{found_ps / scale:.4g}"), expected, str(path))
