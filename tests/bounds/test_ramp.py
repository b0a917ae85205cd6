"""The bound of ramp-up and ramp-down: as the hand says, below every optimum, and recounted by the checker."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from brute_force import optimum
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from strategies import instances

from optsched import Instance, Limits, Objective, Request, Restrictions, Rules, replace, simulate
from optsched.bounds.catalogue import BOUNDS, bound_method
from optsched.bounds.priced.demand import Demand, between, each
from optsched.bounds.priced.prompt_paths import Prices
from optsched.bounds.priced.proof import Part, bound_of, prove
from optsched.bounds.priced.ranges import priced_bound
from optsched.bounds.ramp import ramp_bound
from optsched.bounds.volume import volume_bound
from optsched.check import UnprovedError, proved_bound
from optsched.model.cost import CostModel

QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
STAY = Rules(chunked_prefill=False, eviction=False)
Document = dict[str, Any]


def proved(instance: Instance, *prices: Document, release_ps: int = 0, **stated: object) -> int:
    terms = {"release_ps": release_ps, "prefill_step_ps": instance.cost.prefill_req}
    certificate = {"kind": "ramp", **terms, "prices": list(prices), **stated}
    return proved_bound(instance, Restrictions(), Objective.MAKESPAN, certificate)


def memory_bound(count: int, base: int, rules: Rules = STAY, prefill_req: int = 0) -> Instance:
    """Return requests that hold 1 and then 2 of 3 tokens; a batch takes its base, what it runs costs nothing else."""
    return Instance(
        "waste", Limits(3, 9, 9), rules, CostModel(base, 0, prefill_req=prefill_req), (Request(1, 2),) * count
    )


# By hand ---------------------------------------------------------------------------------------------------

# Three requests take 9, which would fill 3 batches, but at first only halves of requests are there. At prices of 0, 2
# and 1 a block stays cost 0 + 2·2 (batches 1, 2), 0 + 2 + 2·1 (1, kept in 2, 3) or 2 + 2·1 (2, 3): 3·4 in all, of
# which batches can take 3·(0 + 2 + 1) = 9. At 10/3 of these the other 3 are another batch of 10.
SPIKE: Document = {"widths": [1, 1, 1], "repeated": None, "scale": 3, "memory": [0, 20, 10]}

# Of any number of requests those that are first fill two batches like this, then all are full: at prices 0, 3 and, in
# any number of batches, 2 a block, stays cost 3·2, 3 + 2·2 or 2 + 2·2, 6 at least, as much as they would if all
# batches were full. Of 3·6 the batches of layers 1, 2 and 3 have 6, 6 - 9 and 6 - 6 left, 3 in all.
RAMP: Document = {"widths": [1, 1, 1], "repeated": 2, "scale": 1, "memory": [0, 3, 2]}


def test_worked_spike() -> None:
    instance = memory_bound(3, 10)
    assert volume_bound(instance).value == 30
    assert proved(instance, SPIKE) == 40 == optimum(instance)


def test_worked_eviction() -> None:
    """Evicted in batch 2 a request costs 2 of the prices, 20/3, and what a refill of 2 tokens takes more than a decode.

    With 5 for a prefill step that is 5: 3 (20/3 + 5) of 3·10 are 5, besides 3·10 and 3·5. With 7 it is more than 40/3.
    """
    for step, bound, best in ((5, 50, 55), (7, 61, 61)):
        instance = memory_bound(3, 10, Rules(chunked_prefill=False), prefill_req=step)
        assert proved(instance, SPIKE) == bound
        assert optimum(instance) == best


def test_worked_ramp() -> None:
    for count in (3, 4, 5, 1000):
        instance = memory_bound(count, 6)
        assert volume_bound(instance).value == 6 * count
        assert proved(instance, RAMP) == 6 * count + 3
    assert optimum(memory_bound(4, 6)) == 6 * (4 + 1)


def test_a_repeated_layer_has_no_prices_beyond_a_batch() -> None:
    """At a price of 3 a batch pays 9 of its 6; then nothing is known of 4 batches, and of 3 the same as before."""
    dear = RAMP | {"memory": [0, 3, 3]}
    # Layers have 6 - 0, 6 - 9, 6 - 9 left; stays cost 3·2, 3 + 2·3 or 3 + 2·3.
    assert proved(memory_bound(3, 6), dear | {"repeated": None}) == 0 + 3 * 6
    assert proved(memory_bound(4, 6), dear) == 4 * 6


def test_worked_tokens() -> None:
    """A prompt of 4 and one decode; batch times are max(10, 4 x), which are 16 and 10.

    At 2 a token 10 - 2·2 and 12 - 2·3 are least, 6 (at 2.5 tokens it would be 5): 2·6 and 2·5 for the tokens.
    """
    cost = CostModel(10, 0, ((0, 4),))
    instance = Instance("one", Limits(5, 4, 4), STAY, cost, (Request(4, 2),))
    assert optimum(instance) == 26
    assert volume_bound(instance).value == 20  # or 4 a token
    assert proved(instance, {"widths": [2], "repeated": None, "scale": 1, "tokens": [2]}) == 22
    # At 4 in the first batch and 0 in the second: 0 + 4·4 and 10.
    assert proved(instance, {"widths": [1, 1], "repeated": None, "scale": 1, "tokens": [4, 0]}) == 26


def test_arrivals_before_the_release_do_not_count() -> None:
    late = tuple(replace(request, arrival_ps=100) for request in memory_bound(3, 10).requests)
    instance = replace(memory_bound(3, 10), requests=(Request(1, 1), *late))
    assert proved(instance, SPIKE, release_ps=100) == 140
    assert optimum(instance) == 140


# Below optima ----------------------------------------------------------------------------------------------


@st.composite
def prices(draw: st.DrawFn) -> Prices:
    widths = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=5)))
    single = [stretch for stretch, width in enumerate(widths) if width == 1]
    most = draw(st.sampled_from([0, 3, 30]))

    def row() -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(0, most), min_size=len(widths), max_size=len(widths))))

    memory, tokens, prefill_tokens, runs = row(), row(), row(), row()
    repeated = draw(st.sampled_from([None, *single]))
    return Prices(widths, memory, tokens, prefill_tokens, runs, repeated, draw(st.integers(1, 4)))


def document(prices: Prices, *, runs: bool) -> Document:
    rows = {name: list(getattr(prices, name)) for name in ("memory", "tokens", "prefill_tokens")}
    rows |= {"runs": list(prices.runs)} if runs else {}
    return {"widths": list(prices.widths), "repeated": prices.repeated, "scale": prices.scale, **rows}


def counted(part: Part, demand: Demand, stated: list[Prices]) -> int:
    """Return what the producer says of some prices."""
    proofs = [prove(part, demand, one, part.paths(demand, one)) for one in stated]
    bound = bound_of(part, [proof for proof in proofs if proof is not None])
    return bound + part.release_ps - part.instance.start_ps


@pytest.mark.slow
@given(instances(online=True), prices())
def test_prices_and_that_of_time_can_be_multiplied(instance: Instance, stated: Prices) -> None:
    """By 2^62, beyond which the checker does not compute in 64 bits."""
    shown = document(stated, runs=True)
    factor = 1 << 62
    larger = {
        name: [factor * price for price in shown[name]] for name in ("memory", "tokens", "prefill_tokens", "runs")
    }
    release = instance.start_ps
    found = proved(instance, shown, release_ps=release)
    assert proved(instance, shown | larger | {"scale": factor * stated.scale}, release_ps=release) == found


@pytest.mark.slow
@settings(QUICK, max_examples=120)
@given(instances(online=True), st.lists(prices(), min_size=1, max_size=3), st.data())
def test_whatever_prices_are_stated_no_more_than_the_optimum_is_proved(
    instance: Instance, stated: list[Prices], data: st.DataObject
) -> None:
    best, step = optimum(instance), data.draw(st.integers(0, instance.cost.prefill_req))
    assert best is not None
    limited = instance.limits.batch_requests is not None
    for release in {request.arrival_ps for request in instance.requests}:
        terms = {"release_ps": release, "prefill_step_ps": step}
        assert proved(instance, *(document(one, runs=True) for one in stated), **terms) <= best
        # The producer counts the same, but for runs that are not limited.
        part = Part(instance, release, step)
        used = [one if limited else replace(one, runs=(0,) * len(one.widths)) for one in stated]
        documents = [document(one, runs=limited) for one in stated]
        assert proved(instance, *documents, **terms) == counted(part, each(part.kinds), used)


@pytest.mark.slow
@settings(QUICK, max_examples=60)
@given(instances(), st.lists(prices(), min_size=1, max_size=3), st.integers(2, 3), st.data())
def test_prompts_between_others_prove_no_more_than_each_by_itself(
    instance: Instance, stated: list[Prices], count: int, data: st.DataObject
) -> None:
    instance = replace(instance, limits=replace(instance.limits, kv_block=1))
    step = data.draw(st.integers(0, instance.cost.prefill_req))
    part, documents = Part(instance, 0, step), [document(one, runs=False) for one in stated]
    alone = proved(instance, *documents, prefill_step_ps=step)
    low, high = min(prompt for prompt, _ in part.kinds), max(prompt for prompt, _ in part.kinds)
    others = data.draw(st.sets(st.integers(low, high + 3)))
    # A prompt beyond all others represents whatever is between.
    assert proved(instance, *documents, prefill_step_ps=step, prompts=sorted({low, high + 1, *others})) <= alone
    demand = between(part.kinds, count)
    used = [replace(one, runs=(0,) * len(one.widths)) for one in stated]
    prompts = [at.tokens for at in demand.numbers]
    assert counted(part, demand, used) <= proved(instance, *documents, prefill_step_ps=step, prompts=prompts)


def test_worked_prompts() -> None:
    """Prompts of 1 and 3 for one of 2: what stays pay is affine in I, so that nothing is lost.

    In two batches, of 8 tokens, stays that begin in the first and end in the second pay 9 (I + 1): 18 + 27 + 36 of 72.
    """
    requests = (Request(1, 2), Request(2, 2), Request(3, 2))
    instance = Instance("three", Limits(8, 9, 9), STAY, CostModel(10, 0), requests)
    prices = {"widths": [1, 1], "repeated": None, "scale": 1, "memory": [0, 9]}
    assert volume_bound(instance).value == 20
    assert proved(instance, prices) == proved(instance, prices, prompts=[1, 3]) == 20 + 9
    assert optimum(instance) == 30


@pytest.mark.slow
@settings(QUICK, max_examples=14)
@given(instances(online=True, most_requests=4))
def test_prices_that_are_found_prove_no_more_than_the_optimum(instance: Instance) -> None:
    volume = volume_bound(instance)
    best = optimum(instance)
    assert best is not None
    for step in {0, instance.cost.prefill_req}:
        found = priced_bound(Part(instance, volume.release_ps, step))
        if found is not None:
            assert volume.value < found.value <= best
            assert proved_bound(instance, Restrictions(), Objective.MAKESPAN, found.certificate) == found.value


# At scale --------------------------------------------------------------------------------------------------


def equal_requests(count: int, factor: int = 1) -> Instance:
    """Return equal requests; the base is most of a batch's time. Times are multiplied by a factor."""
    cost = CostModel(factor * 10**9, factor * 10**3, decode_kv=factor * 7)
    return Instance("equal", Limits(1000, 4096, 4096), Rules(), cost, (Request(1, 32),) * count)


