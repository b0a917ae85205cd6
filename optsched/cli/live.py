"""One live line on stderr, and only on a terminal."""

from __future__ import annotations

from optsched.cli.step_bar import Line
from optsched.model.objectives import Objective
from optsched.solvers.formulation import ProgressEvent


class LiveLine(Line):
    """Shows incumbent, bound and gap while a search runs.

    Parameters
    ----------
    name
        Name of the instance or suite.
    objective
        Gives the unit.
    steps
        Number of instances, for a bar; None for a single search.
    """

    def __init__(self, name: str, objective: Objective, steps: int | None = None) -> None:
        super().__init__(name, steps)
        self._objective = objective

    def __call__(self, event: ProgressEvent) -> None:
        """Show the current incumbent and bound."""
        gap = "" if event.gap is None else f"  gap {100 * event.gap:.2f} %"
        state = f"incumbent {self._shown(event.incumbent)}  bound {self._shown(event.bound)}{gap}"
        self._progress.update(self._task, state=state)

    def _shown(self, value: int | None) -> str:
        if value is None:
            return "–"
        return str(value) if self._objective == Objective.SLO_MISSES else f"{value / 1e9:.3f} ms"
