"""Several machines: examples by hand, and what holds of every run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from commands import optsched
from playing import ready

from optsched import CostModel, Instance, Limits, MachineGroup, Request, Result, Rules, replace, simulate
from optsched.check import check_schedule
from optsched.methods.routing import find_router, router_names
from optsched.model.cluster import CacheMode, CacheRules, ViewAge
from optsched.model.documents import dump, instance_document, result_document
from optsched.model.errors import InputError
from optsched.model.objectives import Objective
from optsched.model.prefixes import PrefixNode, PrefixTree
from optsched.model.result import Status
from optsched.model.schedule import Batch, Schedule
from optsched.routers.router import MachineView, Piece, RoutedRequest, Router, RouterSetting
from optsched.routers.simple import Direct
from optsched.simulator.cluster import run_cluster
from optsched.simulator.engine import run_policy
from optsched.simulator.routed import Decision, DecisionRecord

COST = CostModel(base=10, token=1)
ROUTERS = tuple(name for name in router_names() if name != "direct")


def cluster(*requests: Request, machines: int = 2, cost: CostModel = COST, view: ViewAge = ViewAge()) -> Instance:  # noqa: B008 - frozen
    return Instance("cluster", Limits(100, 100, 100), Rules(), cost, requests, replicas=machines, view=view)


def test_three_requests_on_two_machines_in_turn() -> None:
    instance = cluster(Request(3, 2), Request(2, 1), Request(4, 1, arrival_ps=5))
    result = simulate(instance, "vllm_v1", "mean_e2e", router="round_robin")
    assert result.schedule is not None
    # Machine 0: the prompt of request 0, 10 + 3; then its decode and the prompt of request 2, 10 + 1 + 4.
    # Machine 1: the prompt of request 1, 10 + 2.
    assert result.schedule.batches == (
        Batch(0, 13, ((0, 3),)),
        Batch(0, 12, ((1, 2),), replica=1),
        Batch(13, 28, ((0, 1), (2, 4))),
    )
    assert result.schedule.routes == (0, 1, 0)
    assert result.value == 28 + 12 + (28 - 5)
    assert result.metrics is not None
    assert result.metrics["load_ps"] == [28, 12]
    assert result.metrics["objectives"]["max_load"] == 28
    assert result.metrics["imbalance"] == 28 / 20
    assert (result.metrics["computed_tokens"], result.metrics["prefill_tokens"]) == (10, 9)


def test_a_row_for_each_request() -> None:
    tree = PrefixTree((PrefixNode("a", 4),))
    requests = Request(5, 2, prefix=("a",)), Request(6, 1, arrival_ps=100, prefix=("a",)), Request(2, 1)
    limits, cache = Limits(100, 100, 100), CacheRules(CacheMode.PREFIX)
    instance = Instance("rows", limits, Rules(), COST, requests, replicas=2, prefixes=tree, cache=cache)
    result = simulate(instance, "vllm_v1", router=lambda _: Direct([1, 1, 0]))
    # Request 1 finds the four tokens of node a, and runs two.
    assert [
        (row.request, row.routed_to, row.machine, row.hit_tokens, row.ttft_ps, row.e2e_ps, row.tpot_ps, row.moves)
        for row in result.requests()
    ] == [
        (0, 1, 1, 0, 15, 26, 11, 0),
        (1, 1, 1, 4, 12, 12, None, 0),
        (2, 0, 0, 0, 12, 12, None, 0),
    ]
    assert result.metrics is not None
    assert (result.metrics["hit_tokens"], result.metrics["computed_tokens"]) == (4, 5 + 1 + 2 + 2)


def test_regret_of_decisions() -> None:
    # Request 0 takes 13 and 11 more. When request 1 comes at 5, machine 0 still has 8 + 11 to do.
    instance = cluster(Request(3, 2), Request(2, 1, arrival_ps=5))
    record = DecisionRecord([])
    run_cluster(instance, lambda alone: ready("vllm_v1", alone), lambda _: Direct([0, 0]), record=record)
    assert record.decisions == [Decision(0, 0, 0, 0), Decision(1, 0, 1, 8 + 11)]
    same = DecisionRecord([])
    simulate(instance, "vllm_v1", router=lambda _: Direct([0, 0]), record=same)
    assert same.decisions == record.decisions
    with pytest.raises(InputError, match="record: got a record of decisions, expected none: the instance has one mach"):
        simulate(replace(instance, replicas=1), "vllm_v1", record=DecisionRecord([]))


@pytest.mark.parametrize(
    ("view", "machine"),
    [
        # The batch of request 1 ends at 12, as request 2 arrives: machine 1 is empty.
        (ViewAge(), 1),
        # As of 11 both machines have one request, and the first one wins.
        (ViewAge(delay_ps=1), 0),
        # Polled at 0, 10, 20.
        (ViewAge(every_ps=10), 0),
        (ViewAge(every_ps=6), 1),
        (ViewAge(every_ps=6, delay_ps=1), 0),
    ],
)
def test_what_a_router_sees(view: ViewAge, machine: int) -> None:
    instance = cluster(Request(3, 2), Request(2, 1), Request(4, 1, arrival_ps=12), view=view)

    class Given(Router):
        """The first two requests apart, then the machine with the fewest requests."""

        def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
            if request.index < 2:
                return request.index
            return min(views, key=lambda each: each.waiting + each.running).machine

    schedule = run_cluster(instance, lambda alone: ready("vllm_v1", alone), lambda _: Given())
    assert schedule.routes == (0, 1, machine)


class Filling(Router):
    """Sends only the first request to machine 0, and writes down what this has to prefill, waiting and begun."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        self.seen.append((views[0].queued_tokens, views[0].filling_tokens))
        return min(request.index, 1)


