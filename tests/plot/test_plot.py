"""Figures say what the schedules say: their artists are counted, not their pixels."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from fractions import Fraction
from io import StringIO
from itertools import cycle, groupby, islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from commands import optsched as run
from hypothesis import given, settings
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from playing import TEN, problem
from strategies import instances

import eviction_figure
from optsched import bound, plot, save_result, simulate, solve
from optsched.library import load_instance, load_suite
from optsched.model.activity import STEPS, Activity, Change, Mark, Span, activities
from optsched.model.cluster import CacheMode, CacheRules, Link
from optsched.model.domain import replace
from optsched.model.errors import InputError
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.objectives import Objective
from optsched.model.result import Badge, Result, Status
from optsched.model.schedule import Batch, Move, Schedule
from optsched.plot.common import MARKERS, looks, methods_of
from optsched.plot.gantt import ACTIVITY_COLORS
from optsched.plot.gaps import GapRange, Reference
from optsched.plot.pareto import Impossible, impossible_region, means_of, pareto_front
from optsched.plot.profile import value_ratios
from optsched.plot.router_map import Stay, stays_of
from optsched.report.figure import COLORS
from optsched.solvers.formulation import ProgressEvent

# Worked by hand: every batch takes 10 ps. Request 0 (I = 4, O = 3) is filled, decodes, is evicted while 1 runs, and is
# refilled; request 1 arrives at 5, and keeps its KV while 0 is refilled.
EVICTED = problem(Request(4, 3), Request(2, 2, 5), kv=8, budget=8)
HISTORY = Schedule(
    (
        Batch(0, 10, ((0, 4),)),
        Batch(10, 20, ((0, 1),)),
        Batch(20, 30, ((1, 2),), evict=(0,)),
        Batch(35, 45, ((0, 6),)),
        Batch(45, 55, ((1, 1),)),
    )
)
WORKED = Result(EVICTED, "by_hand", Objective.MAKESPAN, Status.FEASIBLE, value=55, schedule=HISTORY)


def test_activities_of_the_worked_schedule() -> None:
    found = activities(EVICTED, HISTORY)
    own = {index: [span for span in found.spans if span.request == index] for index in (0, 1)}
    assert own[0] == [
        Span(0, 0, Activity.PREFILL, 0, 10, 4, 1, 1),
        Span(0, 0, Activity.DECODE, 10, 20, 1, 1, 1),
        Span(0, 0, Activity.WAIT, 20, 35),
        Span(0, 0, Activity.REFILL, 35, 45, 6, 1, 1),
    ]
    assert own[1] == [
        Span(1, 0, Activity.WAIT, 5, 20),
        Span(1, 0, Activity.PREFILL, 20, 30, 2, 1, 1),
        Span(1, 0, Activity.KEEP, 30, 45),
        Span(1, 0, Activity.DECODE, 45, 55, 1, 1, 1),
    ]
    assert found.marks == (Mark(0, 0, Change.EVICT, 20, 5),)


def test_rows_of_the_worked_schedule() -> None:
    """Request 0: first token at 10, last at 45, two tokens in 35 ps. Request 1: first at 30, last at 55, since 5."""
    first, second = WORKED.requests()
    assert (first.ttft_ps, first.e2e_ps, first.tpot_ps, first.evictions, first.computed_tokens) == (10, 45, 17.5, 1, 11)
    assert (second.ttft_ps, second.e2e_ps, second.tpot_ps, second.evictions) == (25, 50, 25.0, 0)


def test_swaps_and_hits() -> None:
    rules = Rules(swap=True)
    instance = problem(Request(4, 2), Request(2, 1), kv=8, budget=8, rules=rules)
    schedule = Schedule(
        (Batch(0, 10, ((0, 4),)), Batch(10, 20, ((1, 2),), swap_out=(0,)), Batch(20, 30, ((0, 1),), swap_in=(0,)))
    )
    found = activities(instance, schedule)
    assert [(mark.change, mark.time_ps, mark.tokens) for mark in found.marks] == [
        (Change.SWAP_OUT, 10, 4),
        (Change.SWAP_IN, 20, 4),
    ]
    assert Span(0, 0, Activity.HOST, 10, 20) in found.spans
    cached = Schedule((Batch(0, 10, ((0, 1),), hits=((0, 3),)), Batch(10, 20, ((0, 1),)), Batch(20, 30, ((1, 2),))))
    row, _ = Result(instance, "cached", Objective.MAKESPAN, Status.FEASIBLE, value=30, schedule=cached).requests()
    assert (row.hit_tokens, row.computed_tokens, row.first_token_ps) == (3, 2, 10)


@settings(deadline=None, max_examples=60)
@given(instances(online=True))
def test_spans_tile_the_time_of_each_request(instance: Instance) -> None:
    """From its arrival to its last token a request always does exactly one thing; rows agree with the metrics."""
    result = simulate(instance, "vllm")
    if result.schedule is None or result.metrics is None:
        return
    for each in (False, True):
        found = activities(instance, result.schedule, each=each)
        for index, request in enumerate(instance.requests):
            spans = [span for span in found.spans if span.request == index]
            assert spans[0].start_ps == request.arrival_ps
            assert all(before.end_ps == after.start_ps for before, after in pairwise(spans))
            assert sum(span.generated for span in spans) == request.output
    rows = result.requests()
    assert Fraction(sum(row.e2e_ps for row in rows), len(rows)) == result.metrics["objectives"]["mean_e2e"] / Fraction(
        len(rows)
    )
    assert max(row.last_token_ps for row in rows) - instance.start_ps == result.metrics["objectives"]["makespan"]
    assert sum(row.ttft_ps for row in rows) == result.metrics["objectives"]["mean_ttft"]
    assert sum(row.evictions for row in rows) == result.metrics["evictions"]
    needed = sum(request.input + request.output - 1 for request in instance.requests)
    assert sum(row.computed_tokens for row in rows) - needed == result.metrics["recomputed_tokens"]


def _drawn(ax: Axes) -> dict[str, int]:
    """Count the boxes, lines and marks of each kind."""
    return {
        str(each.get_gid()): len(np.asarray(each.get_offsets()))
        if str(each.get_gid()) in set(Change)
        else len(each.get_paths())
        for each in ax.collections
        if each.get_gid()
    }


def _points(line: Line2D) -> list[tuple[float, float]]:
    """Return the points of a curve."""
    return [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]


def _heights(line: Line2D) -> list[float]:
    return [y for _, y in _points(line)]


def test_gantt_of_the_worked_schedule() -> None:
    ax = plot.gantt(WORKED)
    assert _drawn(ax) == {"prefill": 2, "decode": 2, "refill": 1, "keep": 1, "wait": 2, "evict": 1}
    (refill,) = (each for each in ax.collections if each.get_gid() == "refill")
    box = refill.get_paths()[0].get_extents()
    assert (box.x0, box.x1) == (35, 45)
    assert 0 < box.y1 - box.y0 < 1
    by_batch = plot.gantt(WORKED, axis="batch")
    (refill,) = (each for each in by_batch.collections if each.get_gid() == "refill")
    assert (refill.get_paths()[0].get_extents().x0, refill.get_paths()[0].get_extents().x1) == (3, 4)


@pytest.mark.parametrize("policy", ["vllm", "vllm_ef", "sarathi"])
def test_boxes_are_the_steps_of_the_schedule(policy: str) -> None:
    """Counted from the documents' runs alone: a prompt's first fill, decode steps of one token, and the rest."""
    result = simulate("infermax-fig15-I8", policy)
    assert result.schedule is not None
    runs = Counter[str]()
    filled, evicted = set[int](), set[int]()
    for assignment in result.schedule.assignments():
        for index in assignment.evict:
            evicted.add(index)
            filled.discard(index)
        for index, _ in assignment.run:
            runs["decode" if index in filled else "refill" if index in evicted else "prefill"] += 1
            filled.add(index)
    drawn = _drawn(plot.gantt(result))
    assert {kind: count for kind, count in drawn.items() if kind in set(STEPS)} == dict(runs)
    assert drawn.get("evict", 0) == result.schedule.evictions


def test_many_requests_are_merged_into_few_boxes() -> None:
    """One box a request for decodes without a pause: 60 requests of 100 tokens, and memory for all."""
    requests = tuple(Request(5, 100) for _ in range(60))
    result = simulate(problem(*requests, kv=10_000), "vllm")
    drawn = _drawn(plot.gantt(result))
    assert drawn == {"prefill": 60, "decode": 60}


def test_kv_strip_follows_the_timeline() -> None:
    """After the first batch 4 tokens, then 5, then 2 (evicted), kept 2 from 30 to 35, 6 + 2, 3."""
    ax = plot.kv_strip(WORKED)
    (line,) = (each for each in ax.lines if each.get_gid() == "kv")
    changes = [next(same) for _, same in groupby(_points(line), key=lambda point: point[1])]
    assert changes == [(0, 4), (10, 5), (20, 2), (35, 8), (45, 3), (55, 0)]


def _cluster() -> Result:
    """Two machines; request 1 is filled on the first and moves to the second."""
    instance = Instance(
        "two",
        Limits(8, 8, 8),
        Rules(migration=True),
        TEN,
        (Request(4, 2), Request(2, 2)),
        replicas=2,
        links=Link(base_ps=5),
    )
    batches = (Batch(0, 10, ((0, 4), (1, 2))), Batch(10, 20, ((0, 1),)), Batch(15, 25, ((1, 1),), replica=1))
    schedule = Schedule(batches, routes=(0, 0), moves=(Move(1, 0, 1, 10, 15),))
    return Result(instance, "by_hand", Objective.MAKESPAN, Status.FEASIBLE, value=25, schedule=schedule)


def test_a_move_divides_what_a_request_does() -> None:
    """It keeps its KV at the source from 10 on, moves there until 15, and waits at the target until 20."""
    result = _cluster()
    assert result.schedule is not None
    first, second, third = result.schedule.batches
    later = replace(result.schedule, batches=(first, second, replace(third, start_ps=20, end_ps=30)))
    found = activities(result.instance, later)
    assert [span for span in found.spans if span.request == 1] == [
        Span(1, 0, Activity.PREFILL, 0, 10, 2, 1, 1),
        Span(1, 0, Activity.KEEP, 10, 15),
        Span(1, 1, Activity.KEEP, 15, 20),
        Span(1, 1, Activity.DECODE, 20, 30, 1, 1, 1),
    ]
    assert found.marks == (Mark(1, 0, Change.MOVE_OUT, 10, 2), Mark(1, 1, Change.MOVE_IN, 15, 2))
    (move,) = later.moves
    aborted = activities(result.instance, replace(later, moves=(replace(move, aborted=True),)))
    assert aborted.marks == ()
    at_once = activities(result.instance, replace(later, moves=(replace(move, end_ps=10),)))
    assert [mark.change for mark in at_once.marks] == [Change.MOVE_OUT, Change.MOVE_IN]
    assert Span(1, 1, Activity.KEEP, 10, 20) in at_once.spans
    with pytest.raises(InputError, match=r"schedule\.moves\[0\]\.target: got 7"):
        activities(result.instance, replace(later, moves=(replace(move, target=7),)))


def test_router_map_of_the_worked_cluster() -> None:
    """Both requests come to machine 0 at 0, two rows; request 1 has moved to machine 1 at 15."""
    result = _cluster()
    assert result.schedule is not None
    assert stays_of(activities(result.instance, result.schedule)) == [
        Stay(0, 0, 0, 20, 0, ()),
        Stay(1, 0, 0, 15, 1, ()),
        Stay(1, 1, 15, 25, 0, ()),
    ]
    # Alone on a machine request 0 waits from 20 to 35, and request 1, which comes at 5, until 20.
    assert stays_of(activities(EVICTED, HISTORY)) == [
        Stay(0, 0, 0, 45, 0, ((20, 35),)),
        Stay(1, 0, 5, 55, 1, ((5, 20),)),
    ]
    ax = plot.router_map(result)
    segments = {
        line.get_gid(): [[tuple(point) for point in segment] for segment in line.get_segments()]
        for line in ax.collections
        if isinstance(line, LineCollection)
    }
    # Two rows of machine 0 at −0.215 and 0.215, a quarter of its lane of 0.86 from the middle; one row of machine 1.
    assert segments["held"] == [[(0, -0.215), (20, -0.215)], [(0, 0.215), (15, 0.215)], [(15, 1), (25, 1)]]
    assert segments["move"] == [[(15, 0.215), (15, 1)]]
    assert segments["wait"] == []
    assert [label.get_text() for label in ax.get_yticklabels()] == ["machine 0\n2 requests", "machine 1\n1 requests"]
    with pytest.raises(InputError, match="one result for a router map"):
        plot.router_map([result, result])


def test_the_colour_of_a_map_is_the_share_in_the_cache() -> None:
    """The cache has 3 of the 4 tokens of request 0 and none of request 1, the two ends of what is drawn here."""
    instance = replace(problem(Request(4, 2), Request(2, 1), kv=8, budget=8), cache=CacheRules(CacheMode.PREFIX))
    schedule = Schedule((Batch(0, 10, ((0, 1),), hits=((0, 3),)), Batch(10, 20, ((0, 1),)), Batch(20, 30, ((1, 2),))))
    ax = plot.router_map(Result(instance, "cached", Objective.MAKESPAN, Status.FEASIBLE, value=30, schedule=schedule))
    (held,) = (line for line in ax.collections if isinstance(line, LineCollection) and line.get_gid() == "held")
    held.update_scalarmappable()  # what drawing does first
    assert np.array_equal(held.get_colors(), [colormaps["viridis_r"](0.75), colormaps["viridis_r"](0.0)])


def test_results_of_one_method_are_told_apart() -> None:
    """Of the options only the router differs, and only where one instance was run with several."""
    routed = [replace(WORKED, options={"router": name, "evictor": "lru"}) for name in ("sal", "e2")]
    other = replace(WORKED, method="other", options={"router": "sal"})
    names = ["by_hand(router=sal)", "by_hand(router=e2)", "other"]
    assert methods_of([*routed, other]) == names
    assert methods_of(routed[:1]) == ["by_hand"]
    _, labels = plot.cdf([*routed, other]).get_legend_handles_labels()
    assert labels == names


def test_curves_and_points_are_told_apart() -> None:
    """Four styles and seven colours have 28 pairs; eight marks and seven colours 56."""
    pairs = list(islice(looks(), 29))
    assert len(set(pairs)) == 28
    assert all(before[0] != after[0] and before[1] != after[1] for before, after in pairwise(pairs))
    assert len(set(islice(zip(cycle(MARKERS), cycle(COLORS), strict=False), 56))) == 56


def test_a_figure_is_higher_by_its_legend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All the policies that there are, in one column of a paper: nothing is said of axes without room."""
    source, few, many = (str(tmp_path / name) for name in ("r.json", "few.svg", "many.svg"))
    assert run(capsys, "simulate", "infermax-fig15-I8", "--policy", "all", "--out", source).code == 0
    assert run(capsys, "plot", "cdf", source, "--out", many, "--width", "3.5") == (0, "", "")
    save_result(simulate("infermax-fig15-I8", "vllm"), source)
    assert run(capsys, "plot", "cdf", source, "--out", few, "--width", "3.5") == (0, "", "")
    heights = [re.search(r'height="([\d.]+)pt"', Path(file).read_text(encoding="utf-8")) for file in (few, many)]
    low, high = (float(found[1]) for found in heights if found is not None)
    assert low == 2.7 * 72
    assert high > 2 * low


