"""What happens over time, as a table for other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from optsched.model.result import Result
from optsched.model.timeline import timeline

COLUMNS = (
    "instance",
    "policy",
    "time_ps",
    "waiting_requests",
    "resident_requests",
    "running_requests",
    "occupied_kv_tokens",
    "running_tokens",
)


def timeline_csv(results: Iterable[Result]) -> str:
    """Write the timelines of results one after another, a row for each `optsched.model.timeline.Moment`.

    What a row says holds from its time on, until the next row's of the same instance and policy. A result without a
    schedule has no rows.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in results:
        if result.schedule is not None:
            key = result.instance.name, result.method
            writer.writerows((*key, *moment) for moment in timeline(result.instance, result.schedule))
    return stream.getvalue()