@pytest.mark.parametrize("delay_ps", [0, 7])
def test_tokens_that_are_still_to_be_prefilled(delay_ps: int) -> None:
    # A prompt of 10 in batches of 4, 4 and 2 tokens: [0, 14], [14, 28], [28, 40], and a decode until 51.
    moments = (5, 14, 15, 28, 29, 40, 41)
    later = (Request(1, 1, arrival_ps=moment + delay_ps) for moment in moments)
    instance = replace(cluster(Request(10, 2), *later, view=ViewAge(delay_ps=delay_ps)), limits=Limits(100, 4, 4))
    filling = Filling()
    run_cluster(instance, lambda alone: ready("vllm_v1", alone), lambda _: filling)
    # What is under way has run nothing; at 5 the prompt no longer waits.
    assert filling.seen == [(0, 0), (0, 10), (0, 6), (0, 6), (0, 2), (0, 2), (0, 0), (0, 0)]


class Watching(Router):
    """Writes down what it is notified of, and what it sees of machine 0."""

    def __init__(self) -> None:
        self.notes: list[tuple[object, ...]] = []

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        view = views[0]
        seen = view.waiting, view.running, view.queued_tokens, view.pending_tokens, view.kv_used, view.work_ps
        self.notes.append((request.index, *seen))
        return 0

    def first_token(self, request: RoutedRequest, machine: int, now_ps: int, hit: int) -> None:
        self.notes.append(("first", request.index, machine, now_ps, hit))

    def finished(self, request: RoutedRequest, machine: int, now_ps: int, ttft_ps: int, tpot_ps: int | None) -> None:
        self.notes.append(("finished", request.index, machine, now_ps, ttft_ps, tpot_ps))


