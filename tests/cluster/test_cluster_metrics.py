"""Metrics of several machines and of caches, worked out by hand: time saved, recomputed tokens, bytes, regret."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from commands import optsched
from playing import ready

from optsched import (
    Batch,
    CacheMode,
    CacheRules,
    CostModel,
    Instance,
    Limits,
    Link,
    MachineGroup,
    Move,
    PrefixNode,
    PrefixTree,
    Request,
    Role,
    Rules,
    Schedule,
    check_result,
    check_schedule,
    replace,
    simulate,
)
from optsched.model.cluster import ViewAge
from optsched.model.cluster_metrics import cluster_metrics
from optsched.model.documents import dump, instance_document, parse_results, result_document
from optsched.routers.router import MachineView, RoutedRequest, Router
from optsched.routers.simple import Direct
from optsched.simulator.cluster import run_cluster
from optsched.simulator.routed import Decision, DecisionRecord

COST = CostModel(base=10, token=1)
LIMITS = Limits(100, 100, 100)
TREE = PrefixTree((PrefixNode("a", 4),))


def metrics(instance: Instance, schedule: Schedule) -> dict[str, Any]:
    """Return what both sides say."""
    violations, found = check_schedule(instance, schedule)
    assert violations == []
    assert found == cluster_metrics(instance, schedule)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("prefill_kv", "end", "saved"),
    [
        # With its hit request 1 runs 2 of 6 tokens on 4: max(10 + 2 × 2, 5 × 2) + 3 (2² + 2 × 4 × 2) + 7 × 4 = 102.
        # From nothing it would run all 6: max(10 + 2 × 6, 5 × 6) + 3 × 6² = 138.
        (7, 202, 36),
        # To read what is found takes 100 × 4 then: 474, which is longer than to compute it.
        (100, 574, -336),
    ],
)
def test_time_that_hits_save(prefill_kv: int, end: int, saved: int) -> None:
    cost = CostModel(base=10, token=2, pieces=((0, 5),), prefill_sq=3, prefill_kv=prefill_kv)
    requests = Request(5, 1, prefix=("a",)), Request(6, 1, arrival_ps=100, prefix=("a",))
    instance = Instance("hits", LIMITS, Rules(), cost, requests, prefixes=TREE, cache=CacheRules(CacheMode.PREFIX))
    # Request 0: max(10 + 2 × 5, 5 × 5) + 3 × 5² = 100.
    schedule = Schedule((Batch(0, 100, ((0, 5),)), Batch(100, end, ((1, 2),), hits=((1, 4),))))
    found = metrics(instance, schedule)
    assert found["saved_ps"] == saved
    assert found["hit_rate"] == 4 / (4 + 5 + 2)
    assert found["hit_time_rate"] == saved / (end + saved)


def test_two_hits_of_a_batch_save_time_together() -> None:
    # The non-attention time of 4 tokens is 10, of 12 tokens 12: two hits of 4 save 2, one alone would save nothing.
    cost = CostModel(base=10, token=0, pieces=((0, 1),))
    requests = Request(5, 1, prefix=("a",)), *[Request(6, 1, arrival_ps=10, prefix=("a",))] * 2
    instance = Instance("hits", LIMITS, Rules(), cost, requests, prefixes=TREE, cache=CacheRules(CacheMode.PREFIX))
    batches = Batch(0, 10, ((0, 5),)), Batch(10, 20, ((1, 2), (2, 2)), hits=((1, 4), (2, 4)))
    assert metrics(instance, Schedule(batches))["saved_ps"] == 2


@pytest.mark.parametrize(
    ("mode", "refill", "recomputed"),
    [
        # Evicted with 5 tokens: all of them are run again, and then the sixth.
        (CacheMode.NONE, Batch(36, 52, ((0, 6),)), 5),
        # Two whole blocks of 2 are found, so of the 5 only the last is run again.
        (CacheMode.ALL, Batch(36, 48, ((0, 2),), hits=((0, 4),)), 1),
    ],
)
def test_recomputed_tokens(mode: CacheMode, refill: Batch, recomputed: int) -> None:
    requests = Request(4, 3), Request(1, 1)
    instance = Instance(
        "refill", Limits(100, 100, 100, kv_block=2), Rules(), COST, requests, machine_groups=(MachineGroup(),),
        cache=CacheRules(mode),
    )  # fmt: skip
    batches = Batch(0, 14, ((0, 4),)), Batch(14, 25, ((0, 1),)), Batch(25, 36, ((1, 1),), evict=(0,)), refill
    found = metrics(instance, Schedule(batches, (0, 0)))
    assert (found["recomputed_tokens"], found["evictions"]) == (recomputed, 1)


def apart(*requests: Request, links: Link, cache: CacheRules | None = None) -> Instance:
    """Return one machine that prefills, and one that decodes, which caches perhaps."""
    groups = MachineGroup(role=Role.PREFILL), MachineGroup(role=Role.DECODE, cache=cache)
    return Instance("apart", LIMITS, Rules(), COST, requests, machine_groups=groups, links=links, prefixes=TREE)


@pytest.mark.parametrize(("kv_bytes", "moved"), [(None, None), (1000, 5000)])
def test_bytes_moved(kv_bytes: int | None, moved: int | None) -> None:
    instance = apart(Request(3, 2), Request(2, 2), Request(4, 1), links=Link(5, 2, kv_bytes=kv_bytes))
    result = simulate(instance, "vllm_v1", router="disaggregated")
    assert result.metrics is not None
    # 3 + 2 tokens; request 2 ends with its first token and stays.
    assert (result.metrics["moved_tokens"], result.metrics["moved_bytes"]) == (5, moved)


def test_moves_that_take_no_time_follow_one_another() -> None:
    # Both prompts end at 10 + 6 + 5, and move then. The first copies its 6 tokens, of which the second finds 4.
    requests = Request(6, 2, prefix=("a",)), Request(5, 2, prefix=("a",))
    instance = apart(*requests, links=Link(), cache=CacheRules(CacheMode.PREFIX))
    result = simulate(instance, "vllm_v1", router="disaggregated")
    assert result.schedule is not None, result.message
    assert result.schedule.moves == (Move(0, 0, 1, 21, 21), Move(1, 0, 1, 21, 21))
    assert metrics(instance, result.schedule)["moved_tokens"] == 6 + 1


def test_a_move_comes_after_a_batch_that_takes_no_time() -> None:
    # Moves of an instant start before its batches, so the request that has run at 0 moves at 1.
    instance = replace(apart(Request(3, 2), links=Link(kv_ps=2)), cost=CostModel(base=0, token=0))
    result = simulate(instance, "vllm_v1", router="disaggregated")
    assert result.schedule is not None, result.message
    assert result.schedule.batches == (Batch(0, 0, ((0, 3),)), Batch(7, 7, ((0, 1),), replica=1))
    assert result.schedule.moves == (Move(0, 0, 1, 1, 7),)


def test_a_request_that_moves_on_at_once_has_moved_twice() -> None:
    # It comes back at the instant at which it has arrived, when its next batch starts where it was before.
    limits = replace(LIMITS, kv_block=1)
    rules = Rules(migration=True)
    groups = (MachineGroup(cache=CacheRules(CacheMode.ALL)), MachineGroup())
    instance = Instance(
        "back", limits, rules, COST, (Request(3, 2), Request(1, 3)), machine_groups=groups, links=Link(kv_ps=1)
    )  # fmt: skip
    # The 3 tokens are copied to machine 1 until 17. At machine 0 all are cached, so they are back at once.
    schedule = Schedule(
        (
            Batch(0, 14, ((0, 3), (1, 1))),
            Batch(17, 29, ((0, 1), (1, 1))),
            Batch(29, 40, ((1, 1),)),
        ),
        (0, 0),
        (Move(0, 0, 1, 14, 17), Move(0, 1, 0, 17, 17)),
    )
    found = metrics(instance, schedule)
    assert (found["moves"], found["moved_tokens"]) == (2, 3)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("saved_ps", 35), ("recomputed_tokens", 1), ("hit_rate", 0.5), ("hit_time_rate", 0.1), ("moved_bytes", 0)],
)
def test_forged_metrics_are_refused(name: str, wrong: float) -> None:
    requests = Request(5, 1, prefix=("a",)), Request(6, 1, arrival_ps=100, prefix=("a",))
    instance = Instance("hits", LIMITS, Rules(), COST, requests, prefixes=TREE, cache=CacheRules(CacheMode.PREFIX))
    document = result_document(simulate(instance, "vllm_v1"))

    def violations(changed: dict[str, Any]) -> tuple[str, ...]:
        (claimed,) = parse_results(dump(changed).encode(), lambda _: COST)
        return check_result(claimed).violations

    assert violations(document) == ()
    (found,) = violations(document | {"metrics": document["metrics"] | {name: wrong}})
    assert found.startswith(f"metrics.{name} is {wrong}, of the schedule it is ")


class Watching(Router):
    """Sends all requests to one machine, and writes down what it sees of it."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        view = views[0]
        self.seen.append((view.waiting, view.running, view.kv_used, view.work_ps))
        return 0


