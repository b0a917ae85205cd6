"""The report of a study: one page that needs nothing else, neither a network nor a server."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from optsched.model.errors import InputError, Said
from optsched.model.objectives import Objective
from optsched.model.result import Badge
from optsched.pages.view import packed_view
from optsched.plot.common import objective_name, time_unit
from optsched.report.sheet import CERTIFIED, PROVED
from optsched.report.summary import class_texts
from optsched.study.frame import Row, rows_of
from optsched.study.record import Record
from optsched.study.store import Attempt
from optsched.study.trial import Kind, Trial, digest

MOST_BYTES = 2 * 2**20
"""What a page may take; schedules for which there is no room are named on it."""
_ROOM = 0.97
"""Share of `MOST_BYTES` that schedules may fill the page up to."""
_CURVES = 8
"""Methods in the performance profile: more lines than that are not told apart."""
_MARKS = {Badge.CERTIFIED.value: CERTIFIED, Badge.SOLVER_CLAIMED.value: PROVED}


@dataclass(frozen=True)
class Cell:
    """One entry of a table.

    Parameters
    ----------
    shown
        Its text.
    order
        What the column is sorted by.
    target
        The trial that the number comes from.
    """

    shown: str
    order: float | str
    target: str = ""


@dataclass(frozen=True)
class Point:
    """A gap in a figure: from ``least`` to ``most`` percent of its axis."""

    least: float
    most: float
    title: str


@dataclass(frozen=True)
class Strip:
    """The gaps of one method in a figure; ``mean`` is None without any."""

    method: str
    points: tuple[Point, ...]
    mean: float | None
    mean_text: str


@dataclass(frozen=True)
class Curve:
    """A staircase of a performance profile, in percent of its axes, y downwards."""

    method: str
    path: str


@dataclass(frozen=True)
class Problem:
    """All that is on the page about one objective, over one class of schedules.

    Parameters
    ----------
    ident, title
        What links and people call it.
    headers, rows
        The table of instances.
    summary_headers, summary
        The table of methods.
    strips, ticks
        The figure of gaps, and the labels of its axis with their places in percent.
    curves, most_ratio
        The performance profile, and where its axis ends.
    """

    ident: str
    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    summary_headers: tuple[str, ...]
    summary: tuple[tuple[Cell, ...], ...]
    strips: tuple[Strip, ...]
    ticks: tuple[tuple[float, str], ...]
    curves: tuple[Curve, ...]
    most_ratio: str


def report_page(name: str, attempts: Iterable[Attempt], missing: int, command: str) -> str:
    """Return the page of a study.

    Parameters
    ----------
    name
        The study's.
    attempts
        What counts for its trials, in their order; the checker has accepted each of them.
    missing
        How many trials have no attempt.
    command
        What makes the page again.

    Raises
    ------
    InputError
        Without any attempt, or if jinja2 is not installed.
    """
    given = list(attempts)
    if not given:
        raise InputError("", Said(f"no attempt at a trial of {name}"), "a study that has run: optsched study FILE.toml")
    pairs = [(attempt.trial, attempt.record) for attempt in given]
    rows = rows_of(pairs)
    problems = defaultdict[str, list[int]](list)
    for place, (trial, _) in enumerate(pairs):
        about = {part: trial.about[part] for part in ("objective", "restrictions")}
        problems[digest(about)].append(place)
    page = {
        "name": name,
        "command": command,
        "missing": missing,
        "counts": _counts(rows),
        "problems": [
            _problem(f"p{number}", _entries([(*pairs[place], rows[place]) for place in places]))
            for number, places in enumerate(problems.values(), 1)
        ],
        "trials": _trials(pairs, rows),
        "sources": _sources(pairs),
        "marks": {"certified": CERTIFIED, "solver": PROVED},
    }
    bare = _rendered(page | {"views": {}, "left_out": [], "data": "{}"})
    packed = {
        attempt.trial.key: (attempt, view)
        for attempt in given
        if attempt.outcome.result is not None and (view := packed_view(attempt.outcome.result)) is not None
    }
    chosen = fitting(
        {key: len(view) for key, (_, view) in packed.items()}, int(_ROOM * MOST_BYTES) - len(bare.encode())
    )
    views = {key: _view_name(attempt) for key, (attempt, _) in packed.items() if key in chosen}
    left_out = [_view_name(attempt) for key, (attempt, _) in packed.items() if key not in chosen]
    data = json.dumps({key: packed[key][1] for key in views}, separators=(",", ":"))
    return _rendered(page | {"views": views, "left_out": left_out, "data": data})


def _rendered(page: Mapping[str, Any]) -> str:
    try:
        import jinja2  # noqa: PLC0415  # an extra
    except ImportError:
        raise InputError("report", Said("no package jinja2"), "pip install 'optsched[report]'") from None
    folder = files("optsched.pages") / "templates"
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in ("report.html", "report.css", "report.js")}
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(texts["report.html"])
    return template.render(page, style=texts["report.css"], script=texts["report.js"]) + "\n"


def fitting(sizes: Mapping[str, int], room: int) -> set[str]:
    """Return the keys of the smallest views that fit, each with its entry in the list."""
    chosen, entry = set[str](), 400
    for key, size in sorted(sizes.items(), key=lambda item: item[1]):
        room -= size + entry
        if room < 0:
            break
        chosen.add(key)
    return chosen


def _view_name(attempt: Attempt) -> str:
    trial = attempt.trial
    parts = [trial.instance.name, _label(trial), trial.objective.value]
    return ", ".join([*parts, f"seed {trial.seed}"] if trial.seed else parts)


def _label(trial: Trial) -> str:
    return f"bound {trial.label}" if trial.kind is Kind.BOUND else trial.label


def _counts(rows: Sequence[Row]) -> str:
    """Return one sentence of what there is."""
    kinds = {"trials": len(rows), "instances": len({row["instance_sha256"] for row in rows})}
    kinds |= {"methods": len({row["label"] for row in rows}), "objectives": len({row["objective"] for row in rows})}
    shown = [f"{count} {kind if count != 1 else kind.removesuffix('s')}" for kind, count in kinds.items()]
    dates = sorted(row["date"][:10] for row in rows)
    return f"{', '.join(shown)}; run {dates[0] if dates[0] == dates[-1] else f'from {dates[0]} to {dates[-1]}'}."


@dataclass(frozen=True)
class _Entry:
    """A trial with what is known of it, and the name of its column."""

    trial: Trial
    record: Record
    row: Row
    column: str


def _problem(ident: str, entries: Sequence[_Entry]) -> Problem:
    first = entries[0].trial
    class_ = class_texts(first.restrictions)
    columns = list(dict.fromkeys(entry.column for entry in entries))
    by_instance = defaultdict[str, list[_Entry]](list)
    for entry in entries:
        by_instance[entry.trial.instance_sha256].append(entry)
    by_column = {column: [entry.row for entry in entries if entry.column == column] for column in columns}
    unit, scale = _unit(first.objective, [entry.row for entry in entries])
    headers = ("instance", "requests", "κ", f"best value ({unit})", f"best bound ({unit})", *columns)
    strips, most = _strips(by_column)
    curves, most_ratio = _curves([strip.method for strip in strips], by_column, len(by_instance))
    return Problem(
        ident=ident,
        title=", ".join([objective_name(first.objective), *class_]),
        headers=headers,
        rows=tuple(_instance_row(own, columns, scale) for own in by_instance.values()),
        summary_headers=("method", "mean gap (%)", "largest gap (%)", "met the bound", "results", "failed", "time (s)"),
        summary=tuple(_summary_row(column, own) for column, own in by_column.items()),
        strips=strips,
        ticks=_ticks(most),
        curves=curves,
        most_ratio=most_ratio,
    )


def _entries(given: Sequence[tuple[Trial, Record, Row]]) -> list[_Entry]:
    """Return trials with their columns: a column is a method, with the seed where there are several."""
    several = len({trial.seed for trial, _, _ in given}) > 1
    return [_Entry(*each, f"{_label(each[0])}, seed {each[0].seed}" if several else _label(each[0])) for each in given]


def _unit(objective: Objective, rows: Sequence[Row]) -> tuple[str, float]:
    """Return the unit of an objective's values, and how many of them a second has; 0 if they are no times."""
    seconds = [row[name] for row in rows for name in ("value_s", "bound_s") if row[name] is not None]
    if objective is Objective.SLO_MISSES or not seconds:
        return "requests" if objective is Objective.SLO_MISSES else "ms", 0.0
    unit, scale = time_unit(max(seconds) * 1e12)
    return unit, 1e12 / scale


