"""CSV: records of text, and their fields by column."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from io import StringIO

from optsched.model.errors import InputError, Said


def read_records(text: str, source: str = "", header: Sequence[str] | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and fields of every record.

    Parameters
    ----------
    text, source
        The text, and the file that errors name.
    header
        Required first record, which is then left out; None yields it like the others.

    Raises
    ------
    InputError
        If the text is not CSV, or begins with another record.
    """
    reader = csv.reader(StringIO(text, newline=""), strict=True)
    try:
        if header is not None and (found := next(reader, [])) != list(header):
            raise InputError("line 1", ",".join(found), ",".join(header), source)
        for record in reader:
            yield reader.line_num, record
    except csv.Error as error:
        raise InputError(f"line {reader.line_num}", Said(str(error)), "CSV", source) from None


def by_column(columns: Sequence[str], record: Sequence[str]) -> dict[str, str]:
    """Return the fields of a record, or raise `InputError` if they are not as many as the columns."""
    if len(record) != len(columns):
        raise InputError("", ",".join(record), f"{len(columns)} columns")
    return dict(zip(columns, record, strict=True))
