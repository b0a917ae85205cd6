"""The tests that `optsched.pytest_plugin` adds."""

from __future__ import annotations

import pytest

from optsched.methods.conform import INSTANCES, Verdict, conform_on


@pytest.mark.parametrize("instance", INSTANCES)
def test_policy_conforms(optsched_policy: str, instance: str) -> None:
    """Legal, deterministic, and the same with jumps, under every objective."""
    found = conform_on(optsched_policy, instance)
    if found.verdict is Verdict.NOT_AVAILABLE:
        pytest.skip(f"n/a: {found.reason}")
    assert found.verdict is Verdict.PASSED, found.reason
