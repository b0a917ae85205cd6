"""Reading what certificates and documents state, whatever it is."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping


class UnprovedError(Exception):
    """A certificate proves nothing; the message says why."""


def natural(certificate: Mapping[str, object], name: str) -> int:
    """Return a field of a certificate that has to be an integer ≥ 0."""
    stated = certificate.get(name)
    if type(stated) is not int or stated < 0:
        raise UnprovedError(f"{name} is {shown(stated)}, expected an integer ≥ 0")
    return stated


def shown(value: object) -> str:
    """Show anything that a document may hold, shortened."""
    return reprlib.repr(value)
