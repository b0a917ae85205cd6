"""A sheet: the cells of a table as text and as values, before any format is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

NOT_AVAILABLE = "n/a"
PROVED = "✓"
CERTIFIED = "✓c"
AT_MOST = "≤ "
"""Before a gap to a bound that is not met."""


@dataclass(frozen=True)
class Cell:
    """A table entry: how it is shown, and the exact value behind it."""

    shown: str
    value: str | int | float | None


@dataclass(frozen=True)
class Column:
    """A column: its header for people (empty: machines only), its name for machines, its cells.

    A key column identifies the row; it leads every part of a table that is too wide for the page. Text is
    flush right, or left. ``also`` are headers that it would have with other rows: a user may name it by them.
    """

    header: str
    name: str
    cells: tuple[Cell, ...]
    key: bool = False
    left: bool = False
    also: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        """What a user may call it."""
        return {self.name, " ".join(self.header.split()), *self.also} - {""}

    @property
    def broken_header(self) -> str:
        """The header, a policy's name broken into lines where it has underscores."""
        return self.header.replace("_", "\n_")


@dataclass(frozen=True)
class Sheet:
    """A titled table with what is common to all rows, and notes below.

    Parameters
    ----------
    title, common
        What the table shows, and the instance features that all rows share.
    columns
        Equally long columns.
    notes
        Sentences below the table.
    """

    title: str
    common: str
    columns: tuple[Column, ...]
    notes: tuple[str, ...]

    @property
    def shown(self) -> list[Column]:
        """The columns without those that only machines read."""
        return [column for column in self.columns if column.header]

    @property
    def rows(self) -> list[tuple[Cell, ...]]:
        """The cells row by row."""
        return list(zip(*(column.cells for column in self.columns), strict=True))


def panels(columns: Sequence[Column], width: float, needed: Callable[[Column], float]) -> list[list[Column]]:
    """Split columns so that each part, led by the key columns, fits a width if a column does; ``needed`` is its own."""
    keys, others = [column for column in columns if column.key], [column for column in columns if not column.key]
    room = width - sum(map(needed, keys))
    parts: list[list[Column]] = []
    used = room
    for column in others:
        if not parts or used + needed(column) > room:
            parts.append([])
            used = 0
        parts[-1].append(column)
        used += needed(column)
    return [[*keys, *part] for part in parts or [[]]]
