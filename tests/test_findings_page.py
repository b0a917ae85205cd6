"""The page of findings: what counts as agreement, how values are shown, and that every disagreement has a cause."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from findings import PAPERS, ours, sheet
from papers.finding import Finding

PAGE = Path(__file__).resolve().parents[1] / "docs" / "findings.md"


def test_the_median_decides_and_open_sides_are_open() -> None:
    # Medians by hand: 2 of (1, 2, 9).
    assert Finding("", "", "", (9, 1, 2), 2, 2).within
    assert not Finding("", "", "", (9, 1, 2), 2.1).within
    assert not Finding("", "", "", (9, 1, 2), most=1.9).within
    assert Finding("", "", "", (9, 1, 2)).within


@pytest.mark.parametrize(
    ("values", "shown"),
    [((1.0064,), "1.006"), ((12.54,), "12.5"), ((1425.4,), "1,425"), ((1.1, 0.98, 1.0), "1.000 (0.980–1.100)")],
)
def test_values_with_their_spread(values: tuple[float, ...], shown: str) -> None:
    assert ours(Finding("", "", "", values)) == shown


def test_causes_are_numbered_once() -> None:
    found = [Finding("a", "", "", (1,), 2, cause="first"), Finding("b", "", "", (2,), 2, cause="not this")]
    found += [Finding("c", "", "", (1,), 2, cause="second"), Finding("d", "", "", (1,), 2, cause="first")]
    table = sheet("infermax", found)
    assert table.notes == ("(1) first", "(2) second")
    assert [row[-1].shown for row in table.rows] == ["outside (1)", "within", "outside (2)", "outside (1)"]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_disagreement_on_the_page_has_a_cause(paper: str) -> None:
    section = PAGE.read_text().partition(f"<!-- begin {paper} -->")[2].partition(f"<!-- end {paper} -->")[0]
    numbers = re.findall(r"outside \((\d+)\) \|", section)
    assert len(numbers) + section.count(" within |") == int(re.findall(r"(\d+) claims", section)[0])
    for number in set(numbers):
        assert re.search(rf"^\({number}\) \w.+\.", section, re.MULTILINE)
