"""RR-SJF and its baselines, against decisions worked by hand from the paper's text."""

from __future__ import annotations

from dataclasses import replace as tuned
from itertools import groupby

import numpy as np
import pytest
from playing import decisions, problem

from optsched import Instance, Limits, Request, Rules
from optsched.model.cost import CostModel
from optsched.model.domain import replace
from optsched.policies.fcfs import FCFS_HY
from optsched.policies.grouped import Margins
from optsched.policies.round_robin import RR, RR_SJF, RoundRobin
from optsched.policies.shortest import ShortestFirst
from optsched.simulator.replica import Policy, Preparing
from papers.rr_sjf import FITTED, arriving, latencies, policies, workload
from papers.serving import COST

ALONE = tuned(FCFS_HY, margins=Margins(residents=1))
"""The engine with one request at a time."""


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        # FCFS runs each request to its end in the order in which they came, SJF by ascending length.
        (ALONE, [(1, 7), (2, 2), (3, 4), (4, 3)]),
        (ShortestFirst(ALONE), [(2, 2), (4, 3), (3, 4), (1, 7)]),
        # RR preempts after 2 tokens; request 1 is alone at the end and goes on.
        (RoundRobin(shortest=False, steps=2), [(1, 2), (2, 2), (3, 2), (4, 2), (1, 2), (3, 2), (4, 1), (1, 3)]),
        # RR-SJF: request 2 ends within its slice; 4, 3 and 1 have a slice each before the next round.
        (RoundRobin(shortest=True, steps=2), [(2, 2), (4, 2), (3, 2), (1, 2), (4, 1), (3, 2), (1, 5)]),
    ],
    ids=["fcfs", "sjf", "rr", "rr_sjf"],
)
def test_figure_1(policy: Policy | Preparing, order: list[tuple[int, int]]) -> None:
    """Four requests at once, whose lengths ascend in the order 2, 4, 3, 1; one runs at a time."""
    instance = problem(*(Request(1, output) for output in (7, 2, 4, 3)), runs=1)
    runs = [run[0][0] + 1 for run, _ in decisions(instance, policy)]
    assert [(request, len(list(times))) for request, times in groupby(runs)] == order


def test_preempted_requests_stay_preempted_if_that_does_not_suffice() -> None:
    # Algorithm 1, the while loop and the line after it; slices of 2 tokens, M = 12, batches of 10 ps.
    instance = problem(Request(2, 9), Request(2, 9, 5), Request(10, 1, 15), kv=12)
    assert decisions(instance, RoundRobin(shortest=True, steps=2))[:5] == [
        ([(0, 2)], []),
        ([(0, 1), (1, 2)], []),
        # Request 2 needs 10. After a decode of both 12 - 4 - 3 = 5 are free; without request 0, the only one that has
        # had its slice, 9. It is preempted, request 2 is not scheduled, and request 1 decodes.
        ([(1, 1)], [0]),
        # Now request 1 has had its slice, too.
        ([(2, 10)], [1]),
        # Both refill what they had: 2 + 2 tokens.
        ([(0, 4), (1, 4)], []),
    ]


def test_a_request_that_has_not_had_its_slice_is_not_preempted() -> None:
    # As above, but with slices of 3 tokens nothing is eligible when request 2 comes; a batch later request 0 is.
    instance = problem(Request(2, 9), Request(2, 9, 5), Request(10, 1, 15), kv=12)
    found = decisions(instance, RoundRobin(shortest=True, steps=3))
    assert found[2:5] == [([(0, 1), (1, 1)], []), ([(1, 1)], [0]), ([(2, 10)], [1])]


def test_nothing_is_preempted_for_a_request_that_fits() -> None:
    instance = problem(Request(2, 9), Request(3, 1, 15), kv=12)
    assert [evict for _, evict in decisions(instance, RoundRobin(shortest=True, steps=1)) if evict] == []


