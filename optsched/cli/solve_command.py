"""The command that looks for the best schedule, or writes the model of a method."""

from __future__ import annotations

import click

from optsched import library
from optsched.cli.group import cli
from optsched.cli.live import LiveLine
from optsched.cli.options import (
    blaming,
    decision_options,
    deterministic_limit_option,
    history_option,
    instance_argument,
    json_option,
    method_option,
    naming_options,
    objective_option,
    on_profile,
    out_option,
    profile_option,
    read_objective,
    refuse_options,
    require_method,
    seed_option,
    time_limit_option,
    workers_option,
    write_out,
)
from optsched.cli.result_output import deliver, warn
from optsched.cli.types import OneOf
from optsched.methods.checked import DefectFoundError
from optsched.methods.export import MODELS, export_model
from optsched.methods.formulations import require_options
from optsched.methods.solve import solve as run_solver
from optsched.methods.solve import was_interrupted
from optsched.model.documents import write_text
from optsched.model.errors import InfeasibleInstanceError
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Status
from optsched.report.summary import solution_lines
from optsched.solvers.formulation import ModelFormat
from optsched.solvers.history import History


@cli.command()
@instance_argument
@objective_option
@profile_option
@method_option
@click.option("--solver", metavar="NAME", help="Solver, for a method that has a choice (infermax_milp).")
@click.option(
    "--export",
    type=OneOf(tuple(ModelFormat)),
    metavar="FORMAT",
    help=f"Write the method's model ({' or '.join(ModelFormat)}) to --out or standard output instead of solving it; "
    f"also of {', '.join(MODELS)}.",
)
@time_limit_option
@deterministic_limit_option
@decision_options
@workers_option
@seed_option
@out_option
@history_option
@json_option
def solve(
    instance: str,
    objective: str,
    profile: str | None,
    method: str,
    solver: str | None,
    export: str | None,
    time_limit: float,
    deterministic_limit: float | None,
    restrictions: Restrictions,
    workers: int | None,
    seed: int,
    out: str | None,
    history: str | None,
    as_json: bool,
) -> None:
    """Find the best schedule and a proved bound on it."""
    if export is None or method not in MODELS:
        require_method(method)
    goal = read_objective(objective)
    if export is not None:
        write_out(out, _model_text(instance, profile, goal, method, export, restrictions, seed))
        return
    options = {} if solver is None else {"solver": solver}
    with naming_options():
        require_options(method, options)
    problem = on_profile(library.load_instance(instance), profile)
    events = History()
    defect = None
    with LiveLine(problem.name, goal) as live, blaming(source=instance), naming_options():
        try:
            result = run_solver(
                problem,
                goal,
                method=method,
                options=options,
                time_limit=time_limit,
                deterministic_limit=deterministic_limit,
                restrictions=restrictions,
                workers=workers,
                seed=seed,
                progress=events.then(live.watch(problem)),
            )
        except DefectFoundError as found:
            defect, result = found, found.result
    if history is not None:
        events.end(result)
        with blaming("--history"):
            write_text(history, events.csv())
    deliver([result], out, as_json, "\n".join(solution_lines(result)) + "\n")
    if defect is not None:
        raise defect
    if result.status == Status.INFEASIBLE:
        raise InfeasibleInstanceError((result.message or problem.name,))
    if was_interrupted(result):
        raise KeyboardInterrupt
    warn(result)


_OF_A_SEARCH = ("solver", "time_limit", "deterministic_limit", "workers", "history", "as_json")
"""Parameters of `solve` that do not shape the model."""


def _model_text(
    source: str,
    profile: str | None,
    objective: Objective,
    method: str,
    style: str,
    restrictions: Restrictions,
    seed: int,
) -> str:
    """Return what ``--export`` asks for."""
    refuse_options("--export", _OF_A_SEARCH, "only options that shape the model: it is written, not solved")
    problem = on_profile(library.load_instance(source), profile)
    with blaming(source=source), naming_options():
        return export_model(problem, objective, method=method, style=style, restrictions=restrictions, seed=seed)
