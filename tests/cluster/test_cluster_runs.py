"""Runs of other systems: all of a part of them are matched, and a changed one is not."""

import copy
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from shared_data import HERE, SHARED

from cluster.kinds import KINDS
from cluster.outcome import Outcome, Sources, compared
from cluster_runs import main, read

RUNS = SHARED / "cluster_runs"
pytestmark = HERE


def replay(kind: str, name: str, document: Any) -> list[Outcome]:
    assert KINDS[kind].recognises(document)
    return list(KINDS[kind].outcomes(document, Sources(RUNS / name, (SHARED,))))


def some(kind: str) -> tuple[str, Any]:
    """Return folder and document of a part of a kind's runs."""
    match kind:
        case "sglang_radix":
            return kind, read(RUNS / "sglang_radix/radix_ops.jsonl.gz")[::9]
        case "sgl_router":
            return kind, read(RUNS / "sgl_router/vllm_router-0.1.17-cache_aware-default.json.gz")
        case "preble_e2":
            return kind, read(RUNS / "preble_e2/decisions.jsonl.gz")[2:3]
        case "vllm_prefix":
            return kind, read(RUNS / "vllm_prefix/tiny.jsonl.gz")[:40]
        case "dynamo_costs":
            return "dynamo", read(RUNS / "dynamo/mooncake400-R4-kv_router-logits.json.gz")
        case "splitwise":
            return kind, read(RUNS / "splitwise/baseline-azconv-0_2-llama2-70b-token_jsq-nodes.csv.gz")
        case "distserve":
            return kind, read(RUNS / "distserve/azure-conv400.json.gz")
        case _:
            return "dynamo", read(RUNS / "dynamo/mooncake300-R4-round_robin-blocks16384-fixed.json.gz")


def changed(kind: str, document: Any) -> Any:
    """Change one thing of what another system did."""
    other = copy.deepcopy(document)
    match kind:
        case "sglang_radix":
            operation = next(each for each in other[0]["ops"] if each["op"] == "match_and_lock")
            operation["matched"] += other[0]["page"]
        case "sgl_router":
            other["decisions"][7]["chosen"] = (other["decisions"][7]["chosen"] + 1) % 4
        case "preble_e2":
            event = next(each for each in other[0]["log"] if "cost_after" in each)
            event["gpu"] += 1
        case "vllm_prefix":
            other[0]["vllm"][1]["free_blocks"] += 1
        case "dynamo_costs":
            other["decisions"][50]["logit"] += 1
        case "splitwise":
            prompt = next(row for row in other if row["node_type"] == "PROMPT")
            prompt["runner"] = "h100-80gb_1" if prompt["runner"].endswith("0") else "h100-80gb_0"
        case "distserve":
            other["runs"]["distserve-1P1D"]["requests"][3]["end"] += 0.2
        case _:
            other["per_request"][3]["reused_input_tokens"] += 64
    return other


@pytest.mark.parametrize("kind", list(KINDS))
def test_runs_are_matched_and_changed_ones_are_not(kind: str) -> None:
    folder, document = some(kind)
    for outcome in replay(kind, folder, document):
        assert (outcome.same, outcome.difference) == (outcome.total, "")
        assert outcome.total > 0
    different = replay(kind, folder, changed(kind, document))
    assert sum(outcome.total - outcome.same for outcome in different) > 0
    assert any("theirs" in outcome.difference and "ours" in outcome.difference for outcome in different)


def test_kinds_are_told_by_what_a_file_holds() -> None:
    for kind in KINDS:
        _, document = some(kind)
        assert [name for name, each in KINDS.items() if each.recognises(document)] == [kind]


def test_first_difference_is_shown() -> None:
    outcome = compared("run", "batches", [("batch 0", 1, 1), ("batch 1", 2, 3), ("batch 2", 4, 5)])
    assert (outcome.same, outcome.total, outcome.difference) == (1, 3, "batch 1: theirs 2, ours 3")


def test_the_command_prints_a_line_for_each_file(tmp_path: Path) -> None:
    folder = tmp_path / "any"
    folder.mkdir()
    source = RUNS / "sgl_router/sglang_router-0.3.2-round_robin.json.gz"
    (folder / "x.json.gz").write_bytes(source.read_bytes())
    (folder / "other.json").write_text('{"a": 1}')
    result = CliRunner().invoke(main, [str(folder)])
    assert result.exit_code == 0
    first, second = result.output.splitlines()
    assert first == "other.json: no kind of run that is known"
    assert second.startswith("x.json.gz (sgl_router, round_robin): 60 of 60 decisions")
    (folder / "broken.json.gz").write_text("{")
    result = CliRunner().invoke(main, [str(folder)])
    assert result.exit_code == 1
    first, _, third = result.output.splitlines()
    assert first.startswith("broken.json.gz: not replayed: ")
    assert third.startswith("x.json.gz (sgl_router, round_robin): 60 of 60 decisions")
