"""Which formulations are tried in which order, and for how long, from what they declare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optsched.catalogue import FORMULATION_GROUP, broken_entries, entries, in_file
from optsched.failures import FAILURES, failure_text
from optsched.methods.formulations import (
    Options,
    declaration_named,
    formulation_in_file,
    make_formulation,
    require_options,
)
from optsched.model.errors import InputError, one_of
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.solvers.declaration import Declaration, Regime, declaration_of, regime_of
from optsched.solvers.formulation import Formulation

AUTO = "auto"


@dataclass(frozen=True)
class Step:
    """One try of a formulation, with its share of the time that is left then."""

    name: str
    share: float
    formulation: Formulation


@dataclass(frozen=True)
class SolvePlan:
    """What one call of `optsched.methods.solve.solve` tries.

    Parameters
    ----------
    steps
        In order.
    failures
        A sentence for each formulation that cannot be loaded or made; no step tries it.
    """

    steps: tuple[Step, ...]
    failures: tuple[str, ...]

    @property
    def at_once(self) -> tuple[Step, ...]:
        """The steps that settle what is small before all else."""
        return tuple(step for step in self.steps if declaration_of(step.formulation).at_once)

    @property
    def others(self) -> tuple[Step, ...]:
        """The steps after these."""
        return tuple(step for step in self.steps if not declaration_of(step.formulation).at_once)

    @property
    def before_policies(self) -> bool:
        """Whether policies are better played after all these others."""
        return bool(self.others) and all(declaration_of(step.formulation).before_policies for step in self.others)


def method_names() -> tuple[str, ...]:
    """Return ``auto`` and the names of all installed formulations."""
    return (AUTO, *entries(FORMULATION_GROUP))


def require_method(name: str, field: str = "method") -> None:
    """Raise `InputError` for ``field`` if a name is none of `method_names`, nor ``FILE.py:NAME`` of a formulation."""
    if in_file(name):
        formulation_in_file(name, field)
    elif name not in method_names():
        raise InputError(field, name, one_of(name, method_names()))


def plan_solve(method: str, options: Options, instance: Instance, objective: Objective) -> SolvePlan:
    """Return the plan of a method: a formulation's name, ``FILE.py:NAME`` of one, or ``auto``.

    Raises
    ------
    InputError
        For an unknown method, or an option that it does not take.
    """
    failures: list[str] = []
    if method == AUTO:
        require_options(method, options)
        failures.extend(broken_entries(FORMULATION_GROUP))
        shares = auto_shares(_declarations(failures), regime_of(instance, objective))
    else:
        shares = ((method, 1.0),)
    made = _made(dict.fromkeys(name for name, _ in shares), options, failures)
    steps = tuple(Step(name, share, made[name]) for name, share in shares if name in made)
    return SolvePlan(steps, tuple(failures))


def auto_shares(declarations: Mapping[str, Declaration], regime: Regime) -> tuple[tuple[str, float], ...]:
    """Return which formulations ``auto`` tries, in order, and the share of the time left that each may use."""
    turns = [
        (turn.rank, name, turn.share)
        for name, declaration in declarations.items()
        if not declaration.baseline
        for turn in declaration.turns
        if regime in turn.regimes
    ]
    return tuple((name, share) for _, name, share in sorted(turns, key=lambda turn: turn[0]))


def _declarations(failures: list[str]) -> dict[str, Declaration]:
    """Return what each installed formulation declares; those that cannot be loaded are noted."""
    found = {}
    for name in entries(FORMULATION_GROUP):
        try:
            found[name] = declaration_named(name)
        except FAILURES as error:
            failures.append(f"{name}: {failure_text(error)}")
    return found


def _made(names: Mapping[str, None], options: Options, failures: list[str]) -> dict[str, Formulation]:
    """Return formulations by name; those that cannot be made are noted, unless a name or an option is to blame."""
    made = {}
    for name in names:
        try:
            formulation = make_formulation(name, options)
            declaration_of(formulation)  # one that is wrong is noted here
            made[name] = formulation
        except InputError:
            raise
        except FAILURES as error:
            failures.append(f"{name}: {failure_text(error)}")
    return made
