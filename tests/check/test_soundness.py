"""The trial of `benchmarks/soundness.py`: its exhaustive search is right, and it finds what is planted."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from brute_force import optimum
from checkout import ROOT

from optsched.check.certificates.prefix_cache import Service
from optsched.model.objectives import Objective
from trial.caches import Served, best_of_all
from trial.case import BETWEEN_TOKENS, OBJECTIVES, IllegalError, play, read_case, value
from trial.exhaustive import Exhaustive
from trial.faults import plant, read_faults
from trial.grammar import GRAMMARS
from trial.odd import ANY, Wanted, alike
from trial.store import Store
from trial.table import total, trial_table
from trial.trials import TRIALS, run_trial
from trial.tried import Tally, drawn, prove


def document(cost: dict[str, Any], requests: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return an instance of 10 tokens of memory and whole prefills, with some coefficients."""
    names = ("base", "token", "decode_kv", "decode_req", "prefill_sq", "prefill_kv", "prefill_req")
    limits = {"kv_tokens": 10, "batch_tokens": 10, "prefill_tokens": 10, "batch_requests": None, "kv_block": 1}
    rules = {"hybrid": True, "chunked_prefill": False, "eviction": True}
    return {
        "format": "optsched-instance/1",
        "name": "by hand",
        "limits": limits | more.get("limits", {}),
        "rules": rules | more.get("rules", {}),
        "cost": dict.fromkeys(names, 0) | {"pieces": []} | cost,
        "replicas": 1,
        "requests": requests,
    }


# By hand -----------------------------------------------------------------------------------------------------

