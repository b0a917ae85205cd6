"""One live line on stderr, and only on a terminal."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from optsched.model.objectives import Objective
from optsched.solvers.formulation import ProgressEvent


class LiveLine:
    """Shows incumbent, bound and gap while a search runs.

    Parameters
    ----------
    name
        What is being worked on.
    objective
        Gives the unit.
    steps
        Number of instances, for a bar; None for a single search.
    """

    def __init__(self, name: str, objective: Objective, steps: int | None = None) -> None:
        bar = [BarColumn(bar_width=20), MofNCompleteColumn()] if steps is not None else []
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            *bar,
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._objective = objective
        self._task = self._progress.add_task(name, total=steps, state="")

    def __enter__(self) -> LiveLine:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, event: ProgressEvent) -> None:
        """Show what is known now."""
        gap = "" if event.gap is None else f"  gap {100 * event.gap:.2f} %"
        state = f"incumbent {self._shown(event.incumbent)}  bound {self._shown(event.bound)}{gap}"
        self._progress.update(self._task, state=state)

    def advance(self) -> None:
        """Count one instance as done."""
        self._progress.advance(self._task)

    def _shown(self, value: int | None) -> str:
        if value is None:
            return "–"
        return str(value) if self._objective == Objective.SLO_MISSES else f"{value / 1e9:.3f} ms"
