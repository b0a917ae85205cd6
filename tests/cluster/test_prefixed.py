"""Bounds and joint optima with prefix caches, against all batches of tiny clusters; what is not covered is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import highspy
import pytest
from brute_cluster import TooManyError, best
from commands import optsched
from tiny_clusters import random_tiny

from optsched import (
    CacheMode,
    CacheRules,
    CostModel,
    InputError,
    Instance,
    Limits,
    PrefixNode,
    PrefixTree,
    Request,
    Restrictions,
    Role,
    Rules,
    Status,
    all_bounds,
    bound,
    check_result,
    replace,
    save_instance,
    simulate,
    solve,
)
from optsched.bounds.catalogue import BOUNDS, bound_method
from optsched.catalogue import FORMULATION_GROUP, entries
from optsched.check import UnprovedError, proved_bound
from optsched.model.objectives import Objective
from optsched.solvers.formulation import UnsupportedError
from optsched_formulations.routing.assignment import cluster_bound
from optsched_formulations.routing.joint import objective_of, solve_jointly
from optsched_formulations.routing.models import order_of
from optsched_formulations.routing.prefix_placement import place
from optsched_formulations.routing.prefixed import placement_of, prefixed_bound
from trial.trials import run_trial

LATENCIES = (Objective.MAKESPAN, Objective.MEAN_E2E, Objective.MEAN_TTFT)
SHARED = Instance(
    "shared",
    Limits(20, 20, 20, kv_block=2),
    Rules(chunked_prefill=False, eviction=False),
    CostModel(base=10, token=1),
    (Request(5, 1, prefix=("a",)), Request(5, 1, prefix=("a",))),
    prefixes=PrefixTree((PrefixNode("a", 4),)),
    cache=CacheRules(CacheMode.PREFIX),
)
"""Two prompts of 5 tokens, of which 4 are shared, in two blocks."""


def random_cached(rng: random.Random) -> Instance | None:
    """Return a tiny instance with a cache, without moves; None if it has no schedule or no cache."""
    drawn = random_tiny(rng, requests=2, longest=3, outputs=2)
    groups = tuple(
        replace(
            group,
            role=Role.BOTH,
            rules=replace(group.rules or drawn.rules, migration=False, chunked_prefill=rng.random() < 0.2),
        )
        for group in drawn.machine_groups
    )
    found = replace(drawn, rules=replace(drawn.rules, migration=False), machine_groups=groups)
    return None if found.infeasibilities() or not found.is_cached else found


@pytest.mark.slow
def test_joint_optima_with_prefixes_are_those_of_all_schedules() -> None:
    """Unequal machines, arrivals, evictions and chunks; no bound exceeds them."""
    met = 0
    for seed in range(24):
        rng = random.Random(seed)
        cluster, objective = random_cached(rng), LATENCIES[seed % 3]
        if cluster is None:
            continue
        try:
            value = best(cluster, objective.value, 400).metrics()["objectives"][objective.value]
        except TooManyError:
            continue
        found = solve_jointly(cluster, objective, time_limit_s=60)
        assert found.optimal
        assert found.value == value == objective_of(cluster, objective, found.parts)
        proved = prefixed_bound(cluster, objective)
        assert proved is not None
        assert proved.value <= value
        met += 1
    assert met >= 8


@pytest.mark.parametrize("sort", ["several machines", "several machines, prefixes", "roles", "placements", "caches"])
def test_the_trial_finds_nothing_false(sort: str) -> None:
    tally = run_trial(sort, 3)
    assert tally.found == []
    assert sum(number for name, number in tally.counts.items() if name.endswith("/accepted")) > 0


@pytest.mark.parametrize(
    ("objective", "value"),
    [
        # The first runs 5 tokens in 15; the second, in a batch of its own, 1 in 11. Together they run 10 in 20.
        (Objective.MAKESPAN, 20),
        (Objective.MAX_LOAD, 20),
        # 15 and 26; or both after 20.
        (Objective.MEAN_E2E, 40),
        (Objective.MEAN_TTFT, 40),
    ],
)
def test_two_prompts_by_hand(objective: Objective, value: int) -> None:
    found = solve(SHARED, objective, time_limit=20)
    assert found.value == value
    assert found.status is (Status.FEASIBLE if objective is Objective.MAX_LOAD else Status.OPTIMAL)
    assert check_result(found).violations == ()
    proved = bound(SHARED, objective)
    assert check_result(proved).violations == ()
    # Of 6 tokens in a batch, 16; what both need for themselves is 2. Alone with a warm cache each takes 11, and one of
    # them 4 more for what they share.
    assert proved.bound == (16 if objective in {Objective.MAKESPAN, Objective.MAX_LOAD} else 26)
    assert check_result(replace(proved, bound=value + 1)).violations != ()


def test_a_turn_waits_for_what_its_conversation_has_that_only_its_prompts_run() -> None:
    """Two turns share 4 prompt tokens and the 2 that the first one generates; the second has 2 tokens of its own.

    In blocks of 1, with 10 ps a batch and 1 ps a token: beside a warm cache the first turn runs the last token of its
    prompt, 11 ps, and the second its own 2, 12 ps. Of what they share, the first generates position 4 after its first
    token and runs position 3 anyway, the second could run position 5. So positions 0, 1, 2 are left, and 5: the last
    output of the first turn is cached by none but the second.
    """
    instance = replace(
        SHARED,
        limits=Limits(20, 20, 20),
        requests=(Request(4, 2, prefix=("turn",)), Request(8, 1, prefix=("turn",))),
        prefixes=PrefixTree((PrefixNode("turn", 6),)),
    )
    proved = bound(instance, Objective.MEAN_TTFT)
    assert proved.bound == 11 + 12 + 3 + 1
    assert check_result(proved).violations == ()
    assert proved.bound <= best(instance, "mean_ttft", 400).metrics()["objectives"]["mean_ttft"]


def test_one_request_may_make_room_for_anothers_prefill() -> None:
    """A prompt of 5 fits no prefill of 4, unless another has left 2 of its tokens in the cache of that machine."""
    small = replace(SHARED, limits=Limits(20, 20, 4, kv_block=2), requests=(Request(3, 1, prefix=("a",)),) * 2)
    long = Request(5, 1, prefix=("a",))
    group = replace(random_tiny(random.Random(0)).machine_groups[0], count=1, role=Role.BOTH)
    groups = tuple(
        replace(group, limits=limits, rules=small.rules, cost=cost, cache=small.cache)
        for limits, cost in ((small.limits, small.cost), (SHARED.limits, CostModel(base=1000, token=1)))
    )
    cluster = replace(small, requests=(small.requests[0], replace(long, prefix=("a",))), machine_groups=groups)
    # 3 tokens in 13, then the other 3 in 13.
    assert solve_jointly(cluster, Objective.MAKESPAN).value == 26


def test_no_router_beats_the_optimum_or_the_bound() -> None:
    cluster = replace(SHARED, replicas=2, requests=(*SHARED.requests, Request(3, 2), Request(4, 1, 30, prefix=("a",))))
    for objective in LATENCIES:
        least = solve(cluster, objective, time_limit=20)
        assert least.status is Status.OPTIMAL
        for router in ("round_robin", "e2", "cache_aware", "least_tokens"):
            run = simulate(cluster, "vllm", objective, router=router)
            assert run.value is not None
            assert least.value is not None
            assert run.value >= least.value >= (bound(cluster, objective).bound or 0)


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_of_plain_machines_refuse_caches(name: str) -> None:
    with pytest.raises(InputError, match="covers cached prefixes"):
        bound(SHARED, method=name)
    with pytest.raises(InputError, match="covers cached prefixes"):
        bound_method(name)(SHARED, Objective.MAKESPAN)
    with pytest.raises(InputError, match="several"):
        bound_method(name)(replace(SHARED, replicas=2, cache=CacheRules()), Objective.MAKESPAN)


@pytest.mark.parametrize("name", sorted(entries(FORMULATION_GROUP)))
def test_formulations_refuse_caches_and_several_machines(name: str) -> None:
    with pytest.raises(InputError, match="covers cached prefixes"):
        solve(SHARED, method=name)
    with pytest.raises(InputError, match="several"):
        solve(replace(SHARED, replicas=2), method=name)


def test_what_knows_no_caches_and_moves_says_so() -> None:
    both = replace(SHARED, replicas=2)
    assert [found.method for found in all_bounds(both)] == ["prefixed"]
    with pytest.raises(UnsupportedError, match="caches prefixes"):
        cluster_bound(both, Objective.MAKESPAN)
    for kind in ("assignment", "chains", "worth", "joint"):
        with pytest.raises(UnprovedError, match="does not cover caches"):
            proved_bound(both, Restrictions(), Objective.MAKESPAN, {"kind": kind})
    moving = replace(both, rules=Rules(migration=True))
    with pytest.raises(UnsupportedError, match="requests move"):
        prefixed_bound(moving, Objective.MAKESPAN)
    with pytest.raises(UnprovedError, match="neither roles nor moves"):
        proved_bound(moving, Restrictions(), Objective.MAKESPAN, {"kind": "prefixed", "piece": 0})
    for ask in (bound, solve):
        with pytest.raises(InputError, match="covers moves"):
            ask(moving)


@pytest.mark.parametrize(
    "forged",
    [
        {"piece": 1}, {"piece": True}, {"release_ps": 5}, {"release_ps": None}, {"memory_share": [1, 2]}, {"kind": "x"},
    ],
)  # fmt: skip
def test_forged_certificates_prove_nothing(forged: dict[str, Any]) -> None:
    certificate = {"kind": "prefixed", "piece": 0, "release_ps": 0}
    assert proved_bound(SHARED, Restrictions(), Objective.MAKESPAN, certificate) == 16
    if "memory_share" in forged:
        del certificate["release_ps"]
    with pytest.raises(UnprovedError):
        proved_bound(SHARED, Restrictions(), Objective.MAKESPAN, certificate | forged)


def optimum_of(path: Path) -> float:
    reader: Any = highspy.Highs()
    reader.silent()
    assert reader.readModel(str(path)) == highspy.HighsStatus.kOk
    reader.run()
    value: float = reader.getObjectiveValue()
    return value


@pytest.mark.parametrize("style", ["lp", "mps"])
@pytest.mark.parametrize(
    ("instance", "arguments", "value"),
    [
        # Each request alone on a machine: 10 + 5 ms.
        (
            replace(SHARED, replicas=2, cache=CacheRules(), cost=CostModel(base=10**10, token=10**9)),
            ["--method", "assignment"],
            15,
        ),
        # The node of 4 tokens on one machine, and for each request a token and its share of a base: 4 + 2 × 1.
        (replace(SHARED, replicas=2), ["--method", "prefix_placement", "--objective", "max_load"], 5),
        # The second finds both blocks of 2 tokens.
        (SHARED, ["--method", "prefix_cache"], 4),
    ],
)
def test_models_are_written_for_other_solvers(
    instance: Instance,
    arguments: Sequence[str],
    value: float,
    style: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_instance(instance, tmp_path / "instance.json")
    out = tmp_path / f"model.{style}"
    asked = ["solve", str(tmp_path / "instance.json"), *arguments, "--export", style, "--out", str(out)]
    assert optsched(capsys, *asked).code == 0
    assert abs(optimum_of(out)) == pytest.approx(value)
    if "prefix_placement" in arguments:
        assert place(placement_of(instance), 2).value == value
    if "prefix_cache" in arguments:
        assert order_of(instance)[0].warm == 2


def test_models_of_what_they_do_not_cover_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_instance(SHARED, tmp_path / "instance.json")
    for method in ("assignment", "prefix_placement"):
        outcome = optsched(capsys, "solve", str(tmp_path / "instance.json"), "--method", method, "--export", "lp")
        assert outcome.code == 2
        assert len(outcome.err.splitlines()) == 1


def test_a_bound_of_a_cluster_is_written_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_instance(replace(SHARED, replicas=2), tmp_path / "instance.json")
    outcome = optsched(capsys, "bound", str(tmp_path / "instance.json"), "--json", "--out", str(tmp_path / "b.json"))
    assert outcome.code == 0
    assert json.loads((tmp_path / "b.json").read_text())["bound"] > 0
    assert optsched(capsys, "check", str(tmp_path / "b.json")).code == 0
