"""A quantitative claim of a paper beside what the simulator finds."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Finding:
    """One claim of a paper, and the simulator's values for it.

    Parameters
    ----------
    claim
        The quantity, with its unit or "times".
    source
        Section, figure or table of the paper.
    paper
        The paper's number or range, as printed.
    values
        The simulator's value for each seed; one value where no seed matters.
    least, most
        The range in which a median counts as agreement; None where that side is open.
    cause
        One sentence, held by an experiment that it names: why the value is outside. Empty within.
    """

    claim: str
    source: str
    paper: str
    values: tuple[float, ...]
    least: float | None = None
    most: float | None = None
    cause: str = ""

    @property
    def within(self) -> bool:
        """Whether the median over the seeds lies in the paper's range."""
        found = median(self.values)
        return (self.least is None or found >= self.least) and (self.most is None or found <= self.most)
