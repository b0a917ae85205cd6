"""What schedules do for each request, as a table for other programs."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable

from optsched.model.result import Result
from optsched.model.served import COLUMNS


def requests_csv(results: Iterable[Result]) -> str:
    """Write a row for each request of each result: its instance, its policy, and a `ServedRequest`.

    A result without a schedule has no rows; what a request does not have is an empty field.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("instance", "policy", *COLUMNS))
    for result in results:
        key = result.instance.name, result.method
        writer.writerows((*key, *dataclasses.astuple(row)) for row in result.requests())
    return stream.getvalue()
