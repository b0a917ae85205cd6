"""Reading what certificates and documents state, whatever it is."""

from __future__ import annotations

import reprlib


class UnprovedError(Exception):
    """A certificate proves nothing; the message says why."""


def shown(value: object) -> str:
    """Show anything that a document may hold, shortened."""
    return reprlib.repr(value)
