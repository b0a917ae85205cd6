"""The ledger: the best values and bounds ever found, as rows that are only ever appended.

What people want to know of an instance (best value, best bound, gap, status, how hard it is) is derived from the rows
and never stored. The shipped ledger stands beside the suites, in ``ledger.jsonl``.
"""

from __future__ import annotations

import datetime
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from optsched.library import instances_directory
from optsched.model.documents import ClaimedResult, instance_sha256, read_bytes, restrictions_document
from optsched.model.domain import Name, domain, replace
from optsched.model.errors import DefectError, InputError, Said
from optsched.model.json_text import parse_json
from optsched.model.lines import append_lines, line_error
from optsched.model.objectives import Objective, gap
from optsched.model.restrictions import Restrictions
from optsched.model.result import Badge, Result, Status

SHIPPED = "ledger.jsonl"
"""The shipped ledger's name in the folder of the suites."""
_UNRESTRICTED = Restrictions()


class Kind(StrEnum):
    """What a row says of the optimum: a ``value`` that a schedule reaches, or a ``bound`` below all schedules."""

    VALUE = "value"
    BOUND = "bound"


class Difficulty(StrEnum):
    """How long the proof of the optimum took: up to 10 s, 60 s, 300 s, longer; ``open`` if there is none."""

    EASY = "easy"
    MEDIUM = "medium"
    HARD = "hard"
    VERY_HARD = "very hard"
    OPEN = "open"


_CLASSES = ((10.0, Difficulty.EASY), (60.0, Difficulty.MEDIUM), (300.0, Difficulty.HARD))


@domain
class Row:
    """One thing that was found, once.

    Parameters
    ----------
    instance_sha256, instance
        The problem's hash, and its name for people.
    objective, restrictions
        What was minimised, over which class of schedules; a decision (``at_most``) has no best value.
    kind, value
        Whether this is a schedule's value or a bound; ps, for means the sum over requests.
    method, version
        What found it, and optsched's version.
    date
        The day, such as 2026-11-21.
    runtime_s
        How long the method had run when it ended.
    badge
        What backs it. A value is always ``certified``: the checker replayed its schedule.
    """

    instance_sha256: Name
    instance: Name
    objective: Objective
    kind: Kind
    value: Annotated[int, Field(ge=0)]
    method: Name
    version: Name
    date: Name
    runtime_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    badge: Badge
    restrictions: Restrictions = _UNRESTRICTED

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{64}", self.instance_sha256):
            raise InputError("instance_sha256", self.instance_sha256, "64 hexadecimal digits")
        try:
            datetime.date.fromisoformat(self.date)
        except ValueError:
            raise InputError("date", self.date, "a day such as 2026-11-21") from None
        if self.kind == Kind.VALUE and self.badge != Badge.CERTIFIED:
            raise InputError("badge", self.badge.value, "certified: a value's schedule has been replayed")
        if self.kind == Kind.BOUND and self.badge == Badge.HEURISTIC:
            raise InputError("badge", self.badge.value, "certified or solver_claimed for a bound")
        if self.restrictions.at_most is not None:
            raise InputError("restrictions.at_most", self.restrictions.at_most, "no such field in a ledger")

    @property
    def line(self) -> str:
        """The row as it stands in a file, without the line's end."""
        document: dict[str, object] = {
            "instance_sha256": self.instance_sha256,
            "instance": self.instance,
            "objective": self.objective.value,
        }
        restrictions = restrictions_document(self.restrictions)
        if restrictions:
            document["restrictions"] = restrictions
        document |= {
            "kind": self.kind.value,
            "value": self.value,
            "method": self.method,
            "version": self.version,
            "date": self.date,
            "runtime_s": self.runtime_s,
            "badge": self.badge.value,
        }
        return json.dumps(document, ensure_ascii=False)


_ROW = TypeAdapter(Row)


@dataclass(frozen=True)
class Known:
    """What some rows on one problem say together.

    Parameters
    ----------
    rows
        Rows of one instance, objective and class of schedules.
    """

    rows: tuple[Row, ...] = ()

    def of(self, kind: Kind) -> list[Row]:
        """Return the rows of a kind."""
        return [row for row in self.rows if row.kind == kind]

    def _best(self, kind: Kind) -> list[Row]:
        wanted = self.value if kind == Kind.VALUE else self.bound
        return [row for row in self.of(kind) if row.value == wanted]

    @property
    def value(self) -> int | None:
        """The best value; None if there is none."""
        return min((row.value for row in self.of(Kind.VALUE)), default=None)

    @property
    def bound(self) -> int | None:
        """The best bound; None if there is none."""
        return max((row.value for row in self.of(Kind.BOUND)), default=None)

    @property
    def badge(self) -> Badge:
        """What backs the best bound."""
        found = {row.badge for row in self._best(Kind.BOUND)}
        return next((badge for badge in (Badge.CERTIFIED, Badge.SOLVER_CLAIMED) if badge in found), Badge.HEURISTIC)

    @property
    def gap(self) -> float | None:
        """``(value - bound) / value``, None if either is missing."""
        return gap(self.value, self.bound)

    @property
    def contradictory(self) -> bool:
        """Whether a bound exceeds a value: one of the two is wrong."""
        return self.value is not None and self.bound is not None and self.bound > self.value

    @property
    def status(self) -> Status:
        """What is known; ``optimal`` if value and bound are equal."""
        if self.value is None:
            return Status.UNKNOWN if self.bound is None else Status.BOUND_ONLY
        return Status.OPTIMAL if self.value == self.bound else Status.FEASIBLE

    @property
    def proof_s(self) -> float | None:
        """Seconds to the proof of the optimum: the least time of a best value, or of its bound if that took longer."""
        if self.status != Status.OPTIMAL:
            return None
        return max(min(row.runtime_s for row in self._best(kind)) for kind in Kind)

    @property
    def difficulty(self) -> Difficulty:
        """The class of `proof_s`."""
        time = self.proof_s
        if time is None:
            return Difficulty.OPEN
        return next((name for limit, name in _CLASSES if time <= limit), Difficulty.VERY_HARD)

    def improvements(self, rows: Iterable[Row]) -> list[Row]:
        """Return which of a result's rows add anything: a better value, bound or badge, a proof of an easier class."""
        offered = tuple(rows)
        known, found = self, []
        for row in offered:
            after = Known((*known.rows, row))
            if (after.value, after.bound, after.badge) != (known.value, known.bound, known.badge):
                known = after
                found.append(row)
        # Value and bound may each be known, but not that both can be had so soon.
        easier = Known((*self.rows, *offered)).difficulty != known.difficulty
        return list(offered) if easier else found


