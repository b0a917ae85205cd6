"""Mixed-integer programmes written in PuLP, and the solvers that PuLP knows, behind the package's status scheme."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from threading import Event
from types import MappingProxyType
from typing import Any

import highspy
import pulp

from optsched.model.errors import InputError, did_you_mean
from optsched.solvers.claims import FloatReading, Tolerance
from optsched.solvers.formulation import ModelFormat, ProgressEvent, SolverCrashError, Task
from optsched.solvers.highs import HIGHS_TOLERANCE, run_pooled
from optsched.solvers.interrupt import wait_interruptibly

_DEFAULTS = Tolerance(feasibility=1e-6, cutoff=2e-5)
"""Of solvers without options: 10⁻⁶ is the default of all for rows and integers, 10⁻⁵ CBC's for better solutions."""
_PATIENCE_S = 6.0
"""Time that an interrupted CBC has to write its results."""


def programme_text(problem: pulp.LpProblem, style: ModelFormat) -> str:
    """Return a programme as the text of an LP or MPS file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model"
        if style is ModelFormat.LP:
            problem.writeLP(str(file))
        else:
            problem.writeMPS(str(file), with_objsense=True)
        return file.read_text()


@dataclass(frozen=True)
class Programme:
    """A programme for a solver to minimise.

    Parameters
    ----------
    problem
        In PuLP; the values that its variables have are the first solution.
    task
        Gives workers, seed and progress.
    seconds
        Wall-clock limit.
    reading
        Says what the solver's objective means.
    """

    problem: Any
    task: Task
    seconds: float
    reading: FloatReading


@dataclass(frozen=True)
class MilpAnswer:
    """Result of a solver.

    Parameters
    ----------
    infeasible, closed
        The solver's claims: no solution exists; its solution is optimal.
    found
        The problem's variables hold a solution.
    bound
        Its lower bound in the objective's unit; None if it has none.
    """

    infeasible: bool
    closed: bool
    found: bool
    bound: float | None


class _Highs(pulp.HiGHS):  # type: ignore[misc]
    """PuLP's HiGHS, with a first solution, progress and a clean stop on Ctrl-C."""

    def __init__(self, programme: Programme, _log: Path) -> None:
        task = programme.task
        super().__init__(
            msg=False,
            gapRel=0.0,
            gapAbs=0.0,
            threads=task.workers,
            timeLimit=programme.seconds,
            random_seed=task.seed,
            mip_feasibility_tolerance=HIGHS_TOLERANCE.feasibility,
            callbackTuple=(self._called, None),
            callbacksToActivate=[highspy.cb.HighsCallbackType.kCallbackMipInterrupt],
        )
        self._programme = programme
        self._started = time.perf_counter()
        self._stop = Event()
        self._told: tuple[int | None, int | None] = (task.incumbent_value, task.bound or None)
        self._dual = -highspy.kHighsInf

    def _called(self, _kind: Any, _message: str, seen: Any, reply: Any, _data: Any) -> None:
        """Stop if requested, else report progress."""
        if self._stop.is_set():
            reply.user_interrupt = True
        incumbent, bound = self._told
        if seen.mip_dual_bound != self._dual:
            self._dual = seen.mip_dual_bound
            bound = max(self._programme.reading.lowered(self._dual) or 0, bound or 0) or None
        if abs(seen.mip_primal_bound) < highspy.kHighsInf:
            found = self._programme.reading.shown(seen.mip_primal_bound)
            incumbent = found if incumbent is None else min(found, incumbent)
        if (incumbent, bound) != self._told:
            self._told = incumbent, bound
            elapsed = time.perf_counter() - self._started
            self._programme.task.progress(ProgressEvent(elapsed, incumbent, bound))

    def callSolver(self, lp: Any) -> None:  # noqa: N802
        """Run HiGHS; an interrupted search keeps what it has."""
        begun = [(variable.index, variable.varValue) for variable in lp.variables() if variable.varValue is not None]
        if begun:
            columns, values = zip(*begun, strict=True)
            lp.solverModel.setSolution(len(begun), columns, values)
        run_pooled(lp.solverModel.run, self._stop.set)

    def findSolutionValues(self, lp: Any) -> tuple[int, int]:  # noqa: N802
        """Read the solution; a search that was stopped before it had any values has none."""
        try:
            found: tuple[int, int] = super().findSolutionValues(lp)
        except IndexError:  # PuLP reads rows without values
            found = pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound
        return found


def _highs_bound(problem: Any, _log: Path) -> float:
    return float(problem.solverModel.getInfo().mip_dual_bound)


