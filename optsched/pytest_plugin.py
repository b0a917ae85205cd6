"""Conformance of one's own parts under pytest: ``pytest --optsched my_policy.py:SRPF``.

A test for each policy, router, evictor or formulation, and each instance; they are added to the tests that pytest
collects anyway, or are all, if no files are named.
"""

from __future__ import annotations

from pathlib import Path

import pytest

_TESTS = Path(__file__).parent / "methods" / "conformance_tests.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--optsched``."""
    text = "Policy, router, evictor or formulation that must conform: a name or FILE.py:NAME. May be repeated."
    parser.addoption("--optsched", action="append", default=[], metavar="NAME", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Collect our tests if a part is named."""
    if config.getoption("--optsched"):
        named = config.args_source is pytest.Config.ArgsSource.ARGS
        config.args = [*(config.args if named else ()), str(_TESTS)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the tests their parts."""
    if "optsched_part" not in metafunc.fixturenames:
        return
    from optsched.methods.conform_parts import instances_of, kind_of  # noqa: PLC0415  # only if a part is named

    kinds = {name: kind_of(name) for name in metafunc.config.getoption("--optsched")}
    cases = [(name, kind, instance) for name, kind in kinds.items() for instance in instances_of(kind)]
    ids = [f"{name}-{instance}" for name, _, instance in cases]
    metafunc.parametrize(("optsched_part", "kind", "instance"), cases, ids=ids)