def test_machines_are_lanes() -> None:
    result = _cluster()
    first, _, second, _ = plot.gantt_figure(result).axes
    assert _drawn(first) == {"prefill": 2, "decode": 1, "keep": 1, "move out": 1}
    assert _drawn(second) == {"decode": 1, "move in": 1}
    assert [row.machine for row in result.requests()] == [0, 1]
    assert first.get_title("left") == "by_hand, machine 0"
    alone = replace(result.instance, rules=Rules())
    apart = Schedule(
        (
            Batch(0, 10, ((0, 4),)),
            Batch(0, 10, ((1, 2),), replica=1),
            Batch(10, 20, ((0, 1),)),
            Batch(10, 20, ((1, 1),), replica=1),
        ),
        routes=(0, 1),
    )
    strips = plot.gantt_figure(replace(result, instance=alone, schedule=apart)).axes[1::2]
    heights = [_heights(next(each for each in ax.lines if each.get_gid() == "kv")) for ax in strips]
    assert heights == [[4, 5, 0], [2, 3, 0]]


def test_a_schedule_of_another_instance_is_refused() -> None:
    wrong = replace(WORKED, schedule=Schedule((Batch(0, 10, ((7, 4),)),)))
    with pytest.raises(InputError, match=r"schedule.batches\[0\].run: got 7, expected indices from 0 to 1"):
        plot.gantt(wrong)


