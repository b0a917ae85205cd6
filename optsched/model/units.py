"""Times with units, as people write them: ``8.7 ms``."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from types import MappingProxyType

from optsched.model.errors import InputError

TIME_UNITS = MappingProxyType({"ps": 1, "ns": 10**3, "us": 10**6, "µs": 10**6, "μs": 10**6, "ms": 10**9, "s": 10**12})
"""Unit → ps; both characters that look like µ."""
_QUANTITY = re.compile(r"\s*(\d[\d.eE+-]*)\s*([a-zA-Zµμ]+)\s*")
_MOST_TEXT = 60
_MOST_DIGITS = 25


def in_ps(value: object) -> object:
    """Return a time with a unit in ps; whatever is no text of a number and a unit stays what it is.

    Raises
    ------
    InputError
        For another unit, or a time that is not whole in ps.
    """
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) and len(value) <= _MOST_TEXT else None
    if match is None:
        return value
    try:
        found = Decimal(match[1]) * TIME_UNITS[match[2]]
        whole = found.adjusted() < _MOST_DIGITS and found == found.to_integral_value()
    except (InvalidOperation, KeyError):
        whole = False
    if not whole:
        raise InputError("", value, "ps, or a number with ps, ns, us, ms or s that is whole in ps")
    return int(found)
