"""What a formulation declares about itself: what it covers, and when ``auto`` tries it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from optsched.model.instance import Instance
from optsched.model.objectives import Objective

_MOST_TOKENS = 2_000
"""Output tokens of all requests beyond which an instance is large: exact models of it are too big to help."""
_FEW_REQUESTS = 8
"""Of so few that arrive together what single ones do is followed one by one."""
_MANY_RESIDENT = 5.0
"""κ from which many requests share the cache."""


class Regime(StrEnum):
    """What decides which formulations do well on an instance with an objective.

    ``LARGE``: it has more than 2000 output tokens. Otherwise, where the objective is the makespan and κ
    (`Instance.kappa`, the number of requests that the cache holds on average) is at least 5, ``MANY_TOGETHER`` if all
    requests arrive together, else ``MANY_ARRIVING``. Otherwise, for the makespan, ``FEW_TOGETHER`` if more than 8
    requests arrive together, and ``FEW_ARRIVING`` if they arrive at different times. Otherwise ``FEW_RESIDENT``: few
    requests arrive together, or the objective is a latency.
    """

    FEW_RESIDENT = "few_resident"
    FEW_ARRIVING = "few_arriving"
    FEW_TOGETHER = "few_together"
    MANY_ARRIVING = "many_arriving"
    MANY_TOGETHER = "many_together"
    LARGE = "large"


_NOT_LARGE = tuple(regime for regime in Regime if regime is not Regime.LARGE)


def regime_of(instance: Instance, objective: Objective) -> Regime:
    """Return the regime of an instance with an objective."""
    if sum(request.output for request in instance.requests) > _MOST_TOKENS:
        return Regime.LARGE
    if objective != Objective.MAKESPAN:
        return Regime.FEW_RESIDENT
    if instance.kappa >= _MANY_RESIDENT:
        return Regime.MANY_TOGETHER if instance.offline else Regime.MANY_ARRIVING
    if not instance.offline:
        return Regime.FEW_ARRIVING
    return Regime.FEW_TOGETHER if len(instance.requests) > _FEW_REQUESTS else Regime.FEW_RESIDENT


@dataclass(frozen=True)
class Turn:
    """One try of a formulation by ``auto``.

    Parameters
    ----------
    rank
        Turns are taken in ascending rank; those of equal rank in the order in which formulations are registered.
    share
        Share in (0, 1] of the time left that the try may use.
    regimes
        Regimes in which the turn is taken.
    """

    rank: int
    share: float
    regimes: tuple[Regime, ...] = _NOT_LARGE

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"the share of a turn is {self.share}, expected more than 0 and at most 1")


@dataclass(frozen=True)
class Declaration:
    """What a formulation declares about itself, as the attribute ``declaration`` of its class.

    Without the attribute, the defaults hold.

    Parameters
    ----------
    covers
        Names of added rules (`optsched.model.instance.Rules.added`) with which its answers are right; it is not asked
        about instances with another. Optimal without swaps, for example, need not be optimal with them.
    baseline
        Whether it is there to measure others against; ``auto`` leaves it out.
    at_once
        Whether it settles what is small in milliseconds, or gives up: ``auto`` asks it before all else, and it alone.
    before_policies
        Whether it finds schedules sooner than the policies do. Where all formulations to be tried do, the policies are
        played after them.
    sequential
        Whether it uses one core, whatever the number of workers: ``auto`` lets others run beside it.
    turns
        When ``auto`` tries it, and for how long.
    """

    covers: tuple[str, ...] = ()
    baseline: bool = False
    at_once: bool = False
    before_policies: bool = False
    sequential: bool = False
    turns: tuple[Turn, ...] = (Turn(70, 0.5),)


_UNDECLARED = Declaration()


def declaration_of(formulation: object) -> Declaration:
    """Return what a formulation, or its class, declares.

    Raises
    ------
    TypeError
        If its attribute ``declaration`` is no `Declaration`.
    """
    found = getattr(formulation, "declaration", _UNDECLARED)
    if not isinstance(found, Declaration):
        raise TypeError(f"the attribute declaration is a {type(found).__name__}, expected a Declaration")
    return found
