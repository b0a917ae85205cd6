"""The page of bounds says what the docstrings say."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

from optsched.bounds.catalogue import BOUNDS
from optsched.report.docstring import as_markdown

PAGE = Path(__file__).parent.parent / "docs/bounds.md"


def test_worked_docstring() -> None:
    docstring = r"""Title with :math:`a
    _1`.

    Theorem
    -------
    Let `x` be

    .. math:: x = y
        + z

    and

    .. math::
       a &= b, \\
       c &= d.

    Then :math:`x < 1`. ∎
    """
    assert as_markdown(docstring) == "\n".join(
        [
            "Title with $`a _1`$.",
            "",
            "**Theorem.**",
            "",
            "Let `x` be",
            "",
            "```math",
            "x = y",
            "+ z",
            "```",
            "",
            "and",
            "",
            "```math",
            r"\begin{aligned}",
            r"a &= b, \\",
            r"c &= d.",
            r"\end{aligned}",
            "```",
            "",
            "Then $`x < 1`$. ∎",
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own", *BOUNDS])
def test_the_page_has_the_theorems(name: str) -> None:
    """After a change of a docstring: python benchmarks/bounds.py --page docs/bounds.md."""
    docstring = inspect.getdoc(importlib.import_module(f"optsched.bounds.{name}"))
    assert docstring is not None
    page = PAGE.read_text()
    assert f"<!-- begin {name} -->\n{as_markdown(docstring).strip()}\n<!-- end {name} -->" in page
    assert name == "own" or f"(bound-{name}.svg)" in page
