"""What a study has found: a table of its methods, and what changed between two versions of the code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from optsched.report.sheet import Cell, Column, Sheet
from optsched.study.frame import Row
from optsched.study.record import Record

_SLOWER = 1.5
"""A time counts as worse from this factor on, and beyond `_NOISE_S`."""
_NOISE_S = 1.0


def study_sheet(name: str, rows: Sequence[Row]) -> Sheet:
    """Return for each method and objective how its trials ended, and its mean gap to the best bound that is known."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["objective"], f"{row['label']}" if row["kind"] != "bound" else f"bound {row['label']}"].append(row)
    keys = list(groups)

    def mean_gap(group: Sequence[Row]) -> Cell:
        gaps = [row["gap_to_best_bound"] for row in group if row["gap_to_best_bound"] is not None]
        mean = sum(gaps) / len(gaps) if gaps else None
        return Cell("–" if mean is None else f"{100 * mean:.2f}", mean)

    def count(group: Sequence[Row], *statuses: str) -> Cell:
        found = sum(row["status"] in statuses for row in group)
        return Cell(str(found), found)

    def seconds(group: Sequence[Row]) -> Cell:
        total = sum(row["runtime_s"] for row in group)
        return Cell(f"{total:.1f}", total)

    members = list(groups.values())
    return Sheet(
        f"{name}: {len(rows)} trials",
        "",
        (
            Column("objective", "objective", tuple(Cell(key[0], key[0]) for key in keys), key=True, left=True),
            Column("method", "method", tuple(Cell(key[1], key[1]) for key in keys), key=True, left=True),
            Column("trials", "trials", tuple(Cell(str(len(group)), len(group)) for group in members)),
            Column("proved", "proved", tuple(count(group, "optimal", "infeasible") for group in members)),
            Column("failed", "failed", tuple(count(group, "failed", "unknown") for group in members)),
            Column("mean gap (%)", "mean_gap", tuple(mean_gap(group) for group in members)),
            Column("time (s)", "seconds", tuple(seconds(group) for group in members)),
        ),
        ("Mean gap: mean of (value − best bound) / value, with the best bound that the store has of the instance.",),
    )


@dataclass(frozen=True)
class Change:
    """What another version of the code says of a trial: the part, before and after, and whether it got worse."""

    instance: str
    method: str
    part: str
    before: str
    after: str
    worse: bool


def changes(pairs: Iterable[tuple[Record, Record]]) -> list[Change]:
    """Return what differs between records of the same trials, before and after: worse ones first.

    A value is worse if it is larger, a bound if it is smaller, a time if it is longer by half and by a second.
    """
    found = []
    for before, after in pairs:

        def change(part: str, old: object, new: object, *, worse: bool, of: Record = after) -> Change:
            return Change(of.instance, of.method, part, _text(old), _text(new), worse)

        if before.value != after.value:
            worse = before.value is not None and (after.value is None or after.value > before.value)
            found.append(change("value", before.value, after.value, worse=worse))
        if before.bound != after.bound:
            worse = before.bound is not None and (after.bound is None or after.bound < before.bound)
            found.append(change("bound", before.bound, after.bound, worse=worse))
        if before.status != after.status:
            worse = before.solved_s is not None and after.solved_s is None
            found.append(change("status", before.status.value, after.status.value, worse=worse))
        if after.runtime_s > max(_SLOWER * before.runtime_s, before.runtime_s + _NOISE_S):
            found.append(change("time", f"{before.runtime_s:.2f} s", f"{after.runtime_s:.2f} s", worse=True))
    return sorted(found, key=lambda change: not change.worse)


def _text(value: object) -> str:
    return "–" if value is None else str(value)
