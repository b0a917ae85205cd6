"""Where requests come from: files of every format, folders of clients, workloads of papers."""

from __future__ import annotations

from typing import Final

from optsched.model.documents import read_text
from optsched.model.errors import InputError, Said
from optsched.traces.own_table import TableForm, read_form, read_own_table
from optsched.traces.rows import Rows
from optsched.traces.servegen import draw_clients, read_clients
from optsched.traces.trace import READERS
from optsched.traces.workloads import draw_workload

SERVEGEN: Final = "servegen"
WORKLOAD: Final = "workload"
CSV: Final = "csv"
SOURCES = (*READERS, CSV, SERVEGEN, WORKLOAD)
"""Formats of files; what is a generator after them."""


def read_rows(
    source: str,
    style: str,
    limit: int | None = None,
    start_s: int = 0,
    seed: int = 0,
    *,
    form: TableForm | None = None,
) -> Rows:
    """Read or draw the rows of a source.

    Parameters
    ----------
    source
        A file, a folder of clients, or a workload's name.
    style
        One of `SOURCES`.
    limit, start_s, seed
        For generators: number of requests, first second of the day, and the random seed.
    form
        For ``csv``: columns and unit; None for columns ``arrival``, ``input``, ``output``, times in s.

    Raises
    ------
    InputError
        If it cannot be read, or is not of this kind.
    """
    if style == SERVEGEN:
        return draw_clients(read_clients(source), start_s, limit, seed)
    if style == WORKLOAD:
        if limit is None:
            raise InputError("limit", Said("nothing"), "the number of requests to draw")
        return draw_workload(source, limit, seed)
    if style == CSV:
        return read_own_table(read_text(source), form or read_form(None, "s"))
    return READERS[style](read_text(source))
