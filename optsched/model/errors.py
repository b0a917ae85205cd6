"""What can be wrong with input, said in one line."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

_SHOWN = 60
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's control and format characters (of which some reverse text or take no room), surrogates, line separators."""


def is_plain(text: str) -> bool:
    """Whether text has no character that a terminal obeys instead of showing it."""
    return text.isprintable() or not any(unicodedata.category(char) in _UNSEEN for char in text)


def printable(text: str) -> str:
    """Return text for one line of a terminal or a log: what is not printable is escaped as in Python."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def shown(value: object) -> str:
    """Represent an offending value on one line, as documents write null and true; a long one is shortened."""
    literal = isinstance(value, bool | float) or value is None
    text = json.dumps(value) if literal else " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}…{text[-_SHOWN // 4 :]}"


class DefectError(RuntimeError):
    """optsched contradicts itself; never the user's fault."""


class InputError(ValueError):
    """Input that cannot be used: names the field, its value and what was expected.

    Parameters
    ----------
    field
        Where the value is, such as ``requests[2].input`` or ``--policy``.
    value
        What was found there. An exception or ``Missing`` is shown as itself, without quotes.
    expected
        What would have been right, such as ``an integer ≥ 1``.
    source
        The file (or ``-``), or its line, that holds the field, once it is known.
    """

    def __init__(self, field: str, value: object, expected: str, source: str | None = None) -> None:
        super().__init__(field, value, expected, source)
        self.field = field
        self.value = value
        self.expected = expected
        self.source = source

    def within(self, prefix: str) -> InputError:
        """Return the same error with ``prefix`` put before the field's path."""
        if not self.field or not prefix:
            field = prefix or self.field
        else:
            field = prefix + ("" if self.field.startswith("[") else ".") + self.field
        return InputError(field, self.value, self.expected, self.source)

    def located(self, source: str) -> InputError:
        """Return the same error, said to be in ``source``, such as a file; what was said before is part of it."""
        inner = f": {self.source}" if self.source else ""
        return InputError(self.field, self.value, self.expected, f"{source}{inner}")

    def __str__(self) -> str:
        got = str(self.value) if isinstance(self.value, Said) else shown(self.value)
        where = f"{self.source}: " if self.source else ""
        field = f"{self.field}: " if self.field else ""
        return printable(f"{where}{field}got {got}, expected {self.expected}")


def require_type(field: str, value: object, kind: type, expected: str) -> None:
    """Raise `InputError` if an argument is of another type."""
    if not isinstance(value, kind):
        raise InputError(field, value, expected)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return ``; did you mean …?`` with the known name that is spelled most like an unknown one, or begins with it."""
    import difflib  # noqa: PLC0415  # only an error needs it

    if not isinstance(name, str) or not name:
        return ""
    by_lower_case = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), by_lower_case, n=1)
    # The start of a long name is not spelled like it.
    close += [each for each in by_lower_case if each.startswith(name.lower())]
    return f"; did you mean {by_lower_case[close[0]]}?" if close else ""


def one_of(name: object, known: Iterable[str]) -> str:
    """Return what `InputError` expects instead of an unknown name: the known ones, and the one that may be meant."""
    names = list(known)
    return f"one of {', '.join(names)}{did_you_mean(name, names)}"


class Said(str):
    """A phrase in place of a value in an error, such as ``nothing``; printed without quotes."""

    __slots__ = ()


class InfeasibleInstanceError(ValueError):
    """No schedule exists: the message names the request and the limit that it breaks.

    Parameters
    ----------
    reasons
        A phrase for each request that cannot be served; at least one.
    remedy
        What would do, if anything simple would.
    """

    def __init__(self, reasons: tuple[str, ...], remedy: str = "") -> None:
        super().__init__(reasons, remedy)
        self.reasons = reasons
        self.remedy = remedy

    @property
    def message(self) -> str:
        """What result documents say: the first ten reasons, and the remedy if there is one."""
        return "; ".join((*self.reasons[:10], *([self.remedy] if self.remedy else [])))

    def __str__(self) -> str:
        more = f" (and {len(self.reasons) - 1} more requests)" if len(self.reasons) > 1 else ""
        return self.reasons[0] + more + (f"; {self.remedy}" if self.remedy else "")


_TYPES = MappingProxyType(
    {
        "int_type": "an integer",
        "int_from_float": "an integer",
        "int_parsing_size": "an integer of at most 4,300 digits",
        "float_type": "a number",
        "finite_number": "a finite number",
        "bool_type": "true or false",
        "string_type": "a string",
        "list_type": "a list",
        "tuple_type": "a list",
        "dict_type": "an object",
        "model_type": "an object",
        "dataclass_type": "an object",
        "dataclass_exact_type": "an object",
        "model_attributes_type": "an object",
    }
)


def describe(error: Mapping[str, Any]) -> tuple[object, str]:
    """Say a pydantic error as (value found, expectation)."""
    kind, context, value = error["type"], error.get("ctx", {}), error["input"]
    match kind:
        case "missing":
            return Said("nothing"), "this field"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return value, "no field of this name"
        case "greater_than":
            return value, f"a number > {context['gt']:g}"
        case "greater_than_equal":
            return value, f"{_number(context['ge'])} ≥ {context['ge']}"
        case "less_than_equal":
            return value, f"{_number(context['le'])} ≤ {context['le']}"
        case "literal_error" | "enum":
            return value, str(context["expected"])
        case "too_short":
            return Said(f"{context['actual_length']} items"), f"at least {context['min_length']}"
        case "too_long":
            return Said(f"{context['actual_length'] or 'more'} items"), f"at most {context['max_length']}"
        case "json_invalid":
            return Said(f"invalid JSON ({context['error'].partition(' at line ')[0]})"), "a JSON document"
        case _:
            return value, _TYPES.get(kind, error["msg"])


def _number(limit: float) -> str:
    return "an integer" if isinstance(limit, int) else "a number"
