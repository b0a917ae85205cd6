"""Results pages say what their rows say, and the rows what the policies do."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from pathlib import Path

import pytest
from checkout import ROOT
from commands import optsched
from playing import problem

from optsched import compare, load_suite
from optsched.library import suite_names
from optsched.model.documents import instance_sha256
from optsched.model.domain import replace
from optsched.model.errors import InputError
from optsched.model.instance import Request
from optsched.model.objectives import Objective
from optsched.pages.results import PolicyRow, as_csv, file_name, grouped, index_page, policy_rows, read_csv, suite_page
from optsched.study.ledger import Ledger, shipped
from optsched.study.study_file import read_study

FOLDER = ROOT / "docs" / "results"
STUDIES = ROOT / "instances" / "studies"


def _pages() -> dict[tuple[str, Objective], list[PolicyRow]]:
    found = {}
    for suite in suite_names():
        for objective in Objective:
            path = FOLDER / f"{file_name(suite, objective)}.csv"
            if path.exists():
                found[suite, objective] = read_csv(path.read_text(encoding="utf-8"))
    return found


PAGES = _pages()


def test_pages_are_made_of_their_rows() -> None:
    """After a new run of instances/studies: optsched pages results/published.sqlite."""
    assert PAGES
    for (suite, objective), rows in PAGES.items():
        page = (FOLDER / f"{file_name(suite, objective)}.md").read_text(encoding="utf-8")
        assert page == suite_page(suite, load_suite(suite).description, objective, rows)
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert index == index_page(PAGES, "optsched pages results/published.sqlite")
    files = {path.name for path in FOLDER.iterdir()}
    names = {f"{file_name(*page)}.{kind}" for page in PAGES for kind in ("md", "csv")}
    assert files == names | {"index.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: file_name(*page))
def test_every_number_has_a_key_and_a_bound_that_can_hold(page: tuple[str, Objective]) -> None:
    suite, objective = page
    instances = {each.name: each for each in load_suite(suite).instances}
    keys = [row.key for row in PAGES[page]]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 16 and int(key, 16) >= 0 for key in keys)
    for row in PAGES[page]:
        known = shipped().best(instance_sha256(instances[row.instance]), objective)
        values = [value for value in (row.value, row.best_value, known.value) if value is not None]
        assert row.best_bound is not None
        assert all(row.best_bound <= value for value in values)
        assert row.bound_from
        assert row.value is None or row.best_value is None or row.value >= row.best_value


@pytest.mark.slow
def test_policies_still_do_what_the_pages_say() -> None:
    """Every published policy on two instances of a suite, run now."""
    rows = PAGES["infermax-fig15", Objective.MAKESPAN]
    suite = load_suite("infermax-fig15").instances
    chosen = [suite[0], suite[6]]
    published = [str(name) for name in read_study(STUDIES / "published.toml").policies]
    assert set(published) == {row.policy for row in rows}
    found = compare(chosen, published, methods=())
    names = {each.name for each in chosen}
    assert {(each["instance"], each["method"]): each["value"] for each in found.rows} == {
        (row.instance, row.policy): row.value for row in rows if row.instance in names
    }


def _row(instance: str, policy: str, value: int | None, best: int, bound: int) -> PolicyRow:
    return PolicyRow(instance, policy, value, best, bound, "certified", "ledger", f"{instance}{policy}")


# Gaps by hand: a: 50 % on x (closed), at most 20 % on y (open). b: 0 on x, nothing on y.
BY_HAND = [
    _row("x", "a", 20, 10, 10),
    _row("y", "a", 10, 10, 8),
    _row("x", "b", 10, 10, 10),
    _row("y", "b", None, 10, 8),
]


def test_pages_by_hand() -> None:
    assert list(grouped(BY_HAND)) == ["b", "a"]
    assert read_csv(as_csv(BY_HAND)) == BY_HAND
    limited = dataclasses.replace(BY_HAND[3], reason="it took more than the 120 s that it was allowed")
    assert read_csv(as_csv([limited])) == [limited]
    ended = suite_page("s", "Said.", Objective.MAKESPAN, [*BY_HAND[:3], limited])
    assert "\n`b` was ended on y (it took more than the 120 s that it was allowed).\n" in ended
    page = suite_page("s", "Said.", Objective.MAKESPAN, BY_HAND)
    assert "ended" not in page
    assert "2 instances, 2 policies; the optimum is known of 1." in page
    assert "| `a` | 35.00 | 50.00 | x | `xa` | 0 | 0 |" in page
    assert "| `b` | 0.00 | 0.00 | x | `xb` | 1 | 1 |" in page
    assert "| y | 10 | 8 | ✓c | `ledger` |" in page
    index = index_page({("s", Objective.MAKESPAN): BY_HAND}, "made so")
    assert "| `b` | 0.0 † |" in index
    assert "| `a` | 35.0 |" in index
    with pytest.raises(InputError, match="got columns one, expected instance, policy"):
        read_csv("one\n1\n")


def test_rows_of_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bound is the largest that is known; the ledger is asked by the instance's hash."""
    instance = replace(problem(Request(4, 3), Request(2, 2), kv=8, budget=8), name="mine")
    found = compare(instance, ["vllm", "sarathi"], time_limit=5, workers=1, store=tmp_path / "s.sqlite")
    attempts = [(done.trial, done.record("")) for done in found.done]
    rows = policy_rows(attempts, Ledger())[instance_sha256(instance), Objective.MAKESPAN]
    solved = next(trial for trial, record in attempts if trial.method == "auto")
    # Three batches of 10 ps are the least for three tokens.
    assert [(row.policy, row.value, row.best_bound, row.bound_from) for row in rows] == [
        (policy, 30, 30, solved.key[:16]) for policy in ("vllm", "sarathi")
    ]
    assert {Fraction(row.gap or 0) for row in rows} == {0}
    refused = optsched(capsys, "pages", str(tmp_path / "s.sqlite"), "--out", str(tmp_path / "pages"))
    assert refused.code == 2
    assert "got no trial of a policy on a suite of the library, expected a store with some" in refused.err
    assert not (tmp_path / "pages").exists()