@pytest.mark.parametrize("cached", [False, True])
def test_an_idle_machine_is_seen_idle_before_a_request_that_is_seen_later(*, cached: bool) -> None:
    # Seen 10 later. The batch is [2, 15]; requests 1 and 2 are not seen when request 3 comes, and nothing runs then.
    requests = Request(3, 1, arrival_ps=2), *(Request(2, 1, arrival_ps=time) for time in (40, 41, 42))
    cache = CacheRules(CacheMode.ALL if cached else CacheMode.NONE)
    instance = Instance(
        "idle", LIMITS, Rules(), COST, requests, replicas=2, view=ViewAge(delay_ps=10), cache=cache
    )  # fmt: skip
    watching = Watching()
    run_cluster(instance, lambda alone: ready("vllm_v1", alone), lambda _: watching)
    assert watching.seen == [(0, 0, 0, 0)] * 4


@pytest.mark.parametrize("moves", [False, True])
def test_a_batch_under_way_gets_shorter_in_what_is_seen_late(*, moves: bool) -> None:
    # The batch of request 0 is [0, 13], and 9 ps are left of it at 4, and 2 at 11. At 13 - 1 a move would be later.
    requests = Request(3, 1), Request(1, 1, arrival_ps=14), Request(1, 1, arrival_ps=21)
    groups = MachineGroup(2, rules=Rules(migration=moves))
    instance = Instance(
        "late", LIMITS, Rules(), COST, requests, machine_groups=(groups,), view=ViewAge(delay_ps=10)
    )  # fmt: skip
    watching = Watching()
    run_cluster(instance, lambda alone: ready("vllm_v1", alone), lambda _: watching)
    # It is running, and takes its 3 tokens, until it ends.
    assert watching.seen == [(0, 0, 0, 0), (0, 1, 3, 9), (0, 1, 3, 2)]


