"""What every certificate has to be before anything is computed from it, and what the checker is ready to compute.

`require_form` and `require_size` look at every certificate, whatever its kind, before a list or an array is made of
what it and the problem state; `require_64_bits` is for the one kind that computes with arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from optsched.check.problem import Problem
from optsched.check.reading import UnprovedError, shown

MOST_INTEGER = 2**1000
"""No number of a certificate is larger; so no sum or product of a few of them takes long."""
DEEPEST = 10
"""Objects and lists within each other; a certificate in a certificate has seven."""
_MOST_TOKENS: Mapping[str, int] = MappingProxyType(
    {
        "resident_walk": 100_000,
        "resident_search": 100_000,
        "layered_search": 100_000,
        "request_search": 100_000,
        "patterns": 1_000_000,
        "ramp": 2_000_000,
    }
)
"""Output tokens of all (I, O), each pair counted once, that the kinds are computed for which list every one of them."""
_MOST_SERVED: Mapping[str, int] = MappingProxyType(
    {"congestion": 20_000_000, "waiting": 20_000_000, "inflow": 20_000_000}
)
"""Output tokens of all requests that the kinds are computed for which list every one of them."""


def require_form(certificate: Mapping[str, object]) -> None:
    """Refuse certificates with larger integers, or deeper ones, than any of ours; kinds say what else they expect."""
    for name, part in certificate.items():
        _require_form(name, part, DEEPEST)


def _require_form(path: str, part: object, deeper: int) -> None:
    if type(part) is int:
        if abs(part) > MOST_INTEGER:
            raise UnprovedError(f"{path} is {shown(part)}, expected an integer from -2^1000 to 2^1000")
    elif isinstance(part, list | dict):
        if not deeper:
            raise UnprovedError(f"{path} is {shown(part)}, expected at most {DEEPEST} lists and objects in each other")
        if isinstance(part, list) and set(map(type, part)) == {int}:
            # Most lists, and all long ones, hold integers only.
            part = [min(part), max(part)]
        inner = part.items() if isinstance(part, dict) else enumerate(part)
        for key, value in inner:
            _require_form(f"{path}.{key}", value, deeper - 1)


def require_size(kind: str, problem: Problem) -> None:
    """Refuse problems with more output tokens than the checker is ready to list for a kind of certificate."""
    if not problem.requests:
        raise UnprovedError("there are no requests")
    listed = sum(output for _, output in {(request.input, request.output) for request in problem.requests})
    served = sum(request.output for request in problem.requests)
    for tokens, most in ((listed, _MOST_TOKENS.get(kind)), (served, _MOST_SERVED.get(kind))):
        if most is not None and tokens > most:
            raise UnprovedError(f"kind {kind} is computed for at most {most} output tokens, the instance has {tokens}")


def require_64_bits(**largest: int) -> None:
    """Refuse to compute with arrays of 64-bit integers if a number might be 2^62 or more.

    Parameters
    ----------
    largest
        By what they are, exact upper bounds on the absolute value of every entry that an array will hold, also of
        what is computed on the way. Two of them may be added: 2^63 is not reached.
    """
    for name, number in largest.items():
        if number >= 2**62:
            raise UnprovedError(
                f"its numbers are too large to be verified in 64 bits: {name.replace('_', ' ')} may be {shown(number)}"
            )
