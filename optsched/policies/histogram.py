"""The outputs of requests that have ended, and what they say of those that have not."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, chain, islice

from optsched.model.schedule import Assignment
from optsched.simulate.replica import Job, Replica


class Histogram:
    """How many tokens finished requests have generated."""

    def __init__(self) -> None:
        self._seen = Counter[int]()
        self._means: list[int] | None = None
        self._ran: list[Job] = []

    def watch(self, replica: Replica, assignment: Assignment) -> None:
        """Remember who runs in a batch."""
        ran = {index for index, _ in assignment.run}
        # Those that are admitted stand among the first that wait.
        found = (job for job in chain(replica.running, replica.waiting) if job.index in ran)
        self._ran = list(islice(found, len(ran)))

    def count(self) -> None:
        """Count who has ended since."""
        for job in self._ran:
            if job.finished:
                self.add(job.generated)
        self._ran = []

    def add(self, output: int) -> None:
        """Count a finished request."""
        self._seen[output] += 1
        self._means = None

    def expected(self, generated: int) -> int:
        """Return the mean output, rounded up, of those that were longer; the next token is the last if there is none.

        Parameters
        ----------
        generated
            Tokens generated so far.
        """
        if self._means is None:
            longest = max(self._seen, default=0)
            counts = [self._seen[output] for output in range(longest, 0, -1)]
            tokens = [output * self._seen[output] for output in range(longest, 0, -1)]
            means = [-(-total // number) for total, number in zip(accumulate(tokens), accumulate(counts), strict=True)]
            self._means = means[::-1]
        return self._means[generated] if generated < len(self._means) else generated + 1
