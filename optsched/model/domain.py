"""How the domain objects are made: frozen dataclasses whose fields are checked wherever they come from."""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, TypeVar, dataclass_transform

from pydantic import AfterValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic_core import from_json

from optsched.model.errors import InputError, Said, describe, is_plain

MAX_PS = 2**63 - 1
"""The largest time or coefficient, in ps: 106 days."""
MAX_TOKENS = 10**9
"""The largest token count of one request or limit."""
MAX_REQUESTS = 10**7
"""The most requests of one instance."""
MAX_MACHINES = 10**4
"""The most machines of one instance."""

Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Picoseconds = Annotated[int, Field(ge=0, le=MAX_PS)]
Index = Annotated[int, Field(ge=0)]
Percent = Annotated[int, Field(ge=0, le=100)]


def _require_plain(text: str) -> str:
    if not is_plain(text):
        raise InputError("", text, "text without control and format characters")
    return text


Name = Annotated[str, AfterValidator(_require_plain)]
"""Text that can be printed in a line as it is."""

_T = TypeVar("_T")
_CONFIG = ConfigDict(strict=True, extra="forbid")


def path(location: Iterable[str | int], skip: frozenset[str] = frozenset()) -> str:
    """Write a pydantic location as ``requests[2].input``, leaving out the names in ``skip``."""
    text = ""
    for step in location:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step not in skip:
            text += f".{step}" if text else step
    return text


MOST_PROBLEMS = 10_000
"""With more problems a document is not what it should be at all; to say each takes pydantic a kilobyte."""
_VALUELESS = frozenset({"missing", "too_short", "too_long", "json_invalid"})
"""Problems that are said without what is found there."""


def input_error(
    error: ValidationError, skip: frozenset[str] = frozenset(), document: bytes | str | None = None
) -> InputError:
    """Turn the first complaint of pydantic into one line of ours.

    Parameters
    ----------
    error
        The complaints.
    skip
        Names in locations that are no fields.
    document
        The JSON text that they are about. Pydantic would make objects of what is found, for each complaint anew, and a
        field that is missing is found in all that the document holds: gigabytes for some kilobytes.
    """
    if error.error_count() > MOST_PROBLEMS:
        return InputError("document", Said(f"{error.error_count()} problems"), f"at most {MOST_PROBLEMS} to say")
    first: dict[str, Any] = dict(error.errors(include_url=False, include_input=document is None)[0])
    if document is not None:
        first["input"] = None if first["type"] in _VALUELESS else _found(document, first["loc"], skip)
    where = path(first["loc"], skip)
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return cause.within(where)
    value, expected = describe(first)
    # Of a document of another format nothing else is right either; one complaint will do.
    more = 0 if first["loc"][-1:] == ("format",) else error.error_count() - 1
    if first["type"] == "json_invalid" and (position := re.search(r"line \d+ column \d+", first["ctx"]["error"])):
        where = position[0]
    return InputError(where or "document", value, expected + (f" (and {more} more problems)" if more else ""))


def _found(document: bytes | str, location: Iterable[str | int], skip: frozenset[str]) -> object:
    """Return what a document holds at a location of pydantic; of a wrong key, the key."""
    value = from_json(document)
    before: str | int = ""
    for step in location:
        if step == "[key]":
            return before
        if step not in skip:
            value, before = value[step], step
    return value


def plain(value: Any) -> Any:
    """Return tuples for sequences and arrays, and Python's own numbers for numpy's and others that are exact integers.

    Text, mappings, and all other values stay what they are; so do Booleans and floats, which are no integers.
    """
    if hasattr(value, "tolist"):  # numpy's arrays and scalars, without loading numpy
        value = value.tolist()
    if isinstance(value, str | bytes | bool | int | float):
        return value
    if isinstance(value, Sequence):
        return tuple(map(plain, value))
    try:
        return operator.index(value)
    except TypeError:
        return value


@dataclass_transform(frozen_default=True, kw_only_default=False)
def domain(cls: type[_T]) -> type[_T]:
    """Make a frozen dataclass with slots whose fields are checked against their annotations.

    Built in Python or read from a document, a wrong field raises `InputError`, which names field, value
    and expectation. Types are strict: ``True`` or ``1.0`` is no integer. Built in Python, a list or an array may stand
    for a tuple, and numpy's integers for integers (`plain`).
    """
    made: Any = pydantic_dataclass(frozen=True, slots=True, config=_CONFIG)(cls)
    checked_init: Callable[..., None] = made.__init__
    names = [field.name for field in dataclasses.fields(made)]

    @functools.wraps(checked_init)
    def init(self: object, *args: Any, **kwargs: Any) -> None:
        if len(args) > len(names):
            raise TypeError(f"{cls.__name__} takes {len(names)} fields, {len(args)} were given")
        given = dict(zip(names, args, strict=False))
        try:
            # What is plain already, as everything that our own code makes, costs nothing more.
            checked_init(self, **given, **kwargs)
        except ValidationError:
            given, kwargs = ({name: plain(value) for name, value in each.items()} for each in (given, kwargs))
            try:
                checked_init(self, **given, **kwargs)
            except ValidationError as error:
                raise input_error(error) from None

    made.__init__ = init
    return made  # type: ignore[no-any-return]


def replace(obj: _T, **changes: Any) -> _T:
    """Return a copy of a domain object with some fields changed, checked as if built anew."""
    if not dataclasses.is_dataclass(obj):
        raise InputError("obj", obj, "a domain object, such as an Instance")
    return dataclasses.replace(obj, **changes)  # type: ignore[type-var]