def test_numbers_and_notifications() -> None:
    # Batches on machine 0: [0, 13] the prompt of request 0; [13, 25] its decode and 1 token of request 1; it ends
    # then, as request 1 does. Request 2 arrives during the second.
    requests = Request(3, 2), Request(1, 1, arrival_ps=4), Request(5, 2, arrival_ps=14), Request(1, 1, arrival_ps=25)
    watching = Watching()
    run_cluster(cluster(*requests), lambda alone: ready("vllm_v1", alone), lambda _: watching)
    assert watching.notes == [
        (0, 0, 0, 0, 0, 0, 0),
        # At 4 the prompt is under way: 3 tokens and the decode are left. Alone: a decode of 11, and 9 of the batch.
        (1, 0, 1, 0, 4, 3, 11 + 9),
        ("first", 0, 0, 13, 0),
        # At 14 both run, which takes 4 + 1 tokens of memory, until 25.
        (2, 0, 2, 0, 2, 5, 11),
        ("first", 1, 0, 25, 0),
        ("finished", 0, 0, 25, 13, 12),
        ("finished", 1, 0, 25, 21, None),
        # At 25 request 2 waits: 5 tokens of its prompt and a decode, 15 + 11.
        (3, 1, 0, 5, 6, 0, 26),
    ]


def test_notifications_are_late_as_views_are() -> None:
    requests = Request(3, 1), Request(1, 1, arrival_ps=20), Request(1, 1, arrival_ps=23)
    watching = Watching()
    instance = cluster(*requests, view=ViewAge(delay_ps=10))
    run_cluster(instance, lambda alone: ready("vllm_v1", alone), lambda _: watching)
    # Request 0 ends at 13, which is known at 23.
    assert [note[:2] for note in watching.notes] == [(0, 0), (1, 0), ("first", 0), ("finished", 0), (2, 0)]


def test_two_routers_are_notified_of_their_own_requests() -> None:
    made: list[Watching] = []

    def make(_: RouterSetting) -> Router:
        made.append(Watching())
        return made[-1]

    requests = [Request(1, 1, arrival_ps=100 * place) for place in range(4)]
    run_cluster(cluster(*requests), lambda alone: ready("vllm_v1", alone), make, routers=2)
    # Each is notified before the next request of either.
    assert [[note[:2] for note in router.notes] for router in made] == [
        [(0, 0), ("first", 0), ("finished", 0), (2, 0), ("first", 2), ("finished", 2)],
        [(1, 0), ("first", 1), ("finished", 1), (3, 0)],
    ]


def drawn(seed: int) -> Instance:
    """A small cluster, with shared prefixes and caches or without."""
    rng = Random(seed)
    tree = PrefixTree((PrefixNode("a", rng.randint(2, 9)), PrefixNode("b", rng.randint(1, 9), "a"), PrefixNode("c", 3)))
    paths = (), ("a",), ("a", "b"), ("c",)
    requests = tuple(
        Request(
            rng.randint(1, 20),
            rng.randint(18, 25) if rng.random() < 0.2 else rng.randint(1, 6) + 18 * bool(path),
            arrival_ps=rng.randrange(600),
            prefix=path,
        )
        for path in (rng.choice(paths) for _ in range(rng.randint(3, 14)))
    )
    cost = CostModel(base=rng.randint(0, 20), token=rng.randint(1, 3), decode_kv=rng.randint(0, 1), prefill_sq=1)
    limits = Limits(rng.randint(48, 90), 64, 64, rng.choice([None, 3]), rng.choice([1, 2, 4]))
    mode = rng.choice([CacheMode.NONE, CacheMode.PREFIX, CacheMode.ALL])
    view = rng.choice([ViewAge(), ViewAge(50, 0), ViewAge(0, 30), ViewAge(40, 25)])
    cache = CacheRules(mode, rng.random() < 0.5)
    count = rng.randint(2, 3)
    return Instance("drawn", limits, Rules(), cost, requests, count, prefixes=tree, cache=cache, view=view)


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("seed", range(4))
def test_any_router_makes_legal_schedules_with_jumps_or_without(router: str, seed: int) -> None:
    instance = drawn(seed)
    policy = ("vllm_v1", "sarathi", "fastserve", "vllm")[seed]
    result = simulate(instance, policy, router=router, seed=seed)
    assert result.schedule is not None, result.message
    again = simulate(instance, policy, router=router, seed=seed)
    assert document_of(again) == document_of(result)
    factory = find_router(router)
    steps = run_cluster(instance, lambda alone: ready(policy, alone), factory, seed=seed, jumps=False)
    assert steps.routes == result.schedule.routes
    violations, metrics = check_schedule(instance, steps)
    assert not violations
    assert metrics == result.metrics


