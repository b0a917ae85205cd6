"""The worked example of the page that defines the problem is what the checker says."""

from __future__ import annotations

import re
from itertools import pairwise
from math import floor

import pytest
from brute_force import optimum
from checkout import ROOT

from optsched import Batch, CostModel, Instance, Objective, Schedule, check_schedule, replace
from optsched.bounds.volume import volume_bound
from optsched.calibrate.library import cost_model
from optsched.model.documents import parse_instance
from optsched.model.timeline import timeline

PAGE = (ROOT / "docs/problem.md").read_text()
Row = dict[str, str]


def instance() -> Instance:
    (document,) = re.findall(r"^```json\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    return parse_instance(document.encode(), cost_model)


def table(name: str) -> list[Row]:
    """Return the rows of the table after a marker, by column."""
    lines = PAGE.split(f"<!-- {name} -->\n\n")[1].split("\n\n")[0].splitlines()
    titles, _, *rows = [[cell.strip(" $`") for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(titles, row, strict=True)) for row in rows]


def number(cell: str) -> int:
    """Return the result of a cell's arithmetic, which has to be right."""
    *terms, result = cell.split("=")
    for term in terms:
        python = term.translate({ord("·"): "*", ord("−"): "-", ord("²"): "**2", ord("⌊"): "floor(", ord("⌋"): ")"})
        assert re.fullmatch(r"(floor|max|[\d\s(),*/+-])*", python)
        assert eval(python, {"floor": floor, "max": max}) == int(result), cell
    return int(result)


def indices(cell: str) -> tuple[int, ...]:
    return () if cell == "–" else (int(cell),)


def schedule() -> Schedule:
    return Schedule(
        tuple(
            Batch(
                start_ps=int(row["starts"]),
                end_ps=int(row["ends"]),
                run=tuple((int(index), int(count)) for index, count in re.findall(r"(\d+): (\d+)", row["runs"])),
                evict=indices(row["evict"]),
                swap_out=indices(row["swap out"]),
                swap_in=indices(row["swap in"]),
                considered=int(row["considered"]),
            )
            for row in table("schedule")
        )
    )


def test_the_schedule_is_legal_and_the_metrics_are_right() -> None:
    violations, metrics = check_schedule(instance(), schedule())
    assert violations == []
    assert metrics is not None
    rows = table("metrics")
    assert len(rows) == 17
    for row in rows:
        name = row["name"].split("`")[0]
        assert number(row["value"]) == (metrics["objectives"] | metrics)[name], name
    found = table("requests")
    assert sum(number(row["TTFT"]) for row in found) == metrics["objectives"]["mean_ttft"]
    assert sum(number(row["e2e"]) for row in found) == metrics["objectives"]["mean_e2e"]
    spacings = [row["mean time between tokens"] for row in found]
    (first, second) = (number(cell) for cell in spacings if not cell.startswith("undefined"))
    assert (first, second) == (metrics["tpot_ps"]["p50"], metrics["tpot_ps"]["max"])
    assert sum("missed" in row["SLO"] for row in found) == metrics["objectives"]["slo_misses"]


def test_each_column_is_a_term_of_the_batch_time() -> None:
    rows = table("cost")
    for row, batch in zip(rows, schedule().batches, strict=True):
        parts = [number(row[name]) for name in ("pieces", "decode steps", "prefill steps", "cpu_batch")]
        assert number(row["t_0"]) == sum(parts)
        extra = number(row["swaps beyond the overlap"]) + number(row["cpu_request"])
        assert number(row["t"]) == number(row["t_0"]) + extra == batch.end_ps - batch.start_ps


COEFFICIENTS = {
    "pieces": ("base", "token", "pieces"),
    "decode steps": ("decode_kv", "decode_req"),
    "prefill steps": ("prefill_sq", "prefill_kv", "prefill_req"),
    "cpu_batch": ("cpu_batch",),
    "cpu_request": ("cpu_request",),
}


@pytest.mark.parametrize("column", COEFFICIENTS)
def test_a_column_alone_is_what_its_coefficients_cost(column: str) -> None:
    """With all other coefficients 0 and all requests there from the start, the batches take what the column says."""
    full, zero = instance(), CostModel(base=0, token=0)
    requests = tuple(replace(request, arrival_ps=0) for request in full.requests)
    cost = replace(zero, **{name: getattr(full.cost, name) for name in COEFFICIENTS[column]})
    clock, batches = 0, []
    for row, batch in zip(table("cost"), schedule().batches, strict=True):
        end = clock + number(row[column])
        batches.append(replace(batch, start_ps=clock, end_ps=end))
        clock = end
    assert clock > 0
    assert check_schedule(replace(full, requests=requests, cost=cost), Schedule(tuple(batches)))[0] == []


def test_memory_after_each_batch() -> None:
    occupied_time = 0
    levels = {moment.time_ps: moment for moment in timeline(instance(), schedule())}
    block = instance().limits.kv_block
    for row in table("schedule"):
        moment = levels[int(row["starts"])]
        cached = [int(row[f"m_{index}"]) for index in range(3)]
        occupied = row["KV tokens occupied"]
        assert [int(part) for part in occupied.split("=")[0].split("+")] == [-(-m // block) * block for m in cached]
        assert number(occupied) == moment.kv_tokens
        assert sum(m > 0 for m in cached) == moment.resident
        occupied_time += moment.kv_tokens * (int(row["ends"]) - int(row["starts"]))
    metrics = check_schedule(instance(), schedule())[1]
    assert metrics is not None
    assert metrics["kv_utilisation"] == occupied_time / (instance().limits.kv_tokens * 1001)


def test_batches_follow_each_other() -> None:
    assert all(before.end_ps == after.start_ps for before, after in pairwise(schedule().batches))


@pytest.mark.slow
def test_optimum_bound_and_gap() -> None:
    (best,), (bound,) = re.findall(r"<!-- optimum --> (\d+)", PAGE), re.findall(r"<!-- bound --> (\d+)", PAGE)
    assert int(best) == optimum(instance(), Objective.MAKESPAN)
    proved = volume_bound(instance())
    assert proved is not None
    assert int(bound) == proved.value
    value = schedule().batches[-1].end_ps
    assert f"({value} − {best}) / {value} = {100 * (value - int(best)) / value:.1f} %" in PAGE
