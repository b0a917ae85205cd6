"""What the package says about itself, and where it starts."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from checkout import ROOT

POSIX_ONLY = frozenset({"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"})
"""Modules of the standard library that Windows lacks."""


def imported(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def test_nothing_is_imported_that_windows_lacks() -> None:
    modules = [*ROOT.glob("optsched/**/*.py"), *ROOT.glob("formulations/**/*.py")]
    assert len(modules) > 100
    assert {str(module): found for module in modules if (found := POSIX_ONLY.intersection(imported(module)))} == {}


def test_the_citation_has_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (version,) = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert version == project["version"]
