"""Progress on stderr, and only on a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from optsched.model.errors import printable


class Line:
    """One line: what is being worked on, a bar if there are steps, how far it is, for how long.

    Parameters
    ----------
    name
        What is being worked on.
    steps
        How many steps there are, 0 if that is not known yet; None for no bar.
    """

    def __init__(self, name: str, steps: int | None) -> None:
        bar = [BarColumn(bar_width=20), MofNCompleteColumn()] if steps is not None else []
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            *bar,
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._progress.add_task(printable(name), total=steps or None, state="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def advance(self) -> None:
        """Count one step as done."""
        self._progress.advance(self._task)


class StepBar(Line):
    """Shows how many steps are done, of how many if that is known, and which one is next.

    Parameters
    ----------
    name
        What is being worked on.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, 0)

    def show(self, done: int, total: int | None, state: str = "") -> None:
        """Show how far the work is."""
        self._progress.update(self._task, completed=done, total=total, state=state)
