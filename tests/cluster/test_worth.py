"""The makespan of equal machines by worths, against all assignments of tiny clusters, and by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest
from clusters import brute_force, cluster_of, random_cluster

from optsched import CostModel, Instance, Limits, MachineGroup, Request, Restrictions, Rules, bound, replace, solve
from optsched.bounds.chains import chains_bound
from optsched.bounds.worth import worth_bound
from optsched.check import UnprovedError, proved_bound
from optsched.model.objectives import Objective


def equal_cluster(rng: random.Random) -> Instance:
    """Return a tiny cluster whose machines are equal."""
    cluster = random_cluster(rng)
    rules = replace(cluster.machine_groups[0].rules or Rules(), chunked_prefill=rng.random() < 0.3)
    machine = replace(cluster.machine_groups[0], count=rng.choice([1, 2, 2, 3]), rules=rules)
    return cluster_of((machine,), cluster.requests)


def proved(cluster: Instance, certificate: dict[str, Any]) -> int:
    return proved_bound(cluster, Restrictions(), Objective.MAKESPAN, certificate)


def test_no_assignment_is_below_the_bound() -> None:
    rng, found, near = random.Random(1), 0, 0
    for _ in range(150):
        cluster = equal_cluster(rng)
        machine, machines = cluster.on(0), len(cluster.machines)
        best = brute_force(cluster, Objective.MAKESPAN)
        bounded = worth_bound(machine, machines, cluster.start_ps, best // 2)
        if bounded is None:
            continue
        assert proved(cluster, bounded.certificate) == bounded.value
        assert bounded.value <= best
        found += 1
        near += 4 * bounded.value > 3 * best
    assert (found > 80, near > 40) == (True, True)


def random_certificate(rng: random.Random, cluster: Instance) -> dict[str, Any]:
    """Return a certificate of any worths, ranges and weights."""
    release = rng.choice(cluster.requests).arrival_ps
    pieces, most = len(cluster.on(0).cost.affine), cluster.on(0).cost.prefill_req
    ends = sorted(rng.sample(range(1, 9), rng.randint(0, 4)))

    def rate() -> dict[str, Any]:
        weights = [0] * pieces
        weights[rng.randrange(pieces)] = 1
        return {"weight": rng.randint(0, 3), "piece_weights": weights, "prefill_step_ps": most}

    ramps = [random_layers(rng, cluster) for _ in range(rng.choice([0, 1, 1, 2]))]

    def range_of(last: int | None) -> dict[str, Any]:
        found = {"last": last, "memory_ps": rng.choice([0, 0, rng.randint(0, 30)]), "rates": [rate(), rate()]}
        places = [place for place in range(len(ramps)) if rng.random() < 0.7]
        return found | {"ramps": [{"weight": rng.randint(0, 3), "ramp": place} for place in places]}

    return {
        "kind": "worth",
        "release_ps": release,
        "worths": [rng.randint(0, 200) if each.arrival_ps >= release else 0 for each in cluster.requests],
        "ramps": ramps,
        "ranges": [range_of(last) for last in (*ends, None)],
    }


def random_layers(rng: random.Random, cluster: Instance) -> dict[str, Any]:
    """Return prices of some layers, of which one may be repeated."""
    machine = cluster.on(0)
    widths = [rng.choice([1, 1, 2]) for _ in range(rng.randint(1, 3))]
    single = [place for place, width in enumerate(widths) if width == 1]
    time = machine.cost.linear_ps(1)
    return {
        "prefill_step_ps": rng.choice([0, machine.cost.prefill_req]),
        "widths": widths,
        "scale": rng.choice([1, 2]),
        "repeated": rng.choice([*single, None]),
        "memory": [rng.randint(0, 2 + time // machine.limits.kv_blocks) for _ in widths],
        "tokens": [rng.choice([0, rng.randint(0, 5)]) for _ in widths],
    }


def test_certificates_of_any_numbers_prove_nothing_false() -> None:
    rng, said, near = random.Random(2), 0, 0
    for _ in range(120):
        cluster = equal_cluster(rng)
        best = brute_force(cluster, Objective.MAKESPAN)
        for _ in range(40):
            try:
                value = proved(cluster, random_certificate(rng, cluster))
            except UnprovedError:
                continue
            assert value <= best
            said += value > 0
            near += 2 * value > best
    assert (said > 400, near > 20) == (True, True)


MACHINES = (MachineGroup(2, limits=Limits(100, 100, 100), rules=Rules(), cost=CostModel(base=10, token=1)),)
CLUSTER = cluster_of(MACHINES, [Request(1, 4), Request(1, 4), Request(1, 1), Request(1, 1)])
"""Own times 4, 4, 1 and 1 ps, at least 4, 4, 1 and 1 batches of 10 ps."""
RATE = {"weight": 1, "piece_weights": [1], "prefill_step_ps": 0}
CERTIFICATE = {
    "kind": "worth",
    "release_ps": 0,
    "worths": [34, 34, 1, 1],
    "ranges": [
        {"last": 3, "memory_ps": 0, "rates": [{**RATE, "weight": 0}]},
        {"last": None, "memory_ps": 0, "rates": [RATE]},
    ],
}


def test_by_hand() -> None:
    """A machine has to be worth 70 / 2 = 35.

    With up to 3 batches it has no request of 4 tokens, and earns 2. With 4 batches or more it takes 40 ps and 4, 4, 1
    and 1; requests are worth 30, 30, 0 and 0 more than that: 35 + 40 - 60 = 15 ps. With worths of 5, 5, 1 and 1 the
    mean is 6, and two requests are worth 1 more than they take: 6 + 40 - 2 = 44 ps. With what they take as worths it is
    5 + 40 ps, the optimum: a long and a short request on each machine.
    """
    assert proved(CLUSTER, CERTIFICATE) == 15
    assert proved(CLUSTER, CERTIFICATE | {"worths": [5, 5, 1, 1]}) == 44
    assert proved(CLUSTER, CERTIFICATE | {"worths": [4, 4, 1, 1]}) == 45


RAMP = {"prefill_step_ps": 0, "widths": [1, 1, 1], "repeated": 2, "scale": 1, "memory": [0, 3, 2]}
RAMPED = {
    "kind": "worth",
    "release_ps": 0,
    "worths": [6] * 6,
    "ramps": [RAMP],
    "ranges": [{"last": None, "memory_ps": 0, "rates": [], "ramps": [{"weight": 1, "ramp": 0}]}],
}
HALVES = cluster_of(
    (
        MachineGroup(
            2, limits=Limits(3, 9, 9), rules=Rules(chunked_prefill=False, eviction=False), cost=CostModel(6, 0)
        ),
    ),
    [Request(1, 2)] * 6,
)


def test_ramps_by_hand() -> None:
    """Requests hold 1 and then 2 of 3 tokens in batches of 6 ps. At prices of 0, 3 and 2 each pays 6 (`test_ramp`).

    Layers leave 6, 6 - 9 and 6 - 6. A machine earns 36 / 2, and takes 3 and 6 for each request: 21 ps. With 2 in the
    second layer, too, they leave 6, 0 and 0, requests pay 4, and worths of 4 prove 12 + 6 ps. At 1 in the last layer
    requests pay 3 and each batch from the third on leaves 3: worths of 3 prove 9 and 6 - 3, what two batches leave, and
    9 + 6 - 3 + 3 where three batches are the fewest, because two do not hold 3·3 tokens: 9 is more than their 2·3.
    """
    assert proved(HALVES, RAMPED) == 21
    assert brute_force(HALVES, Objective.MAKESPAN) == 24
    assert proved(HALVES, RAMPED | {"ramps": [RAMP | {"memory": [0, 2, 2]}], "worths": [4] * 6}) == 18
    ramps, used = [RAMP | {"memory": [0, 3, 1]}], [{"weight": 1, "ramp": 0}]
    many: dict[str, Any] = {"last": None, "memory_ps": 0, "rates": [], "ramps": used}
    terms = RAMPED | {"ramps": ramps, "worths": [3] * 6}
    assert proved(HALVES, terms | {"ranges": [{**many, "last": 3}, many]}) == 9 + 3
    assert proved(HALVES, terms | {"ranges": [{"last": 2, "memory_ps": 3, "rates": []}, many]}) == 9 + 6
    assert (
        proved(HALVES, terms | {"ranges": [{"last": 2, "memory_ps": 3, "rates": []}, {**many, "last": 4}, many]}) == 15
    )
    with pytest.raises(UnprovedError, match="a range up to 3 has no weight"):
        proved(HALVES, terms | {"ranges": [{"last": 3, "memory_ps": 3, "rates": []}, many]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ramps": {}}, "ramps is"),
        ({"ramps": []}, "ramp is 0"),
        ({"ramps": [{**RAMP, "widths": []}]}, "widths is"),
        ({"ramps": [{**RAMP, "repeated": None}]}, "of which none repeats"),
        ({"ramps": [{**RAMP, "widths": [10**13, 1, 1]}]}, "ramps have 10000000000002 layers"),
        ({"ramps": [{**RAMP, "memory": [0, 3, 3]}]}, "more than the bases"),
        ({"ramps": [{**RAMP, "prefill_step_ps": 1}]}, "prefill_step_ps is"),
        ({"ramps": [{**RAMP, "prompts": [2]}]}, "prompts is"),
        ({"ranges": [{"last": None, "memory_ps": 0, "rates": [], "ramps": 1}]}, "ramps of a range is 1"),
        ({"ranges": [{"last": None, "memory_ps": 0, "rates": [], "ramps": [{"weight": -1, "ramp": 0}]}]}, "ramps has"),
        ({"ranges": [{"last": None, "memory_ps": 0, "rates": [], "ramps": [{"weight": 1, "ramp": 1}]}]}, "ramp is 1"),
    ],
)
def test_forged_ramps_prove_nothing(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnprovedError, match=message):
        proved(HALVES, RAMPED | changes)


def test_ramps_do_not_cover_swaps() -> None:
    rules = Rules(chunked_prefill=False, swap=True)
    cluster = cluster_of((replace(HALVES.machine_groups[0], rules=rules),), HALVES.requests)
    with pytest.raises(UnprovedError, match="ramps do not cover swapping"):
        proved(cluster, RAMPED)


def test_where_swaps_are_allowed_there_are_no_ramps() -> None:
    cost = CostModel(base=900, token=2, pieces=((740, 5), (180, 12)), decode_kv=1)
    machine = MachineGroup(3, limits=Limits(1_000, 1_000, 1_000), rules=Rules(swap=True), cost=cost)
    cluster = cluster_of((machine,), [Request(20, output) for output in range(2, 100)])
    known = chains_bound(cluster.on(0), 3)
    assert known is not None
    found = worth_bound(cluster.on(0), 3, 0, known.value)
    assert found is not None
    assert "ramps" not in found.certificate
    assert proved(cluster, found.certificate) == found.value


def test_machines_ramp_up() -> None:
    """Requests that are alike are all young at first and few at last, on every machine: tokens alone do not say so."""
    limits, cost = Limits(6_000, 8_000, 8_000), CostModel(base=9_000, token=1)
    cluster = cluster_of((MachineGroup(2, limits=limits, rules=Rules(), cost=cost),), [Request(10, 90)] * 240)
    known = chains_bound(cluster.on(0), 2)
    assert known is not None
    found = worth_bound(cluster.on(0), 2, 0, known.value)
    assert found is not None
    assert found.certificate["ramps"]
    assert found.value > known.value * 1.15
    assert proved(cluster, found.certificate) == found.value
    planned = solve(cluster, "makespan", method="auto", time_limit=2)
    assert planned.value is not None
    assert found.value <= planned.value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"release_ps": 1}, "release_ps is 1"),
        ({"worths": [1, 1, 1]}, "worths is"),
        ({"worths": [1, 1, 1, -1]}, "worths is"),
        ({"worths": [0, 0, 0, 0]}, "worths are all 0"),
        ({"ranges": []}, "ranges is"),
        ({"ranges": [{"last": None, "memory_ps": 0}]}, "ranges has"),
        ({"ranges": [{"last": 9, "memory_ps": 0, "rates": [RATE]}]}, "last of the last range is 9"),
        ({"ranges": [{"last": 0, "memory_ps": 0, "rates": []}, *CERTIFICATE["ranges"]]}, "last is 0"),  # type: ignore[misc]
        ({"ranges": [{"last": None, "memory_ps": 11, "rates": [RATE]}]}, "memory_ps is 11 in the range without an end"),
        ({"ranges": [{"last": None, "memory_ps": -1, "rates": [RATE]}]}, "memory_ps is -1"),
        ({"ranges": [{"last": None, "memory_ps": 0, "rates": [{**RATE, "weight": -1}]}]}, "rates has"),
        ({"ranges": [{"last": None, "memory_ps": 0, "rates": [{**RATE, "weight": 0}]}]}, "has no weight"),
        ({"ranges": [{"last": None, "memory_ps": 0, "rates": [{**RATE, "prefill_step_ps": 1}]}]}, "prefill_step_ps is"),
    ],
)
def test_forged_certificates_prove_nothing(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnprovedError, match=message):
        proved(CLUSTER, CERTIFICATE | changes)


def test_it_covers_equal_machines_and_the_makespan_only() -> None:
    with pytest.raises(UnprovedError, match="the objective is mean_e2e"):
        proved_bound(CLUSTER, Restrictions(), Objective.MEAN_E2E, CERTIFICATE)
    slower = replace(MACHINES[0], count=1, cost=CostModel(base=11, token=1))
    with pytest.raises(UnprovedError, match="equal machines"):
        proved(cluster_of((*MACHINES, slower), CLUSTER.requests), CERTIFICATE)


def test_machines_that_differ_in_what_they_serve_take_longer_than_chains_say() -> None:
    requests = [Request(20, output) for output in range(2, 100)]
    cost = CostModel(base=900, token=2, pieces=((740, 5), (180, 12)), decode_kv=1)
    limits = Limits(1_000, 1_000, 1_000)
    machine = MachineGroup(3, limits=limits, rules=Rules(hybrid=True, chunked_prefill=True), cost=cost)
    cluster = cluster_of((machine,), requests)
    found = bound(cluster)
    assert found.certificate is not None
    assert (found.method, found.certificate["kind"]) == ("worth", "worth")
    assert found.bound is not None
    known = chains_bound(cluster.on(0), 3)
    assert known is not None
    assert found.bound > known.value
    assert proved(cluster, found.certificate) == found.bound