class _Cbc(pulp.COIN_CMD):  # type: ignore[misc]
    """PuLP's CBC, which keeps its solution on Ctrl-C.

    CBC is a program of its own. Interrupted it writes its best solution and its bound and ends, but during large
    relaxations and preprocessing it rarely checks: after some seconds it is killed, and its results are lost.
    """

    def __init__(self, programme: Programme, log: Path) -> None:
        super().__init__(
            path=pulp.PULP_CBC_CMD.pulp_cbc_path,
            msg=False,
            gapRel=0.0,
            gapAbs=0.0,
            threads=programme.task.workers,
            timeLimit=programme.seconds,
            options=[f"randomCbcSeed {programme.task.seed}"],
        )
        self._log = log
        self._interrupted_at: float | None = None

    def actualSolve(self, lp: Any, **_: Any) -> int:  # noqa: N802
        """Write the programme, run CBC, read its solution."""
        model, start, solution = (self._log.with_suffix(suffix) for suffix in (".mps", ".mst", ".sol"))
        variables, names, rows, _objective = lp.writeMPS(str(model), rename=1)
        self.writesol(str(start), lp, variables, names, rows)
        options = [word for option in (*self.options, *self.getOptions()) for word in f"-{option}".split()]
        command = [self.path, str(model), "-mips", str(start), "-sec", str(self.timeLimit), *options]
        command += ["-solve", "-printingOptions", "all", "-solution", str(solution)]
        with self._log.open("w") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            wait_interruptibly(process.wait, lambda: self._stop(process))
        if process.returncode and self._interrupted_at is None:
            raise pulp.PulpSolverError(f"CBC ended with code {process.returncode}")
        status, found = pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound
        if solution.exists():
            status, values, _, _, _, found = self.readsol_MPS(str(solution), lp, variables, names, rows)
            lp.assignVarsVals(values)
        if self._interrupted_at is not None and status == pulp.LpStatusInfeasible:
            # Its output when it has found nothing so far.
            status = pulp.LpStatusNotSolved
        lp.assignStatus(status, found)
        return int(status)

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        if self._interrupted_at is None:
            self._interrupted_at = time.perf_counter()
        if time.perf_counter() - self._interrupted_at > _PATIENCE_S:
            process.kill()
        else:
            # Repeatedly: its preprocessing ignores the signal.
            process.send_signal(signal.SIGINT)


def _cbc_bound(problem: Any, log: Path) -> float | None:
    """Return the optimum, or the bound that CBC's log states last."""
    if problem.sol_status == pulp.LpSolutionOptimal:
        # PuLP has no value of an objective without terms.
        return float(pulp.value(problem.objective) or 0.0)
    lines = log.read_text(errors="replace").splitlines()
    stated = [line.split(":")[1].strip() for line in lines if "Lower bound:" in line]
    # Its last decimal may be rounded up.
    return float(stated[-1]) - 10.0 ** -len(stated[-1].partition(".")[2]) if stated else None


def _gurobi(programme: Programme, _log: Path) -> Any:
    task = programme.task
    return pulp.GUROBI(
        msg=False,
        gapRel=0.0,
        timeLimit=programme.seconds,
        warmStart=True,
        MIPGapAbs=0.0,
        Threads=task.workers,
        Seed=task.seed,
    )


def _gurobi_bound(problem: Any, _log: Path) -> float:
    return float(problem.solverModel.ObjBound)


def _cplex(programme: Programme, _log: Path) -> Any:
    workers = programme.task.workers
    return pulp.CPLEX_PY(msg=False, gapRel=0.0, timeLimit=programme.seconds, warmStart=True, threads=workers)


def _cplex_bound(problem: Any, _log: Path) -> float:
    return float(problem.solverModel.solution.MIP.get_best_objective())


def _scip(programme: Programme, _log: Path) -> Any:
    seed = f"randomization/randomseedshift={programme.task.seed}"
    return pulp.SCIP_PY(msg=False, gapRel=0.0, gapAbs=0.0, timeLimit=programme.seconds, warmStart=True, options=[seed])


def _scip_bound(problem: Any, _log: Path) -> float:
    return float(problem.solverModel.getDualbound())


@dataclass(frozen=True)
class MilpSolver:
    """One solver behind PuLP.

    Parameters
    ----------
    make
        Builds PuLP's solver for a programme and a log file.
    bound
        Reads the lower bound from the solved problem or the log.
    available
        Whether it is installed.
    tolerance
        Its tolerance, from its options or defaults.
    """

    make: Callable[[Programme, Path], Any]
    bound: Callable[[Any, Path], float | None]
    available: Callable[[], bool]
    tolerance: Tolerance = _DEFAULTS

    def solve(self, programme: Programme) -> MilpAnswer:
        """Solve the programme within its time limit.

        Raises
        ------
        SolverCrashError
            If the solver crashes.
        """
        problem = programme.problem
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            try:
                problem.solve(self.make(programme, log))
            except pulp.PulpSolverError as error:
                raise SolverCrashError(str(error)) from error
            # Not the solution's status: that of an integer programme that CBC finds infeasible is "no solution".
            infeasible = problem.status == pulp.LpStatusInfeasible
            bound = None if infeasible else self.bound(problem, log)
        if bound is not None and not isfinite(bound):
            bound = None
        closed = problem.sol_status == pulp.LpSolutionOptimal
        return MilpAnswer(infeasible, closed, closed or problem.sol_status == pulp.LpSolutionIntegerFeasible, bound)


SOLVERS = MappingProxyType(
    {
        "highs": MilpSolver(_Highs, _highs_bound, lambda: True, HIGHS_TOLERANCE),
        "cbc": MilpSolver(_Cbc, _cbc_bound, lambda: pulp.COIN_CMD(path=pulp.PULP_CBC_CMD.pulp_cbc_path).available()),
        "gurobi": MilpSolver(_gurobi, _gurobi_bound, lambda: pulp.GUROBI(msg=False).available()),
        "cplex": MilpSolver(_cplex, _cplex_bound, lambda: pulp.CPLEX_PY(msg=False).available()),
        "scip": MilpSolver(_scip, _scip_bound, lambda: pulp.SCIP_PY(msg=False).available()),
    }
)
"""The solvers by name; HiGHS and CBC come with PuLP."""


def require_solver(name: str) -> None:
    """Raise `InputError` for an unknown solver, or one that is not installed."""
    installed = ", ".join(known for known, solver in SOLVERS.items() if solver.available())
    if name not in SOLVERS:
        expected = f"one of {', '.join(SOLVERS)} (installed: {installed}){did_you_mean(name, SOLVERS)}"
        raise InputError("solver", name, expected)
    if not SOLVERS[name].available():
        raise InputError("solver", name, f"a solver that is installed: {installed}")