def test_waiting_time_comes_before_priority() -> None:
    # Algorithm 1 sorts by waiting time, priority breaks ties: the long request that came earlier goes first.
    instance = problem(Request(2, 3), Request(2, 9, 1), Request(2, 1, 2), runs=1)
    runs = [run[0][0] for run, _ in decisions(instance, RoundRobin(shortest=True, steps=5))]
    assert runs[:5] == [0, 0, 0, 1, 1]


# Causes on the page of findings --------------------------------------------------------------------------------

L4 = CostModel(
    base=8_200_000_000,
    token=0,
    pieces=((0, 34_000_000),),
    decode_kv=109_000,
    decode_req=5_000_000,
    prefill_sq=1_100,
    prefill_req=50_000_000,
)
"""Roofline of the paper's machine and model: 2.47 GB of weights and 32,768 B a KV token at 300 GB/s, 2.5 GFLOP a token
at 60 % of 121 TFLOPS."""
PLACES = 50


def few(kind: str, cost: CostModel) -> Instance:
    """Return 200 requests, of which 50 run."""
    instance = workload(kind, 1, 500, cost)
    limits = replace(instance.limits, batch_requests=PLACES)
    return replace(instance, requests=instance.requests[:200], limits=limits)


def quarter(kind: str, cost: CostModel) -> float:
    """Return how many times RR-SJF's 25th percentile of latency is below RR's."""
    rr, ours = (np.percentile(latencies(few(kind, cost), policy)[1], 25) for policy in (RR, RR_SJF))
    return float(rr / ours)


@pytest.mark.slow
def test_the_short_outputs_decide_and_not_the_machine() -> None:
    uniform = quarter("rr-sjf", COST)
    assert quarter("rr-sjf", L4) == pytest.approx(uniform, rel=0.15)
    assert quarter(FITTED, COST) > 2 * uniform


@pytest.mark.slow
def test_the_median_lies_where_latency_doubles() -> None:
    _, last = latencies(few(FITTED, COST), RR_SJF)
    assert np.percentile(last, 60) > 2 * np.percentile(last, 40)


@pytest.mark.slow
def test_one_long_request_more_than_fills_two_waves_starts_a_third() -> None:
    """Twenty places, 20 short requests, 40 or 41 long ones: largest TTFT."""

    def largest(policy: Policy | Preparing, long: int) -> float:
        requests = tuple(Request(20, output) for output in [20] * 20 + [1024] * long)
        instance = Instance("waves", Limits(600_000, 4096, 4096, 20), Rules(), COST, requests)
        return float(latencies(instance, policy)[0].max())

    sjf = ShortestFirst(tuned(FCFS_HY, margins=Margins(residents=20)))
    assert largest(sjf, 41) > 1.5 * largest(sjf, 40)
    assert largest(RR_SJF, 41) < 1.1 * largest(RR_SJF, 40)


@pytest.mark.slow
def test_noise_leaves_the_longest_last() -> None:
    instance = few(FITTED, COST)
    sjf = ShortestFirst(tuned(FCFS_HY, margins=Margins(residents=PLACES)))
    first, _ = latencies(instance, sjf, 200)
    outputs = np.array([request.output for request in instance.requests])
    assert np.mean(outputs[first >= np.percentile(first, 65)] == 1024) > 0.9


@pytest.mark.slow
def test_the_ratio_of_medians_grows_with_the_rate() -> None:
    at_once, sorts = workload(FITTED, 2, 500), policies(500)
    completed = 500 / latencies(at_once, sorts["fcfs"])[1].max()
    loads = (arriving(at_once, 2, 1.7 * completed), arriving(at_once, 2, 3.4 * completed), at_once)
    ratios = [np.median(latencies(one, sorts["fcfs"])[0]) / np.median(latencies(one, RR_SJF)[0]) for one in loads]
    assert ratios[0] < ratios[1] < ratios[2], ratios