def _lightness(color: str) -> float:
    """Return L* of a colour (CIE 1976)."""
    linear = [part / 12.92 if part <= 0.04045 else math.pow((part + 0.055) / 1.055, 2.4) for part in to_rgb(color)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 116 * math.cbrt(luminance) - 16


def test_steps_differ_in_lightness() -> None:
    """Whatever colours a reader tells apart, prefill, refill and decode differ by 20 of 100 in lightness at least."""
    light = sorted(_lightness(ACTIVITY_COLORS[each]) for each in STEPS)
    assert min(after - before for before, after in pairwise(light)) > 20


def test_trace_events_last_as_long_as_the_batches() -> None:
    result = simulate("infermax-fig15-I64", "vllm")
    assert result.schedule is not None
    trace = json.loads(json.dumps(plot.trace_events([result, WORKED])))
    batches = [each for each in trace["traceEvents"] if each["ph"] == "X" and each["tid"] == 0 and each["pid"] == 1]
    lasting = sum(batch.end_ps - batch.start_ps for batch in result.schedule.batches)
    assert sum(round(1e6 * each["dur"]) for each in batches) == lasting
    assert sum(each["args"]["batches"] for each in batches) == result.schedule.length
    own = [each for each in trace["traceEvents"] if each["ph"] == "X" and each["pid"] == 2 and each["tid"] == 1]
    assert [(each["name"], round(1e6 * each["ts"]), round(1e6 * each["dur"])) for each in own] == [
        ("prefill", 0, 10),
        ("decode", 10, 10),
        ("wait", 20, 15),
        ("refill", 35, 10),
    ]
    (evicted,) = (each for each in trace["traceEvents"] if each["ph"] == "i" and each["pid"] == 2)
    assert (evicted["name"], evicted["args"]) == ("evict", {"kv_tokens": 5})


def test_cdf_is_a_staircase_of_the_rows() -> None:
    ax = plot.cdf(WORKED, latency="tpot")
    (line,) = ax.lines
    assert _points(line) == [(17.5, 0), (17.5, 0.5), (25, 1)]
    with pytest.raises(InputError, match="TPOT needs two output tokens"):
        plot.cdf(simulate(problem(Request(3, 1)), "vllm"), latency="tpot")


def _valued(instance: Instance, method: str, value: int | None, limit: int | None = None) -> Result:
    badge = Badge.HEURISTIC if limit is None else Badge.CERTIFIED
    return Result(instance, method, Objective.MAKESPAN, Status.FEASIBLE, badge, value=value, bound=limit)


def test_gaps_are_ranges_where_the_optimum_is_open() -> None:
    """Best value 80, bound 60. A value of 100 is 20 % above the best and 40 % above the bound."""
    results = [_valued(EVICTED, "a", 100), _valued(EVICTED, "b", 80), _valued(EVICTED, "c", None, 60)]
    reference = Reference(results)
    assert reference.gap(results[0]) == GapRange(0.2, 0.4)
    assert reference.gap(results[1]) == GapRange(0.0, 0.25)
    ax = plot.gap(results)
    bars = [_heights(each) for each in ax.lines if each.get_gid() == "open"]
    assert bars == [[20, 40], [0, 25]]
    closed = plot.gap([*results, _valued(EVICTED, "d", 80, 80)])
    assert not [each for each in closed.lines if each.get_gid() == "open"]
    points = [_heights(each) for each in closed.lines if each.get_gid() == "closed"]
    assert points == [[20], [0], [0]]
    with pytest.raises(InputError, match="no gap"):
        plot.gap(results[:2])


def test_performance_profile_by_hand() -> None:
    """Values 10 and 20 on one instance, 30 and none on the other: a is the best twice, b is 2 times the best once."""
    other = replace(EVICTED, limits=Limits(9, 9, 9))
    results = [_valued(EVICTED, "a", 10), _valued(EVICTED, "b", 20), _valued(other, "a", 30), _valued(other, "b", None)]
    assert value_ratios(results) == {"a": [1.0, 1.0], "b": [2.0, float("inf")]}
    first, second = plot.performance(results).lines
    assert _points(first) == [(1, 0), (1, 0.5), (1, 1), (2.06, 1)]
    assert _points(second) == [(1, 0), (2, 0.5), (2.06, 0.5)]
    bounded = Result(EVICTED, "volume", Objective.MAKESPAN, Status.BOUND_ONLY, Badge.CERTIFIED, bound=5)
    assert value_ratios([*results, bounded]) == value_ratios(results)
    with pytest.raises(InputError, match="got bounds alone, expected results with values"):
        plot.performance(bounded)


def test_pareto_front_by_hand() -> None:
    assert pareto_front([(1, 9), (2, 5), (3, 5), (4, 6), (5, 1)]) == [(1, 9), (2, 5), (5, 1)]


@settings(deadline=None, max_examples=25)
@given(instances(online=True, most_requests=2))
def test_no_schedule_is_in_the_region_that_is_proved_impossible(instance: Instance) -> None:
    """Neither those of policies nor the optima of TTFT and of e2e latency."""
    if max(request.output for request in instance.requests) == 1:
        return
    region = impossible_region(instance)
    found = [simulate(instance, policy) for policy in ("vllm", "sarathi", "rr_sjf")]
    found += [solve(instance, goal, time_limit=5, workers=1) for goal in ("mean_ttft", "mean_e2e")]
    for result in found:
        if result.schedule is not None:
            ttft, tpot = means_of(result)
            assert ttft >= region.least_ttft
            assert tpot >= region.least_tpot(ttft) - 1e-9


def test_region_by_hand() -> None:
    """Two requests of three tokens: TTFTs of 20 in all, TPOTs of 8, e2e latencies of 60: 2 x + 2 (2 y + 2) ≥ 60."""
    region = Impossible(ttft=20, tpot=8, e2e=60, requests=2, decoding=2, most_output=3)
    assert region.least_ttft == 10
    assert region.least_tpot(10) == (60 - 20 - 4) / 4
    assert region.corner_ttft == (60 - 2 * (8 + 2)) / 2
    assert region.least_tpot(region.corner_ttft) == 4
    assert region.least_tpot(1000) == 4


def test_bounds_over_time_never_get_worse() -> None:
    events = [ProgressEvent(1, 100, 40), ProgressEvent(2, 100, 30), ProgressEvent(3, 90, 60)]
    ax = plot.bounds(plot.History(events))
    curves = {each.get_gid(): _heights(each) for each in ax.lines if each.get_gid()}
    assert curves == {"incumbent": [100, 100, 90, 90], "bound": [40, 40, 60, 60]}
    assert [each.get_text() for each in ax.texts] == ["gap 33.3 %"]


def test_a_search_in_stages_has_one_clock_and_forgets_nothing() -> None:
    """Bounds and policies come before the formulation here, which counts from its own start and knows less."""
    history = plot.History()
    history.end(solve("infermax-fig15-I8", method="token_cpsat", time_limit=30, workers=1, progress=history))
    times = [each.elapsed_s for each in history.events]
    values = [each.incumbent for each in history.events if each.incumbent is not None]
    bounds = [each.bound for each in history.events if each.bound is not None]
    assert len(history.events) > 2
    assert times == sorted(times)
    assert values == sorted(values, reverse=True)
    assert bounds == sorted(bounds)


def test_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "h.csv"
    file.write_text(plot.History([ProgressEvent(0.25, None, 3), ProgressEvent(1.5, 10**18, 4)]).csv())
    assert plot.History.read(file).events == [ProgressEvent(0.25, None, 3), ProgressEvent(1.5, 10**18, 4)]
    file.write_text("elapsed_s,incumbent,bound\n1,x,2\n")
    with pytest.raises(InputError, match=r"h.csv: line 2: got '1,x,2', expected seconds and two integers"):
        plot.History.read(file)


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_commands_draw(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, magic = str(tmp_path / "r.json"), {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    instance = load_instance("infermax-fig15-I8")
    save_result([simulate(instance, "vllm"), simulate(instance, "vllm_ef"), bound(instance)][:2], source)
    for command in ("gantt", "cdf", "performance", "pareto"):
        target = tmp_path / f"{command}.{kind}"
        assert run(capsys, "plot", command, source, "--out", str(target), "--width", "3.5").code == 0
        assert target.read_bytes().startswith(magic[kind])


def test_wrong_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, illegal = str(tmp_path / "r.json"), str(tmp_path / "illegal.json")
    save_result(simulate("infermax-fig15-I8", "vllm"), source)
    late = replace(HISTORY.batches[0], end_ps=9)
    save_result(replace(WORKED, schedule=replace(HISTORY, batches=(late, *HISTORY.batches[1:]))), illegal)
    out = str(tmp_path / "f.svg")
    for arguments, expected in {
        ("gantt", source, "--out", "f.gif"): "--out: got 'f.gif', expected a file name that ends in .svg, .png, .pdf",
        ("gantt", source, "--out", out, "--axis", "batc"): "--axis: got 'batc'",
        ("gantt", source, "--out", out, "--label", "a", "--label", "b"): "--label: got 2 labels, expected 1",
        ("gantt", illegal, "--out", out): "illegal.json: schedule: got batch 0",
        ("gap", source, "--out", out): "no gap",
        ("gap", source, "--out", out, "--over", "size"): "--over: got 'size'",
        ("cdf", source, "--out", out, "--width", "0"): "--width: got 0",
        ("bounds", source, "--out", out): "line 1",
    }.items():
        outcome = run(capsys, "plot", *arguments)
        assert outcome.code == 2
        assert expected in outcome.err
        assert outcome.err.count("\n") == 1


def test_rows_of_requests_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run(capsys, "simulate", "infermax-fig15-I8", "--policy", "vllm,vllm_ef", "--requests", "-")
    rows = list(csv.DictReader(StringIO(outcome.out)))
    assert [row["policy"] for row in rows] == ["vllm"] * 4 + ["vllm_ef"] * 4
    assert [row["evictions"] for row in rows] == ["0", "1", "0", "1", "0", "0", "0", "0"]
    both = run(capsys, "simulate", "infermax-fig15-I8", "--policy", "vllm", "--requests", "-", "--timeline", "-")
    assert both.code == 2


@pytest.mark.slow
def test_the_figure_of_the_readme_is_current(tmp_path: Path) -> None:
    eviction_figure.draw(tmp_path / "now.svg")
    assert (tmp_path / "now.svg").read_bytes() == eviction_figure.FIGURE.read_bytes()


def test_a_policy_that_failed_is_named() -> None:
    with pytest.raises(InputError, match=r"schedule: got none from vllm on chunked-small-n6-k3 \(failed\)"):
        plot.gantt_figure(simulate(load_suite("chunked-small").instances[-1], "vllm"))
