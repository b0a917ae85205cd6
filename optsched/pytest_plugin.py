"""Conformance of one's own policies under pytest: ``pytest -p optsched.pytest_plugin --optsched my_policy.py:SRPF``.

A test for each policy and each instance; they are added to the tests that pytest collects anyway, or are all, if no
files are named.
"""

from __future__ import annotations

from pathlib import Path

import pytest

_TESTS = Path(__file__).parent / "methods" / "conformance_tests.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--optsched``."""
    text = "Policy that must conform: a name or FILE.py:NAME. May be repeated."
    parser.addoption("--optsched", action="append", default=[], metavar="POLICY", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Collect our tests if a policy is named."""
    if config.getoption("--optsched"):
        named = config.args_source is pytest.Config.ArgsSource.ARGS
        config.args = [*(config.args if named else ()), str(_TESTS)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the tests their policies."""
    if "optsched_policy" in metafunc.fixturenames:
        metafunc.parametrize("optsched_policy", metafunc.config.getoption("--optsched"))
