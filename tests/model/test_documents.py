"""Documents mean the same after a round trip, and a hash means the same problem."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
import stat
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optsched.calibrate.library import cost_model
from optsched.check import check_result
from optsched.library import load_instance, load_results, load_suite, suite_files, suite_names
from optsched.methods.simulate import simulate
from optsched.methods.solve import solve
from optsched.model.cost import CostModel
from optsched.model.documents import (
    dump,
    instance_document,
    instance_sha256,
    parse_instance,
    parse_results,
    parse_suite,
    read_bytes,
    result_document,
    suite_document,
    write_text,
)
from optsched.model.domain import MAX_PS, MAX_TOKENS, replace
from optsched.model.errors import InputError
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.objectives import Objective
from optsched.model.prefixes import PrefixNode, PrefixTree
from optsched.model.restrictions import Restrictions
from optsched.model.result import Badge, Result, Status
from optsched.model.schedule import Batch, Schedule
from optsched.traces.suites import SUITES

INTERFACES_EXAMPLE = """\
{
  "format": "optsched-instance/1",
  "name": "infermax-fig15-I8",
  "limits": {"kv_tokens": 16, "batch_tokens": 4096, "prefill_tokens": 4096, "batch_requests": null, "kv_block": 1},
  "rules": {"hybrid": true, "chunked_prefill": false, "eviction": true},
  "cost": {"profile": "a100-llama2-7b"},
  "replicas": 1,
  "requests": [
    {"input": 8, "output": 4, "count": 4},
    {"id": "q7", "arrival_ps": 1000000000, "input": 30, "output": 2, "weight": 2, "slo_e2e_ps": 90000000000}
  ]
}
"""
INTERFACES_COST = """\
{"base": 8700000000, "token": 54000000, "pieces": [], "decode_kv": 350000, "decode_req": 0, "prefill_sq": 1700, \
"prefill_kv": 0, "prefill_req": 30000000}"""

INSTANCE = Instance(
    name="small",
    limits=Limits(kv_tokens=40, batch_tokens=64, prefill_tokens=32, batch_requests=3, kv_block=2),
    rules=Rules(hybrid=True, chunked_prefill=True, eviction=True),
    cost=CostModel(100, 10, ((0, 40), (50, 20)), 1, 5, 2, 3, 7),
    requests=(Request(8, 4), Request(8, 4), Request(5, 2, 10, 3, 400, 900, "q7")),
)


def parsed(text: str) -> Instance:
    return parse_instance(text.encode(), cost_model)


# Instances -------------------------------------------------------------------------------------------------


def test_the_example_of_interfaces_md() -> None:
    instance = parsed(INTERFACES_EXAMPLE)
    assert instance.name == "infermax-fig15-I8"
    assert instance.limits == Limits(16, 4096, 4096, None, 1)
    assert instance.rules == Rules(hybrid=True, chunked_prefill=False, eviction=True)
    assert instance.cost == cost_model("a100-llama2-7b")
    assert instance.replicas == 1
    last = Request(30, 2, arrival_ps=10**9, weight=2, slo_ttft_ps=None, slo_e2e_ps=9 * 10**10, id="q7")
    assert instance.requests == (*[Request(8, 4)] * 4, last)
    assert instance.infeasibilities()[0].startswith("request 4 (q7) needs 31 KV tokens")


def test_the_coefficients_of_interfaces_md() -> None:
    document = json.loads(INTERFACES_EXAMPLE) | {"cost": json.loads(INTERFACES_COST)}
    assert parsed(json.dumps(document)).cost == CostModel(
        base=8700000000, token=54000000, decode_kv=350000, prefill_sq=1700, prefill_req=30000000
    )


def test_what_may_be_left_out() -> None:
    document = json.loads(INTERFACES_EXAMPLE)
    for name in ("batch_requests", "kv_block"):
        del document["limits"][name]
    del document["replicas"]
    document["rules"] = {}
    instance = parsed(json.dumps(document))
    assert instance.limits == Limits(16, 4096, 4096)
    assert (instance.limits.batch_requests, instance.limits.kv_block, instance.replicas) == (None, 1, 1)
    assert instance.rules == Rules(hybrid=True, chunked_prefill=True, eviction=True)


ps = st.integers(0, MAX_PS)
tokens = st.integers(1, MAX_TOKENS)
names = st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"]), max_size=12)
requests = st.builds(
    Request,
    input=tokens,
    output=tokens,
    arrival_ps=st.just(0) | ps,
    weight=st.just(1) | ps,
    slo_ttft_ps=st.none() | ps,
    slo_e2e_ps=st.none() | ps,
    id=st.none() | names,
    predicted_output=st.none() | tokens,
)


@st.composite
def any_instance(draw: st.DrawFn) -> Instance:
    """Draw what a document can say, sensible or not: requests often repeat, also not side by side."""
    prefill, more = draw(tokens), draw(tokens)
    different = draw(st.lists(requests, min_size=1, max_size=4))
    chosen = draw(st.lists(st.sampled_from(different), min_size=1, max_size=12))
    budget = min(MAX_TOKENS, prefill + more)
    return Instance(
        name=draw(names),
        limits=Limits(draw(tokens), budget, prefill, draw(st.none() | tokens), draw(tokens)),
        rules=Rules(draw(st.booleans()), draw(st.booleans()), draw(st.booleans())),
        cost=CostModel(
            draw(ps), draw(ps), tuple(draw(st.lists(st.tuples(ps, ps), max_size=3))), *[draw(ps) for _ in range(5)]
        ),
        requests=tuple(chosen),
    )


@pytest.mark.slow
@given(any_instance())
@settings(max_examples=100, deadline=None)
def test_an_instance_survives_its_document(instance: Instance) -> None:
    document = instance_document(instance)
    again = parsed(dump(document))
    assert again == instance
    assert instance_document(again) == document
    assert instance_sha256(again) == instance_sha256(instance)


@given(any_instance())
@settings(max_examples=50, deadline=None)
def test_equal_neighbours_are_counted(instance: Instance) -> None:
    entries = instance_document(instance)["requests"]
    assert sum(entry.get("count", 1) for entry in entries) == len(instance.requests)
    assert all(entry.get("count", 2) > 1 for entry in entries)
    assert all({**first, "count": 1} != {**second, "count": 1} for first, second in pairwise(entries))


def test_defaults_are_left_out_of_requests() -> None:
    assert instance_document(INSTANCE)["requests"] == [
        {"input": 8, "output": 4, "count": 2},
        {
            "input": 5,
            "output": 2,
            "arrival_ps": 10,
            "weight": 3,
            "slo_ttft_ps": 400,
            "slo_e2e_ps": 900,
            "id": "q7",
        },
    ]


def test_a_count_stands_for_equal_entries() -> None:
    document = instance_document(INSTANCE)
    first, last = document["requests"]
    spelled = document | {"requests": [first | {"count": 1}, {"input": 8, "output": 4}, last]}
    assert parsed(json.dumps(spelled)) == INSTANCE


# Hashes ----------------------------------------------------------------------------------------------------


def with_request(**changes: Any) -> Instance:
    return replace(INSTANCE, requests=(*INSTANCE.requests[:2], replace(INSTANCE.requests[2], **changes)))


def with_part(part: str, **changes: Any) -> Instance:
    return replace(INSTANCE, **{part: replace(getattr(INSTANCE, part), **changes)})


CHANGES: dict[str, Instance] = {
    **{
        f"limits.{name}": with_part("limits", **{name: value})
        for name, value in {
            "kv_tokens": 41,
            "batch_tokens": 65,
            "prefill_tokens": 31,
            "batch_requests": None,
            "kv_block": 1,
        }.items()
    },
    **{f"rules.{name}": with_part("rules", **{name: False}) for name in ("hybrid", "chunked_prefill", "eviction")},
    **{f"rules.{name}": with_part("rules", **{name: True}) for name in ("swap", "migration")},
    **{
        f"cost.{name}": with_part("cost", **{name: 11})
        for name in (
            "base",
            "token",
            "decode_kv",
            "decode_req",
            "prefill_sq",
            "prefill_kv",
            "prefill_req",
            "swap_out_kv",
            "swap_in_kv",
            "swap_overlap",
            "cpu_batch",
            "cpu_request",
        )
    },
    "cost.pieces": with_part("cost", pieces=((0, 40),)),
    "cost.pieces, order": with_part("cost", pieces=((50, 20), (0, 40))),
    **{
        f"requests.{name}": with_request(**{name: value})
        for name, value in {
            "input": 6,
            "output": 3,
            "arrival_ps": 11,
            "weight": 4,
            "slo_ttft_ps": None,
            "slo_e2e_ps": 901,
            "predicted_output": 3,
        }.items()
    },
    "requests.prefix": replace(
        INSTANCE,
        requests=(*INSTANCE.requests[:2], replace(INSTANCE.requests[2], prefix=("a",))),
        prefixes=PrefixTree((PrefixNode("a", 2),)),
    ),
    "requests, one more": replace(INSTANCE, requests=(*INSTANCE.requests, INSTANCE.requests[2])),
    "requests, order": replace(INSTANCE, requests=INSTANCE.requests[::-1]),
}


def test_every_field_is_among_the_changes() -> None:
    fields = {
        f"{part}.{field.name}"
        for part, kind in {"limits": Limits, "rules": Rules, "cost": CostModel, "requests": Request}.items()
        for field in dataclasses.fields(kind)
    }
    assert fields - {"requests.id"} == {name for name in CHANGES if "," not in name}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_problem_has_another_hash(change: Instance) -> None:
    assert change != INSTANCE
    assert instance_sha256(change) != instance_sha256(INSTANCE)


@pytest.mark.parametrize(
    "same",
    [
        replace(INSTANCE, name="another"),
        with_request(id=None),
        with_request(id="q8"),
        replace(INSTANCE, requests=(replace(INSTANCE.requests[0], id="a"), *INSTANCE.requests[1:])),
    ],
    ids=["name", "no id", "other id", "id among equals"],
)
def test_names_do_not_change_the_hash(same: Instance) -> None:
    assert same != INSTANCE
    assert instance_sha256(same) == instance_sha256(INSTANCE)


def test_the_hash_stays_what_it_is() -> None:
    """Result documents out there hold it."""
    plain = json.dumps(
        {
            "cost": {
                "base": 100,
                "decode_kv": 1,
                "decode_req": 5,
                "pieces": [[0, 40], [50, 20]],
                "prefill_kv": 3,
                "prefill_req": 7,
                "prefill_sq": 2,
                "token": 10,
            },
            "format": "optsched-instance/1",
            "limits": {
                "batch_requests": 3,
                "batch_tokens": 64,
                "kv_block": 2,
                "kv_tokens": 40,
                "prefill_tokens": 32,
            },
            "name": "",
            "replicas": 1,
            "requests": [
                {"count": 2, "input": 8, "output": 4},
                {"arrival_ps": 10, "input": 5, "output": 2, "slo_e2e_ps": 900, "slo_ttft_ps": 400, "weight": 3},
            ],
            "rules": {"chunked_prefill": True, "eviction": True, "hybrid": True},
        },
        separators=(",", ":"),
    )
    assert instance_sha256(INSTANCE) == hashlib.sha256(plain.encode()).hexdigest()


# Suites ----------------------------------------------------------------------------------------------------


def test_a_suite_survives_its_document() -> None:
    profile = "a100-llama2-7b"
    on_profile = replace(INSTANCE, cost=cost_model(profile))
    suite = load_suite("infermax-fig15")
    suite = replace(suite, instances=(on_profile, replace(on_profile, name="other")))
    document = suite_document(suite, profile)
    assert [entry["cost"] for entry in document["instances"]] == [{"profile": profile}] * 2
    assert parse_suite(dump(document).encode(), cost_model) == suite


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES)
def test_a_shipped_suite_is_what_its_generator_makes(name: str) -> None:
    source = SUITES[name]
    suite = source.make(source.profile)
    assert suite.name == name
    shipped = read_bytes(suite_files()[name]).decode()
    assert shipped == dump(suite_document(suite, source.profile))
    assert load_suite(name) == suite
    assert all(load_instance(instance.name) == instance for instance in suite.instances[::7])


def test_every_shipped_suite_has_a_generator() -> None:
    assert set(suite_names()) == set(SUITES)


# Results ---------------------------------------------------------------------------------------------------


@cache
def results() -> tuple[Result, ...]:
    fits = replace(INSTANCE, requests=INSTANCE.requests[:2], rules=Rules(chunked_prefill=False))
    small = replace(fits, limits=replace(fits.limits, kv_tokens=4))
    return (
        simulate(fits, "vllm", Objective.MEAN_E2E, seed=3),
        simulate(INSTANCE, "sarathi_ef", "slo_misses", restrictions=Restrictions(("hybrid", "eviction"))),
        solve(small),
        solve(fits, "makespan", time_limit=120, workers=1),
        solve(fits, "mean_ttft", method="infermax_milp", options={"solver": "cbc"}, time_limit=1, workers=1),
        Result(INSTANCE, "vllm", Objective.MAX_E2E, Status.FAILED, message="vllm: “no” legal batch"),
        Result(INSTANCE, "volume", Objective.MAKESPAN, Status.BOUND_ONLY, Badge.SOLVER_CLAIMED, bound=10**30),
        Result(INSTANCE, "x", Objective.MAKESPAN, Status.UNKNOWN, certificate={"kind": ["a", {"b": None}]}),
    )


@pytest.mark.slow
@pytest.mark.parametrize("position", range(8))
def test_a_result_survives_its_document(position: int) -> None:
    result = results()[position]
    document = result_document(result)
    (claimed,) = parse_results(dump(document).encode(), cost_model)
    assert claimed.result == result
    assert claimed.instance_sha256 == instance_sha256(result.instance)
    assert claimed.gap == result.gap
    assert result_document(claimed.result) == document
    if result.status != Status.BOUND_ONLY:
        assert check_result(claimed).violations == ()


def test_several_results_make_a_list() -> None:
    made = results()
    text = dump([result_document(result) for result in made])
    assert [claimed.result for claimed in parse_results(b"\n " + text.encode(), cost_model)] == list(made)


def test_a_result_document_has_the_published_fields() -> None:
    document = result_document(results()[3])
    assert list(document)[:16] == [
        "format",
        "instance",
        "instance_sha256",
        "method",
        "objective",
        "status",
        "badge",
        "value",
        "bound",
        "gap",
        "runtime_s",
        "seed",
        "versions",
        "schedule",
        "metrics",
        "certificate",
    ]
    assert document["format"] == "optsched-result/1"
    assert document["status"] == "optimal"
    assert (document["gap"], document["value"]) == (0.0, document["bound"])
    assert set(document["schedule"]["batches"][0]) == {"replica", "start_ps", "end_ps", "run", "evict"}
    assert document["versions"]["optsched"]


# Writing ---------------------------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | names,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=25,
)


@pytest.mark.slow
@given(values)
@settings(max_examples=200, deadline=None)
def test_a_dump_is_json(value: object) -> None:
    text = dump(value)
    assert json.loads(text) == value
    assert text.endswith("\n")


def test_a_dump_mixes_lists() -> None:
    value = [{"a": 1}, 2, [{"b": {"c": "κ"}}], {"d": []}]
    assert json.loads(dump(value)) == value
    assert json.loads(dump([[], {}, {"x": [{"y": {}}, {}]}])) == [[], {}, {"x": [{"y": {}}, {}]}]


@pytest.mark.parametrize(
    "value", [float("nan"), {"a": float("inf")}, [{"a": float("nan")}], [{"a": {"b": float("-inf")}}]]
)
def test_a_dump_has_no_numbers_that_json_lacks(value: object) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump(value)


def test_a_dump_keeps_a_request_on_a_line() -> None:
    lines = dump(instance_document(INSTANCE)).splitlines()
    assert '  {"input": 8, "output": 4, "count": 2},' in lines


def test_a_packed_file_is_the_same_every_time(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json.gz", tmp_path / "b.json.gz"
    for file in (first, second):
        write_text(file, dump(instance_document(INSTANCE)))
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes()[4:8] == bytes(4), "no time of day stands in it"
    assert gzip.decompress(first.read_bytes()).decode() == dump(instance_document(INSTANCE))
    assert load_instance(first) == INSTANCE


def test_a_written_file_has_the_usual_permissions(tmp_path: Path) -> None:
    ordinary, written = tmp_path / "ordinary", tmp_path / "written"
    ordinary.touch()
    write_text(written, "x")
    assert stat.S_IMODE(written.stat().st_mode) == stat.S_IMODE(ordinary.stat().st_mode)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_what_is_no_file_stays_what_it_is(tmp_path: Path) -> None:
    """A device or a pipe is written to; replacing /dev/null by a file would break the machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(pipe, "through the pipe")
        assert pipe.is_fifo()
        assert os.read(reader, 100) == b"through the pipe"
    finally:
        os.close(reader)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_long_file_name_is_written(tmp_path: Path) -> None:
    file = tmp_path / ("n" * 250 + ".json")
    write_text(file, "{}")
    assert file.read_text() == "{}"


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_an_interrupted_write_leaves_the_earlier_file(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    file = tmp_path / "kept.json"
    file.write_text("earlier")
    monkeypatch.setattr("os.fsync" if moment == "fsync" else "pathlib.Path.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text(file, "later")
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]
    assert file.read_text() == "earlier"


# Domain objects --------------------------------------------------------------------------------------------

OBJECTS: list[Any] = [
    INSTANCE,
    INSTANCE.limits,
    INSTANCE.rules,
    INSTANCE.cost,
    INSTANCE.requests[0],
    Batch(0, 1, ((0, 1),)),
    Schedule(()),
    Restrictions(),
    Result(INSTANCE, "vllm", Objective.MAKESPAN, Status.UNKNOWN),
]


@pytest.mark.parametrize("thing", OBJECTS, ids=lambda thing: type(thing).__name__)
def test_domain_objects_are_frozen(thing: Any) -> None:
    for field in dataclasses.fields(thing):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, field.name, getattr(thing, field.name))
    with pytest.raises((AttributeError, TypeError)):
        thing.something_else = 1
    assert replace(thing) == thing