def shorter_requests(count: int, factor: int = 1) -> Instance:
    """Return equal requests of half as many tokens, for half of the memory."""
    longer = equal_requests(count, factor)
    return replace(longer, limits=replace(longer.limits, kv_tokens=500), requests=(Request(1, 16),) * count)


def ramp(instance: Instance) -> int:
    found = ramp_bound(instance, Objective.MAKESPAN)
    assert found is not None
    assert proved_bound(instance, Restrictions(), Objective.MAKESPAN, found.certificate) == found.value
    return found.value


@pytest.mark.slow
def test_many_requests_waste_a_fifth_of_the_batches() -> None:
    """Of 64 requests the volume fills 34 batches; in 41 they cannot grow up and end."""
    instance = equal_requests(64)
    assert volume_bound(instance).batches == 34
    assert ramp(instance) >= 42 * 10**9


@pytest.mark.slow
def test_a_further_request_does_not_lower_the_best_bound() -> None:
    """With the same prices it never does; those that are found may miss 2/10,000 of the bound."""
    bounds = []
    for count in range(64, 67):
        found = [bound_method(name)(shorter_requests(count), Objective.MAKESPAN) for name in BOUNDS]
        bounds.append(max(each.value for each in found if each is not None))
    assert all(after >= before * (1 - 2e-4) for before, after in pairwise(bounds))


