"""Traces that are tables: a line that names the columns, and a line with commas for each request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import StringIO

from optsched.model.csv_text import by_column
from optsched.model.errors import InputError
from optsched.traces.rows import Rows, TraceRow, collect

Cells = Mapping[str, str]
"""Column → its text."""


def read_table(text: str, required: Sequence[str], row: Callable[[Cells], TraceRow]) -> Rows:
    """Read a table whose columns are found by name.

    Parameters
    ----------
    text
        Content of the file; lines end in LF or CR LF.
    required
        Required columns, in any order; other columns are ignored.
    row
        Makes a row of a line, or raises `InputError`.
    """
    # Line by line: what is wrong with one, such as an open quote, must not lose the others.
    lines = StringIO(text, newline=None)
    header = lines.readline().rstrip("\n")
    columns = header.split(",")
    if not set(required) <= set(columns) or len(set(columns)) < len(columns):
        raise InputError("line 1", header, ",".join(required))
    return collect(_rows(lines, columns, row))


def _rows(
    lines: Iterable[str], columns: Sequence[str], row: Callable[[Cells], TraceRow]
) -> Iterator[TraceRow | InputError]:
    for number, line in enumerate(lines, 2):
        try:
            yield row(by_column(columns, line.rstrip("\n").split(",")))
        except InputError as error:
            yield error.located(f"line {number}")


def require_sum(cells: Cells, total: str, parts: Sequence[int]) -> None:
    """Raise `InputError` unless a column that states the sum of others is that sum; columns may have been swapped."""
    if cells[total].strip() != str(sum(parts)):
        raise InputError(total, cells[total], f"{sum(parts)}, input and output together")