TWO = [{"input": 2, "output": 2}, {"input": 3, "output": 1}]
LATE = [{"input": 1, "output": 1}, {"input": 1, "output": 2, "arrival_ps": 100_000}]
CASES = {
    # one batch of 5 tokens, 10 + 5, and one decode, 10 + 1
    "together": (document({"base": 10, "token": 1}, TWO), "makespan", 26),
    # 15 each; the shorter prompt first would be 12, then 25
    "first tokens": (document({"base": 10, "token": 1}, TWO), "mean_ttft", 30),
    # 2 tokens fit: 10 + 2, decode 10 + 1 with 3 tokens held, then 3 in 10 + 3; or the other order, 36 either way
    "one after another": (document({"base": 10, "token": 1}, TWO, limits={"kv_tokens": 3}), "makespan", 36),
    # the second prefills in 11, is evicted while the first runs for 11, and refills 2 tokens in 12
    "cheap refill": (document({"base": 10, "token": 1, "decode_req": 10**9}, LATE), "makespan", 100_034),
    "dear decode": (
        document({"base": 10, "token": 1, "decode_req": 10**9}, LATE, rules={"eviction": False}),
        "makespan",
        100_022 + 10**9,
    ),
    # max(10 + x, 4 x): 2 tokens 12, then 3 and a decode 16; together it would be 20 + 11
    "kink": (document({"base": 10, "token": 1, "pieces": [[0, 4]]}, TWO), "makespan", 28),
    # 11, then 12 more; waiting until 10 and running both takes 13 from there
    "arrival": (
        document({"base": 10, "token": 1}, [{"input": 1, "output": 1}, {"input": 2, "output": 1, "arrival_ps": 10}]),
        "makespan",
        23,
    ),
    # 11, and from 10 to 23; both together would be 23 and 13
    "mean": (
        document({"base": 10, "token": 1}, [{"input": 1, "output": 1}, {"input": 2, "output": 1, "arrival_ps": 10}]),
        "mean_e2e",
        24,
    ),
    # alone they take 12 and 11, together 13: only the first to run is in time
    "misses": (
        document(
            {"base": 10, "token": 1},
            [{"input": 2, "output": 1, "slo_e2e_ps": 12}, {"input": 1, "output": 1, "slo_e2e_ps": 12}],
        ),
        "slo_misses",
        1,
    ),
    # a decode of 3 tokens takes 11 + 1000; a refill of 2 takes 12 after a batch of the other one, which takes 13
    "between tokens, cheap refill": (
        document({"base": 10, "token": 1, "decode_req": 1000}, [{"input": 1, "output": 2}, {"input": 3, "output": 1}]),
        "p99_tbt",
        25,
    ),
    # 11 for each of three decodes, rounded down to (11 + 22) / 2 = 16 if two prompts of 1 ran between, but nothing must
    "between tokens, later": (
        document({"base": 10, "token": 1}, [{"input": 1, "output": 4}, {"input": 1, "output": 3, "arrival_ps": 5}]),
        "mean_tpot",
        22,
    ),
    # the other one has only its prompt: evicted in that batch of 11, refilled in 12 to 23, then decoded in 12 + 700
    "between tokens, one refill": (
        document({"base": 10, "token": 1, "decode_req": 700}, [{"input": 1, "output": 3}, {"input": 1, "output": 1}]),
        "mean_tpot",
        (23 + 711) // 2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_optimum_by_hand(name: str) -> None:
    instance, objective, expected = CASES[name]
    assert Exhaustive(read_case(instance)).optimum(objective).value == expected


def test_optimum_is_that_of_brute_force() -> None:
    """And it is reached by a schedule that is legal when played."""
    compared = 0
    for seed in range(120):
        rng = Random(f"agree/{seed}")
        given = drawn(rng, Wanted(most=3))
        if sum(job.prompt * job.output for job in given.case.jobs) > 12:
            continue
        objective = rng.choice([name for name in OBJECTIVES if name not in BETWEEN_TOKENS])
        found = given.optimum(objective)
        assert value(given.case, objective, play(given.case, found.batches)) == found.value
        assert optimum(given.instance, Objective(objective), restrictions=given.allowed) == found.value
        compared += 1
    assert compared >= 60


def test_requests_that_are_alike_need_not_be_told_apart() -> None:
    """The search that tells them apart finds the same makespan, which the schedule that is told has when played."""
    tried, different = 0, 0
    for seed in range(15):
        given = alike(Random(seed), 4)
        case = read_case(given)
        found = Exhaustive(case, 10_000, alike=True).optimum("makespan")
        assert found.value == Exhaustive(case).optimum("makespan").value
        assert found.value == value(case, "makespan", play(case, found.batches))
        tried, different = tried + 1, different + (given["requests"][0] != given["requests"][-1])
    assert tried == 15
    assert different


def test_many_that_are_alike_by_hand() -> None:
    """Of nine prompts of two tokens two fit: at least five batches, 10 each, and 18 tokens."""
    given = document({"base": 10, "token": 1}, [{"input": 2, "output": 1}] * 9, limits={"kv_tokens": 4})
    assert Exhaustive(read_case(given), alike=True).optimum("makespan").value == 5 * 10 + 18


def test_what_caches_save_by_hand() -> None:
    """One machine that serves a path of two blocks three times saves 4; two machines share at best 2 and 4 blocks."""
    three = Served(Service([[0, 1]] * 3, [2, 2, 2], [2, 2, 2], 2, 1, 0), [None, 0])
    assert three.most_saved(range(3), 2) == 4
    assert best_of_all(three, (2, 2), (2, 2, 2)) == (4, 2)
    assert best_of_all(three, (2,), (2, 2, 2)) == (4, 2)
    # The second machine has no room for any of them.
    assert best_of_all(three, (2, 1), (3, 3, 3)) == (4, 5)
    # Block 0 is found again beside block 1 if both fit, nothing else is occupied, and it may be found.
    for capacity, taken, findable, saved in ((2, 1, 1, 5), (1, 1, 1, 0), (2, 2, 1, 0), (2, 1, 0, 0)):
        again = Service([[0], [1], [0]], [1, 1, findable], [1, taken, 1], capacity, 2, 3)
        assert Served(again, [None, None]).most_saved(range(3), capacity) == saved


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"end_ps": 16}, "ends at another time"),
        ({"start_ps": 1, "end_ps": 16, "run": [[0, 2]]}, "ends at another time"),
        ({"run": [[0, 2], [0, 2]]}, "two of a request"),
        ({"run": [[0, 1], [1, 3]]}, "wrong chunk"),
        ({"evict": [1]}, "two things at once"),
    ],
)
def test_illegal_schedules_are_refused(change: dict[str, Any], rule: str) -> None:
    case = read_case(document({"base": 10, "token": 1}, TWO))
    batches = [
        {"start_ps": 0, "end_ps": 15, "run": [[0, 2], [1, 3]], "evict": []},
        {"start_ps": 15, "end_ps": 26, "run": [[0, 1]], "evict": []},
    ]
    assert play(case, batches) == [[15, 26], [15]]
    with pytest.raises(IllegalError, match=rule):
        play(case, [batches[0] | change, batches[1]])


