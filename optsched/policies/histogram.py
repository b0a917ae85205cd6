"""The outputs of requests that have ended, and what they say of those that have not."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from fractions import Fraction
from itertools import accumulate, chain, islice

from optsched.model.schedule import Assignment
from optsched.simulator.replica import Job, Replica


class Histogram:
    """How many tokens finished requests have generated.

    Parameters
    ----------
    quantile
        The quantile that is expected of those that were longer, from above 0 to 1; None for their mean.
    """

    def __init__(self, quantile: Fraction | None = None) -> None:
        self._quantile = quantile
        self._seen = Counter[int]()
        self._sums: tuple[list[int], list[int]] | None = None
        self._ran: list[Job] = []

    def watch(self, replica: Replica, assignment: Assignment) -> None:
        """Remember which requests run in a batch."""
        ran = {index for index, _ in assignment.run}
        # Those that are admitted are among the first that wait.
        found = (job for job in chain(replica.running, replica.waiting) if job.index in ran)
        self._ran = list(islice(found, len(ran)))

    def count(self) -> None:
        """Count the requests that have ended since."""
        for job in self._ran:
            if job.finished:
                self.add(job.generated)
        self._ran = []

    def add(self, output: int) -> None:
        """Count a finished request."""
        self._seen[output] += 1
        self._sums = None

    def expected(self, generated: int) -> int:
        """Return the expected output of a request; if no finished one was longer, its next token is the last.

        With c(o) finished outputs of o tokens, g generated tokens and N = Σ c(o) over o > g: the mean is
        ⌈Σ o c(o) / N⌉ over o > g; the quantile q is the least o of which at least q N of these are not longer.

        Parameters
        ----------
        generated
            Tokens generated so far, g.
        """
        if self._sums is None:
            counts = [self._seen[output] for output in range(max(self._seen, default=0) + 1)]
            self._sums = list(accumulate(counts)), list(accumulate(o * count for o, count in enumerate(counts)))
        requests, tokens = self._sums
        if generated >= len(requests) - 1:
            return generated + 1
        longer = requests[-1] - requests[generated]
        if self._quantile is None:
            return -(-(tokens[-1] - tokens[generated]) // longer)
        part = -(-longer * self._quantile.numerator // self._quantile.denominator)
        return bisect_left(requests, requests[generated] + part)
