"""The shipped suites have what their descriptions say."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations, pairwise, product

import pytest

from optsched.bounds.volume import volume_bound
from optsched.library import load_instance, load_suite, suite_names
from optsched.methods.policies import policy_names
from optsched.methods.simulate import simulate
from optsched.model.documents import instance_sha256
from optsched.model.domain import replace
from optsched.model.instance import Instance, Limits, Rules
from optsched.model.restrictions import Restrictions
from optsched.traces.standin import stand_in

LADDER = (*load_suite("ladder").instances, *load_suite("ladder-b").instances)
SHORT, LONG = {4, 8}, {32, 64}
FEW, MANY = {2, 4}, {8, 16}


def test_each_ladder_has_twenty_instances_of_each_size() -> None:
    assert Counter(len(instance.requests) for instance in LADDER) == dict.fromkeys((4, 6, 8, 12, 16, 24, 32), 40)
    assert all((i.limits.batch_tokens, i.limits.prefill_tokens) == (4096, 4096) for i in LADDER)
    assert not any(instance.rules.chunked_prefill for instance in LADDER)


@pytest.mark.parametrize("instance", LADDER, ids=lambda instance: instance.name)
def test_the_memory_of_the_ladder(instance: Instance) -> None:
    kappa = 2 if "-k2" in instance.name else 8
    shares = [Fraction(r.kv_volume, r.output) for r in instance.requests]
    mean = sum(shares, Fraction(0)) / len(shares)
    assert instance.limits.kv_tokens == max(int(kappa * mean), *(r.input + r.output - 1 for r in instance.requests))


@pytest.mark.parametrize("instance", [i for i in LADDER if "+" in i.name], ids=lambda instance: instance.name)
def test_half_of_a_mix_is_of_each_group(instance: Instance) -> None:
    groups = {"SISO": (SHORT, FEW), "SILO": (SHORT, MANY), "LISO": (LONG, FEW), "LILO": (LONG, MANY)}
    for name in instance.name.removeprefix("ladder-").removeprefix("b-").split("-")[1].split("+"):
        inputs, outputs = groups[name]
        members = [r for r in instance.requests if r.input in inputs and r.output in outputs]
        assert len(members) == len(instance.requests) / 2


def test_arrivals_come_at_the_rate_of_the_volume_bound() -> None:
    online = [instance for instance in LADDER if not instance.offline]
    assert len(online) == 56
    assert {"-".join(instance.name.split("-")[-3:]) for instance in online} == {
        f"{mix}-k{kappa}-poisson" for mix in ("LILO+SISO", "SILO+LISO") for kappa in (2, 8)
    }
    intervals = []
    for instance in online:
        offline = replace(instance, requests=tuple(replace(r, arrival_ps=0) for r in instance.requests))
        mean = volume_bound(offline).value / len(instance.requests)
        arrivals = [request.arrival_ps for request in instance.requests]
        assert arrivals[0] == 0
        intervals += [(later - earlier) / mean for earlier, later in pairwise(arrivals)]
    # Exponential with mean 1; five standard errors.
    assert abs(sum(intervals) / len(intervals) - 1) < 5 / len(intervals) ** 0.5
    assert min(intervals) >= 0


@pytest.mark.slow
@pytest.mark.parametrize("instance", load_suite("chunked-small").instances, ids=lambda instance: instance.name)
def test_the_prefill_budget_matters(instance: Instance) -> None:
    """Prefills alone take more batches than a whole schedule does with large budgets."""
    limits = instance.limits
    assert all(request.input > limits.prefill_tokens for request in instance.requests)
    assert instance.infeasibilities() == ()
    assert Restrictions(("chunked",)).apply(instance).infeasibilities() != ()
    roomy = replace(instance, limits=replace(limits, batch_tokens=4096, prefill_tokens=4096))
    runs = [simulate(roomy, policy) for policy in policy_names()]
    fewest = min(run.metrics["batches"] for run in runs if run.metrics is not None)
    assert sum(request.input for request in instance.requests) > limits.prefill_tokens * fewest


def test_figure_15_is_also_there_with_chunked_prefill() -> None:
    whole, chunked = (load_suite(name).instances for name in ("infermax-fig15", "infermax-fig15-chunked"))
    for first, second in zip(whole, chunked, strict=True):
        rules = replace(first.rules, chunked_prefill=True)
        assert second == replace(first, name=first.name.replace("fig15", "fig15-chunked"), rules=rules)


MIXES = load_suite("infermax-mix-b1024").instances


def test_the_six_mixes() -> None:
    """Of the six pairs of four groups each is there once."""
    names = {frozenset(instance.name.removeprefix("infermax-mix-b1024-").split("+")) for instance in MIXES}
    assert names == {frozenset(pair) for pair in combinations(("SISO", "SILO", "LISO", "LILO"), 2)}
    assert len(MIXES) == 6


@pytest.mark.parametrize("instance", MIXES, ids=lambda instance: instance.name)
def test_a_mix(instance: Instance) -> None:
    lengths = {"S": {8, 16}, "L": {512, 1024}}
    assert instance.limits == Limits(100_000, 4096, 4096)
    assert instance.rules == Rules()
    assert instance.cost == load_instance("infermax-b1024-I1-O1").cost
    assert len(instance.requests) == 1024
    of_group = []
    for group in instance.name.removeprefix("infermax-mix-b1024-").split("+"):
        inputs, outputs = lengths[group[0]], lengths[group[2]]
        members = [i for i, r in enumerate(instance.requests) if r.input in inputs and r.output in outputs]
        of_group.append(members)
        assert len(members) == 512
        # All four pairs of lengths, 128 of each on average; five standard errors of a binomial (512, 1/4).
        counts = Counter((instance.requests[i].input, instance.requests[i].output) for i in members)
        assert set(counts) == set(product(inputs, outputs))
        assert all(abs(number - 128) < 5 * 96**0.5 for number in counts.values())
    # Shuffled: of 1023 neighbours half are of the same group on average; five standard errors.
    first = set(of_group[0])
    same = sum((i in first) == (i + 1 in first) for i in range(1023))
    assert abs(same - 511.5) < 5 * (1023 / 4) ** 0.5


def test_no_problem_is_shipped_twice() -> None:
    hashes = Counter(instance_sha256(i) for name in suite_names() for i in load_suite(name).instances)
    assert max(hashes.values()) == 1


def test_prebles_mix_has_azures_arrivals() -> None:
    """Section 5.3: tools where code arrives, videos where conversations do; times between arrivals times 0.7."""
    shipped = load_suite("preble-azure-mix").instances
    fast, *slower = shipped
    assert [instance.name for instance in shipped] == [f"preble-azure-mix-{gaps}" for gaps in ("0.7", "1.4", "2.8")]
    code, chat = (stand_in(f"azure-{kind}").requests for kind in ("code", "conv"))
    for prefix, trace in (("toolbench", code), ("video-qa", chat)):
        times = [r.arrival_ps for r in fast.requests if r.prefix[0].startswith(prefix)]
        assert times == [r.arrival_ps * 7 // 10 for r in trace[: len(times)]]
    assert len(fast.requests) == 1000
    assert len(fast.machines) == 4
    for factor, instance in zip((2, 4), slower, strict=True):
        for first, second in zip(fast.requests, instance.requests, strict=True):
            assert 0 <= second.arrival_ps - factor * first.arrival_ps < factor
            assert replace(second, arrival_ps=0) == replace(first, arrival_ps=0)


def test_figure_12_has_the_same_requests_on_other_machines() -> None:
    shipped = load_suite("econoserve-fig12").instances
    assert len(shipped) == 4 * 9
    for rate, place in zip((4, 8, 16, 24), range(0, 36, 9), strict=True):
        apart, *equal = shipped[place : place + 9]
        assert [machine.role.value for machine in apart.machines] == ["prefill"] * 4 + ["decode"] * 4
        assert [len(instance.machines) for instance in equal] == list(range(1, 9))
        assert {instance.requests for instance in equal} == {apart.requests}
        # Exponential with mean 1 / rate; five standard errors.
        span = (apart.requests[-1].arrival_ps - apart.requests[0].arrival_ps) / 10**12
        assert abs(span * rate / 299 - 1) < 5 / 299**0.5
        assert all(request.slo_e2e_ps for request in apart.requests)
