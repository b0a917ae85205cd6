"""Results pages: how far from optimal each policy is on each suite, written from a store.

A page is made of rows, which stand beside it as CSV: a row is one policy on one instance, with the key of its trial,
the best bound that is known and where that comes from. So a page can be made again from its rows alone.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from optsched.model.errors import InputError, Said
from optsched.model.objectives import Objective, gap
from optsched.model.result import Badge
from optsched.plot.common import objective_name
from optsched.report.sheet import CERTIFIED, PROVED
from optsched.study.ledger import Kind, Ledger
from optsched.study.record import Record
from optsched.study.trial import Kind as TrialKind
from optsched.study.trial import Trial
from optsched.study.worker import TOO_LONG

LEDGER = "ledger"
"""Where a bound comes from that no trial of the store has."""
_KEY = 16
"""Digits of keys that are shown: no two trials of a store share them."""
_NONE = "–"


@dataclass(frozen=True)
class PolicyRow:
    """One policy on one instance; the fields are the columns of the CSV.

    Parameters
    ----------
    instance, policy
        Their names.
    value, best_value, best_bound
        In ps, of means sums over requests; None if there is none.
    badge
        What backs the bound.
    bound_from
        The key of the trial that gave the bound, or ``ledger``.
    key
        The key of the trial that gave the value.
    reason
        Why there is no value.
    """

    instance: str
    policy: str
    value: int | None
    best_value: int | None
    best_bound: int | None
    badge: str
    bound_from: str
    key: str
    reason: str = ""

    @property
    def gap(self) -> float | None:
        """The gap of the policy to the best bound."""
        return gap(self.value, self.best_bound)

    @property
    def is_open(self) -> bool:
        """Whether the optimum is not known."""
        return self.best_value != self.best_bound


COLUMNS = tuple(field.name for field in dataclasses.fields(PolicyRow))


def policy_rows(
    attempts: Iterable[tuple[Trial, Record]], ledger: Ledger
) -> dict[tuple[str, Objective], list[PolicyRow]]:
    """Return the rows of all policies by instance (its hash) and objective; bounds also of the ledger."""
    given = defaultdict[tuple[str, Objective], list[tuple[Trial, Record]]](list)
    for trial, record in attempts:
        given[trial.instance_sha256, trial.objective].append((trial, record))
    found = {}
    for (sha256, objective), own in given.items():
        known = ledger.best(sha256, objective)
        values = [record.value for _, record in own if record.value is not None]
        values += [row.value for row in known.of(Kind.VALUE)]
        bounds = [
            (record.bound, record.badge.value, trial.key[:_KEY])
            for trial, record in own
            if record.bound is not None and record.badge is not Badge.HEURISTIC
        ]
        if known.bound is not None:
            bounds.append((known.bound, known.badge.value, LEDGER))
        # A certified bound says more than the same one on a solver's word.
        bound, badge, source = max(
            bounds,
            key=lambda each: (each[0], each[1] == Badge.CERTIFIED.value),
            default=(None, Badge.HEURISTIC.value, ""),
        )
        found[sha256, objective] = [
            PolicyRow(
                trial.instance.name,
                trial.label,
                record.value,
                min(values, default=None),
                bound,
                badge,
                source,
                trial.key[:_KEY],
                (record.message or record.ended.value) if record.value is None else "",
            )
            for trial, record in own
            if trial.kind is TrialKind.SIMULATE
        ]
    return found


def as_csv(rows: Iterable[PolicyRow]) -> str:
    """Return rows as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(dataclasses.astuple(row) for row in rows)
    return text.getvalue()


def read_csv(text: str) -> list[PolicyRow]:
    """Return the rows of an `as_csv`."""
    reader = csv.DictReader(io.StringIO(text))
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise InputError("", Said(f"columns {', '.join(reader.fieldnames or ())}"), ", ".join(COLUMNS))
    return [_row(row) for row in reader]


def _row(parts: Mapping[str, str]) -> PolicyRow:
    value, best_value, best_bound = (
        int(parts[name]) if parts[name] else None for name in ("value", "best_value", "best_bound")
    )
    texts = (parts[name] for name in ("badge", "bound_from", "key", "reason"))
    return PolicyRow(parts["instance"], parts["policy"], value, best_value, best_bound, *texts)


def suite_page(name: str, description: str, objective: Objective, rows: Sequence[PolicyRow]) -> str:
    """Return the page of one suite and objective, in Markdown."""
    by_policy = grouped(rows)
    instances = {row.instance: row for row in rows}
    file = file_name(name, objective)
    closed = sum(not row.is_open for row in instances.values())
    lines = [
        f"# {name}: {objective_name(objective)}",
        "",
        description,
        "",
        f"{len(instances)} instances, {len(by_policy)} policies; the optimum is known of {closed}. A gap is"
        " (value − bound) / value, to the best bound that is known; ≤ where the optimum is not known. Every number,"
        f" with the key of its trial and where its bound comes from: [{file}.csv]({file}.csv).",
        "",
        "| policy | mean gap (%) | largest gap (%) | on | key | met the bound | no schedule |",
        "|---|---:|---:|---|---|---:|---:|",
    ]
    lines += [_policy_line(policy, own) for policy, own in by_policy.items()]
    lines += _limit_lines(rows)
    lines += [
        "",
        "## Bounds",
        "",
        f"Values and bounds in ps{', sums over requests' if objective.is_mean else ''}. {CERTIFIED}: the checker"
        f" recomputes the bound from a certificate; {PROVED}: a solver's word.",
        "",
        "| instance | best value | best bound | | bound from |",
        "|---|---:|---:|---|---|",
    ]
    marks = {Badge.CERTIFIED.value: CERTIFIED, Badge.SOLVER_CLAIMED.value: PROVED}
    lines += [
        f"| {row.instance} | {_number(row.best_value)} | {_number(row.best_bound)} | {marks.get(row.badge, '')} |"
        f" `{row.bound_from}` |"
        for row in instances.values()
    ]
    return "\n".join(lines) + "\n"


