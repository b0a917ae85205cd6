"""Folders of documents, as earlier versions kept results, are taken over once."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from commands import Outcome, optsched

from optsched.library import load_instance
from optsched.methods.simulate import simulate
from optsched.methods.solve import solve
from optsched.model.documents import dump, instance_document, result_document
from optsched.model.domain import replace
from optsched.model.instance import Instance, Limits, Request

KEPT = Path("kept")


def small() -> Instance:
    """Return an instance in which eviction pays, and that is solved in no time."""
    template = load_instance("infermax-fig15-I8")
    return replace(template, name="small", limits=Limits(16, 64, 64), requests=(Request(8, 3),) * 3)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder as version 0.1.0 left it: the search took 1234.5 s, the policy 4321.5 s."""
    monkeypatch.chdir(tmp_path)
    Path("small.json").write_text(dump(instance_document(small())))
    KEPT.mkdir()
    documents = [
        result_document(solve(small(), time_limit=120, workers=1)) | {"runtime_s": 1234.5},
        result_document(simulate(small(), "vllm")) | {"runtime_s": 4321.5},
    ]
    for document in documents:
        keep(document)
    return KEPT


def keep(document: dict[str, Any]) -> None:
    file = KEPT / f"small--makespan--{document['method']}.json"
    file.write_text(dump(document))
    with (KEPT / "digests.txt").open("a") as digests:
        digests.write(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n")


def table(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, str], str]:
    options = ("--policies", "vllm", "--format", "csv", "--results", "kept", "--workers", "1", "--time-limit", "120")
    outcome: Outcome = optsched(capsys, "table", "small.json", *options, "--resume")
    assert outcome.code == 0
    return next(csv.DictReader(io.StringIO(outcome.out))), outcome.err


def test_documents_of_a_folder_are_taken_over_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.read_bytes() for path in folder.glob("*.json")}
    row, said = table(capsys)
    assert row["runtime_s"] == "1234.5"
    assert said == "optsched: kept/study.sqlite: 2 results taken over from the documents in the folder\n"
    again, said = table(capsys)
    assert (again, said) == (row, "")
    assert {path.name: path.read_bytes() for path in folder.glob("*.json")} == before


def test_what_other_versions_made_is_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "small--makespan--auto.json"
    keep(json.loads(file.read_text()) | {"versions": {"optsched": "0.0.1"}})
    row, said = table(capsys)
    assert row["runtime_s"] != "1234.5"
    assert said.endswith(": 1 results taken over from the documents in the folder, 1 made by other versions\n")


def test_an_edited_document_is_refused_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "small--makespan--auto.json"
    file.write_text(dump(json.loads(file.read_text()) | {"runtime_s": 0.5}))
    row, said = table(capsys)
    assert row["runtime_s"] not in {"0.5", "1234.5"}
    assert said.startswith(
        "optsched: kept/small--makespan--auto.json: refused, computed again: "
        "got another text, expected what was written (digests.txt)\n"
    )
