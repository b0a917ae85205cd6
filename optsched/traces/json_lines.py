"""Traces that are JSON lines: an object for each request, or for each conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from io import StringIO
from typing import Any

from optsched.model.errors import InputError, Said
from optsched.model.json_text import NotJSONError, load_json
from optsched.traces.rows import Rows, TraceRow, collect, plain

Entry = dict[str, Any]


def read_json_lines(text: str, rows: Callable[[Entry, int], Iterable[TraceRow | InputError]]) -> Rows:
    """Read a file with an object in each line.

    Parameters
    ----------
    text
        Content of the file.
    rows
        Makes rows, or errors, of an object and the number of its line, or raises `InputError`. Fractions are `Decimal`.
    """
    return collect(_rows(StringIO(text, newline=None), rows))


def _rows(
    lines: Iterable[str], rows: Callable[[Entry, int], Iterable[TraceRow | InputError]]
) -> Iterator[TraceRow | InputError]:
    for number, line in enumerate(lines, 1):
        try:
            for item in rows(_entry(line), number):
                yield item.located(f"line {number}") if isinstance(item, InputError) else item
        except InputError as error:
            yield error.located(f"line {number}")


def _entry(line: str) -> Entry:
    try:
        entry = load_json(line, parse_float=Decimal)
    except NotJSONError:
        raise InputError("", line.rstrip("\n"), "a JSON object") from None
    return as_entry(entry, "")


def as_entry(value: object, field: str) -> Entry:
    """Return an object, or raise `InputError`."""
    if not isinstance(value, dict):
        raise InputError(field, plain(value), "a JSON object")
    return value


def member(entry: Entry, field: str) -> object:
    """Return the value of an object's field, or raise `InputError`."""
    if field not in entry:
        raise InputError(field, Said("nothing"), "this field")
    return entry[field]
