"""Reader of the simplest table of whole batches: tokens, cached tokens, time.

A row is one batch. ``tokens`` is what it runs, ``cached`` the KV tokens that are there before. One token on cached
ones is a decode step, anything else a prefill step of ``tokens`` on ``cached``. A fourth column ``decodes`` may give
the number of decode steps of a batch that runs nothing else (``tokens = decodes``, and ``cached`` is what they read
together), or 0. The name of the time's column has its unit: ``time_ns``, ``time_us``, ``time_ms`` or ``time_s``.
"""

from __future__ import annotations

from pathlib import Path

from optsched.calibrate.columns import PS, TableRow, read_table, require_rows
from optsched.calibrate.library import file_source
from optsched.calibrate.timings import Measurements, SourceOptions, Timings
from optsched.model.errors import InputError

_NOTE = "Every batch of the table has steps of one kind; what mixed batches take beyond the sum is not in it."
_TIMES = {f"time_{unit}": unit for unit in PS}


def read_times(source: str, options: SourceOptions) -> Measurements:
    """Read a file (see the module)."""
    path = Path(source)
    rows = [_batch(row) for row in read_table(path)]
    require_rows(path, rows, "at least one batch")
    require_rows(path, [row for row in rows if row[0]], "a decode step, of 1 token on cached ones, or with decodes")
    require_rows(path, [row for row in rows if row[2]], "a prefill step, of 2 tokens or more")
    return Measurements(
        hardware=options.hardware or "unknown",
        model=options.model or "unknown",
        sources=(file_source(path.parent, path.name, (None, None, None)),),
        batches=Timings.attention(rows),
        notes=(_NOTE,),
    )


def _batch(row: TableRow) -> tuple[float, float, float, float, float]:
    """Return decode steps, KV that they read, c and m of a prefill step, and the time in ps."""
    tokens, cached = row.integer("tokens", 1), row.integer("cached", 0)
    decodes = row.integer("decodes", 0) if "decodes" in row.fields else int(tokens == 1 and cached > 0)
    if decodes not in {0, tokens}:
        raise row.error("decodes", decodes, f"0 or tokens = {tokens}: steps of one kind")
    times = [name for name in _TIMES if name in row.fields]
    if len(times) != 1:
        raise InputError("line 1", ",".join(row.fields), f"one column of {', '.join(_TIMES)}", str(row.path))
    lasting = row.time_ps(times[0], _TIMES[times[0]])
    return (decodes, cached, 0, 0, lasting) if decodes else (0, 0, tokens, cached, lasting)
