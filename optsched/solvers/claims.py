r"""What a solver's answer proves: the one place where statuses, floats and bounds of solvers become claims.

A claim is an exact integer bound, and "optimal" only if the exact value of the schedule, timed anew in integers, is
that bound. What a solver calls its status or its solution's objective value never decides that.

CP-SAT
------
It computes with 64-bit integers; its bound is read as an integer (`optsched.solvers.cpsat`). It is a claim of the
solver, for its search leaves no certificate.

Solvers of mixed-integer programmes
-----------------------------------
HiGHS, CBC and the others compute with floats, and take a row, a bound, an integer or a reduced cost as satisfied
within a *tolerance* τ. Take

.. math:: \min c x, \quad l ≤ x ≤ u, \quad A x ≥ b, \quad x_j \text{ whole for some } j,

with finite l and u, an equality in place of itself. Let :math:`r_j = u_j - l_j`, and :math:`ρ_i` the largest slack
that row i can have between these bounds; 0 for an equality. Then the solver's bound z exceeds the optimum by at most
the *margin*

.. math:: δ = τ \Bigl( \sum_j r_j + \sum_i ρ_i + \sum_j |c_j| r_j \Bigr) + κ

for these reasons, of which each part of δ covers one:

- *Rows, bounds and integrality, violated by τ.* Schedules satisfy all of them exactly. So the tolerance admits more
  points, never fewer, and lowers z: even where a coefficient of 10⁴ makes a violation of τ a long time. It makes
  solutions wrong, so they are rounded, rows of whole numbers are evaluated in integers (`admits`), and times anew.
- *Duals, violated by τ.* The relaxation of a node ends with a basic solution :math:`\hat x` and duals y, with reduced
  costs :math:`d = c - A^T y`. For every x that satisfies the rows,
  :math:`c \hat x - c x = \sum_i y_i (a_i \hat x - a_i x) + \sum_j d_j (\hat x_j - x_j)`. A term whose multiplier has
  the right sign is at most 0, for its row or bound holds :math:`\hat x` fast and x is on the feasible side. Wrong signs
  go up to τ: at most :math:`τ ρ_i` and :math:`τ r_j`. (Neumaier and Shcherbina 2004 evaluate the same sum for given
  duals; solvers do not give those of their trees.)
- *Objectives that are taken as whole multiples of a number*, within τ for every coefficient, so that bounds are rounded
  up: :math:`τ \sum |c_j| r_j`.
- *Cutoff.* Nodes that are not better than the best solution by κ, the solver's least improvement, are left out.

The margin says nothing of rounding errors beyond the tolerances, which solvers check only at the end, nor of defects of
presolve or cuts: so the badge stays ``solver_claimed``.

The bound less its margin is then raised to the next value that the objective can take (`Values`), so that it closes the
gap where values lie further apart than the margin, and only there. Beside a base of 10¹² ps, values that differ by a
few ps do not.

*Infeasible.* A row "objective at most v" is given with the margin to spare. So a solver that finds it infeasible has
bounded the optimum by more than v as above.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, gcd, isfinite
from typing import Any

import numpy as np

from optsched.model.metrics import evaluate
from optsched.model.result import Badge
from optsched.model.schedule import Schedule
from optsched.solvers.formulation import Outcome, Task, Termination

_MOST_SUMS = 2**20
"""Sums that are listed to find the next one."""
_LARGEST = 2**62
"""Arrays add up to this."""

Part = tuple[int, int]
"""``(coefficient, most)``: a term of a sum, its coefficient between 0 and ``most`` times."""
Side = tuple[float, float, float]
"""``(coefficient, lower, upper)`` of a variable in a row or an objective."""


@dataclass(frozen=True)
class Tolerance:
    """What a solver takes as zero.

    Parameters
    ----------
    feasibility
        τ, of rows, bounds, integers and reduced costs.
    cutoff
        κ, of the objective: by how much a solution has to be better to be looked for.
    """

    feasibility: float
    cutoff: float

    def margin(
        self, objective: Iterable[Side], columns: Iterable[tuple[float, float]], slacks: Iterable[float]
    ) -> float:
        """Return δ in the solver's unit of the objective.

        Parameters
        ----------
        objective
            Variables with a cost.
        columns
            Lower and upper bound of every variable, finite.
        slacks
            ρ of every row.
        """
        ranges = sum(upper - lower for lower, upper in columns)
        costs = sum(abs(coefficient) * (upper - lower) for coefficient, lower, upper in objective)
        return self.feasibility * (ranges + sum(slacks) + costs) + self.cutoff


def most_slack(terms: Iterable[Side], lower: float | None, upper: float | None) -> float:
    """Return ρ of a row: its largest slack; 0 for an equality. Sides are None where there is no limit."""
    if lower == upper:
        return 0.0
    least = most = 0.0
    for coefficient, low, high in terms:
        ends = coefficient * low, coefficient * high
        least, most = least + min(ends), most + max(ends)
    return max(0.0 if upper is None else upper - least, 0.0 if lower is None else most - lower, 0.0)


@dataclass(frozen=True)
class Values:
    """A set that contains all values of an objective: ``origin + step × Σ coefficient × count``, or all steps.

    Parameters
    ----------
    origin, step
        In ps or requests, ``step`` > 0.
    parts
        Terms of the sum, coefficients of any sign; None if it can be any whole number.
    """

    origin: int
    step: int
    parts: tuple[Part, ...] | None = None

    def next(self, least: int) -> int:
        """Return the least value in the set that is not below ``least``; if there is none, the next step."""
        steps = -((self.origin - least) // self.step)
        if self.parts is not None:
            # A term that lowers the sum is one that raises it, counted from its other end.
            shift = sum(coefficient * most for coefficient, most in self.parts if coefficient < 0)
            reached = least_sum([(abs(coefficient), most) for coefficient, most in self.parts], steps - shift)
            steps = steps if reached is None else reached + shift
        return self.origin + self.step * steps


def least_sum(parts: Iterable[Part], least: int) -> int | None:
    """Return the least sum that is at least ``least``, of coefficients ≥ 0, each up to a number of times.

    None if there is none. Half of the parts make one list of sums, the others another (Horowitz and Sahni 1974); if
    one has too many, the least multiple of what divides all coefficients is returned, which no such sum is below.
    """
    counts: Counter[int] = Counter()
    for coefficient, most in parts:
        counts[coefficient] += most if coefficient else 0
    greatest = sum(coefficient * most for coefficient, most in counts.items())
    if greatest < least:
        return None
    if least <= 0:
        return 0
    divisor = gcd(*counts)
    rounded = -(-least // divisor) * divisor
    if greatest > _LARGEST:
        return rounded
    halves = [np.zeros(1, dtype=np.int64)] * 2
    for coefficient, most in sorted(counts.items(), key=lambda part: -part[1]):
        halves.sort(key=len)
        if len(halves[0]) * (most + 1) > _MOST_SUMS:
            return rounded
        halves[0] = np.unique(np.add.outer(coefficient * np.arange(most + 1, dtype=np.int64), halves[0]))
    few, many = sorted(halves, key=len)
    places = np.searchsorted(many, least - few)
    return int((few + many[np.minimum(places, len(many) - 1)])[places < len(many)].min())


@dataclass(frozen=True)
class FloatReading:
    """How the float objective of a solver is read.

    Parameters
    ----------
    constant, unit
        An objective of z means ``constant + unit × z``, in ps or requests.
    margin
        δ, in the solver's unit (see the module).
    values
        What the objective can be.
    """

    constant: int
    unit: int
    margin: float
    values: Values

    def proved(self, objective: float) -> int | None:
        """Return the exact bound that a float bound proves; None if it is not a number."""
        least = self.lowered(objective)
        return None if least is None else self.values.next(least)

    def lowered(self, objective: float) -> int | None:
        """Return a bound that is quicker to compute and never better: it does not look for the next value."""
        if not isfinite(objective):
            return None
        return ceil(self.constant + self.unit * (Fraction(objective) - Fraction(self.margin)))

    def shown(self, objective: float) -> int:
        """Return what a float objective value is about, in whole steps: for progress, never for a claim."""
        steps = round((self.constant - self.values.origin + self.unit * Fraction(objective)) / self.values.step)
        return self.values.origin + self.values.step * steps

    def limit(self, most: int) -> float:
        """Return the right side, in the solver's unit, of "objective at most ``most``", margin included.

        At least half a step is to spare, so that rounding shuts out no schedule.
        """
        largest = self.values.origin + (most - self.values.origin) // self.values.step * self.values.step
        exact = Fraction(2 * (largest - self.constant) + self.values.step, 2 * self.unit)
        spare = Fraction(most - self.constant, self.unit) + Fraction(self.margin)
        return float(max(exact, spare))


def admits(rows: Iterable[tuple[Sequence[tuple[int, int]], int | None, int | None]], values: Sequence[int]) -> bool:
    """Return whether whole numbers satisfy rows ``lower ≤ Σ coefficient × value ≤ upper``, exactly."""
    for terms, lower, upper in rows:
        total = sum(coefficient * values[variable] for coefficient, variable in terms)
        if (lower is not None and total < lower) or (upper is not None and total > upper):
            return False
    return True


def claim(task: Task, schedules: Iterable[Schedule | None], bound: int | None) -> Outcome:
    """Return what legal schedules and a solver's exact bound mean for a task.

    A bound that exceeds the exact value of a schedule is refuted: then only the task's own bound is left. Where the
    task asks for values of at most v, a solver speaks of those only, so that its bound counts up to v + 1.

    Parameters
    ----------
    task
        What the solver was asked.
    schedules
        Legal ones; None among them is ignored.
    bound
        Exact lower bound on the objective; None if there is none.
    """
    most = task.restrictions.at_most
    known = [(_value(task, schedule), schedule) for schedule in schedules if schedule is not None]
    proved = max(task.bound, bound or 0 if most is None else min(bound or 0, most + 1))
    if any(value < proved for value, _ in known):
        proved = task.bound
    known = [pair for pair in known if most is None or pair[0] <= most]
    badge = Badge.SOLVER_CLAIMED
    if not known:
        empty = most is not None and proved > most
        return Outcome(Termination.INFEASIBLE if empty else Termination.LIMIT, None, proved, badge)
    value, best = min(known, key=lambda pair: pair[0])
    return Outcome(Termination.OPTIMAL if proved == value else Termination.LIMIT, best, proved, badge)


def _value(task: Task, schedule: Schedule) -> int:
    found: dict[str, Any] = evaluate(task.instance, schedule)["objectives"]
    return int(found[task.objective.value])
