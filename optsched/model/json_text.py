"""Strict JSON: what other readers let pass in silence is refused, in one line that says where."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from optsched.model.domain import input_error, path
from optsched.model.errors import InputError, Said

MAX_DIGITS = 1000
"""Most digits of an integer: a product of several can still be printed (Python's limit is 4,300)."""

_DOCUMENT = "a JSON document"
_FINITE = "a finite number"
_AS_ZEROS = MappingProxyType(str.maketrans("123456789", "000000000"))
_PART = 1 << 20
"""Characters that are looked at together: a document is never held twice."""
_T = TypeVar("_T")


class NotJSONError(InputError):
    """Text that is no JSON at all."""


def load_json(data: bytes | str, parse_float: Callable[[str], Any] = float) -> Any:
    """Return what JSON text holds.

    Parameters
    ----------
    data
        Text, or its bytes in UTF-8 without a byte order mark.
    parse_float
        Makes a number of the text of one that has a fraction or an exponent.

    Raises
    ------
    NotJSONError
        If it is no JSON: bytes that are no text, values nested more than 200 deep, NaN, half of a surrogate pair.
    InputError
        If an object has a key twice, an integer has more than `MAX_DIGITS` digits, or a number is too large for a
        float.
    """
    try:
        from_json(data, allow_inf_nan=False)
    except ValueError as error:
        what, _, where = str(error).partition(" at ")
        raise NotJSONError(where or "document", Said(f"invalid JSON ({what})"), _DOCUMENT) from None
    return _strictly(data, parse_float, _object)


def parse_json(adapter: TypeAdapter[_T], data: bytes | str, skip: frozenset[str] = frozenset()) -> _T:
    """Return what JSON text holds, as the type of an adapter; what `load_json` refuses is refused.

    Parameters
    ----------
    adapter
        The type.
    data
        The text.
    skip
        Names of branches that are no fields, which errors leave out.
    """
    try:
        found = adapter.validate_json(data)
    except ValidationError as error:
        raise input_error(error, skip, data) from None
    _strictly(data, float, _require_unique)
    return found


class _RefusedError(Exception):
    """Something is wrong somewhere: a second reading will find where."""


class _Wrong(NamedTuple):
    """What a second reading puts in the place of a value that is wrong."""

    found: str
    expected: str


class _Members(list[tuple[str, Any]]):
    """An object with all its members, the keys that it has twice included."""


def _strictly(
    data: bytes | str, parse_float: Callable[[str], Any], make: Callable[[list[tuple[str, Any]]], Any]
) -> Any:
    """Return what JSON text holds; its objects are what ``make`` makes of their members."""
    text = data if isinstance(data, str) else data.decode()

    def number(literal: str) -> Any:
        if not isfinite(float(literal)):
            raise _RefusedError
        return parse_float(literal)

    try:
        if _has_long_number(text):
            json.loads(text, parse_int=_refuse_long)
        return json.loads(text, parse_float=number, parse_constant=_refuse, object_pairs_hook=make)
    except _RefusedError:
        members = json.loads(
            text, parse_float=_float, parse_int=_int, parse_constant=_constant, object_pairs_hook=_Members
        )
        raise next(_wrong(members, ())) from None


def _refuse(_: str) -> NoReturn:
    raise _RefusedError


def _has_long_number(text: str) -> bool:
    """Whether more than `MAX_DIGITS` digits follow each other; a hundred times as fast as looking at every number."""
    digits = MAX_DIGITS + 1
    parts = (text[start : start + _PART + digits] for start in range(0, len(text), _PART))
    return any("0" * digits in part.translate(_AS_ZEROS) for part in parts)


def _refuse_long(literal: str) -> int:
    """Refuse an integer of too many digits; those of strings and of fractions do not count."""
    return 0 if isinstance(_int(literal), int) else _refuse(literal)


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        raise _RefusedError
    return found


def _require_unique(members: list[tuple[str, Any]]) -> None:
    """Look at an object's keys and keep nothing, so that a large document takes little memory."""
    if len({key for key, _ in members}) < len(members):
        raise _RefusedError


def _float(literal: str) -> object:
    return 0.0 if isfinite(float(literal)) else _Wrong(literal, _FINITE)


def _int(literal: str) -> object:
    digits = len(literal.lstrip("-"))
    return _Wrong(f"{digits} digits", f"an integer of at most {MAX_DIGITS}") if digits > MAX_DIGITS else 0


def _constant(literal: str) -> object:
    return _Wrong(literal, _FINITE)


def _wrong(value: object, location: tuple[str | int, ...]) -> Iterator[InputError]:
    """Yield what is wrong in a value, in the order of the text."""
    if isinstance(value, _Wrong):
        yield InputError(path(location) or "document", Said(value.found), value.expected)
    elif isinstance(value, _Members):
        seen = set()
        for key, member in value:
            if key in seen:
                yield InputError(path((*location, key)), Said("the same key twice"), "each key once in an object")
            seen.add(key)
            yield from _wrong(member, (*location, key))
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _wrong(item, (*location, position))
