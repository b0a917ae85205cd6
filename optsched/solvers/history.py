"""What a search says of itself over time, as a table."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

from optsched.model.csv_text import read_records
from optsched.model.documents import read_text
from optsched.model.errors import InputError, Said
from optsched.model.result import Result
from optsched.solvers.formulation import Progress, ProgressEvent

COLUMNS = ("elapsed_s", "incumbent", "bound")


@dataclass
class History:
    """What a search says of itself: pass it to `optsched.solve` as ``progress``.

    Parameters
    ----------
    events
        What it has said, in the order of time.
    """

    events: list[ProgressEvent] = field(default_factory=list)

    def __call__(self, event: ProgressEvent) -> None:
        """Note an event."""
        self.events.append(event)

    def then(self, progress: Progress) -> Progress:
        """Return what notes an event and passes it on."""

        def both(event: ProgressEvent) -> None:
            self(event)
            progress(event)

        return both

    def end(self, result: Result) -> None:
        """Note what the search found in the end."""
        self.events.append(ProgressEvent(result.runtime_s, result.value, result.bound))

    def csv(self) -> str:
        """Return the events as a table, values in the objective's unit: ps, of means the sum over requests."""
        stream = StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows((f"{each.elapsed_s:.6f}", each.incumbent, each.bound) for each in self.events)
        return stream.getvalue()

    @classmethod
    def read(cls, source: str | Path) -> History:
        """Read what `csv` wrote to a file."""
        events = []
        for line, record in read_records(read_text(str(source)), str(source), COLUMNS):
            try:
                elapsed, incumbent, bound = record
                events.append(ProgressEvent(float(elapsed), _optional(incumbent), _optional(bound)))
            except ValueError:
                raise InputError(f"line {line}", ",".join(record), "seconds and two integers", str(source)) from None
        if not events:
            raise InputError("", Said("no line"), "at least one event of a search", str(source))
        return cls(events)


def _optional(text: str) -> int | None:
    return int(text) if text else None
