"""Rows of traces, and the errors of rejected ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from optsched.model.domain import MAX_TOKENS
from optsched.model.errors import InputError
from optsched.model.prefixes import Path, PrefixTree

SECOND_PS = 10**12
_MOST_DIGITS = 100
"""Leading zeros included; Python refuses to read a number of thousands of digits."""
_MOST_TIME = 10**12
"""The largest time in a trace, in its own unit."""
_TOKENS = f"an integer from 1 to {MAX_TOKENS}"


@dataclass(frozen=True)
class TraceRow:
    """A request of a trace.

    Parameters
    ----------
    arrival_ps
        Arrival time in ps, from an origin that all rows of the trace, or of one conversation, share; 0 in a trace
        without arrival times.
    input, output
        Input and output tokens.
    predicted
        The trace's own prediction of ``output``.
    conversation
        The conversation of the row, where conversations have no common clock.
    prefix
        Its path in the tree of prefixes, where that is read.
    """

    arrival_ps: int
    input: int
    output: int
    predicted: int | None = None
    conversation: int | None = None
    prefix: Path = ()


_NO_PREFIXES = PrefixTree()


@dataclass(frozen=True)
class Rows:
    """The usable rows of a file, the errors of the others, by line, and the tree of the rows' prefixes."""

    rows: tuple[TraceRow, ...]
    bad: tuple[InputError, ...]
    tree: PrefixTree = _NO_PREFIXES


def collect(found: Iterator[TraceRow | InputError]) -> Rows:
    """Separate rows from errors."""
    rows: list[TraceRow] = []
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
        raise InputError(field, text, _TOKENS)
    return number


def token_count(value: object, field: str) -> int:
    """Return a number of tokens from a JSON document, or raise `InputError`."""
    if type(value) is not int or not 1 <= value <= MAX_TOKENS:
        raise InputError(field, plain(value), _TOKENS)
    return value


def time_ps(value: object, field: str, unit_ps: int = SECOND_PS) -> int:
    """Return a time ≥ 0 in ps, to the nearest where the trace is finer, or raise `InputError`.

    Parameters
    ----------
    value
        Text, or a JSON value, fractions read as decimals.
    field
        Name of the field.
    unit_ps
        The trace's unit of time, in ps.
    """
    number = None
    if isinstance(value, str | int | Decimal) and not isinstance(value, bool):
        try:
            number = Decimal(value)
        except InvalidOperation:
            number = None
    if number is None or not number.is_finite() or not 0 <= number <= _MOST_TIME:
        raise InputError(field, plain(value), f"a number from 0 to {_MOST_TIME}")
    return round(number * unit_ps)


def plain(value: object) -> object:
    """Return a value for a message."""
    return float(value) if isinstance(value, Decimal) else value
