"""What a benchmark of exact methods says: statistics of its records, and tables of them.

A time-out, a failure and an optimum proved after the limit all count as not solved.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from optsched.model.errors import InputError, Said
from optsched.model.objectives import gap
from optsched.report.sheet import Cell, Column, Sheet
from optsched.study.record import Ended, Record

SHIFT_S = 0.1
"""The shift of geometric means and of ratios of times, so that no method wins by milliseconds."""
THRESHOLDS_S = (10, 60, 300)
"""Solved within how many seconds."""
TIGHT_KAPPA = 5.0
"""Below this κ memory is scarce: it divides the ladder's nominal κ = 2 from κ = 8."""

Runs = Mapping[str, Sequence[Record]]
"""Method → its records, on the same instances in the same order for every method."""


# Statistics ------------------------------------------------------------------------------------------------


def solved_within(records: Sequence[Record], seconds: float) -> int:
    """Count the optima proved within ``seconds`` seconds."""
    return sum(record.solved_s is not None and record.solved_s <= seconds for record in records)


def counted_time(record: Record) -> float:
    """Return the time to the proof in s, or the limit."""
    return record.limit_s if record.solved_s is None else record.solved_s


def shifted_geometric_mean(times: Sequence[float], shift: float = SHIFT_S) -> float:
    """Return ``exp(mean(log(t + shift))) - shift``."""
    return math.exp(sum(math.log(time + shift) for time in times) / len(times)) - shift


def final_gap(record: Record) -> float:
    """Return the gap at the end: 0 if solved, 1 if the schedule or the bound is missing."""
    if record.solved_s is not None:
        return 0.0
    return _gap(record.value, record.bound)


def _gap(value: int | None, bound: int | None) -> float:
    found = gap(value, bound)
    return 1.0 if found is None else min(max(found, 0.0), 1.0)


def mean_unsolved_gap(records: Sequence[Record]) -> float | None:
    """Return the mean final gap of what is not solved; None if all is."""
    gaps = [final_gap(record) for record in records if record.solved_s is None]
    return sum(gaps) / len(gaps) if gaps else None


def primal_dual_integral(record: Record) -> float:
    """Return the integral of the gap over time in s, from 0 to the limit.

    The gap is 1 until there are both a schedule and a bound, keeps its value between two improvements, and is 0 from
    the proof on. So the integral lies between 0 and the limit; less is better.
    """
    total, now, current = 0.0, 0.0, 1.0
    for time, value, bound in record.points:
        until = min(max(time, now), record.limit_s)
        total += current * (until - now)
        now, current = until, _gap(value, bound)
    return total + current * (record.limit_s - now)


def ratios(runs: Runs, shift: float = SHIFT_S) -> dict[str, list[float]]:
    """Return for every method the ratios of its times to the fastest method's, sorted; infinite where not solved.

    The ratio on an instance is ``(t + shift) / (best t + shift)``; with the share of ratios up to τ as a function of τ
    this is the performance profile of Dolan and Moré (2002).
    """
    columns = [[record.solved_s for record in records] for records in runs.values()]
    best = [min((time for time in times if time is not None), default=None) for times in zip(*columns, strict=True)]
    found = {}
    for method, times in zip(runs, columns, strict=True):
        pairs = zip(times, best, strict=True)
        found[method] = sorted(
            math.inf if time is None or least is None else (time + shift) / (least + shift) for time, least in pairs
        )
    return found


def common_runs(records: Sequence[Record], methods: Sequence[str]) -> dict[str, list[Record]]:
    """Group records by method, keeping the instances that every method has been run on."""
    of: dict[str, dict[str, Record]] = {method: {} for method in methods}
    for record in records:
        of[record.method][record.instance] = record
    names = [name for name in dict.fromkeys(record.instance for record in records) if all(name in of[m] for m in of)]
    if not names:
        raise InputError("records", Said("no instance that all methods have been run on"), "at least one")
    return {method: [of[method][name] for name in names] for method in methods}


# Tables ----------------------------------------------------------------------------------------------------


def _spread(records: Sequence[Record]) -> str:
    low, high = min(record.kappa for record in records), max(record.kappa for record in records)
    return f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f}–{high:.1f}"


def _percent(share: float | None) -> Cell:
    return Cell("–" if share is None else f"{100 * share:.1f}", share)