# Trials ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sort", [sort for sort in TRIALS if sort.startswith("certificates") or sort in {"caches", "pooled caches"}]
)
def test_certificates_are_drawn_and_accepted(sort: str) -> None:
    """Every kind is tried, and so that the checker accepts many of them."""
    counts = run_trial(sort, 3).counts
    assert total(counts, "certificates", "accepted") * 8 >= total(counts, "certificates") >= 70
    assert total(counts, "malformed") > 0


def test_a_false_bound_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checker that says 1 more than the least time of a request alone is found out at once."""
    given, tally = drawn(Random(1), ANY), Tally()
    monkeypatch.setattr("trial.tried.proved_bound", lambda *_: given.optimum("max_e2e").value + 1)
    prove(tally, "alone", given, "max_e2e", {"kind": "alone"})
    assert tally.counts["false/alone"] == 1
    assert tally.found[0][1]["bound"] == tally.found[0][1]["optimum"] + 1


@pytest.mark.parametrize(
    "name",
    [
        "volume: all requests count from the release on",
        "pooled caches: a load above the mean",
        "congestion: any number fits 64 bits",
    ],
)
def test_planted_fault_is_found(name: str) -> None:
    """The last one ends the process of the trials: a number that wraps is a place in an array."""
    fault = next(fault for fault in read_faults() if fault.name == name)
    assert plant(fault, 300).found


def test_faults_can_be_planted() -> None:
    """Each text stands where it is to be replaced, once; after a change of it: benchmarks/trial/faults.toml."""
    faults = read_faults()
    counts = {fault.name: (ROOT / "optsched" / fault.file).read_text("utf-8").count(fault.old) for fault in faults}
    assert set(counts.values()) == {1}, [name for name, count in counts.items() if count != 1]
    assert len(counts) == len(faults) >= 40
    kinds = [fault.kind.partition(",")[0] for fault in faults]
    assert all(kinds.count(name.partition(",")[0]) >= 3 for name in GRAMMARS)


def test_store_goes_on_where_it_was(tmp_path: Path) -> None:
    """Seeds that are begun are not begun again; what is done is added up; what is found stands in a file."""
    shares = {"documents": 2, "bounds": 1}
    store = Store(tmp_path)
    first = store.claim(shares)
    assert first is not None
    tally = Tally()
    tally.counts["bounds/alone/tried"] = 7
    tally.find("false", "bounds/alone", {"bound": 3})
    store.finish(*first, 1.5, tally)
    again = Store(tmp_path)
    rest = [again.claim(shares) for _ in range(3)]
    assert sorted([first, *rest[:2]], key=str) == [("bounds", 0), ("documents", 0), ("documents", 1)]
    assert rest[2] is None
    [(sort, done)] = again.done().items()
    assert (sort, done.chunks, done.counts["bounds/alone/tried"]) == (first[0], 1, 7)
    [path] = (tmp_path / "found").iterdir()
    assert json.loads(path.read_text())["bound"] == 3
    table = trial_table(again.done(), "2026-11-22")
    assert "1 false claims" in table
    assert "| alone   |       7 |" in table
