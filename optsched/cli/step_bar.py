"""A bar of steps on stderr, and only on a terminal."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class StepBar:
    """Shows how many steps are done, of how many if that is known, and which one is next.

    Parameters
    ----------
    name
        What is being worked on.
    """

    def __init__(self, name: str) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._progress.add_task(name, total=None, state="")

    def __enter__(self) -> StepBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, done: int, total: int | None, state: str = "") -> None:
        """Show where the work stands."""
        self._progress.update(self._task, completed=done, total=total, state=state)

    def advance(self) -> None:
        """Count one step as done."""
        self._progress.advance(self._task)