def _column(
    header: str, name: str, runs: Runs, cell: Callable[[Sequence[Record]], Cell], *, key: bool = False
) -> Column:
    return Column(header, name, tuple(cell(records) for records in runs.values()), key=key)


def methods_sheet(runs: Runs) -> Sheet:
    """Compare methods over all instances."""
    first = next(iter(runs.values()))
    limit = first[0].limit_s

    def solved(seconds: int) -> Callable[[Sequence[Record]], Cell]:
        def cell(records: Sequence[Record]) -> Cell:
            if seconds > limit:
                return Cell("–", None)
            count = solved_within(records, seconds)
            return Cell(str(count), count)

        return cell

    def mean_time(records: Sequence[Record]) -> Cell:
        mean = shifted_geometric_mean([counted_time(record) for record in records])
        return Cell(f"{mean:.2f}", mean)

    def integral(records: Sequence[Record]) -> Cell:
        mean = sum(primal_dual_integral(record) for record in records) / len(records)
        return Cell(f"{mean:.2f}", mean)

    def amiss(records: Sequence[Record]) -> Cell:
        count = sum(record.ended != Ended.FINISHED for record in records)
        return Cell(str(count), count)

    return Sheet(
        f"{first[0].suite}, {first[0].objective.value}: methods",
        f"{len(first)} instances, κ = {_spread(first)}, at most {limit:g} s each on {first[0].workers} threads.",
        (
            Column("method", "method", tuple(Cell(name, name) for name in runs), key=True),
            *(_column(f"solved in {s} s", f"solved_{s}", runs, solved(s)) for s in THRESHOLDS_S),
            _column("mean time (s)", "time_s", runs, mean_time),
            _column("gap of unsolved (%)", "gap", runs, lambda records: _percent(mean_unsolved_gap(records))),
            _column("primal-dual integral (s)", "primal_dual_s", runs, integral),
            _column("no result in time", "amiss", runs, amiss),
        ),
        (
            f"Mean time: shifted geometric mean, shift {SHIFT_S} s, time-outs at the limit.",
            "Gap: mean of (value − bound) / value over what is not solved, 100 % without a schedule or bound.",
            "Primal-dual integral: mean over the instances of the integral of the gap from 0 to the limit.",
        ),
    )


def sizes_sheet(runs: Runs) -> Sheet:
    """Show for every number of requests and class of κ how much each method solves, and what gap it leaves."""
    first = next(iter(runs.values()))
    groups: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for position, record in enumerate(first):
        groups[record.requests, record.kappa >= TIGHT_KAPPA].append(position)
    keys = sorted(groups)

    def cell(records: Sequence[Record], key: tuple[int, bool]) -> Cell:
        members = [records[position] for position in groups[key]]
        solved = solved_within(members, math.inf)
        left = mean_unsolved_gap(members)
        return Cell(f"{solved}" + ("" if left is None else f" ({100 * left:.1f} %)"), solved)

    spreads = [_spread([first[position] for position in groups[key]]) for key in keys]
    return Sheet(
        f"{first[0].suite}, {first[0].objective.value}: solved by size and κ",
        "",
        (
            Column("n", "requests", tuple(Cell(str(key[0]), key[0]) for key in keys), key=True),
            Column("κ", "kappa", tuple(Cell(text, text) for text in spreads), key=True),
            Column("instances", "instances", tuple(Cell(str(len(groups[key])), len(groups[key])) for key in keys)),
            *(
                Column(method, f"solved_{method}", tuple(cell(records, key) for key in keys))
                for method, records in runs.items()
            ),
        ),
        ("Optima proved within the limit; in brackets the mean gap of the others.",),
    )


def provenance(runs: Runs) -> str:
    """Say where, when and from which commit the records are."""
    records = [record for found in runs.values() for record in found]

    def all_of(values: Sequence[str]) -> str:
        return ", ".join(sorted(set(values)))

    return (
        f"Machine: {all_of([record.machine for record in records])}. "
        f"Commit: {all_of([record.commit for record in records])}. "
        f"Date: {all_of([record.date[:10] for record in records])}. "
        f"Versions: {all_of([f'{name} {number}' for record in records for name, number in record.versions.items()])}."
    )
