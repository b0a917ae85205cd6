"""Traces that are tables: a line that names the columns, and a line with commas for each request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from optsched.model.csv_text import by_column, read_records
from optsched.model.errors import InputError
from optsched.traces.rows import Row, Rows, collect

Cells = Mapping[str, str]
"""Column → its text."""


def read_table(text: str, required: Sequence[str], row: Callable[[Cells], Row]) -> Rows:
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
    records = read_records(text)
    _, columns = next(records, (1, [""]))
    if not set(required) <= set(columns) or len(set(columns)) < len(columns):
        raise InputError("line 1", ",".join(columns), ",".join(required))
    return collect(_rows(records, columns, row))


def _rows(
    records: Iterable[tuple[int, list[str]]], columns: Sequence[str], row: Callable[[Cells], Row]
) -> Iterator[Row | InputError]:
    for number, record in records:
        try:
            yield row(by_column(columns, record))
        except InputError as error:
            yield error.located(f"line {number}")


def require_sum(cells: Cells, total: str, parts: Sequence[int]) -> None:
    """Raise `InputError` unless a column that states the sum of others is that sum; columns may have been swapped."""
    if cells[total].strip() != str(sum(parts)):
        raise InputError(total, cells[total], f"{sum(parts)}, input and output together")
