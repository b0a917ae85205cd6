"""The page of findings: what counts as agreement, how values are shown, and that every disagreement has a cause."""

from __future__ import annotations

import re
from statistics import mean, median

import pytest
from checkout import ROOT
from shared_data import HERE

from cluster_findings import PAPERS as CLUSTER_PAPERS
from findings import PAPERS, ours, sheet
from papers.econoserve_experiments import refills
from papers.econoserve_setup import workload
from papers.finding import Finding
from papers.preble import usage

PAGES = {"findings.md": PAPERS, "findings-clusters.md": CLUSTER_PAPERS}


def test_the_median_decides_and_open_sides_are_open() -> None:
    # Medians by hand: 2 of (1, 2, 9).
    assert Finding("", "", "", (9, 1, 2), 2, 2).within
    assert not Finding("", "", "", (9, 1, 2), 2.1).within
    assert not Finding("", "", "", (9, 1, 2), most=1.9).within
    assert Finding("", "", "", (9, 1, 2)).within


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ((1.0064,), "1.006"),
        ((12.54,), "12.5"),
        ((1425.4,), "1,425"),
        ((1.1, 0.98, 1.0), "1 (0.980–1.100)"),
        ((30.0,), "30"),
    ],
)
def test_values_with_their_spread(values: tuple[float, ...], shown: str) -> None:
    assert ours(Finding("", "", "", values)) == shown


def test_causes_are_numbered_once() -> None:
    found = [Finding("a", "", "", (1,), 2, cause="first"), Finding("b", "", "", (2,), 2, cause="not this")]
    found += [Finding("c", "", "", (1,), 2, cause="second"), Finding("d", "", "", (1,), 2, cause="first")]
    table = sheet("infermax", found)
    assert table.notes == ("(1) first", "(2) second")
    assert [row[-1].shown for row in table.rows] == ["outside (1)", "within", "outside (2)", "outside (1)"]


def test_what_a_paper_does_not_report_is_no_claim() -> None:
    table = sheet("infermax", [Finding("a", "", "not reported", (1,)), Finding("b", "", "2", (2,), 2)])
    assert [row[-1].shown for row in table.rows] == ["–", "within"]
    assert table.common.endswith("1 claims, 1 within the paper's range.")


@pytest.mark.parametrize(("page", "paper"), [(page, paper) for page, papers in PAGES.items() for paper in papers])
def test_every_disagreement_on_the_page_has_a_cause(page: str, paper: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    section = text.partition(f"<!-- begin {paper} -->")[2].partition(f"<!-- end {paper} -->")[0]
    numbers = re.findall(r"outside \((\d+)\) \|", section)
    assert len(numbers) + section.count(" within |") == int(re.findall(r"(\d+) claims", section)[0])
    for number in set(numbers):
        assert re.search(rf"^\({number}\) \w.+\.", section, re.MULTILINE)


@HERE
def test_prebles_averages_of_azure_are_medians() -> None:
    """Section 3.6: "on average" 118 ms apart, a mean ratio of 4; of code 63 ms and 92, of which we have two thirds."""
    chat, code = usage("AzureLLMInferenceTrace_conv.csv"), usage("AzureLLMInferenceTrace_code_rows1-5879.csv")
    assert median(chat.gaps) == pytest.approx(118, abs=1)
    # 19,366 requests within 3,502 s: 181 ms.
    assert mean(chat.gaps) == pytest.approx(3_501_722 / 19_365, abs=0.1)
    assert median(chat.ratios) == pytest.approx(4, abs=0.5)
    assert mean(chat.ratios) > 12
    assert median(code.gaps) == pytest.approx(63, rel=0.1)
    assert median(code.ratios) == pytest.approx(92, rel=0.02)


def test_an_evicted_request_of_sarathi_runs_again_in_chunks() -> None:
    """Prompt and output of ShareGPT have 500 tokens in the mean, a batch 329 with its decodes: two or three batches."""
    found = refills(workload("sharegpt", 1, count=100))
    assert found
    assert min(found) == 1
    assert 1 < mean(found) < 4