def document_of(result: Result) -> str:
    document = result_document(result)
    document.pop("runtime_s")
    return json.dumps(document)


@pytest.mark.parametrize("policy", ["vllm_v1", "sarathi", "fastserve"])
def test_a_list_of_one_machine_is_as_one_machine(policy: str) -> None:
    plain = replace(drawn(2), replicas=1, cache=CacheRules(), view=ViewAge())
    listed = replace(plain, machine_groups=(MachineGroup(),))
    schedule = run_cluster(listed, lambda alone: ready(policy, alone), find_router("least_work"))
    alone = run_policy(plain, ready(policy, plain))
    assert schedule == Schedule(alone.batches, routes=(0,) * len(plain.requests))


def test_compiled_machines_are_as_those_that_are_looked_at() -> None:
    rng = Random(5)
    requests = tuple(Request(rng.randint(1, 40), rng.randint(90, 110), rng.randrange(10**5)) for _ in range(600))
    instance = Instance("long", Limits(4000, 512, 512, kv_block=16), Rules(), COST, requests, replicas=3)
    blind = simulate(instance, "vllm", router="round_robin")
    looked = run_cluster(instance, lambda alone: ready("vllm", alone), lambda _: Looking())
    assert blind.schedule is not None
    assert looked.routes == blind.schedule.routes
    assert looked == blind.schedule


class Looking(Router):
    """Takes turns, but looks."""

    def __init__(self) -> None:
        self.turn = -1

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        assert all(view.kv_used <= view.kv_capacity for view in views)
        self.turn += 1
        return self.turn % len(views)


def test_a_request_goes_only_where_it_fits() -> None:
    limits = Limits(20, 20, 20)
    groups = MachineGroup(1), MachineGroup(1, limits=replace(limits, kv_tokens=50, batch_tokens=50, prefill_tokens=50))
    requests = Request(30, 2), Request(30, 2), Request(3, 2), Request(3, 2)
    instance = Instance("unequal", limits, Rules(), COST, requests, machine_groups=groups)
    result = simulate(instance, "vllm_v1", router="round_robin")
    assert result.schedule is not None
    assert result.schedule.routes[:2] == (1, 1)
    wrong = simulate(instance, "vllm_v1", router=lambda _: Direct([0, 0, 0, 0]))
    assert wrong.message == (
        "vllm_v1: request 0 at 0 ps: the router answers 0, expected one of [1], where it can be served"
    )


def test_a_router_for_equal_machines_only() -> None:
    groups = MachineGroup(), MachineGroup(limits=Limits(50, 50, 50))
    instance = Instance("unequal", Limits(60, 60, 60), Rules(), COST, (Request(3, 2),), machine_groups=groups)
    assert simulate(instance, "vllm_v1", router="e2_code").message == (
        "router e2_code: Preble's program assumes equal machines, and these differ in limits or cost; e2 does not"
    )


def test_infeasible_clusters() -> None:
    instance = cluster(Request(100, 2))
    with pytest.raises(ValueError, match=r"request 0 fits no machine .* on machine 0 it needs 101 KV tokens"):
        simulate(instance, "vllm_v1")


def test_the_largest_load_is_an_objective_of_clusters_only() -> None:
    plain = Instance("plain", Limits(9, 9, 9), Rules(), COST, (Request(3, 2),))
    with pytest.raises(InputError, match="'max_load', expected another one: the instance has one machine"):
        simulate(plain, "vllm_v1", "max_load")
    with pytest.raises(InputError, match="objective: got 'max_load'"):
        Result(plain, "vllm_v1", Objective.MAX_LOAD, Status.FAILED)
    assert simulate(replace(plain, replicas=2), "vllm_v1", "max_load").value == 13 + 11