def _limit_lines(rows: Sequence[PolicyRow]) -> list[str]:
    """Say which policies did not end in the time that a study has allowed them."""
    ended = defaultdict[str, list[str]](list)
    for row in rows:
        if row.reason.startswith(TOO_LONG):
            ended[row.policy].append(f"{row.instance} ({row.reason})")
    return [f"\n`{policy}` was ended on {', '.join(where)}." for policy, where in ended.items()]


def index_page(pages: Mapping[tuple[str, Objective], Sequence[PolicyRow]], command: str) -> str:
    """Return the page that compares all policies on all suites."""
    by_page = {page: grouped(rows) for page, rows in pages.items()}
    policies = sorted({policy for by_policy in by_page.values() for policy in by_policy})
    means = {policy: [_mean(by.get(policy, ())) for by in by_page.values()] for policy in policies}
    policies.sort(key=lambda policy: (means[policy].count(None), _mean_of(means[policy]) or 0.0, policy))
    instances = [len({row.instance for row in rows}) for rows in pages.values()]
    names = [f"[{_title(*page)}]({file_name(*page)}.md)" for page in by_page]
    lines = [
        "# How far from optimal is each policy?",
        "",
        "Mean gaps in percent: (value − bound) / value, to the best bound that is known, over the instances on which"
        " the policy has a schedule; † where these are not all. The objective is the makespan where a column names no"
        " other. Where the optimum is not known, part of a gap is the"
        " bound's. The page of each suite says which trial each number comes from. Policies with a number for all"
        " suites come first, and of those the ones with the least mean. Where a policy was ended by the time limit of"
        " its study, the page says so.",
        "",
        f"Made from the store by `{command}`; the keys also name the version of the code.",
        "",
        f"| policy | {' | '.join(names)} |",
        f"|---|{'---:|' * len(names)}",
    ]
    for policy in policies:
        cells = (_mean_cell(by.get(policy, ()), number) for by, number in zip(by_page.values(), instances, strict=True))
        lines.append(f"| `{policy}` | {' | '.join(cells)} |")
    listed = "\n".join(file_name(suite, objective) for suite, objective in by_page)
    return "\n".join([*lines, "", "```{toctree}", ":hidden:", "", listed, "```"]) + "\n"


def _title(suite: str, objective: Objective) -> str:
    return suite if objective is Objective.MAKESPAN else f"{suite}, {objective_name(objective)}"


def file_name(suite: str, objective: Objective) -> str:
    """Return the name of a page's files, without what follows the dot."""
    return f"{suite}-{objective.value}"


def grouped(rows: Iterable[PolicyRow]) -> dict[str, list[PolicyRow]]:
    """Return rows by policy, the least mean gap first."""
    found: dict[str, list[PolicyRow]] = {}
    for row in rows:
        found.setdefault(row.policy, []).append(row)
    means = {policy: _mean(own) for policy, own in found.items()}
    order = sorted(found, key=lambda policy: (means[policy] is None, means[policy], policy))
    return {policy: found[policy] for policy in order}


def _mean(rows: Sequence[PolicyRow]) -> float | None:
    return _mean_of([row.gap for row in rows])


def _mean_of(numbers: Iterable[float | None]) -> float | None:
    given = [number for number in numbers if number is not None]
    return sum(given) / len(given) if given else None


def _mean_cell(rows: Sequence[PolicyRow], instances: int) -> str:
    mean = _mean(rows)
    if mean is None:
        return _NONE
    return f"{100 * mean:.1f}{' †' if sum(row.value is not None for row in rows) < instances else ''}"


def _policy_line(policy: str, rows: Sequence[PolicyRow]) -> str:
    mean = _mean(rows)
    failed = sum(row.value is None for row in rows)
    if mean is None:
        return f"| `{policy}` | {_NONE} | {_NONE} | | | {_NONE} | {failed} |"
    worst = max((row for row in rows if row.gap is not None), key=lambda row: row.gap or 0.0)
    least = "≤\N{NO-BREAK SPACE}" if worst.is_open and worst.gap else ""
    met = sum(row.gap == 0 for row in rows)
    return (
        f"| `{policy}` | {100 * mean:.2f} | {least}{100 * (worst.gap or 0.0):.2f} | {worst.instance} | `{worst.key}` |"
        f" {met} | {failed} |"
    )


def _number(value: int | None) -> str:
    return _NONE if value is None else f"{value:,}"
