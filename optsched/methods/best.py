"""The incumbent and the claimed bounds of one search, all of which go through the checker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from optsched.bounds.bound import Bound
from optsched.failures import FAILURES, failure_text
from optsched.methods.checked import checked_metrics, is_proved
from optsched.methods.question import Question
from optsched.model.errors import DefectError, shown
from optsched.model.metrics import Tally
from optsched.model.result import Badge
from optsched.model.schedule import Schedule
from optsched.solvers.formulation import Outcome, SolverCrashError, Termination


@dataclass(frozen=True)
class Claim:
    """A lower bound, what backs it, and which method claims it."""

    bound: int
    badge: Badge
    certificate: dict[str, Any] | None
    origin: str


_NO_CLAIM = Claim(0, Badge.HEURISTIC, None, "")


@dataclass
class Best:
    """The best schedule and bounds so far, which methods found them, and what went wrong.

    Attributes
    ----------
    least, least_by
        Least value of any schedule that the checker has replayed, and the method; it may be more than `at_most` allows.
    claims
        Bounds in ascending order, none above ``least``. The last one is the best; the others take its place if a
        schedule refutes it.
    failures
        A sentence for each method whose code raised.
    defects
        A sentence for each claim that contradicts the checker or a replayed schedule. Such a claim is dropped.
    """

    question: Question
    value: int | None = None
    schedule: Schedule | None = None
    metrics: dict[str, Any] | None = None
    found_by: str | None = None
    least: int | None = None
    least_by: str | None = None
    claims: list[Claim] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    defects: list[str] = field(default_factory=list)

    @property
    def claim(self) -> Claim:
        """The best bound; one of badge ``heuristic`` if there is none."""
        return self.claims[-1] if self.claims else _NO_CLAIM

    @property
    def bound(self) -> int | None:
        """The best bound; None if there is none."""
        return self.claim.bound if self.claims else None

    @property
    def closed(self) -> bool:
        """Whether the best schedule is proved optimal."""
        return self.value is not None and self.value == self.bound

    @property
    def hopeless(self) -> bool:
        """Whether no schedule is as good as asked."""
        at_most = self.question.restrictions.at_most
        return at_most is not None and self.bound is not None and self.bound > at_most

    @property
    def settled(self) -> bool:
        """Whether nothing is left to search: the optimum is proved, or the question of `at_most` answered."""
        return (
            self.closed or self.hopeless or (self.question.restrictions.at_most is not None and self.value is not None)
        )

    @contextmanager
    def surviving(self, origin: str) -> Iterator[None]:
        """Run one method, and note what its code raises instead of ending the search; Ctrl-C ends it."""
        try:
            yield
        except DefectError as defect:
            self.defects.append(str(defect))
        except SolverCrashError as crash:
            self.failures.append(f"{origin}: {crash}")
        except FAILURES as error:
            self.failures.append(f"{origin}: {failure_text(error)}")

    def offer_schedule(self, schedule: Schedule, origin: str, tally: Tally | None = None) -> None:
        """Take a schedule of one machine as `offer_checked` does, after it has been through the checker.

        Raises
        ------
        IllegalScheduleError, DefectError
            As `optsched.methods.checked.checked_metrics` does, which also says what ``tally`` is.
        """
        asked = self.question
        metrics = checked_metrics(asked.instance, schedule, origin, asked.restrictions, tally)
        self.offer_checked(schedule, metrics, origin)

    def offer_checked(self, schedule: Schedule, metrics: dict[str, Any], origin: str) -> None:
        """Take a schedule that has been through the checker with these metrics, if it is better and as good as asked.

        It refutes every bound above its value.
        """
        value = metrics["objectives"][self.question.objective.value]
        at_most = self.question.restrictions.at_most
        if (at_most is None or value <= at_most) and (self.value is None or value < self.value):
            self.value, self.schedule, self.metrics, self.found_by = value, schedule, metrics, origin
        if self.least is None or value < self.least:
            self.least, self.least_by = value, origin
        while self.claims and self.claim.bound > value:
            self._refute(self.claims.pop())

    def offer_bound(self, bound: int, badge: Badge, certificate: dict[str, Any] | None, origin: str) -> None:
        """Take a bound if it is better than the one before, and not above the value of a replayed schedule."""
        if type(bound) is not int or bound < 0:
            raise TypeError(f"a bound is {shown(bound)}, expected an integer ≥ 0")
        if self.bound is not None and bound <= self.bound:
            return
        # The bound may be true without the checker's word: the checker has limits, and may fail.
        if badge == Badge.CERTIFIED and not self._confirmed(bound, certificate, origin):
            badge, certificate = Badge.SOLVER_CLAIMED, None
        self._take(Claim(bound, badge, certificate, origin))

    def offer_certificate(self, certificate: dict[str, Any]) -> None:
        """Take a certificate of the best bound, which is only claimed so far, if the checker proves that bound."""
        claim = self.claim
        if self._confirmed(claim.bound, certificate, claim.origin):
            self.claims[-1] = Claim(claim.bound, Badge.CERTIFIED, certificate, claim.origin)

    def offer_proof(self, found: Bound, origin: str) -> None:
        """Take a bound of the catalogue, which counts only as far as the checker proves it.

        Its arithmetic is that of arrays; where the checker refuses a number as too large it may have wrapped.
        """
        if self.bound is None or found.value > self.bound:
            if self._confirmed(found.value, found.certificate, origin):
                self._take(Claim(found.value, Badge.CERTIFIED, found.certificate, origin))
            else:
                self.failures.append(f"{origin}: the checker does not prove its bound {found.value}, which is not used")

    def _take(self, claim: Claim) -> None:
        if self.least is not None and claim.bound > self.least:
            self._refute(claim)
        else:
            self.claims.append(claim)

    def _confirmed(self, bound: int, certificate: dict[str, Any] | None, origin: str) -> bool:
        asked = self.question
        with self.surviving(f"the check of {origin}'s bound {bound}"):
            return is_proved(asked.instance, asked.restrictions, asked.objective, bound, certificate)
        return False

    def _refute(self, claim: Claim) -> None:
        self.defects.append(
            f"{claim.origin}: its bound {claim.bound} ({claim.badge.value}) exceeds the value {self.least} of a "
            f"schedule of {self.least_by}, which the checker has replayed; the bound is not used"
        )

    def offer_outcome(self, outcome: Outcome, origin: str) -> None:
        """Take what a formulation found; that it found the class empty bounds the objective beyond what was asked."""
        # The incumbent that a formulation was given comes back as it was; it has been checked.
        if outcome.schedule is not None and outcome.schedule != self.schedule:
            self.offer_schedule(outcome.schedule, origin)
        bound, badge = outcome.bound, outcome.badge
        if self.question.restrictions.at_most is not None and outcome.termination == Termination.INFEASIBLE:
            bound = max(bound or 0, self.question.restrictions.at_most + 1)
            badge = Badge.SOLVER_CLAIMED if badge == Badge.HEURISTIC else badge
        if bound is not None:
            self.offer_bound(bound, badge, outcome.certificate, origin)
