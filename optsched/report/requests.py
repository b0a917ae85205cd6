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

    Router and evictor follow the policy where a result names them. A result without a schedule has no rows; what a
    request does not have is an empty field.
    """
    results = list(results)
    chosen = [option for option in ("router", "evictor") if any(option in result.options for result in results)]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("instance", "policy", *chosen, *COLUMNS))
    for result in results:
        key = result.instance.name, result.method, *(result.options.get(option) for option in chosen)
        writer.writerows((*key, *dataclasses.astuple(row)) for row in result.requests())
    return stream.getvalue()
