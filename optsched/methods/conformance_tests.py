"""The tests that `optsched.pytest_plugin` adds."""

from __future__ import annotations

import pytest

from optsched.methods.conform import Verdict
from optsched.methods.conform_parts import Kind, conform_on


def test_part_conforms(optsched_part: str, kind: Kind, instance: str) -> None:
    """A policy, a router, an evictor or a formulation keeps to every rule."""
    found = conform_on(optsched_part, kind, instance)
    if found.verdict is Verdict.NOT_AVAILABLE:
        pytest.skip(f"n/a: {found.reason}")
    assert found.verdict is Verdict.PASSED, found.reason