@pytest.mark.slow
@settings(QUICK, max_examples=60)
@given(instances(), prices(), st.data())
def test_with_the_same_prices_a_further_request_never_lowers_what_they_prove(
    instance: Instance, stated: Prices, data: st.DataObject
) -> None:
    assume(len(instance.requests) > 1)
    out = data.draw(st.integers(0, len(instance.requests) - 1))
    fewer = replace(instance, requests=tuple(r for i, r in enumerate(instance.requests) if i != out))
    shown = document(stated, runs=instance.limits.batch_requests is not None)
    assert proved(fewer, shown) <= proved(instance, shown)


@pytest.mark.slow
def test_a_slower_clock_scales_the_bound() -> None:
    assert ramp(shorter_requests(64, 1000)) == pytest.approx(1000 * ramp(shorter_requests(64)), rel=1e-4)


def test_nothing_is_said_of_few_tokens_and_other_objectives() -> None:
    assert ramp_bound(equal_requests(31), Objective.MAKESPAN) is None  # 31·32 < 1000
    assert all(ramp_bound(equal_requests(64), other) is None for other in Objective if other != Objective.MAKESPAN)


# Certificates ----------------------------------------------------------------------------------------------


def test_a_changed_price_proves_no_more_than_holds() -> None:
    instance = memory_bound(3, 10)
    for layer in range(3):
        for change in (-1, 1):
            memory = list(SPIKE["memory"])
            memory[layer] += change
            if memory[layer] >= 0:
                assert proved(instance, SPIKE | {"memory": memory}) <= 40
    assert proved(instance, SPIKE | {"memory": [0, 18, 9]}) == 39
    assert proved(instance, SPIKE | {"memory": [0, 10, 20]}) == 30


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"widths": []}, "widths is"),
        ({"widths": [1, 1, 0]}, "widths is"),
        ({"widths": [1, 1]}, "memory is"),
        ({"widths": 3}, "widths is"),
        ({"widths": [1, 1, 10**9]}, "layers, more than"),
        ({"memory": [0, 20, -1]}, "memory is"),
        ({"memory": [0, 20, 10.0]}, "memory is"),
        ({"memory": [0, True, 10]}, "memory is"),
        ({"tokens": [0]}, "tokens is"),
        ({"runs": None}, "runs is"),
        ({"prefill_tokens": "free"}, "prefill_tokens is"),
        ({"scale": 0}, "scale is"),
        ({"scale": 1.5}, "scale is"),
        ({"repeated": 3}, "repeated is"),
        ({"repeated": -1}, "repeated is"),
        ({"repeated": True}, "repeated is"),
        ({"widths": [1, 1, 2], "repeated": 2}, "repeated is"),
    ],
)
def test_prices_are_read_strictly(change: Document, reason: str) -> None:
    with pytest.raises(UnprovedError, match=reason):
        proved(memory_bound(3, 10), SPIKE | change)