def _amount(row: Row, name: str, scale: float) -> str:
    """Write a value or bound of a row in the unit of its table."""
    return f"{row[f'{name}_s'] * scale:,.3f}" if scale else str(row[name])


def _instance_row(own: Sequence[_Entry], columns: Sequence[str], scale: float) -> tuple[Cell, ...]:
    trial, record, row = own[0].trial, own[0].record, own[0].row
    best_value, best_bound = row["best_value"], row["best_bound"]
    cells = [Cell(trial.instance.name, trial.instance.name)]
    cells += [Cell(str(record.requests), record.requests), Cell(f"{record.kappa:.2f}", record.kappa)]
    by_value = [each.row for each in own if each.row["value"] == best_value is not None]
    by_bound = [each.row for each in own if each.row["bound"] == best_bound is not None]
    by_bound.sort(key=lambda each: each["badge"] != Badge.CERTIFIED.value)
    for found, name in ((by_value, "value"), (by_bound, "bound")):
        if not found:
            cells.append(Cell("–", math.inf))
            continue
        source = found[0]
        mark = f" {_MARKS[source['badge']]}" if name == "bound" else ""
        cells.append(Cell(_amount(source, name, scale) + mark, source[name], source["key"]))
    given = {each.column: each.row for each in own}
    return (*cells, *(_gap_cell(given.get(column), scale) for column in columns))