def test_decisions_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from optsched.routers.router import Router\n\n\n"
        "class Last(Router):\n    def route(self, request, views):\n        return views[-1].machine\n"
    )
    file, own = tmp_path / "instance.json", f"{tmp_path}/mine.py:Last"
    file.write_text(dump(instance_document(cluster(Request(3, 2), Request(2, 1, arrival_ps=5)))))
    command = ["simulate", str(file), "--policy", "vllm_v1", "--router", own]
    code, out, err = optsched(capsys, *command, "--decisions", "-")
    assert code == 0
    # As in `test_regret_of_decisions`, of machine 1.
    assert out.splitlines() == [
        "instance,router,policy,evictor,request,machine,best_machine,regret_ps",
        f"cluster,{own},vllm_v1,,0,1,0,0",
        f"cluster,{own},vllm_v1,,1,1,0,19",
    ]
    assert f"{own}, vllm_v1: 2 decisions, " in err
    code, _, err = optsched(capsys, *command[:-2], "--machines", "1", "--decisions", "-")
    assert code == 2
    assert "--decisions: got a record of decisions, expected none" in err


def test_routers_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from optsched.routers.router import Router\n\n\n"
        "class Last(Router):\n    def route(self, request, views):\n        return views[-1].machine\n"
    )
    file = tmp_path / "instance.json"
    file.write_text(dump(instance_document(cluster(Request(3, 2), Request(2, 1)))))
    own = f"{tmp_path}/mine.py:Last"
    command = ["simulate", str(file), "--policy", "vllm_v1,sarathi", "--router", own, "--router", "p2c,sal"]
    code, out, _ = optsched(capsys, *command, "--cache", "lru", "--cache", "vllm", "--machines", "3", "--json")
    results = json.loads(out)
    assert code == 0
    assert [(each["options"]["router"], each["method"], each["options"]["evictor"]) for each in results] == [
        (router, policy, evictor)
        for router in (own, "p2c", "sal")
        for policy in ("vllm_v1", "sarathi")
        for evictor in ("lru", "vllm")
    ]
    assert results[0]["schedule"]["routes"] == [2, 2]
    assert len(results[0]["metrics"]["load_ps"]) == 3
    code, out, _ = optsched(capsys, *command)
    assert code == 0
    assert all(word in out for word in ("router", "load max", "p2c"))
    code, _, err = optsched(capsys, "simulate", str(file), "--policy", "vllm_v1", "--router", "sall")
    assert code == 2
    assert "--router: got 'sall'" in err
    assert "did you mean sal?" in err
    code, _, err = optsched(capsys, "simulate", str(file), "--policy", "vllm_v1", "--router", "sal", "--machines", "1")
    assert code == 2
    assert "--router: got 'sal', expected none: the instance has one machine" in err


@pytest.mark.parametrize(("routers", "given", "seen"), [(1, None, (0, 1, 2)), (2, None, (0, 0, 1)), (2, 3, (0, 0, 0))])
def test_how_many_routers_there_are_is_part_of_the_instance(
    routers: int, given: int | None, seen: tuple[int, ...]
) -> None:
    """Each router counts what it is asked."""

    class Counting(Router):
        def __init__(self) -> None:
            self.asked = -1

        def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
            self.asked += 1
            return self.asked

    instance = cluster(*[Request(1, 1)] * 3, machines=3, view=ViewAge(routers=routers))
    result = simulate(instance, "vllm_v1", router=lambda _: Counting(), routers=given)
    assert result.schedule is not None
    assert result.schedule.routes == seen
    assert result.options.get("routers") == (None if routers == 1 else str(given or routers))