@pytest.mark.parametrize("view", [ViewAge(), ViewAge(every_ps=10), ViewAge(delay_ps=3)])
def test_regret_is_of_now_whatever_routers_see(view: ViewAge) -> None:
    # As of exact views: at 5 machine 0 has 8 of its batch and a decode of 11 to do.
    instance = Instance(
        "regret", LIMITS, Rules(), COST, (Request(3, 2), Request(2, 1, arrival_ps=5)), replicas=2, view=view
    )  # fmt: skip
    record = DecisionRecord([])
    assert (record.mean_regret_ps, record.max_regret_ps, record.best_share) == (None, None, None)
    found = run_cluster(instance, lambda alone: ready("vllm_v1", alone), lambda _: Direct([0, 0]), record=record)
    assert record.decisions == [Decision(0, 0, 0, 0), Decision(1, 0, 1, 8 + 11)]
    assert (record.mean_regret_ps, record.max_regret_ps, record.best_share) == (9.5, 19, 0.5)
    assert found == run_cluster(instance, lambda alone: ready("vllm_v1", alone), lambda _: Direct([0, 0]))


def test_the_table_of_several_machines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "instance.json"
    instance = apart(Request(3, 2), Request(2, 2), links=Link(5, 2, kv_bytes=10**6))
    file.write_text(dump(instance_document(instance)))
    command = ["simulate", str(file), "--policy", "vllm_v1", "--router", "disaggregated", "--transpose"]
    code, out, err = optsched(capsys, *command, "--decisions", str(tmp_path / "d.csv"))
    assert code == 0, err
    rows = {" ".join(line.split()[:-1]): line.split()[-1] for line in out.splitlines() if line.split()}
    # Both are routed at 0 to the only machine that prefills.
    assert (rows["moves"], rows["moved tokens"], rows["moved (MB)"], rows["no regret (%)"]) == ("2", "5", "5.0", "100")
    assert (rows["regret ms mean"], rows["hits (% tok.)"], rows["hits (% time)"]) == ("0.00", "0", "0")
    assert "decisions per s" in rows
    code, out, _ = optsched(capsys, *command[:-1], "--format", "csv")
    header, row = (line.split(",") for line in out.splitlines())
    found = dict(zip(header, row, strict=True))
    assert code == 0
    assert (found["router"], found["machines"], found["moved_bytes"], found["hit_rate"]) == (
        "disaggregated", "2", "5000000", "0.0",
    )  # fmt: skip