def _class(restrictions: Restrictions) -> Restrictions:
    """Return the same class of schedules with its names in one order."""
    if not restrictions.forbid:
        return restrictions
    return replace(restrictions, forbid=tuple(sorted(set(restrictions.forbid))))


class Ledger:
    """Rows, found by problem.

    Parameters
    ----------
    rows
        In the order in which they were appended.
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._found: dict[tuple[str, Objective, Restrictions], list[Row]] = defaultdict(list)
        self.add(rows)

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows, not to any file."""
        for row in rows:
            self._found[row.instance_sha256, row.objective, _class(row.restrictions)].append(row)

    @property
    def rows(self) -> list[Row]:
        """All rows, problem by problem."""
        return [row for rows in self._found.values() for row in rows]

    def best(
        self, instance: str, objective: Objective = Objective.MAKESPAN, restrictions: Restrictions = _UNRESTRICTED
    ) -> Known:
        """Return what is known of the instance of that hash, over that class of schedules."""
        return Known(tuple(self._found.get((instance, objective, _class(restrictions)), ())))

    def contradictions(self) -> list[str]:
        """Name every bound that exceeds a value of the same problem; a free bound holds in every smaller class."""
        found = []
        for (instance, objective, restrictions), rows in self._found.items():
            together = Known((*rows, *self.best(instance, objective).of(Kind.BOUND)))
            if together.contradictory:
                scope = restrictions_document(restrictions) or "all schedules"
                claim = f"bound {together.bound} > value {together.value}"
                found.append(f"{rows[0].instance}, {objective.value}, {scope}: {claim}")
        return found


def read(path: Path) -> Ledger:
    """Read a ledger; a wrong row raises `InputError`, which names file and line."""
    rows = []
    for number, line in enumerate(read_bytes(path).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            rows.append(parse_json(_ROW, line))
        except InputError as error:
            raise line_error(error, path, number) from None
    return Ledger(rows)


def read_if_there(path: Path) -> Ledger:
    """Read a ledger that is to grow; a file that does not exist yet is an empty one.

    One that contradicts itself raises `InputError`: its rows cannot all be true, and none of them can be checked.
    """
    ledger = read(path) if path.exists() else Ledger()
    contradictions = ledger.contradictions()
    if contradictions:
        raise InputError("", Said(contradictions[0]), "no bound above a value of the same problem", str(path))
    return ledger


@cache
def shipped() -> Ledger:
    """Return the ledger of the shipped suites."""
    return read(instances_directory() / SHIPPED)


def rows_of(result: Result, date: datetime.date) -> Iterator[Row]:
    """Yield what a result is worth writing down: its schedule's value, its bound."""
    if result.restrictions.at_most is not None:
        return

    def row(kind: Kind, value: int, part: str, badge: Badge) -> Row:
        origin = result.found_by.get(part, result.method)
        return Row(
            instance_sha256=instance_sha256(result.instance),
            instance=result.instance.name,
            objective=result.objective,
            kind=kind,
            value=value,
            method=result.method if origin == result.method else f"{result.method}/{origin}",
            version=result.versions.get("optsched", "unknown"),
            date=date.isoformat(),
            runtime_s=round(result.runtime_s, 3),
            badge=badge,
            restrictions=_class(result.restrictions),
        )

    if result.schedule is not None and result.value is not None:
        yield row(Kind.VALUE, result.value, "schedule", Badge.CERTIFIED)
    if result.bound is not None and result.badge != Badge.HEURISTIC:
        yield row(Kind.BOUND, result.bound, "bound", result.badge)


def record(path: Path, results: Iterable[Result], date: datetime.date) -> list[Row]:
    """Append what results improve on the ledger in a file, and return the new rows.

    The checker sees every result that has something to add.

    Raises
    ------
    InputError
        If the file holds a bad row, contradicts itself or cannot be written, or the checker finds fault with a result.
    DefectError
        If a bound would exceed a value. Nothing is appended then.
    """
    from optsched.check import check_result  # noqa: PLC0415  # what reads a ledger needs no checker

    ledger = read_if_there(path)
    found: list[Row] = []
    for result in results:
        digest = instance_sha256(result.instance)
        new = ledger.best(digest, result.objective, result.restrictions).improvements(rows_of(result, date))
        if new:
            violations = check_result(ClaimedResult(result, digest, result.gap)).violations
            if violations:
                raise InputError("", Said(violations[0]), "a result that the checker accepts", result.instance.name)
        ledger.add(new)
        found += new
    contradictions = ledger.contradictions()
    if contradictions:
        raise DefectError(f"{path}: {contradictions[0]}")
    append_lines(path, [row.line for row in found])
    return found
