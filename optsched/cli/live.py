"""One live line on stderr, and only on a terminal."""

from __future__ import annotations

from optsched.cli.step_bar import Line
from optsched.model.errors import printable
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.report.summary import objective_text
from optsched.solvers.formulation import Progress, ProgressEvent

_WIDE = 130
"""Columns of a terminal in which all that is known of one instance of a suite has room."""


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
        self._is_suite = steps is not None

    def watch(self, instance: Instance) -> Progress:
        """Return what shows the search on an instance; one of a suite is named, and its state is short if need be."""
        named = [printable(instance.name)] if self._is_suite else []
        is_short = self._is_suite and self._progress.console.width < _WIDE

        def shown(value: int | None) -> str:
            return objective_text(self._objective, instance.requests, value)

        def show(event: ProgressEvent) -> None:
            found = [f"incumbent {shown(event.incumbent)}", f"bound {shown(event.bound)}"]
            if event.gap is not None:
                found.append(f"gap {100 * event.gap:.2f} %")
            self._progress.update(self._task, state="  ".join(named + (found[-1:] if is_short else found)))

        # What was found of the instance before is none of this one.
        self._progress.update(self._task, state="".join(named))
        return show
