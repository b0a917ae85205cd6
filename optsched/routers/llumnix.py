"""Llumnix: dispatch by remaining steps, and the pairs of machines between which requests migrate.

The remaining steps of a machine are (free − waiting tokens) / (running + waiting requests): for how many steps its
requests can all decode before memory is full. Source: Llumnix 24220fb.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from optsched.routers.router import MachineView, RoutedRequest, Router, RouterSetting
from optsched.routers.simple import requests_there


def remaining_steps(view: MachineView) -> Fraction | None:
    """Return the remaining steps of a machine; None, which is more than any number, if it has no requests."""
    count = requests_there(view)
    return Fraction(view.kv_capacity - view.kv_used - view.queued_tokens, count) if count else None


def _order(view: MachineView) -> tuple[bool, Fraction, int]:
    """Order machines by their remaining steps, the fewest first; of equals the one with the lower index last."""
    steps = remaining_steps(view)
    return steps is None, steps or Fraction(0), -view.machine


class Llumnix(Router):
    """A request goes to the machine with the most remaining steps, and every second some move away from the fewest."""

    @property
    def rebalance_ps(self) -> int:
        """How often `rebalance` is asked: every second."""
        return 10**12

    def rebalance(self, views: Sequence[MachineView]) -> Sequence[tuple[int, int]]:
        """Return `migration_pairs`."""
        return migration_pairs(views)

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        return max(views, key=_order).machine


def migration_pairs(views: Sequence[MachineView], threshold: int = 3) -> list[tuple[int, int]]:
    """Return (source, target) machines: those below ``threshold`` remaining steps, and those above.

    The source with the fewest steps is paired with the target with the most, and so on.
    """
    ordered = sorted(views, key=_order)
    steps = {view.machine: remaining_steps(view) for view in ordered}

    def above(machine: int) -> bool:
        there = steps[machine]
        return there is None or there > threshold

    sources = [view.machine for view in ordered if (there := steps[view.machine]) is not None and there < threshold]
    targets = [view.machine for view in reversed(ordered) if above(view.machine)]
    return list(zip(sources, targets, strict=False))


def llumnix(_: RouterSetting) -> Router:
    """Return `Llumnix`."""
    return Llumnix()