def test_each_entry_of_the_list_of_machines_has_a_policy_of_its_own() -> None:
    # Prompts alone on the first machine; beside decodes on both of the others.
    groups = MachineGroup(), MachineGroup(2)
    requests = Request(2, 3), Request(2, 3), Request(2, 3), *[Request(6, 1, arrival_ps=1)] * 3
    instance = Instance("own", Limits(100, 6, 6), Rules(), COST, requests, machine_groups=groups)
    result = simulate(instance, "vllm+sarathi", router=lambda _: Direct([0, 1, 2, 0, 1, 2]))
    assert result.schedule is not None, result.message
    alone = {
        name: simulate(replace(instance, requests=requests[2:4], machine_groups=()), name).schedule
        for name in ("vllm", "sarathi")
    }
    assert alone["vllm"] != alone["sarathi"]
    for machine, name in enumerate(("vllm", "sarathi", "sarathi")):
        found, expected = [batch for batch in result.schedule.batches if batch.replica == machine], alone[name]
        assert expected is not None
        assert [(batch.start_ps, batch.end_ps, len(batch.run)) for batch in found] == [
            (batch.start_ps, batch.end_ps, len(batch.run)) for batch in expected.batches
        ]
    with pytest.raises(InputError, match="policy: got 3 policies, expected one, or one for each of the 2 entries"):
        simulate(instance, "vllm+sarathi+fcfs")
    with pytest.raises(InputError, match=r"policy: got 2 policies, expected one$"):
        simulate(replace(instance, machine_groups=()), "vllm+sarathi")


def test_whole_leaves_are_dropped_by_name() -> None:
    # 8 blocks of 1: request 0 leaves a leaf of 6 at 17, and request 1 needs 4 where 2 are empty.
    requests = Request(6, 1), Request(4, 1, arrival_ps=50)
    limits, cache = Limits(8, 100, 100), CacheRules(CacheMode.ALL)
    instance = Instance("leaves", limits, Rules(), COST, requests, cache=cache)
    for evictor, dropped in (("lru", 2), ("lru:nodes", 6)):
        result = simulate(instance, "vllm_v1", evictor=evictor)
        assert result.schedule is not None
        assert sum(len(batch.drop) for batch in result.schedule.batches) == dropped
        assert result.options["evictor"] == evictor
    with pytest.raises(InputError, match="evictor: got 'vllm:nodes', expected vllm, which drops single blocks"):
        simulate(instance, "vllm_v1", evictor="vllm:nodes")


def test_a_session_goes_elsewhere_where_it_does_not_fit() -> None:
    tree = PrefixTree((PrefixNode("s", 1),))
    groups = MachineGroup(limits=Limits(10, 10, 10)), MachineGroup()
    requests = tuple(Request(size, 1, arrival_ps=size, prefix=("s",)) for size in (5, 20, 30))
    last = Request(5, 1, arrival_ps=40, prefix=("s",))
    instance = Instance(
        "turns", Limits(50, 50, 50), Rules(), COST, (*requests, last), machine_groups=groups, prefixes=tree
    )
    result = simulate(instance, "vllm_v1", router="session")
    assert result.schedule is not None, result.message
    # The first turn in turn; the second does not fit machine 0, and the others follow it.
    assert result.schedule.routes == (0, 1, 1, 1)


class Hearing(Router):
    """Sends requests where it is told, and writes down first tokens and drops."""

    def __init__(self, chosen: Sequence[int]) -> None:
        self._chosen = chosen
        self.notes: list[tuple[object, ...]] = []

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        self.notes.append(("routed", request.index))
        return self._chosen[request.index]

    def first_token(self, request: RoutedRequest, machine: int, now_ps: int, hit: int) -> None:
        self.notes.append(("first", request.index, machine, now_ps, hit))

    def dropped(self, machine: int, prompt: Sequence[Piece], kept: int, now_ps: int) -> None:
        self.notes.append(("dropped", machine, prompt, kept, now_ps))


