"""Trials as rows of a table: for pandas, CSV and Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optsched.model.errors import InputError, Said
from optsched.model.objectives import gap, in_seconds
from optsched.model.result import Badge, Result
from optsched.study.record import Record
from optsched.study.trial import Trial

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "study", "instance", "instance_sha256", "requests", "machines", "cache", "kappa", "objective", "kind", "method",
    "label", "options", "predictor", "router", "evictor", "seed", "time_limit_s", "workers", "ended", "status",
    "badge", "value", "value_s", "bound", "bound_s", "best_value", "best_bound", "gap", "gap_to_best_bound",
    "runtime_s", "message", "date", "machine", "commit", "code", "key",
)  # fmt: skip
"""Columns of a row; values and bounds in ps, for means sums over requests, and in seconds."""

Row = Mapping[str, Any]


def rows_of(
    attempts: Iterable[tuple[Trial, Record]],
    best: Callable[[Trial], tuple[Result | None, Result | None]] = lambda trial: (None, None),
) -> list[Row]:
    """Return a row for each attempt, in order.

    The best value and bound of a problem are over the attempts, and what ``best`` knows besides (`Store.best`).
    """
    given = list(attempts)
    values: dict[str, int] = {}
    bounds: dict[str, int] = {}
    asked: set[str] = set()
    for trial, record in given:
        said: list[Record | Result] = [record]
        if trial.question not in asked:
            asked.add(trial.question)
            said += [result for result in best(trial) if result is not None]
        for each in said:
            if each.value is not None:
                values[trial.question] = min(each.value, values.get(trial.question, each.value))
            if each.bound is not None and each.badge is not Badge.HEURISTIC:
                bounds[trial.question] = max(each.bound, bounds.get(trial.question, each.bound))
    return [_row(trial, record, values.get(trial.question), bounds.get(trial.question)) for trial, record in given]


def _row(trial: Trial, record: Record, best_value: int | None, best_bound: int | None) -> Row:
    bound = record.bound if record.badge is not Badge.HEURISTIC else None
    found = {
        "study": record.suite,
        "kind": trial.kind.value,
        "objective": trial.objective.value,
        "method": trial.method,
        "label": trial.label,
        "options": " ".join(f"{name}={value}" for name, value in sorted(trial.options.items())),
        "predictor": trial.predictor,
        "router": trial.router,
        "evictor": trial.evictor,
        "machines": len(trial.instance.machines),
        "cache": trial.instance.cache.mode.value,
        "ended": record.ended.value,
        "status": record.status.value,
        "badge": record.badge.value,
        "bound": bound,
        "value_s": in_seconds(trial.instance, trial.objective, record.value),
        "bound_s": in_seconds(trial.instance, trial.objective, bound),
        "best_value": best_value,
        "best_bound": best_bound,
        "gap": gap(record.value, bound),
        "gap_to_best_bound": gap(record.value, best_bound),
        "code": trial.code,
        "key": trial.key,
    }
    return {name: found[name] if name in found else getattr(record, name) for name in COLUMNS}


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Return rows as a data frame.

    Raises
    ------
    InputError
        If pandas is not installed.
    """
    try:
        import pandas as pd  # noqa: PLC0415 - an extra
    except ImportError:
        raise InputError("frame", Said("no package pandas"), "pip install 'optsched[frame]'") from None
    given = list(rows)
    columns = {name: [row[name] for row in given] for name in COLUMNS}
    whole = {name: pd.array(columns[name], dtype="Int64") for name in _WHOLE if not _is_long(columns[name])}
    return pd.DataFrame(columns | whole)


_WHOLE = ("value", "bound", "best_value", "best_bound", "workers")


def _is_long(numbers: Iterable[int | None]) -> bool:
    """Whether a number exceeds 64 bits, as sums over requests may."""
    return any(number is not None and number >= 2**63 for number in numbers)


def as_csv(rows: Iterable[Row]) -> str:
    """Return rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_parquet(rows: Iterable[Row], path: Path) -> None:
    """Write rows as Parquet; a column with a number that exceeds 64 bits as text.

    Raises
    ------
    InputError
        If pandas or pyarrow is not installed.
    """
    given = list(rows)
    table = frame(given)
    for name in _WHOLE:
        if _is_long(row[name] for row in given):
            table[name] = [None if row[name] is None else str(row[name]) for row in given]
    try:
        table.to_parquet(path, index=False)
    except ImportError:
        raise InputError("frame", Said("no package pyarrow"), "pip install 'optsched[parquet]'") from None