def _gap_cell(row: Row | None, scale: float) -> Cell:
    """Return the gap of a trial; what has no value has its bound, or the reason why there is nothing."""
    if row is None:
        return Cell("–", math.inf)
    if row["value"] is None:
        shown = "n/a" if row["bound"] is None else f"bound {_amount(row, 'bound', scale)}"
        return Cell(shown, math.inf, row["key"])
    if row["gap_to_best_bound"] is None:
        return Cell(_amount(row, "value", scale), math.inf, row["key"])
    return Cell(_gap_text(row), row["gap_to_best_bound"], row["key"])


def _gap_text(row: Row) -> str:
    """Write a gap in percent; with ≤ where the optimum is not known."""
    found = row["gap_to_best_bound"]
    open_ = row["best_bound"] != row["best_value"]
    return f"{'≤ ' if open_ else ''}{100 * found:.1f} %" if found else "0"


def _summary_row(column: str, own: Sequence[Row]) -> tuple[Cell, ...]:
    gaps = [row["gap_to_best_bound"] for row in own if row["gap_to_best_bound"] is not None]
    values = sum(row["value"] is not None or row["bound"] is not None for row in own)
    met, failed, seconds = sum(gap == 0 for gap in gaps), len(own) - values, sum(row["runtime_s"] for row in own)
    share = [sum(gaps) / len(gaps), max(gaps)] if gaps else []
    return (
        Cell(column, column),
        *([Cell(f"{100 * each:.2f}", each) for each in share] or [Cell("–", math.inf)] * 2),
        *(Cell(str(count), count) for count in (met, values, failed)),
        Cell(f"{seconds:.1f}", seconds),
    )


def _strips(by_column: Mapping[str, Sequence[Row]]) -> tuple[tuple[Strip, ...], float]:
    """Return the gaps of each method, the least mean first, and the largest gap; methods without any are left out."""
    gaps = {column: [row for row in rows if row["gap_to_best_bound"] is not None] for column, rows in by_column.items()}
    most = max((row["gap_to_best_bound"] for rows in gaps.values() for row in rows), default=0.0) or 0.01
    strips = []
    for column, rows in gaps.items():
        if not rows:
            continue
        mean = sum(row["gap_to_best_bound"] for row in rows) / len(rows)
        points = tuple(
            Point(
                round(100 * _least_gap(row) / most, 2),
                round(100 * row["gap_to_best_bound"] / most, 2),
                f"{row['instance']}: {_gap_text(row)}",
            )
            for row in rows
        )
        strips.append(Strip(column, points, round(100 * mean / most, 2), f"{100 * mean:.1f} %"))
    return tuple(sorted(strips, key=lambda strip: strip.mean or 0.0)), most


