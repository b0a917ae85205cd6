"""Writing a formulation's model down, for other solvers to read."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from optsched.methods.arguments import read_problem, read_seed
from optsched.methods.formulations import make_exporter
from optsched.methods.plan import require_method
from optsched.methods.simulate import simulate
from optsched.model.errors import InputError, one_of
from optsched.model.feasibility import require_feasible
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.policies import STANDARD
from optsched.solvers.formulation import ModelFormat, Task, UnsupportedError, require_covered

MODELS: Mapping[str, str] = MappingProxyType(
    {
        "assignment": "optsched_formulations.routing.models:assignment",
        "prefix_placement": "optsched_formulations.routing.models:prefix_placement",
        "prefix_cache": "optsched_formulations.routing.models:prefix_cache",
    }
)
"""Models of several machines and of caches, which no method solves as they are: name → ``module:function``."""


def export_model(
    instance: Instance | str | Path,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    method: str,
    style: ModelFormat | str = ModelFormat.LP,
    restrictions: Restrictions | None = None,
    seed: int = 0,
) -> str:
    """Return a formulation's model as the text of an LP or MPS file.

    The model is the one that `optsched.solve` would have solved: the best policy's schedule limits its size, since it
    need not hold schedules that are worse.

    Parameters
    ----------
    instance, objective, restrictions
        The problem; the instance may be given by name or file.
    method
        The name of a formulation that can be exported; or one of `MODELS`: ``assignment`` for the makespan of several
        machines, ``prefix_placement`` for the largest load where prefixes are shared, and ``prefix_cache`` for what one
        machine's cache saves.
    style
        ``lp`` or ``mps``.
    seed
        Random seed of the policies.

    Raises
    ------
    InputError
        For a method that cannot be exported or does not cover the instance.
    InfeasibleInstanceError
        If a request cannot be served at all.
    """
    instance, objective, restrictions = read_problem(instance, objective, restrictions, clusters=method in MODELS)
    seed = read_seed(seed)
    if style not in tuple(ModelFormat):
        raise InputError("style", style, one_of(style, ModelFormat))
    style = ModelFormat(style)
    if method in MODELS:
        return _routing_model(instance, objective, method, style, restrictions)
    require_method(method)
    exporter = make_exporter(method)
    require_feasible(instance, restrictions)
    runs = [simulate(instance, name, objective, restrictions=restrictions, seed=seed) for name in STANDARD]
    start = min(
        ((run.value, run.schedule) for run in runs if run.value is not None),
        key=lambda pair: pair[0],
        default=(None, None),
    )
    task = Task(restrictions.apply(instance), objective, restrictions, incumbent=start[1], incumbent_value=start[0])
    try:
        require_covered(exporter, task.instance)
        return exporter.export(task, style)
    except UnsupportedError as unsupported:
        raise InputError("method", method, f"a method that covers {unsupported}") from None


def _routing_model(
    instance: Instance, objective: Objective, method: str, style: ModelFormat, restrictions: Restrictions
) -> str:
    """Return a model of `MODELS`."""
    from optsched.solvers.milp import programme_text  # noqa: PLC0415  # loads PuLP

    if restrictions != Restrictions():
        raise InputError("method", method, "a method that covers restrictions")
    require_feasible(instance, restrictions)
    module, _, name = MODELS[method].partition(":")
    model: Any = getattr(import_module(module), name)
    try:
        return programme_text(model(instance, objective), style)
    except UnsupportedError as unsupported:
        raise InputError("method", method, f"a method that covers {unsupported}") from None
