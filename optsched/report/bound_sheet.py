"""A bound table as a sheet: features that vary, the optimum and its proof, every policy's gap."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from optsched.model.display import spread
from optsched.model.documents import instance_sha256
from optsched.model.errors import printable
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.result import Badge, Result, Status
from optsched.report.sheet import AT_MOST, CERTIFIED, NOT_AVAILABLE, PROVED, Cell, Column, Sheet
from optsched.report.summary import class_texts
from optsched.study.bound_table import BoundTable, Row

_NONE = "–"
"""What is shown where there is nothing."""


def _optional(value: int | None) -> str:
    return _NONE if value is None else str(value)


_FEATURES: tuple[tuple[str, str, Callable[[Instance], str]], ...] = (
    ("requests", "requests", lambda instance: str(len(instance.requests))),
    ("I", "input_tokens", lambda instance: spread([request.input for request in instance.requests])),
    ("O", "output_tokens", lambda instance: spread([request.output for request in instance.requests])),
    ("M", "kv_tokens", lambda instance: str(instance.limits.kv_tokens)),
    ("C", "batch_tokens", lambda instance: str(instance.limits.batch_tokens)),
    ("P", "prefill_tokens", lambda instance: str(instance.limits.prefill_tokens)),
    ("N", "batch_requests", lambda instance: _optional(instance.limits.batch_requests)),
    ("b", "kv_block", lambda instance: str(instance.limits.kv_block)),
    ("κ", "kappa", lambda instance: f"{instance.kappa:.2f}"),
)
"""What describes an instance: header, name, text. κ (kappa) is M over the mean resident KV of a request."""


def _unit(table: BoundTable) -> tuple[str, float]:
    """Choose the unit of the objective's column: its name and what to divide by."""
    if table.objective == Objective.SLO_MISSES:
        return "", 1.0
    if table.objective == Objective.WEIGHTED_E2E:
        return "s", 1e12
    found = (
        (row.best.value or row.best.bound or 0) / table.objective.mean_count(row.instance.requests)
        for row in table.rows
    )
    largest = max(found, default=0)
    return ("s", 1e12) if largest >= 1e13 else ("ms", 1e9)


def make_sheet(table: BoundTable) -> Sheet:
    """Lay a bound table out: features that vary, the optimum and its proof, every policy's gap in %.

    Machines (`optsched.report.formats.as_csv`) are told more, and always in the same columns: ``value`` and ``bound``
    are in ps, of means the sum over requests (of ``slo_misses`` requests).

    Instances that lengths and limits do not tell apart are named. A table without rows has all columns.
    """
    described = {header: [text(row.instance) for row in table.rows] for header, _, text in _FEATURES}
    single = len(table.rows) == 1
    varying = [header for header, texts in described.items() if len(set(texts)) > 1 or (single and header in "IM")]
    constant = [header for header, texts in described.items() if header not in varying and set(texts) - {_NONE}]
    keys = [
        Column(
            header if header in varying else "",
            name,
            tuple(Cell(text, None if text == _NONE else text) for text in described[header]),
            key=True,
            also=(header,),
        )
        for header, name, _ in _FEATURES
    ]
    told = set(zip(*(described[header] for header in varying if header != "κ"), strict=True))
    instances = tuple(Cell(row.instance.name, row.instance.name) for row in table.rows)
    hashes = (instance_sha256(row.instance) for row in table.rows)
    columns = [
        Column("instance" if len(told) < len(table.rows) else "", "instance", instances, key=True),
        Column("", "instance_sha256", tuple(Cell(digest, digest) for digest in hashes)),
        *keys,
        Column("batches", "batches", tuple(_metric(row, "batches") for row in table.rows)),
        *_value_columns(table),
        Column("evictions", "evictions", tuple(_metric(row, "evictions") for row in table.rows)),
        Column("time (s)", "runtime_s", tuple(_time(row) for row in table.rows)),
        *(_policy_column(table, position) for position in range(len(table.policies))),
    ]
    shared = ", ".join(f"{header} = {described[header][0]}" for header in constant)
    described_class = "".join(f", {text}" for text in class_texts(table.restrictions))
    return Sheet(
        f"{table.suite}: {table.objective.value}{described_class}, gap of each policy in %",
        f"All instances: {shared}." if shared else "",
        tuple(columns),
        tuple(_notes(table)),
    )


