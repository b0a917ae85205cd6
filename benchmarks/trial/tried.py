"""What is tried: the package's objects made from documents, and what came out, counted."""

from __future__ import annotations

import json
import signal
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from types import FrameType
from typing import Any

from pydantic import TypeAdapter

from optsched import Instance, Restrictions
from optsched.calibrate.library import cost_model
from optsched.check import UnprovedError, proved_bound
from optsched.model.documents import parse_instance
from optsched.model.objectives import Objective
from trial.case import Case, read_case
from trial.exhaustive import Exhaustive, Optimum
from trial.odd import Wanted, problem, restricted

Document = dict[str, Any]
SLOW_S = 60.0
"""A call that takes more CPU time is a finding of its own; the first one compiles."""
_RESTRICTIONS = TypeAdapter(Restrictions)


class SlowError(BaseException):
    """A call took too long; no ``except Exception`` of what is tried catches it."""


class EnoughError(BaseException):
    """Something was found, and nothing more is to be looked for."""


@dataclass
class Tally:
    """What trials counted, and what they found: the name of a file and its content.

    Where only the first finding is asked for, `find` ends the chunk.
    """

    counts: Counter[str] = field(default_factory=Counter)
    found: list[tuple[str, Document]] = field(default_factory=list)
    first_only: bool = False

    def find(self, sort: str, name: str, content: Document) -> None:
        """Note a finding: ``false``, ``traceback`` or ``slow``."""
        self.counts[f"{sort}/{name}"] += 1
        if self.counts[f"{sort}/{name}"] <= 3:
            self.found.append((f"{sort}-{name.replace('/', '-').replace(', ', '-')}", content))


@dataclass(frozen=True)
class TriedProblem:
    """A problem as a document, as a case of the trial's own, and as what is tried takes it."""

    document: Document
    restrictions: Document

    @cached_property
    def case(self) -> Case:
        """The case."""
        return read_case(self.document, self.restrictions)

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """The cases of all machines, each with all requests."""
        return (self.case,)

    @cached_property
    def search(self) -> Exhaustive:
        """The exhaustive search."""
        return Exhaustive(self.case)

    @cached_property
    def instance(self) -> Instance:
        """The instance."""
        return parse_instance(json.dumps(self.document).encode(), cost_model)

    @cached_property
    def allowed(self) -> Restrictions:
        """The restrictions."""
        return _RESTRICTIONS.validate_json(json.dumps(self.restrictions))

    def optimum(self, objective: str) -> Optimum:
        """Return the optimum."""
        return self.search.optimum(objective)

    def finding(self, objective: str, **more: Any) -> Document:
        """Return what a finding says of the problem."""
        return {
            "objective": objective,
            "optimum": self.optimum(objective).value,
            "instance": self.document,
            "restrictions": self.restrictions,
            "schedule": self.optimum(objective).batches,
        } | more


@dataclass(frozen=True)
class TriedAlike(TriedProblem):
    """A problem of requests of a few kinds, whose makespan is asked for."""

    @cached_property
    def search(self) -> Exhaustive:
        """The exhaustive search, which does not tell requests of a kind apart."""
        return Exhaustive(self.case, 5_000, alike=True)


def drawn(rng: Random, wanted: Wanted, restrict: bool = True) -> TriedProblem:
    """Draw a problem."""
    document = problem(rng, wanted)
    return TriedProblem(document, restricted(rng, document) if restrict else {})


@contextmanager
def limited(seconds: float = SLOW_S) -> Iterator[None]:
    """Raise `SlowError` in what takes longer."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise SlowError

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def prove(
    tally: Tally, name: str, given: TriedProblem, objective: str, certificate: Any, malformed: bool = False
) -> int | None:
    """Ask the checker what a certificate proves, and hold it against the optimum; None if it proves nothing."""
    counted = f"{'malformed' if malformed else 'certificates'}/{name}"
    tally.counts[f"{counted}/tried"] += 1
    try:
        with limited():
            bound = proved_bound(given.instance, given.allowed, Objective(objective), certificate)
    except UnprovedError:
        return None
    except SlowError:
        tally.find("slow", name, given.finding(objective, certificate=certificate))
        return None
    except Exception:
        error = traceback.format_exc()
        tally.find("traceback", name, given.finding(objective, certificate=certificate, error=error))
        return None
    tally.counts[f"{counted}/accepted"] += 1
    best = given.optimum(objective).value
    if bound == best:
        tally.counts[f"{counted}/tight"] += 1
    if bound > best or type(bound) is not int:
        tally.find("false", name, given.finding(objective, certificate=certificate, bound=bound))
    return bound


def as_batches(schedule: Any) -> list[Mapping[str, Any]]:
    """Return the batches of a schedule as in documents."""
    names = ("replica", "start_ps", "end_ps", "run", "evict", "repeat", "swap_out", "swap_in", "considered")
    return [{name: getattr(batch, name) for name in names} for batch in schedule.batches]
