"""What the replay of a run found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from optsched.model.errors import InputError


@dataclass(frozen=True)
class Sources:
    """Where other files that a run needs may be.

    Parameters
    ----------
    folder
        The folder of the run.
    data
        Folders of public data, in the order in which they are searched.
    """

    folder: Path
    data: tuple[Path, ...]

    def find(self, name: str) -> Path:
        """Return the first file whose name begins like this, beside the run or in the public data.

        Raises
        ------
        InputError
            If there is none.
        """
        for folder in (self.folder, *self.data):
            if found := sorted(folder.rglob(f"{name}*")):
                return found[0]
        raise InputError("--data", ", ".join(map(str, self.data)), f"a folder that holds {name}")


@dataclass(frozen=True)
class Outcome:
    """How much of one run is the same.

    Parameters
    ----------
    run
        Which run of the file; empty if the file has only one.
    unit
        What is counted, such as ``batches``.
    same, total
        How many are the same, of how many.
    difference
        The first that is not: what it is, theirs and ours. Empty if all are the same.
    """

    run: str
    unit: str
    same: int
    total: int
    difference: str = ""


def compared(run: str, unit: str, pairs: Iterable[tuple[str, object, object]]) -> Outcome:
    """Count the pairs (label, theirs, ours) whose sides are equal."""
    same = total = 0
    difference = ""
    for label, theirs, ours in pairs:
        total += 1
        if theirs == ours:
            same += 1
        elif not difference:
            difference = f"{label}: theirs {_short(theirs)}, ours {_short(ours)}"
    return Outcome(run, unit, same, total, difference)


def together(unit: str, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Add up the outcomes of one unit; the first difference names its run."""
    chosen = [outcome for outcome in outcomes if outcome.unit == unit]
    if chosen:
        first = next((f"{outcome.run}, {outcome.difference}" for outcome in chosen if outcome.difference), "")
        whole = sum(outcome.same == outcome.total for outcome in chosen)
        same, total = sum(outcome.same for outcome in chosen), sum(outcome.total for outcome in chosen)
        yield Outcome(f"{whole} of {len(chosen)} runs", unit, same, total, first)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:120]} … {text[-60:]}"
