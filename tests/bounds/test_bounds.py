"""Bounds that scale: below every optimum, as worked by hand, and recomputed by the checker, which refuses lies."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from math import floor
from typing import Any

import pytest
from brute_force import MONOTONE, optimum
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from strategies import instances

from optsched import Instance, Limits, Objective, Request, Restrictions, Rules, replace, simulate
from optsched.bounds.catalogue import BOUNDS, bound_method
from optsched.bounds.late import DueJob, most_in_time
from optsched.bounds.machine import Needs, Split
from optsched.bounds.own import Rate, fewest_steps, plain_rate
from optsched.check import UnprovedError, check_result, proved_bound
from optsched.check.certificates import late
from optsched.check.certificates.machine import needs_of
from optsched.check.problem import problem_of
from optsched.methods.bound import bound as solve_bound
from optsched.model.cost import CostModel
from optsched.model.documents import dump, parse_results, result_document

FREE = Restrictions()
WHOLE = Rules(chunked_prefill=False, eviction=False)

# One cached token, so one request at a time; a batch takes 10 and 1 for its token. Each request uses a whole base:
# needs are 11 each. Arrivals 0, 3, 40.
QUEUE = Instance(
    "queue", Limits(1, 8, 8), WHOLE, CostModel(10, 1), tuple(Request(1, 1, arrival_ps=time) for time in (0, 3, 40))
)


def bound(name: str, instance: Instance, objective: Objective) -> int | None:
    """Return a bound that the checker has confirmed to the unit."""
    found = bound_method(name)(instance, objective)
    if found is None:
        return None
    assert proved_bound(instance, FREE, objective, found.certificate) == found.value
    return found.value


@pytest.mark.parametrize(
    ("objective", "alone", "machine"),
    [
        (Objective.MAKESPAN, 40 + 11, 51),  # 11, 22, 51
        (Objective.MEAN_E2E, 33, 11 + 19 + 11),  # ends 11, 22, 51 less 0, 3, 40
        (Objective.MEAN_TTFT, 33, 41),
        (Objective.MAX_E2E, 11, 19),
        (Objective.MAX_TTFT, 11, 19),
        (Objective.WEIGHTED_E2E, 33, 41),
        (Objective.SLO_MISSES, 0, None),
    ],
)
def test_worked_queue(objective: Objective, alone: int, machine: int | None) -> None:
    """Here the bounds of the machine are optima."""
    assert bound("alone", QUEUE, objective) == alone
    assert bound("machine", QUEUE, objective) == machine
    if machine is not None:
        assert optimum(QUEUE, objective) == machine


def test_worked_request_alone() -> None:
    """Prompt of 5, three tokens; P = 2, so three prefill steps in chunks.

    Pieces 10 + c and 4 + 3c. First token: max(3·10 + 5, 3·4 + 3·5) = 35, quadratic term 25·2 = 50, three steps of 7
    each: 106. A decode: max(11, 7) and 2 a token read, 5 and 6 of them: 21 and 23; refills cost far more. In all 150.
    """
    cost = CostModel(10, 1, ((4, 3),), decode_kv=2, prefill_sq=2, prefill_req=7)
    instance = Instance("one", Limits(20, 8, 2), Rules(), cost, (Request(5, 3, slo_ttft_ps=105, slo_e2e_ps=150),))
    assert bound("alone", instance, Objective.MEAN_TTFT) == 106 == optimum(instance, Objective.MEAN_TTFT)
    assert bound("alone", instance, Objective.MEAN_E2E) == 150 == optimum(instance, Objective.MEAN_E2E)
    assert bound("alone", instance, Objective.MAKESPAN) == 150
    assert bound("alone", instance, Objective.SLO_MISSES) == 1
    relaxed = replace(instance, requests=(Request(5, 3, slo_ttft_ps=106, slo_e2e_ps=150),))
    assert bound("alone", relaxed, Objective.SLO_MISSES) == 0


def test_long_outputs_with_cheap_refills_are_compared_in_blocks() -> None:
    """Of ten million tokens each takes min(n, 10^6 + 1) alone, with n tokens cached: a refill, or a dear decode.

    The first fill takes 1. So by hand it is the sum of 1 to 10^6, and 9 × 10^6 decodes. Of 77 tokens in a block all
    count as the first, at most 76 less than they take, and decodes count in full.
    """
    instance = Instance(
        "long",
        Limits(10**7, 10**7, 10**7),
        Rules(chunked_prefill=True, eviction=True),
        CostModel(0, 1, decode_req=10**6),
        (Request(1, 10**7),),
    )
    by_hand = 10**6 * (10**6 + 1) // 2 + 9 * 10**6 * (10**6 + 1)
    for name in ("alone", "machine", "volume"):
        found = bound(name, instance, Objective.MAKESPAN)
        assert found is not None
        assert by_hand - 10**6 * 76 <= found <= by_hand


@given(instances(), st.sampled_from(MONOTONE))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
def test_blocks_prove_no_more_than_single_tokens(instance: Instance, objective: Objective) -> None:
    """And producers and checker cut the same blocks."""
    for name in ("alone", "machine", "volume"):
        whole = bound(name, instance, objective)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("optsched.bounds.own.MOST_COMPARED", 1)
            patch.setattr("optsched.check.certificates.shared.work.MOST_COMPARED", 1)
            found = bound(name, instance, objective)
        assert (found is None) == (whole is None)
        assert found is None or whole is None or found <= whole


def test_worked_shortest_first() -> None:
    """A long job is interrupted: 3 tokens held for 1 batch of 3 places is a whole base, 1 token a third of one.

    Base 30, no other cost. Needs 30 and 10, arrivals 0 and 5: the short one ends at 15, the long one at 40; alone each
    takes 30, the ends are 30 and 35. The i-th ends: max(15, 30) + max(40, 35) = 70, less 5.
    """
    requests = (Request(3, 1), Request(1, 1, arrival_ps=5))
    instance = Instance("two", Limits(3, 8, 8), WHOLE, CostModel(30, 0), requests)
    assert bound("machine", instance, Objective.MEAN_E2E) == 65
    assert optimum(instance, Objective.MEAN_E2E) == 30 + 55


def in_time(jobs: Sequence[DueJob]) -> bool:
    """Whether all jobs are in time first come, first served."""
    clock = 0
    for job in jobs:
        clock = max(clock, job.arrival) + job.need
        if clock > job.deadline:
            return False
    return True


def most_by_trial(jobs: list[DueJob]) -> int:
    """Return the size of the largest set that is in time, deadlines put off where they disagree with arrivals."""
    ordered, latest = [], 0
    for job in sorted(jobs, key=lambda job: (job.arrival, job.deadline)):
        latest = max(latest, job.deadline)
        ordered.append(job._replace(deadline=latest))
    sizes = range(len(ordered), -1, -1)
    return next(size for size in sizes if any(map(in_time, itertools.combinations(ordered, size))))


@st.composite
def jobs_on_a_machine(draw: st.DrawFn) -> list[DueJob]:
    """Draw jobs, with times that fit 64 bits or not."""
    unit = draw(st.sampled_from([1, 1, 2**62]))
    drawn = draw(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 8), st.integers(0, 14)), max_size=8))
    return [DueJob(unit * arrival, unit * need, unit * (arrival + due)) for arrival, need, due in drawn]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(jobs_on_a_machine())
@example([DueJob(0, 1, 100), DueJob(0, 10, 10), DueJob(0, 10, 10)])  # the latest deadline goes last
def test_most_jobs_in_time_are_found(jobs: list[DueJob]) -> None:
    most = most_by_trial(jobs)
    assert most_in_time(jobs) == most
    assert late.least_late([late.Job(job.arrival, job.deadline, job.need) for job in jobs]) == len(jobs) - most


def test_worked_late_requests() -> None:
    """One request at a time, each takes 10; four at 0, three with SLOs of 25, one of 9, which none can meet.

    Of the three, two end by 25. A fourth with an SLO on TTFT alone, 100, is in time.
    """
    requests = (*[Request(1, 1, slo_e2e_ps=25)] * 3, Request(1, 1, slo_e2e_ps=9), Request(1, 1, slo_ttft_ps=100))
    instance = Instance("late", Limits(1, 8, 8), WHOLE, CostModel(10, 0), requests)
    assert bound("late", instance, Objective.SLO_MISSES) == 2 == optimum(instance, Objective.SLO_MISSES)
    assert bound("alone", instance, Objective.SLO_MISSES) == 1
    assert bound("late", instance, Objective.MEAN_E2E) is None


@pytest.mark.slow
@settings(max_examples=43, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(instances(online=True))
def test_no_fewer_slos_are_missed(instance: Instance) -> None:
    found, best = bound("late", instance, Objective.SLO_MISSES), optimum(instance, Objective.SLO_MISSES)
    assert found is not None
    assert best is not None
    assert found <= best


PERCENTILES = tuple(objective for objective in Objective if objective.percentile is not None)
TIMES = tuple(objective for objective in MONOTONE if objective != Objective.SLO_MISSES)
SMALL = tuple(name for name in BOUNDS if name not in {"congestion", "waiting", "inflow", "ramp"})
"""Those that say something of a few requests; the others have tests of their own."""
GROWING = tuple(objective for objective in TIMES if objective not in PERCENTILES)
"""What a further request never lowers."""
QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@pytest.mark.slow
@settings(QUICK, max_examples=45)
@given(instances(online=True), st.sampled_from(MONOTONE))
def test_no_bound_exceeds_an_optimum(instance: Instance, objective: Objective) -> None:
    best = optimum(instance, objective)
    assert best is not None
    for name in SMALL:
        found = bound(name, instance, objective)
        assert found is None or found <= best, name


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
@settings(QUICK, max_examples=45)
@given(instances(online=True), st.data(), st.sampled_from(GROWING))
def test_a_further_request_never_lowers_a_bound(
    name: str, instance: Instance, data: st.DataObject, objective: Objective
) -> None:
    assume(len(instance.requests) > 1)
    out = data.draw(st.integers(0, len(instance.requests) - 1))
    fewer = replace(instance, requests=tuple(r for i, r in enumerate(instance.requests) if i != out))
    before, after = bound(name, fewer, objective), bound(name, instance, objective)
    if before is None or after is None:
        assert before == after
        return
    # The makespan is counted from the first arrival.
    earlier = fewer.start_ps - instance.start_ps if objective == Objective.MAKESPAN else 0
    assert before + earlier <= after


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
@settings(QUICK, max_examples=60)
@given(instances(online=True), st.integers(2, 5), st.sampled_from(TIMES))
def test_a_slower_clock_scales_bounds(name: str, instance: Instance, factor: int, objective: Objective) -> None:
    """All coefficients and arrivals multiplied: bounds are multiplied as well, up to what rounding down had cut off."""
    cost = instance.cost
    slower = replace(
        instance,
        cost=CostModel(
            base=factor * cost.base,
            token=factor * cost.token,
            pieces=tuple((factor * base, factor * token) for base, token in cost.pieces),
            decode_kv=factor * cost.decode_kv,
            decode_req=factor * cost.decode_req,
            prefill_sq=factor * cost.prefill_sq,
            prefill_kv=factor * cost.prefill_kv,
            prefill_req=factor * cost.prefill_req,
            cpu_batch=factor * cost.cpu_batch,
        ),
        requests=tuple(replace(r, arrival_ps=factor * r.arrival_ps) for r in instance.requests),
    )
    before, after = bound(name, instance, objective), bound(name, slower, objective)
    if before is None or after is None:
        assert before == after
        return
    weight = max(1, *(request.weight for request in instance.requests))
    # Needs are rounded down, and the price of a decode.
    rounded = len(instance.requests) * sum(request.output for request in instance.requests)
    lost = 0 if name not in {"machine", "percentile"} else factor * weight * rounded
    assert factor * before <= after <= factor * before + lost


def test_worked_rests() -> None:
    """Thirty requests of a prompt token and three outputs, which need 360 each, and batches of 1100 and more.

    Until tokens 1 and 2 each needs 110 and 230, so that 110 × (110 + 4400) + 1100 × (119 × 4 + 12) is left, over 720:
    1434. Mean busy times are 180, 540, …, 30 × 5400 in all.
    """
    instance = Instance("row", Limits(100, 1000, 1000), WHOLE, CostModel(1000, 100), (Request(1, 3),) * 30)
    assert bound("machine", instance, Objective.MEAN_E2E) == 30 * 5400 + 30 * 1434
    twice = replace(instance, requests=(Request(1, 3, weight=2),) * 30)
    assert bound("machine", twice, Objective.WEIGHTED_E2E) == 2 * 30 * 5400 + 30 * 2869
    assert bound("machine", instance, Objective.MEAN_TTFT) == sum(max(1100, 110 * i) for i in range(1, 31))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"piece_weights": [1, 0]}, "piece_weights is"),
        ({"piece_weights": [0]}, "piece_weights is"),
        ({"piece_weights": [1.0]}, "piece_weights is"),
        ({"share_weights": [1, 0, 0]}, "share_weights is"),
        ({"share_weights": {"memory": 1, "tokens": 0}}, "share_weights is"),
        ({"share_weights": {"memory": 0, "tokens": 0, "runs": 0}}, "share_weights is"),
        ({"share_weights": {"memory": 1, "tokens": 0, "runs": 1}}, "share_weights is"),
        ({"share_weights": {"memory": -1, "tokens": 2, "runs": 0}}, "share_weights is"),
        ({"decode_weights": [0]}, "decode_weights is"),
        ({"decode_weights": None}, "decode_weights is"),
        ({"prefill_step_ps": 1}, "prefill_step_ps is 1, expected an integer from 0 to 0"),
        ({"prefill_step_ps": False}, "prefill_step_ps is False"),
        ({"prefill_step_ps": None}, "prefill_step_ps is None"),
    ],
)
def test_certificates_of_the_machine_are_read_strictly(change: dict[str, Any], reason: str) -> None:
    found = bound_method("machine")(QUEUE, Objective.MEAN_E2E)
    assert found is not None
    with pytest.raises(UnprovedError, match=reason):
        proved_bound(QUEUE, FREE, Objective.MEAN_E2E, found.certificate | change)


@st.composite
def stated_weights(draw: st.DrawFn, instance: Instance) -> dict[str, Any]:
    """Draw what a certificate may state of rates and shares."""
    weight, pieces = st.integers(0, 3), len(instance.cost.affine)
    runs = weight if instance.limits.batch_requests is not None else st.just(0)
    rate = draw(st.lists(weight, min_size=pieces, max_size=pieces).filter(any))
    shares = {"memory": draw(weight), "tokens": draw(weight), "runs": draw(runs)}
    assume(any(shares.values()))
    step = draw(st.integers(0, instance.cost.prefill_req))
    apart = {"decode_weights": draw(st.lists(weight, min_size=pieces, max_size=pieces).filter(any))}
    return {"piece_weights": rate, "share_weights": shares, "prefill_step_ps": step} | draw(
        st.sampled_from([{}, apart])
    )


@settings(QUICK, max_examples=60)
@given(instances(online=True, most_tokens=9), st.data())
def test_needs_by_batches_of_two_kinds_are_those_of_every_token(instance: Instance, data: st.DataObject) -> None:
    """Each later token takes the least of a decode in either kind of batch, and a refill; or what the second does."""
    drawn = data.draw(stated_weights(instance).filter(lambda stated: "decode_weights" in stated))
    shares, step, cost = drawn["share_weights"], drawn["prefill_step_ps"], instance.cost
    prefilling, decoding = (plain_rate(instance, tuple(drawn[name])) for name in ("piece_weights", "decode_weights"))
    base = prefilling.base + prefilling.scale * (cost.prefill_req - step)
    rate = Rate(prefilling.weights, base, prefilling.prompt, prefilling.prompt, step, decoding.weights)
    outputs, limits, whole = [request.output for request in instance.requests], instance.limits, sum(shares.values())
    found = Needs(instance, outputs).of(rate, Split(shares["memory"], shares["tokens"], shares["runs"]))

    def share(held: int, run: int, runs: int) -> Fraction:
        of_memory = Fraction(shares["memory"] * -(-held // limits.kv_block), limits.kv_blocks)
        of_tokens = Fraction(shares["tokens"] * run, limits.batch_tokens)
        of_runs = Fraction(shares["runs"] * runs, limits.batch_requests or 1)
        return Fraction(of_memory + of_tokens + of_runs, whole)

    def fill(tokens: int, used: Fraction) -> Fraction:
        steps = fewest_steps(instance, tokens)
        own = Fraction(prefilling.prompt * tokens + base * used) / prefilling.scale
        return own + Fraction(cost.prefill_sq * tokens**2 + step * steps)

    def later(prompt: int, k: int) -> Fraction:
        used = share(prompt + k - 1, 1, 1)
        kinds = ((base, prefilling), (decoding.base, decoding))
        ways = [(kind.prompt + own * used) / kind.scale + cost.decode_ps(prompt + k - 2) for own, kind in kinds]
        refills = instance.rules.eviction and (
            instance.rules.chunked_prefill or prompt + k - 1 <= limits.prefill_tokens
        )
        return min([*ways, fill(prompt + k - 1, used)] if refills else ways)

    for request, need in zip(instance.requests, found, strict=True):
        prompt, last = request.input, request.output
        first = fill(prompt, share(prompt, prompt, fewest_steps(instance, prompt)))
        assert need <= floor(first + sum(later(prompt, k) for k in range(2, last + 1)))
        no_more = floor(first + sum(later(prompt, 2) for _ in range(2, last + 1)))
        assert need >= no_more
        if not instance.rules.eviction:
            assert need == floor(first + sum(later(prompt, k) for k in range(2, last + 1)))
    assert needs_of(problem_of(instance, FREE), drawn, outputs) == found


@pytest.mark.slow
@settings(QUICK, max_examples=60)
@given(instances(online=True), st.data(), st.sampled_from(GROWING))
def test_whatever_weights_are_stated_no_more_than_the_optimum_is_proved(
    instance: Instance, data: st.DataObject, objective: Objective
) -> None:
    certificate = data.draw(stated_weights(instance)) | {"kind": "machine"}
    best = optimum(instance, objective)
    assert best is not None
    try:
        found = proved_bound(instance, FREE, objective, certificate)
    except UnprovedError as unproved:
        assume("less than nothing" not in str(unproved))
        raise
    assert found <= best


# Percentiles -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("q", "rank"), [(50, 51), (95, 96), (99, 100)])
def test_worked_percentiles(q: int, rank: int) -> None:
    """Of 101 requests at 0, one at a time and each 10, one more is done at 10, 20, …: 95.95 of 101 are 96."""
    requests = (Request(1, 1),) * 101
    instance = Instance("row", Limits(1, 8, 8), WHOLE, CostModel(10, 0), requests)
    for name in (f"p{q}_ttft", f"p{q}_e2e"):
        objective = Objective(name)
        assert bound("percentile", instance, objective) == 10 * rank == simulate(instance, "vllm", objective).value
        assert bound("alone", instance, objective) == 10


def test_worked_percentiles_with_arrivals() -> None:
    """Latencies 11, 19, 11 (see `QUEUE`): two of three are within 11, all within 19."""
    for objective, least in ((Objective.P50_E2E, 11), (Objective.P50_TTFT, 11), (Objective.P95_E2E, 19)):
        assert bound("percentile", QUEUE, objective) == least == optimum(QUEUE, objective)
    assert bound("percentile", QUEUE, Objective.MAX_E2E) is None


def test_worked_percentile_of_different_requests() -> None:
    """Base 30, M = 3, three requests at 0 that hold 3, 3 and 1 places for a batch: they need 30, 30 and 10.

    Two of them are done by 40 at best, by 30 if each were alone.
    """
    requests = (Request(3, 1), Request(3, 1), Request(1, 1))
    instance = Instance("three", Limits(3, 8, 8), WHOLE, CostModel(30, 0), requests)
    assert bound("percentile", instance, Objective.P50_E2E) == 40
    assert bound("alone", instance, Objective.P50_E2E) == 30
    assert optimum(instance, Objective.P50_E2E) == 60


@pytest.mark.slow
@settings(QUICK, max_examples=60)
@given(instances(online=True), st.sampled_from(PERCENTILES))
def test_no_percentile_is_smaller(instance: Instance, objective: Objective) -> None:
    found, best = bound("percentile", instance, objective), optimum(instance, objective)
    assert found is not None
    assert found <= best
    alone = bound("alone", instance, objective)
    assert alone is not None
    assert alone <= found


@settings(QUICK, max_examples=60)
@given(instances(online=True), st.sampled_from(["ttft", "e2e"]))
def test_the_last_percentile_is_the_maximum(instance: Instance, latency: str) -> None:
    """Of fewer than 20 values."""
    largest = Objective(f"max_{latency}")
    known = [bound(name, instance, largest) for name in ("alone", "machine")]
    assert bound("percentile", instance, Objective(f"p95_{latency}")) == max(value or 0 for value in known)


@settings(QUICK, max_examples=60)
@given(instances(online=True), st.sampled_from(PERCENTILES))
def test_a_percentile_is_where_enough_requests_meet_an_slo(instance: Instance, objective: Objective) -> None:
    """As an SLO of all: 1 ps below the bound more have to miss it than the percentile leaves out, at it not."""
    found = bound("percentile", instance, objective)
    assert found is not None
    name = "slo_ttft_ps" if objective.endswith("ttft") else "slo_e2e_ps"
    count, q = len(instance.requests), int(objective[1:3])

    def missed(slo: int) -> int:
        given_slo = {"slo_ttft_ps": None, "slo_e2e_ps": None, name: slo}
        requests = tuple(replace(request, **given_slo) for request in instance.requests)
        misses = bound("late", replace(instance, requests=requests), Objective.SLO_MISSES)
        assert misses is not None
        return misses

    assert 100 * (count - missed(found)) >= q * count
    assert found == 0 or 100 * (count - missed(found - 1)) < q * count


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"piece_weights": [0]}, "piece_weights is"),
        ({"share_weights": {"memory": 1, "tokens": 0}}, "share_weights is"),
        ({"bound": None}, "bound is None, expected an integer"),
        ({"bound": 19.0}, "bound is 19.0, expected an integer"),
        ({"bound": True}, "bound is True, expected an integer"),
        ({"bound": 20}, "bound is 20, but 3 of 3 requests may take less"),
        # By tokens the three need 3 each, base 10 / C = 8 and 1, so they are in time.
        ({"share_weights": {"memory": 0, "tokens": 1, "runs": 0}}, "bound is 19, but 3 of 3 requests may take less"),
    ],
)
def test_certificates_of_percentiles_are_read_strictly(change: dict[str, Any], reason: str) -> None:
    found = bound_method("percentile")(QUEUE, Objective.P95_E2E)
    assert found is not None
    with pytest.raises(UnprovedError, match=reason):
        proved_bound(QUEUE, FREE, Objective.P95_E2E, found.certificate | change)
    with pytest.raises(UnprovedError, match="kind percentile bounds percentiles, the objective is max_e2e"):
        proved_bound(QUEUE, FREE, Objective.MAX_E2E, found.certificate)
    assert proved_bound(QUEUE, FREE, Objective.P95_E2E, found.certificate | {"bound": 18}) == 18


@pytest.mark.slow
@settings(QUICK, max_examples=23)
@given(instances(online=True, most_tokens=2), st.data(), st.sampled_from(PERCENTILES))
def test_whatever_weights_are_stated_a_raised_percentile_is_not_proved(
    instance: Instance, data: st.DataObject, objective: Objective
) -> None:
    certificate = data.draw(stated_weights(instance)) | {"kind": "percentile"}
    raised = optimum(instance, objective) + data.draw(st.integers(1, 100))
    with pytest.raises(UnprovedError, match=r"requests may take less|less than nothing"):
        proved_bound(instance, FREE, objective, certificate | {"bound": raised})


def test_a_document_with_a_raised_bound_is_refused() -> None:
    """Stated in the result alone, in the certificate alone, or in both."""
    result = solve_bound(QUEUE, Objective.P95_E2E)
    assert (result.method, result.bound) == ("percentile", 19)
    honest = result_document(result)
    certificate = honest["certificate"] | {"bound": 20}
    for change, ok in (
        ({}, True),
        ({"bound": 20}, False),
        ({"certificate": certificate}, False),
        ({"bound": 20, "certificate": certificate}, False),
    ):
        (claimed,) = parse_results(dump(honest | change).encode(), lambda name: QUEUE.cost)
        assert check_result(claimed).ok == ok
