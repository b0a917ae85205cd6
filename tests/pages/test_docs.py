"""The page of bounds says what the docstrings say, and those of policies say what is not a paper's."""

from __future__ import annotations

import importlib
import inspect

import pytest
from checkout import ROOT

from docstring import as_markdown
from optsched.bounds.catalogue import BOUNDS
from optsched.policies import POLICIES, pipelining, tasks
from optsched.policies.grouped import GroupedPolicy

PAGE = ROOT / "docs/bounds.md"


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


def of_papers() -> list[str]:
    """Return the docstrings of what runs as a paper describes it."""
    names = {entry.partition(":")[0] for entry in POLICIES.values()} - {"optsched.planner.policy"}
    modules = [importlib.import_module(name) for name in sorted(names)]
    return [inspect.getdoc(one) or "" for one in (*modules, pipelining, tasks, GroupedPolicy)]


@pytest.mark.parametrize("docstring", of_papers(), ids=lambda docstring: docstring.split("(")[0][:40])
def test_policies_say_where_a_paper_is_silent_and_why_they_differ(docstring: str) -> None:
    silent, _, differs = docstring.partition("It *differs*")
    assert "*silent*" in silent
    assert differs
    # A list ends with an empty line or the docstring.
    listed, _, _ = differs.partition(":\n\n")[2].partition("\n\n")
    reasons = listed.split("\n- ") if listed else []
    assert all("because" in reason for reason in reasons), reasons
    assert reasons or differs.partition("\n")[0].startswith(" in nothing else")