def test_certificates_are_read_strictly() -> None:
    few = memory_bound(3, 10)

    def refusal(objective: Objective = Objective.MAKESPAN, instance: Instance = few, **certificate: object) -> str:
        terms = {"kind": "ramp", "prefill_step_ps": 0} | certificate
        with pytest.raises(UnprovedError) as error:
            proved_bound(instance, Restrictions(), objective, terms)
        return str(error.value)

    assert "release_ps is 7" in refusal(release_ps=7, prices=[SPIKE])
    assert "release_ps is None" in refusal(prices=[SPIKE])
    assert "prices is None" in refusal(release_ps=0)
    assert "prices is [3]" in refusal(release_ps=0, prices=[3])
    for step in (1, -1, None, False, 0.0):
        assert f"prefill_step_ps is {step}" in refusal(release_ps=0, prices=[SPIKE], prefill_step_ps=step)
    wide = SPIKE | {"widths": [1, 1, 49_998]}
    assert "150000 layers, more than" in refusal(release_ps=0, prices=[wide] * 3)
    # 2 entries of 50,000 layers, and a request that generates 999 tokens: 1001 for each layer.
    long = replace(few, requests=(Request(1, 999),))
    assert "100100000 tokens in layers, more than" in refusal(instance=long, release_ps=0, prices=[wide] * 2)
    assert "prompts is []" in refusal(release_ps=0, prices=[SPIKE], prompts=[])
    assert "ascending" in refusal(release_ps=0, prices=[SPIKE], prompts=[2, 1])
    assert "both sides of 1" in refusal(release_ps=0, prices=[SPIKE], prompts=[2, 3])
    assert "both sides of 1" in refusal(release_ps=0, prices=[], prompts=[3])
    assert "makespan" in refusal(Objective.MEAN_E2E, release_ps=0, prices=[SPIKE])


def test_a_programme_whose_simplex_method_goes_round_in_circles_is_given_up() -> None:
    """Prefill steps of 10¹⁵ ps beside decodes of 2: the dual simplex method of SciPy 1.17.1 never ended."""
    kinds = {(3, 13): 22, (8, 8): 17, (3, 14): 15, (4, 29): 13, (8, 11): 11}
    requests = tuple(Request(*kind) for kind, number in kinds.items() for _ in range(number))
    cost = CostModel(base=40, token=0, decode_kv=2, prefill_sq=1, prefill_req=10**15)
    rules = Rules(hybrid=False, chunked_prefill=False)
    odd = Instance("odd", Limits(100, 30, 30), rules, cost, requests)
    found = ramp_bound(odd, Objective.MAKESPAN)
    served = simulate(odd, "vllm", Objective.MAKESPAN).value
    assert served is not None
    assert found is None or found.value <= served
