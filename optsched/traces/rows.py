"""What readers of traces find: rows, and what is wrong with others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from optsched.model.domain import MAX_TOKENS
from optsched.model.errors import InputError

_MOST_DIGITS = 100
"""Leading zeros included; Python refuses to read a number of thousands of digits."""


@dataclass(frozen=True)
class Row:
    """A request: when it arrives, in ps since any moment, and its tokens."""

    arrival_ps: int
    input: int
    output: int


@dataclass(frozen=True)
class Rows:
    """The rows of a file that can be used, and what is wrong with the others, by line."""

    rows: tuple[Row, ...]
    bad: tuple[InputError, ...]


def collect(found: Iterator[Row | InputError]) -> Rows:
    """Tell rows from errors."""
    rows: list[Row] = []
    bad: list[InputError] = []
    for item in found:
        if isinstance(item, InputError):
            bad.append(item)
        else:
            rows.append(item)
    return Rows(tuple(rows), tuple(bad))


def tokens(text: str, field: str) -> int:
    """Read a number of tokens, or raise `InputError`."""
    digits = text.strip()
    number = int(digits) if digits.isdecimal() and len(digits) <= _MOST_DIGITS else 0
    if not 1 <= number <= MAX_TOKENS:
        raise InputError(field, text, f"an integer from 1 to {MAX_TOKENS}")
    return number