@pytest.mark.parametrize(
    ("thing", "changes", "message"),
    [
        (INSTANCE.limits, {"kv_tokens": 0}, "kv_tokens: got 0, expected an integer ≥ 1"),
        (INSTANCE.limits, {"batch_tokens": 16}, "prefill_tokens: got 32, expected at most batch_tokens = 16"),
        (INSTANCE.rules, {"hybrid": 1}, "hybrid: got 1, expected true or false"),
        (INSTANCE.requests[0], {"input": True}, "input: got true, expected an integer"),
        (INSTANCE.requests[0], {"weight": -1}, "weight: got -1, expected an integer ≥ 0"),
        (INSTANCE.cost, {"pieces": ((1, 2, 3),)}, "pieces[0]: got 3 items, expected at most 2"),
        (INSTANCE, {"requests": ()}, "requests: got 0 items, expected at least 1"),
        (INSTANCE, {"requests": {Request(1, 1)}}, "requests: got {Request("),
        (INSTANCE, {"replicas": 10_001}, "replicas: got 10001, expected an integer ≤ 10000"),
        (Restrictions(), {"forbid": ("sleep",)}, "forbid: got 'sleep', expected one of eviction, hybrid, chunked"),
        (OBJECTS[-1], {"value": -1}, "value: got -1, expected an integer ≥ 0"),
        (OBJECTS[-1], {"runtime_s": -0.5}, "runtime_s: got -0.5, expected a number ≥ 0"),
        (OBJECTS[5], {"run": ((0, 0),)}, "run[0][1]: got 0, expected an integer ≥ 1"),
    ],
)
def test_a_changed_copy_is_checked_again(thing: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        replace(thing, **changes)
    assert str(error.value).startswith(message)


def test_results_of_a_missing_file_are_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        load_results(tmp_path / "gone.json")
    assert (error.value.source, error.value.field) == (str(tmp_path / "gone.json"), "RESULT")
