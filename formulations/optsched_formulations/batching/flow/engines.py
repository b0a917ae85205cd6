"""CP-SAT and HiGHS on the programme of `model`: one description, two solvers.

*CP-SAT* computes in integers; its bound is a claim of the solver.

*HiGHS* computes with floats. Times of batches are counted in the longest of them, rows in their largest coefficient
and the objective in its own; solutions are rounded to integers, which must satisfy all rows exactly, and timed exactly.
What its bound proves `optsched.solvers.claims` says, and `FlowModel.values` what the objective can be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from ortools.sat.python import cp_model
from scipy.sparse import csc_array

from optsched.model.schedule import Schedule
from optsched.solvers.claims import FloatReading, admits, most_slack
from optsched.solvers.cpsat import minimize_cpsat
from optsched.solvers.formulation import ProgressEvent, Task, Termination, require_seconds
from optsched.solvers.highs import HIGHS_TOLERANCE, programme_of, quiet_solver, run_interruptibly
from optsched.stopwatch import now_s
from optsched_formulations.batching.flow.model import FlowModel, FlowRow, Terms
from optsched_formulations.batching.objective import Goal, bounded, require_range


@dataclass(frozen=True)
class Answer:
    """How an engine ended.

    Parameters
    ----------
    infeasible
        Whether it says that no schedule is as good as asked for.
    schedule
        The best schedule found.
    bound
        Lower bound on the makespan in ps among the schedules as good as asked for; None if none was proved.
    """

    infeasible: bool
    schedule: Schedule | None
    bound: int | None


def minimize_with_cpsat(model: FlowModel, task: Task, upper: int) -> Answer:
    """Minimise the makespan with CP-SAT, among schedules of at most ``upper`` ps.

    Raises
    ------
    UnsupportedError
        If the numbers could overflow.
    """
    program = model.program
    cp = cp_model.CpModel()
    variables = [cp.new_int_var(lower, most, "") for lower, most in zip(program.lower, program.upper, strict=True)]

    def expression(terms: Terms) -> cp_model.LinearExpr:
        require_range(sum(abs(factor) * max(abs(program.lower[x]), abs(program.upper[x])) for factor, x in terms))
        return cp_model.LinearExpr.weighted_sum([variables[x] for _, x in terms], [factor for factor, _ in terms])

    for row in program.rows:
        add_row(cp, row, expression(row.terms))
    flows = None if task.incumbent is None else model.flows_of(task.incumbent)
    if flows is not None:
        for variable, value in zip(variables, flows, strict=True):
            cp.add_hint(variable, value)
    goal = bounded(cp, Goal(expression(program.objective), model.scale, model.constant), task, upper)
    answer = minimize_cpsat(cp, goal.expression, task, goal.to_value)
    value_of = answer.value_of
    schedule = None if value_of is None else model.schedule(lambda x: value_of(variables[x]))
    infeasible = answer.termination == Termination.INFEASIBLE
    return Answer(infeasible, schedule, None if answer.bound is None else goal.to_value(answer.bound))


def add_row(cp: cp_model.CpModel, row: FlowRow, total: cp_model.LinearExpr) -> None:
    """Add a row, of which ``total`` is the sum of its terms."""
    if row.lower == row.upper and row.lower is not None:
        cp.add(total == row.lower)
    elif row.lower is not None:
        cp.add(total >= row.lower)
    elif row.upper is not None:
        cp.add(total <= row.upper)


def minimize_with_highs(model: FlowModel, task: Task, upper: int) -> Answer:
    """Minimise the makespan with HiGHS, among schedules of at most ``upper`` ps.

    Raises
    ------
    UnsupportedError
        For a limit in deterministic time.
    """
    require_seconds(task)
    return _Highs(model, task, upper).run()


class _Highs:
    """One run of HiGHS."""

    def __init__(self, model: FlowModel, task: Task, upper: int) -> None:
        self._model = model
        self._task = task
        program = model.program
        # Times are counted in shares of the longest batch.
        self._span = np.ones(len(program.lower))
        for x in program.continuous:
            self._span[x] = max(program.upper[x], 1)
        self._unit = max((abs(factor) * int(self._span[x]) for factor, x in program.objective), default=1)
        self._started = now_s()
        self._told = task.incumbent_value, task.bound or None
        self._solver = solver = quiet_solver(task.time_limit_s, task.workers, task.seed)
        for option in ("mip_rel_gap", "mip_abs_gap"):
            solver.setOptionValue(option, 0.0)
        solver.setOptionValue("mip_feasibility_tolerance", HIGHS_TOLERANCE.feasibility)
        flows = None if task.incumbent is None else model.flows_of(task.incumbent)
        known = flows is not None and task.incumbent_value is not None and task.incumbent_value <= upper
        # A solution cuts off worse ones by itself; without one a row has to.
        self._dual = -highspy.kHighsInf
        self._reading, programme = self._programme(None if known else upper)
        solver.passModel(programme)
        if flows is not None and known:
            solver.setSolution(len(flows), np.arange(len(flows)), np.array(flows) / self._span)

    def _programme(self, upper: int | None) -> tuple[FloatReading, Any]:
        """Return how HiGHS' objective is read, and the programme as it takes it, the objective at most ``upper`` ps."""
        program, infinite = self._model.program, highspy.kHighsInf
        cost = np.zeros(len(program.lower))
        for factor, x in program.objective:
            cost[x] += factor * self._span[x] / self._unit
        index: list[int] = []
        column: list[int] = []
        value: list[float] = []
        lowest: list[float] = []
        highest: list[float] = []
        slacks: list[float] = []
        least, most = np.array(program.lower) / self._span, np.array(program.upper) / self._span
        for i, row in enumerate(program.rows):
            factors = [factor * self._span[x] for factor, x in row.terms]
            largest = max(map(abs, factors), default=1)
            factors = [factor / largest for factor in factors]
            sides = [None if side is None else side / largest for side in (row.lower, row.upper)]
            index += [i] * len(factors)
            column += [x for _, x in row.terms]
            value += factors
            lowest.append(-infinite if sides[0] is None else sides[0])
            highest.append(infinite if sides[1] is None else sides[1])
            ends = [(factor, least[x], most[x]) for factor, (_, x) in zip(factors, row.terms, strict=True)]
            slacks.append(most_slack(ends, *sides))
        margin = HIGHS_TOLERANCE.margin(
            zip(cost.tolist(), least, most, strict=True), zip(least, most, strict=True), slacks
        )
        reading = FloatReading(self._model.constant, self._unit * self._model.scale, margin, self._model.values)
        if upper is not None:
            counted = np.flatnonzero(cost).tolist()
            index += [len(lowest)] * len(counted)
            column += counted
            value += cost[counted].tolist()
            lowest.append(-infinite)
            highest.append(reading.limit(upper))
        matrix = csc_array((value, (index, column)), shape=(len(lowest), len(cost)))
        programme = programme_of(cost, (least, most), matrix, (np.array(lowest), np.array(highest)))
        kinds = [highspy.HighsVarType.kInteger] * len(cost)
        for x in program.continuous:
            kinds[x] = highspy.HighsVarType.kContinuous
        programme.integrality_ = kinds
        return reading, programme

    def run(self) -> Answer:
        """Run HiGHS; an interrupted search keeps what it has."""
        run_interruptibly(self._solver, self._tell)
        status, info = self._solver.getModelStatus(), self._solver.getInfo()
        statuses = highspy.HighsModelStatus
        if status in {statuses.kInfeasible, statuses.kUnboundedOrInfeasible}:
            return Answer(True, None, None)
        bound = self._reading.proved(info.mip_dual_bound)
        if info.primal_solution_status != highspy.kSolutionStatusFeasible:
            return Answer(False, None, bound)
        flows = [round(value) for value in self._solver.getSolution().col_value]
        # Rows of whole numbers: times follow from the schedule.
        program = self._model.program
        rows = ((row.terms, row.lower, row.upper) for row in program.rows)
        exact = (row for row in rows if not any(x in program.continuous for _, x in row[0]))
        return Answer(False, self._model.schedule(flows.__getitem__) if admits(exact, flows) else None, bound)

    def _tell(self, seen: Any) -> None:
        """Tell progress."""
        incumbent, bound = self._told
        if seen.mip_dual_bound != self._dual:
            self._dual = seen.mip_dual_bound
            bound = max(self._reading.lowered(self._dual) or 0, bound or 0) or None
        if abs(seen.mip_primal_bound) < highspy.kHighsInf:
            found = self._reading.shown(seen.mip_primal_bound)
            incumbent = found if incumbent is None else min(found, incumbent)
        if (incumbent, bound) != self._told:
            self._told = incumbent, bound
            self._task.progress(ProgressEvent(now_s() - self._started, incumbent, bound))
