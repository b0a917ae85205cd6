"""One live line on stderr, and only on a terminal."""

from __future__ import annotations

from optsched.cli.step_bar import Line
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.report.summary import objective_text
from optsched.solvers.formulation import Progress, ProgressEvent


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

    def watch(self, instance: Instance) -> Progress:
        """Return what shows the search on an instance."""

        def shown(value: int | None) -> str:
            return objective_text(self._objective, instance.requests, value)

        def show(event: ProgressEvent) -> None:
            gap = "" if event.gap is None else f"  gap {100 * event.gap:.2f} %"
            state = f"incumbent {shown(event.incumbent)}  bound {shown(event.bound)}{gap}"
            self._progress.update(self._task, state=state)

        return show
