"""Solving for the optimum: what is asked and what is answered; the search between the two is in `stages`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from math import isfinite
from pathlib import Path
from types import MappingProxyType

from optsched.catalogue import file_version
from optsched.methods.arguments import read_integer, read_problem, read_seconds, read_seed, require_coverable
from optsched.methods.best import Best
from optsched.methods.checked import DefectFoundError
from optsched.methods.formulations import Options
from optsched.methods.plan import AUTO, SolvePlan, plan_solve, require_method
from optsched.methods.question import Question
from optsched.methods.stages import SolveRun, search
from optsched.model.domain import replace
from optsched.model.errors import InputError, require_type
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Result, Status, versions
from optsched.solvers.formulation import Progress, silent

_BETWEEN = "; "
"""Separator of the sentences of a message."""
INTERRUPTED = "interrupted"
"""Start of the message of a result whose search Ctrl-C ended (`was_interrupted`)."""
_NO_OPTIONS: Options = MappingProxyType({})


def was_interrupted(result: Result) -> bool:
    """Return whether Ctrl-C cut the search for a result short."""
    return result.message is not None and result.message.partition(_BETWEEN)[0] == INTERRUPTED


def solve(
    instance: Instance | str | Path,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    method: str = AUTO,
    options: Options = _NO_OPTIONS,
    time_limit: float = 60.0,
    deterministic_limit: float | None = None,
    restrictions: Restrictions | None = None,
    workers: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Result:
    """Find the best schedule and the best bound, proved optimal where time suffices.

    Policies give a first schedule, bounds a first bound; then the formulations that cover the instance search between
    the two, in the order and for the time that they declare. For times between tokens requests are also served one
    after another. Whatever is found before the time limit or an interrupt is returned. The policies are optsched's own,
    whatever else is installed.

    Several machines without moves, and machines that cache prefixes, are for ``auto`` only, with its own bounds and
    searches (`optsched.methods.several`), without restrictions, and for objectives that are a maximum or a sum over
    requests; with caches also for the largest load.

    A method whose code raises is named in the result's message, and the others go on.

    Parameters
    ----------
    instance, objective
        The problem: an instance, or the name or file of one.
    method
        A formulation's name; or ``FILE.py:NAME``, where the file defines such a class; or ``auto``, which tries those
        in turn that declare a turn for such an instance (`optsched.solvers.declaration`).
    options
        What the formulation leaves to choose, such as ``{"solver": "cbc"}``.
    time_limit
        Seconds of wall-clock time.
    deterministic_limit
        Limit in the solver's deterministic time, for reproducible searches with one worker.
    restrictions
        Optimise over a smaller class of schedules. With ``at_most`` the search only decides whether the class is
        empty: it ends with the first schedule that is as good (``feasible``, or ``optimal`` if a bound meets it), or
        with a bound beyond (``infeasible``).
    workers
        Solver threads; None for one per core.
    seed
        Random seed of the solver.
    progress
        Called with incumbent and bound whenever one improves.

    Raises
    ------
    InputError
        For an unknown method, one that does not cover the instance, or an option that it does not take.
    DefectFoundError
        If a schedule fails the checker, or a bound exceeds the value of a schedule, which refutes it. It is raised when
        the search has ended; its ``result`` is what there is without the wrong claims, and names them in its message.
    """
    question = Question(*read_problem(instance, objective, restrictions, clusters=True))
    several = question.instance.is_cluster
    if several:
        if method != AUTO:
            question.instance.require_plain()
        require_coverable(question.instance, question.objective, question.restrictions)
        if deterministic_limit is not None:
            raise InputError("deterministic_limit", deterministic_limit, "none for several machines, or a cache")
    time_limit, seed = read_seconds("time_limit", time_limit), read_seed(seed)
    if deterministic_limit is not None:
        deterministic_limit = read_seconds("deterministic_limit", deterministic_limit)
    workers = None if workers is None else read_integer("workers", workers, 1)
    require_type("options", options, Mapping, "a mapping from names to texts")
    if not callable(progress):
        raise InputError("progress", progress, "a function of a ProgressEvent")
    require_method(method)
    plan = SolvePlan((), ()) if several else plan_solve(method, options, question.instance, question.objective)
    best = Best(question, failures=list(plan.failures))
    reason = question.infeasibility
    run = SolveRun(
        question=question,
        best=best,
        method=method,
        time_limit_s=time_limit,
        deterministic_limit=deterministic_limit,
        workers=workers or os.cpu_count() or 1,
        seed=seed,
        progress=progress,
    )
    find = _search_several if several else partial(search, plan=plan)
    result = replace(
        _result(run, [INTERRUPTED] if reason is None and find(run) else []),
        time_limit_s=time_limit if isfinite(time_limit) else None,
        options=dict(options),
    )
    if reason is not None:
        return replace(result, status=Status.INFEASIBLE, message=reason.message)
    if best.defects:
        raise DefectFoundError(best.defects, result)
    return result


def _search_several(run: SolveRun) -> bool:
    from optsched.methods.several import search_several  # noqa: PLC0415  # numpy takes a while to load

    return search_several(run)


def _result(run: SolveRun, said: list[str]) -> Result:
    """Return what was found; the message is what is said already, and all that went wrong."""
    asked, best = run.question, run.best
    if best.hopeless:
        status = Status.INFEASIBLE
        said = [f"no schedule has {asked.objective.value} <= {asked.restrictions.at_most}: bound {best.bound}"]
    elif best.closed:
        status = Status.OPTIMAL
    elif best.value is not None:
        status = Status.FEASIBLE
    else:
        status = Status.UNKNOWN if best.bound is None else Status.BOUND_ONLY
    origin = {"schedule": best.found_by, "bound": best.claim.origin or None}
    return Result(
        instance=asked.instance,
        method=run.method,
        objective=asked.objective,
        status=status,
        badge=best.claim.badge,
        value=best.value,
        bound=best.bound,
        runtime_s=run.elapsed_s(),
        seed=run.seed,
        versions=dict(versions()) | file_version(run.method),
        schedule=best.schedule,
        metrics=best.metrics,
        certificate=best.claim.certificate,
        # A method that is tried twice may fail twice.
        message=_BETWEEN.join(dict.fromkeys((*said, *best.failures, *best.defects))) or None,
        restrictions=asked.restrictions,
        found_by={part: name for part, name in origin.items() if name is not None},
    )
