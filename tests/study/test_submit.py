"""Submitting results: what improves on the ledger is added with its document, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import optsched

from optsched import load_instance, load_result, replace, save_result, simulate, solve
from optsched.model.documents import dump, instance_sha256, result_document

NAME = "infermax-fig15-I8"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()


def submit(capsys: pytest.CaptureFixture[str]) -> Any:
    return optsched(capsys, "submit", "r.json", "--folder", "mine")


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("mine/ledger.jsonl").read_text().splitlines()]


def test_better_results_are_added_and_kept_and_worse_ones_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    instance = load_instance(NAME)
    short = f"optsched:{instance_sha256(instance)[:12]} {NAME}, makespan"
    policy = simulate(instance, "vllm_ef")  # without evictions it is not optimal (InferMax, section 5.1)
    save_result(policy, "r.json")
    assert submit(capsys) == (0, f"{short}: value {policy.value} (certified) by vllm_ef\n", "")
    assert submit(capsys).out == f"{short}: nothing that the ledger does not have\n"
    best = solve(instance, time_limit=60, workers=1)
    assert best.value is not None
    assert policy.value is not None
    assert best.value < policy.value
    save_result(best, "r.json")
    said = submit(capsys).out
    assert [line.partition(": ")[2].split()[:2] for line in said.splitlines()] == [
        ["value", str(best.value)],
        ["bound", str(best.value)],
    ]
    assert [(row["kind"], row["value"]) for row in rows()] == [
        ("value", policy.value),
        ("value", best.value),
        ("bound", best.value),
    ]
    save_result(policy, "r.json")
    submit(capsys)
    assert len(rows()) == 3, "a worse one adds nothing"
    kept = sorted(Path("mine/submissions").iterdir())
    assert len(kept) == 2
    assert {load_result(path).result.value for path in kept} == {best.value, policy.value}
    assert all(optsched(capsys, "check", str(path)).code == 0 for path in kept)


def test_a_wrong_document_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    document = result_document(simulate(NAME, "vllm"))
    Path("r.json").write_text(dump(document | {"value": document["value"] - 1}))
    outcome = submit(capsys)
    assert (outcome.code, outcome.err) == (1, "")
    assert outcome.out.startswith("r.json: ")
    assert not list(Path("mine").iterdir())


def test_an_instance_that_is_not_of_the_library_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    instance = load_instance(NAME)
    other = replace(instance, name="mine", requests=instance.requests[:2])
    save_result(simulate(other, "vllm"), "r.json")
    outcome = submit(capsys)
    expected = "optsched: r.json: [0].instance: got 'mine', expected an instance of the library\n"
    assert (outcome.code, outcome.err) == (2, expected)