@pytest.mark.parametrize("delay_ps", [0, 15])
def test_routers_hear_of_hits_and_of_drops(delay_ps: int) -> None:
    # Memory of 8 tokens in blocks of 2; nodes a and z of 4 tokens, of which whole blocks are cached.
    # Machine 1: request 0 runs 5 tokens from 0 to 15 and leaves both blocks of a. Request 1 finds them at 100, and runs
    # 2 of its 6 tokens, to 112. Request 2 needs 4 blocks at 200 and finds nothing: 2 are empty, so both blocks of a
    # are dropped then, which leaves none; it ends at 200 + 10 + 7. Machine 0 has nothing to do but request 3, at 300.
    tree = PrefixTree((PrefixNode("a", 4), PrefixNode("z", 4)))
    requests = (
        Request(5, 1, prefix=("a",)),
        Request(6, 1, arrival_ps=100, prefix=("a",)),
        Request(7, 1, arrival_ps=200, prefix=("z",)),
        Request(1, 1, arrival_ps=300),
    )
    cache, limits = CacheRules(CacheMode.PREFIX), Limits(8, 100, 100, kv_block=2)
    view = ViewAge(delay_ps=delay_ps)
    instance = Instance("drops", limits, Rules(), COST, requests, replicas=2, prefixes=tree, cache=cache, view=view)
    hearing = Hearing([1, 1, 1, 0])
    run_cluster(instance, lambda alone: ready("vllm_v1", alone), lambda _: hearing)
    assert hearing.notes == [
        ("routed", 0),
        ("first", 0, 1, 15, 0),
        ("routed", 1),
        ("first", 1, 1, 112, 4),
        ("routed", 2),
        ("dropped", 1, (("a", 0, 4), (0, 0, 2)), 0, 200),
        ("first", 2, 1, 217, 0),
        ("routed", 3),
    ]
    # A last request that comes 10 ps after the first token of request 2 knows of the drop and, if notes take 15, not of
    # the token.
    soon = replace(instance, requests=(*requests[:3], replace(requests[3], arrival_ps=227)))
    late = Hearing([1, 1, 1, 0])
    run_cluster(soon, lambda alone: ready("vllm_v1", alone), lambda _: late)
    assert late.notes == [note for note in hearing.notes if not delay_ps or note[:2] != ("first", 2)]


BROKEN_ROUTER = """\
from optsched.routers.router import Router


class Broken(Router):
    def route(self, request, views):
        return [0][1]


class Deaf(Router):
    def route(self, request, views):
        return views[0].machine

    def first_token(self, request, machine, now_ps, hit):
        raise KeyError("first")


def unmade(setting):
    raise ValueError("no such machines")
"""


@pytest.mark.parametrize(
    ("name", "raised", "line"),
    [
        ("Broken", "IndexError: list index out of range", 6),
        ("Deaf", "KeyError: 'first'", 14),
        ("unmade", "ValueError: no such machines", 18),
    ],
)
def test_an_exception_in_a_router_names_router_file_and_line(tmp_path: Path, name: str, raised: str, line: int) -> None:
    file = tmp_path / "mine.py"
    file.write_text(BROKEN_ROUTER)
    instance = cluster(Request(3, 2), Request(1, 1, arrival_ps=1000))
    result = simulate(instance, "fcfs", router=f"{file}:{name}")
    assert result.status is Status.FAILED
    assert result.message == f"router {file}:{name}: raised {raised} ({file}:{line})"


def test_an_exception_in_a_policy_that_a_router_looks_at_is_the_policys() -> None:
    class Odd:
        def next_batch(self, replica: object) -> object:
            raise OverflowError("odd")

    result = simulate(cluster(Request(3, 2), Request(1, 1, arrival_ps=5)), Odd(), router="least_requests")  # type: ignore[arg-type]
    assert result.message is not None
    assert result.message.startswith("Odd: raised OverflowError: odd (")


def test_direct_by_name_is_wrong_input() -> None:
    with pytest.raises(InputError, match="router: got 'direct', expected another router: the machine of each request"):
        simulate(cluster(Request(1, 1)), "fcfs", router="direct")
