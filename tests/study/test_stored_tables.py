"""Tables of pages that are written from a store."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from checkout import ROOT
from commands import optsched

from optsched import Instance, cost_model, solve
from optsched.library import load_suite
from optsched.model.documents import Suite, dump, instance_sha256, suite_document
from optsched.model.instance import Limits, Request, Rules
from optsched.model.objectives import Objective
from optsched.report.stored_tables import StoredTable, best_known, tables_of
from optsched.study import ledger
from optsched.study.drive import run
from optsched.study.runner import Here
from optsched.study.store import Store
from optsched.study.trial import bounding, simulating, solving

PROFILE = "a100-llama2-7b-linear"
MARK = "table two.json makespan vllm,sarathi"
PAGE = f"# Two\n\n<!-- begin {MARK} -->\n<!-- end {MARK} -->\n\nThe end.\n"


def instance(name: str, *lengths: tuple[int, int]) -> Instance:
    requests = tuple(Request(size, length) for size, length in lengths)
    return Instance(name, Limits(16, 64, 64), Rules(), cost_model(PROFILE), requests)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    instances = (instance("long", (8, 4), (8, 4), (3, 2)), instance("short", (2, 1), (2, 3)))
    Path("two.json").write_text(dump(suite_document(Suite("two", "Two.", instances), PROFILE)))
    Path("page.md").write_text(PAGE)


def test_a_page_has_the_tables_that_were_computed(capsys: pytest.CaptureFixture[str]) -> None:
    table = ("table", "two.json", "--policies", "vllm,sarathi", "--format", "md", "--results", "kept")
    printed = optsched(capsys, *table, "--time-limit", "60")
    assert printed.code == 0
    assert optsched(capsys, "study", "export", "kept/study.sqlite", "--page", "page.md") == (0, "", "")
    text = Path("page.md").read_text()
    assert text == PAGE.replace(f"begin {MARK} -->\n", f"begin {MARK} -->\n{printed.out.strip()}\n")
    assert optsched(capsys, "study", "export", "kept/study.sqlite", "--page", "page.md").code == 0
    assert Path("page.md").read_text() == text


def test_what_the_store_lacks_is_named_and_the_page_stays(capsys: pytest.CaptureFixture[str]) -> None:
    optsched(capsys, "table", "two.json", "--policies", "vllm", "--results", "kept", "--time-limit", "60")
    outcome = optsched(capsys, "study", "export", "kept/study.sqlite", "--page", "page.md")
    assert (outcome.code, outcome.out) == (2, "")
    assert f"kept/study.sqlite: --page: got not all of {MARK} on long, expected what" in outcome.err
    assert Path("page.md").read_text() == PAGE


def test_the_best_value_has_the_best_bound_beside_it(tmp_path: Path) -> None:
    """The value of one method and the bound of another; both together may be a proof."""
    one = instance("one", (2, 1))
    trials = [
        bounding(one, Objective.MAKESPAN, method="volume"),
        simulating(one, Objective.MAKESPAN, policy="vllm"),
        simulating(one, Objective.MAKESPAN, policy="sarathi"),
    ]
    with Store(tmp_path / "s.sqlite") as store:
        results = [done.required() for done in run(trials, Here(), store)]
        found = best_known(one, Objective.MAKESPAN, store)
        assert found is not None
        values = [result.value for result in results if result.value is not None]
        # One request of one batch: every policy is optimal, and the volume bound is its only batch.
        assert (found.value, found.bound, found.status) == (min(values), results[0].bound, "optimal")
        assert found.value == solve(one, workers=1).value
        assert best_known(instance("other", (3, 1)), Objective.MAKESPAN, store) is None
        assert list(run([solving(one, Objective.MAKESPAN, workers=1)], Here(), store))
        again = best_known(one, Objective.MAKESPAN, store)
        assert again is not None
        assert (again.value, again.bound) == (found.value, found.bound)


SHIPPED = "".join((ROOT / "docs" / page).read_text() for page in ("bound-tables.md", "routing-tables.md"))


@pytest.mark.parametrize("table", list(tables_of(SHIPPED)), ids=lambda table: f"{table.suite} {table.objective}")
def test_pages_agree_with_the_ledger(table: StoredTable) -> None:
    """A row shows a value that the ledger has, or a worse one, and no better bound, as far as the digits go."""
    section = SHIPPED.partition(f"<!-- begin {table.mark} -->")[2].partition(f"<!-- end {table.mark} -->")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    headers = [cell.strip() for cell in lines[0].strip("|").split("|")]
    (value_of,) = [header for header in headers if header.startswith(("best (", "optimum ("))]
    instances = load_suite(table.suite).instances
    assert len(lines) == 2 + len(instances)
    for line, each in zip(lines[2:], instances, strict=True):
        cells = dict(zip(headers, (cell.strip() for cell in line.strip("|").split("|")), strict=True))
        known = ledger.shipped().best(instance_sha256(each), table.objective)
        unit = (10**12 if value_of.endswith("(s)") else 10**9) * table.objective.mean_count(each.requests)
        best = float(re.sub("[^0-9.]", "", cells[value_of]))
        assert known.value is not None
        assert round(known.value / unit, 2) <= best, each.name
        for header in headers:
            if header.startswith("bound ("):
                assert known.bound is not None
                assert float(cells[header]) <= min(best, round(known.bound / unit, 2)), each.name