def _metric(row: Row, name: str) -> Cell:
    value = None if row.best.metrics is None else row.best.metrics[name]
    return Cell("–" if value is None else str(value), value)


def _time(row: Row) -> Cell:
    return Cell(f"{row.best.runtime_s:.2f}", row.best.runtime_s)


def _value_columns(table: BoundTable) -> list[Column]:
    """Return the best value with its mark, the bound below it and the gap; these are shown where not all are proved."""
    unit, scale = _unit(table)
    suffix = f" ({unit})" if unit else ""
    proved = all(row.best.status == Status.OPTIMAL for row in table.rows)

    def shown(row: Row, value: int | None) -> str:
        if value is None:
            return "–"
        return f"{value / table.objective.mean_count(row.instance.requests) / scale:.2f}" if unit else str(value)

    values = tuple(Cell(shown(row, row.best.value) + _mark(row), row.best.value) for row in table.rows)
    bounds = tuple(Cell(shown(row, row.best.bound), row.best.bound) for row in table.rows)
    gaps = tuple(_percent(row.best.gap, row.best) for row in table.rows)
    return [
        _hidden("objective", [table.objective.value] * len(table.rows)),
        Column(("optimum" if proved else "best") + suffix, "value", values, also=_with_units("optimum", "best")),
        _hidden("value_s", [row.best.value_s for row in table.rows]),
        Column("" if proved else "bound" + suffix, "bound", bounds, also=_with_units("bound")),
        _hidden("bound_s", [row.best.bound_s for row in table.rows]),
        Column("" if proved else "gap (%)", "gap", gaps, also=("gap (%)",)),
        _hidden("status", [row.best.status.value for row in table.rows]),
        _hidden("badge", [row.best.badge.value for row in table.rows]),
    ]


def _with_units(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}{unit}" for name in names for unit in ("", " (ms)", " (s)"))


def _hidden(name: str, values: Sequence[str | float | None]) -> Column:
    """Return a column for machines only."""
    return Column("", name, tuple(Cell(_NONE if value is None else str(value), value) for value in values))


def _mark(row: Row) -> str:
    if row.best.status != Status.OPTIMAL:
        return ""
    return f" {CERTIFIED if row.best.badge == Badge.CERTIFIED else PROVED}"


def _percent(share: float | None, best: Result) -> Cell:
    """Return a gap in %; where the bound below it is not met, it is at most that."""
    if share is None:
        return Cell(NOT_AVAILABLE, None)
    if share == 0:
        return Cell("0", share)
    return Cell(("" if best.status == Status.OPTIMAL else AT_MOST) + f"{100 * share:.1f}", share)


def _policy_column(table: BoundTable, position: int) -> Column:
    name = table.policies[position]
    return Column(name, f"gap_{name}", tuple(_percent(row.policy_gap(position), row.best) for row in table.rows))


def _notes(table: BoundTable) -> list[str]:
    """Explain the marks, and every n/a with its reason."""
    notes = []
    marks = {_mark(row).strip() for row in table.rows}
    if PROVED in marks:
        notes.append(f"{PROVED} proved optimal by the solver; the checker replayed the schedule.")
    if CERTIFIED in marks:
        notes.append(f"{CERTIFIED} proved optimal, and `optsched check` recomputes the bound itself.")
    if any(row.best.status != Status.OPTIMAL for row in table.rows):
        notes.append(f"{AT_MOST.strip()} the bound is not met by a schedule: the gap is at most this.")
    reasons: dict[str, list[str]] = defaultdict(list)
    for row in table.rows:
        if row.best.message:
            notes.append(f"{row.instance.name}: {printable(row.best.message)}.")
        for name, result in zip(table.policies, row.policies, strict=True):
            if result.status == Status.FAILED and result.message:
                reason = printable(result.message).partition(": ")[2]
                reasons[f"{row.instance.name}: {reason}"].append(name)
    notes += [f"{NOT_AVAILABLE}: {', '.join(names)} on {reason}." for reason, names in reasons.items()]
    return notes
