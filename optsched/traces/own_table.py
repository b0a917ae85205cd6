"""A table of one's own: which columns are which, and in what unit arrival times are."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from io import StringIO
from types import MappingProxyType

from optsched.model.csv_text import by_column
from optsched.model.errors import InputError, one_of
from optsched.traces.rows import SECOND_PS, Rows, TraceRow, collect, tokens

ISO = "iso"
UNITS: Mapping[str, int] = MappingProxyType({"s": SECOND_PS, "ms": 10**9, "us": 10**6, "ns": 10**3})
"""Unit of numbers → ps."""
FIELDS = ("arrival", "input", "output", "predicted")
_MOST_TIME = 10**19
"""The largest number: a time of today in ns since 1970, and more."""
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,](\d{1,12}))?(Z|[+-]\d\d:?\d\d)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class TableForm:
    """Which columns a table has, and the unit of its times.

    Parameters
    ----------
    columns
        Field (`FIELDS`) → column. ``input`` and ``output`` have to be there; without ``arrival`` all requests arrive
        together.
    unit
        One of `UNITS`, or ``iso``: dates such as ``2023-11-16T18:15:46.68Z``, UTC unless they say otherwise.
    """

    columns: Mapping[str, str]
    unit: str

    def __post_init__(self) -> None:
        if self.unit not in {*UNITS, ISO}:
            raise InputError("unit", self.unit, one_of(self.unit, (*UNITS, ISO)))


def read_form(columns: str | None, unit: str) -> TableForm:
    """Read ``arrival=t,input=prompt,output=gen``; fields that are not named have columns of their own names."""
    found: dict[str, str] = {}
    for part in [] if columns is None else columns.split(","):
        field, _, column = (text.strip() for text in part.partition("="))
        if field not in FIELDS or field in found or not column:
            expected = f"FIELD=COLUMN joined by commas, each FIELD once and {one_of(field, FIELDS)}"
            raise InputError("columns", columns, expected)
        found[field] = column
    return TableForm(found, unit)


def read_own_table(text: str, form: TableForm) -> Rows:
    """Read a table with commas whose first line names the columns.

    Raises
    ------
    InputError
        If a column that ``form`` names, or that is needed, is not there.
    """
    lines = StringIO(text.removeprefix("\ufeff"), newline=None)
    header = _cells(lines.readline())
    places = {field: form.columns.get(field, field) for field in FIELDS}
    for field, column in [*places.items()]:
        needed = field in form.columns or field in {"input", "output"}
        if column in header and header.count(column) == 1:
            continue
        if needed or column in header:
            expected = f"the column {column!r} once, for {field} (--columns {field}=NAME names another)"
            raise InputError("line 1", ",".join(header), expected)
        del places[field]
    return collect(_rows(lines, header, places, form.unit))


def _rows(lines: StringIO, header: list[str], places: dict[str, str], unit: str) -> Iterator[TraceRow | InputError]:
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        try:
            cells = by_column(header, _cells(line))
            given = {field: cells[column] for field, column in places.items()}
            arrival = _time_ps(given["arrival"], places["arrival"], unit) if "arrival" in given else 0
            prompt, output = (tokens(given[field], places[field]) for field in ("input", "output"))
            predicted = tokens(given["predicted"], places["predicted"]) if "predicted" in given else None
            yield TraceRow(arrival, prompt, output, predicted)
        except InputError as error:
            yield error.located(f"line {number}")


def _cells(line: str) -> list[str]:
    """Return the cells of one line, quotes removed, or raise `InputError`."""
    try:
        return [cell.strip() for cell in next(csv.reader([line.rstrip("\n")], strict=True), [])]
    except csv.Error:
        raise InputError("", line.rstrip("\n"), "a line of CSV, its quotes closed") from None


def _time_ps(text: str, field: str, unit: str) -> int:
    """Read a time, exactly if it is whole in ps."""
    if unit == ISO:
        return _moment_ps(text, field)
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite() or not 0 <= number <= _MOST_TIME:
        raise InputError(field, text, f"a number ≥ 0, in {unit} (--unit {ISO} reads dates)")
    return round(number * UNITS[unit])


def _moment_ps(text: str, field: str) -> int:
    match = _MOMENT.fullmatch(text.strip())
    try:
        moment = datetime.fromisoformat(match[1] + (match[3] or "Z")) if match else None
    except ValueError:
        moment = None
    if match is None or moment is None:
        raise InputError(field, text, "a date such as 2023-11-16T18:15:46.68Z (--unit s reads numbers)")
    seconds = round((moment - _EPOCH).total_seconds())
    return seconds * SECOND_PS + int((match[2] or "0").ljust(12, "0"))
