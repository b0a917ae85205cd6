"""Instances of several machines: in Python, in documents, and refused where only one machine is covered."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from commands import optsched
from pair import PAIR

from optsched import (
    Batch,
    CacheMode,
    CacheRules,
    CostModel,
    InputError,
    Instance,
    Limits,
    Link,
    Machine,
    MachineGroup,
    Move,
    Objective,
    PrefixNode,
    PrefixTree,
    Request,
    Result,
    Role,
    Rules,
    Schedule,
    Status,
    ViewAge,
    all_bounds,
    bound,
    export_model,
    method_names,
    replace,
    simulate,
    solve,
    timeline,
)
from optsched.bounds.catalogue import BOUNDS, bound_method
from optsched.calibrate.library import cost_model
from optsched.hardware.compare.execute import execute_policy, execute_schedule
from optsched.methods.formulations import make_formulation
from optsched.model.documents import (
    dump,
    instance_document,
    instance_sha256,
    parse_instance,
    parse_results,
    result_document,
)
from optsched.model.metrics import evaluate
from optsched.model.restrictions import Restrictions
from optsched.model.schedule import Assignment, timed
from optsched.policies.infermax import VLLM
from optsched.simulator.engine import run_policy
from optsched.solvers.formulation import Task

SMALL, LARGE = Limits(64, 32, 32), Limits(128, 32, 16, kv_block=16)
SLOW = CostModel(base=500, token=9)
TWO = replace(PAIR, replicas=2)
MIXED = replace(
    PAIR,
    machine_groups=(
        MachineGroup(2, Role.PREFILL, limits=SMALL, name="p"),
        MachineGroup(role=Role.DECODE, limits=LARGE, cost=SLOW, rules=Rules(hybrid=False)),
        MachineGroup(),
    ),
    links=Link(base_ps=7, kv_ps=2, exclusive=True),
)
SCHEDULE = Schedule((Batch(0, 1, ((0, 1),)),))
FOUND: dict[str, Any] = {"value": 1, "schedule": SCHEDULE, "metrics": {}}
REFUSAL = "expected one machine, and none listed"


def test_every_machine_has_its_own_or_the_instances_limits_rules_and_cost() -> None:
    own = Machine(PAIR.limits, PAIR.rules, PAIR.cost)
    first = Machine(SMALL, PAIR.rules, PAIR.cost, Role.PREFILL, "p")
    assert PAIR.machines == (own,)
    assert TWO.machines == (own, own)
    assert MIXED.machines == (first, first, Machine(LARGE, Rules(hybrid=False), SLOW, Role.DECODE), own)
    # What is None follows the instance when that changes.
    assert replace(MIXED, cost=SLOW).machines[0].cost == SLOW


def test_on_is_what_one_machine_has_to_do() -> None:
    assert PAIR.on(0) == PAIR
    assert TWO.on(1) == replace(PAIR, name=f"{PAIR.name}, machine 1")
    part = MIXED.on(2, [1])
    assert part == Instance(f"{PAIR.name}, machine 2", LARGE, Rules(hybrid=False), SLOW, (PAIR.requests[1],))
    assert simulate(MIXED.on(3), "vllm").value == simulate(PAIR, "vllm").value


@pytest.mark.parametrize("machine", [-1, 4])
def test_on_names_a_machine_that_there_is_not(machine: int) -> None:
    with pytest.raises(InputError, match=f"machine: got {machine}, expected an integer from 0 to 3"):
        MIXED.on(machine)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replicas": 2, "machine_groups": (MachineGroup(),)}, "replicas: got 2, expected 1 where machines are listed"),
        ({"machine_groups": (MachineGroup(10_000),) * 2}, "machines: got 20000 machines, expected at most 10000"),
        (
            {"machine_groups": (MachineGroup(role=Role.DECODE),)},
            "machines: got only machines of role decode, expected one that requests are routed to",
        ),
        (
            {"machine_groups": (MachineGroup(2, Role.PREFILL),)},
            "machines: got only machines of role prefill, expected one of another role, to which requests with more "
            "than 1 output token move",
        ),
    ],
)
def test_machines_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        replace(PAIR, **changes)
    assert str(error.value) == message


def test_requests_leave_machines_of_role_prefill_over_links() -> None:
    groups = MachineGroup(1, Role.PREFILL), MachineGroup(1, Role.DECODE)
    instance = replace(PAIR, machine_groups=groups)
    document = instance_document(instance)
    # That moves take no time is said, too.
    assert document.pop("links") == {"base_ps": 0, "kv_ps": 0, "exclusive": False, "live": False, "stages": 3}
    with pytest.raises(InputError) as error:
        parse_instance(dump(document).encode(), cost_model)
    assert str(error.value) == (
        "links: got nothing, expected base_ps and kv_ps of the links over which requests leave machines of role prefill"
    )


def test_requests_of_one_token_need_no_machine_that_decodes() -> None:
    groups = (MachineGroup(2, Role.PREFILL),)
    requests = tuple(replace(request, output=1) for request in PAIR.requests)
    assert replace(PAIR, machine_groups=groups, requests=requests).infeasibilities() == ()


def test_a_class_of_schedules_is_that_of_every_group() -> None:
    few = replace(MIXED.limits, batch_requests=1)
    groups = MachineGroup(), MachineGroup(limits=few), MachineGroup(rules=Rules(chunked_prefill=False))
    instance = replace(MIXED, machine_groups=groups)
    restricted = Restrictions(forbid=("eviction",), max_batch=2).apply(instance)
    assert [machine.limits.batch_requests for machine in restricted.machines] == [2, 1, 2]
    assert [machine.rules.eviction for machine in restricted.machines] == [False] * 3


def test_a_document_states_what_differs() -> None:
    document = instance_document(MIXED)
    limits = {"kv_tokens": 64, "batch_tokens": 32, "prefill_tokens": 32, "batch_requests": None, "kv_block": 1}
    first, second, third = document["machines"]
    assert first == {"name": "p", "count": 2, "role": "prefill", "limits": limits}
    assert set(second) == {"role", "limits", "rules", "cost"}
    assert third == {}
    assert document["links"] == {"base_ps": 7, "kv_ps": 2, "exclusive": True, "live": False, "stages": 3}
    layerwise = replace(MIXED, links=replace(MIXED.links, layerwise=True))
    assert instance_document(layerwise)["links"] == document["links"] | {"layerwise": True}
    sized = replace(MIXED, links=replace(MIXED.links, kv_bytes=2**19), view=ViewAge(routers=3))
    assert instance_document(sized)["links"] == document["links"] | {"kv_bytes": 524288}
    assert instance_document(sized)["view"] == {"every_ps": 0, "delay_ps": 0, "routers": 3}
    for instance in (MIXED, TWO, layerwise, sized):
        assert parse_instance(dump(instance_document(instance)).encode(), cost_model) == instance


CACHED = replace(
    PAIR,
    requests=(Request(6, 3, prefix=("a", "b")), Request(5, 2, prefix=("a",)), Request(4, 1)),
    prefixes=PrefixTree((PrefixNode("a", 4), PrefixNode("b", 3, "a"))),
    machine_groups=(MachineGroup(2), MachineGroup(cache=CacheRules(CacheMode.ALL, share_in_batch=True))),
    cache=CacheRules(CacheMode.PREFIX),
    view=ViewAge(every_ps=10, delay_ps=3),
)


def test_a_document_keeps_prefixes_caches_and_what_routers_see() -> None:
    document = instance_document(CACHED)
    assert document["prefixes"] == {"a": {"tokens": 4, "parent": None}, "b": {"tokens": 3, "parent": "a"}}
    assert document["cache"] == {"mode": "prefix", "share_in_batch": False}
    assert document["view"] == {"every_ps": 10, "delay_ps": 3}
    assert [entry.get("cache") for entry in document["machines"]] == [None, {"mode": "all", "share_in_batch": True}]
    assert parse_instance(dump(document).encode(), cost_model) == CACHED
    assert CACHED.on(2, [1]).cache == CacheRules(CacheMode.ALL, share_in_batch=True)
    assert CACHED.on(0, [1]).requests[0].prefix == ("a",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"requests": (Request(6, 3, prefix=("b",)),)},
            "requests[0].prefix[0]: got 'b', expected a root; the parent of this node is a",
        ),
        (
            {"requests": (Request(8, 1), Request(4, 2, prefix=("a", "b")))},
            "requests[1].prefix: got 7 tokens, expected at most input + output = 6",
        ),
        (
            {"requests": (Request(6, 3, prefix=("a", "c")),)},
            "requests[0].prefix[1]: got 'c', expected the name of a node of prefixes",
        ),
        ({"rules": Rules(swap=True)}, "machines[0].cache.mode: got 'prefix', expected none where the rule swap holds"),
    ],
)
def test_prefixes_and_caches_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        replace(CACHED, **changes)
    assert str(error.value).startswith(message)


def test_a_schedule_keeps_routes_moves_hits_and_drops() -> None:
    batches = (
        Batch(0, 5, ((0, 6),), hits=((0, 0),)),
        Batch(5, 9, ((1, 1),), replica=1, hits=((1, 4),), drop=((0, 1), (0, 0))),
    )
    moves = (Move(0, 0, 1, 5, 8, drop=((1, 2),)), Move(1, 1, 2, 9, 12, stages_ps=(10, 12), aborted=True))
    schedule = Schedule(batches, (0, 1, 0), moves)
    result = Result(
        CACHED, "direct", Objective.MAKESPAN, Status.FEASIBLE, value=12, schedule=schedule, metrics={}, runtime_s=0.0
    )
    document = result_document(result)
    assert document["schedule"]["moves"][0] == {
        "request": 0, "from": 0, "to": 1, "start_ps": 5, "end_ps": 8, "drop": [[1, 2]]
    }  # fmt: skip
    (found,) = parse_results(dump(document).encode(), cost_model)
    assert found.result.schedule == schedule


def test_one_machine_has_the_document_that_it_had() -> None:
    keys = ["format", "name", "limits", "rules", "cost", "replicas", "requests"]
    assert list(instance_document(PAIR)) == keys
    assert list(instance_document(MIXED)) == [*keys[:-1], "machines", "links", "requests"]


def test_a_document_may_name_a_machines_profile() -> None:
    document = instance_document(PAIR) | {"machines": [{"cost": {"profile": "a100-llama2-7b"}}, {"count": 3}]}
    found = parse_instance(json.dumps(document).encode(), cost_model)
    assert [machine.cost == cost_model("a100-llama2-7b") for machine in found.machines] == [True, False, False, False]


def test_the_hash_knows_machines_and_not_their_names() -> None:
    groups = tuple(replace(group, name="other") for group in MIXED.machine_groups)
    assert instance_sha256(replace(MIXED, machine_groups=groups)) == instance_sha256(MIXED)
    assert len({instance_sha256(instance) for instance in (PAIR, TWO, MIXED, replace(MIXED, links=Link()))}) == 4


class _NoEngine:
    def run(self, batch: Assignment) -> int:
        raise AssertionError(batch)


def _formulate(name: str, instance: Instance) -> object:
    return make_formulation(name, {}).solve(Task(instance, Objective.MAKESPAN))


def _bound(name: str, instance: Instance) -> object:
    return bound_method(name)(instance, Objective.MAKESPAN)


REFUSING: dict[str, Callable[[Instance], object]] = {
    "export_model": lambda instance: export_model(instance, method="token_cpsat"),
    "run_policy": lambda instance: run_policy(instance, VLLM),
    "compiled": VLLM.serve,
    "execute_policy": lambda instance: execute_policy(instance, "vllm", _NoEngine(), {}),
    "execute_schedule": lambda instance: execute_schedule(instance, SCHEDULE, "", _NoEngine(), {}),
    "timeline": lambda instance: timeline(instance, SCHEDULE),
    "evaluate": lambda instance: evaluate(instance, SCHEDULE),
    "timed": lambda instance: timed(instance, []),
    **{f"formulation {name}": partial(_formulate, name) for name in method_names() if name != "auto"},
    **{f"method {name}": partial(solve, method=name) for name in method_names() if name != "auto"},
    **{f"bound {name}": partial(_bound, name) for name in BOUNDS},
}
SIMULATING = ("run_policy", "compiled")
"""What serves a machine that caches; beginnings of names."""


@pytest.mark.parametrize("instance", [TWO, MIXED, replace(PAIR, machine_groups=(MachineGroup(),))])
@pytest.mark.parametrize("what", REFUSING)
def test_what_covers_one_machine_refuses_several(what: str, instance: Instance) -> None:
    with pytest.raises(InputError) as error:
        REFUSING[what](instance)
    assert REFUSAL in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("what", [what for what in REFUSING if not what.startswith(SIMULATING)])
def test_what_is_no_simulation_refuses_caches(what: str) -> None:
    with pytest.raises(InputError) as error:
        REFUSING[what](replace(PAIR, cache=CacheRules(CacheMode.PREFIX)))
    assert "cache.mode: got 'prefix', expected none: nothing here covers" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


COVERING: dict[str, Callable[[Instance], object]] = {
    "solve": solve,
    "bound": bound,
    "all_bounds": all_bounds,
}
"""What covers several machines, and caches or roles, but not both, nor the rule migration."""


@pytest.mark.parametrize(
    ("instance", "message"),
    [
        (
            replace(MIXED, cache=CacheRules(CacheMode.ALL)),
            "machines[0].role: got 'prefill', expected both: nothing here covers moves together with caches yet",
        ),
        (
            replace(TWO, rules=replace(TWO.rules, migration=True)),
            "rules.migration: got true, expected false: nothing here covers moves yet",
        ),
        (
            replace(TWO, rules=replace(TWO.rules, migration=True), cache=CacheRules(CacheMode.ALL)),
            "rules.migration: got true, expected false: nothing here covers moves yet",
        ),
    ],
)
@pytest.mark.parametrize("what", COVERING)
def test_what_covers_several_machines_refuses_moves(what: str, instance: Instance, message: str) -> None:
    with pytest.raises(InputError) as error:
        COVERING[what](instance)
    assert str(error.value).startswith(message)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    "command", [["solve", "--method", "token_cpsat"], ["solve", "--method", "infermax_milp", "--export", "lp"]]
)
def test_commands_refuse_several_machines_in_one_line(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "two.json"
    file.write_text(dump(instance_document(TWO)))
    outcome = optsched(capsys, command[0], str(file), *command[1:])
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"optsched: {file}: ")
    assert outcome.err.endswith(f"machines: got 2 machines, {REFUSAL}: nothing here covers several yet\n")
    assert len(outcome.err.splitlines()) == 1