def _least_gap(row: Row) -> float:
    """Return what a method's gap is at least: that to the best value."""
    value: int = row["value"]
    most: float = row["gap_to_best_bound"]
    return min((value - row["best_value"]) / value, most) if value else 0.0


def _ticks(most: float) -> tuple[tuple[float, str], ...]:
    """Return places, in percent of an axis up to ``most``, and labels of round shares."""
    step = next(step for step in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25) if most / step <= 5)
    return tuple(
        (round(100 * step * place / most, 2), f"{100 * step * place:g} %") for place in range(int(most / step) + 1)
    )


def _curves(
    methods: Sequence[str], by_column: Mapping[str, Sequence[Row]], instances: int
) -> tuple[tuple[Curve, ...], str]:
    """Return for each of the first methods the share of instances on which its value is at most τ times the best."""
    if instances < 2:
        return (), ""
    ratios = {
        method: [row["value"] / (row["best_value"] or 1) for row in by_column[method] if row["value"] is not None]
        for method in methods[:_CURVES]
    }
    most = max([1.05, *(ratio for found in ratios.values() for ratio in found)])
    curves = []
    for method, found in ratios.items():
        x, y, path = 0.0, 100.0, ["M0 100"]
        for place, ratio in enumerate(sorted(found), 1):
            x, y = 100 * (ratio - 1) / (most - 1), 100 - 100 * place / instances
            path.append(f"H{x:.2f}V{y:.2f}")
        curves.append(Curve(method, "".join([*path, "H100"])))
    return tuple(curves), f"{most:.2f}"


def _trials(pairs: Sequence[tuple[Trial, Record]], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a row for each trial, with all that says how its numbers were made."""
    found = []
    for (trial, record), row in zip(pairs, rows, strict=True):
        unit, scale = _unit(trial.objective, [row])
        found.append(
            {
                "key": row["key"],
                "instance": trial.instance.name,
                "method": _label(trial),
                "objective": objective_name(trial.objective),
                "class": "; ".join(class_texts(trial.restrictions)),
                "status": row["status"]
                if row["ended"] in {"finished", "imported"}
                else f"{row['status']}, {row['ended']}",
                "badge": row["badge"],
                "value": "–" if row["value"] is None else f"{_amount(row, 'value', scale)} {unit}",
                "value_order": math.inf if row["value"] is None else row["value"],
                "bound": "–" if row["bound"] is None else f"{_amount(row, 'bound', scale)} {unit}",
                "bound_order": math.inf if row["bound"] is None else row["bound"],
                "gap": "–" if row["gap_to_best_bound"] is None else _gap_text(row),
                "gap_order": math.inf if row["gap_to_best_bound"] is None else row["gap_to_best_bound"],
                "runtime": f"{row['runtime_s']:.2f}",
                "seed": row["seed"],
                "limit": "" if record.time_limit_s is None else f"{record.time_limit_s:g}",
                "workers": "" if record.workers is None else record.workers,
                "date": row["date"],
                "code": trial.code[:12],
                "message": row["message"] or "",
            }
        )
    return found


def _sources(pairs: Sequence[tuple[Trial, Record]]) -> list[tuple[str, list[str]]]:
    """Return what the numbers were made with: each fact with its values."""
    records = [record for _, record in pairs]
    versions = {f"{name} {number}" for record in records for name, number in record.versions.items()}
    hashes = {f"{trial.instance.name}: {trial.instance_sha256}" for trial, _ in pairs}
    return [
        ("Machine", sorted({record.machine for record in records})),
        ("Commit", sorted({record.commit for record in records})),
        ("Versions", sorted(versions)),
        ("Instances (SHA-256)", sorted(hashes)),
    ]
