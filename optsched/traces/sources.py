"""Where requests come from: files of every format, folders of clients, workloads of papers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Final

from optsched.model.documents import read_text
from optsched.model.errors import InputError, Said, one_of
from optsched.traces.own_table import TableForm, read_form, read_own_table
from optsched.traces.preble import draw_prefixed
from optsched.traces.rows import Rows, TraceRow
from optsched.traces.servegen import draw_clients, read_clients
from optsched.traces.sessions import conversations, read_coding_prefixes, read_mooncake_prefixes
from optsched.traces.sharegpt import read_sharegpt
from optsched.traces.trace import READERS
from optsched.traces.workloads import draw_workload

SERVEGEN: Final = "servegen"
WORKLOAD: Final = "workload"
CSV: Final = "csv"
PREFIXED = ("mooncake", "sharegpt", "agentic", WORKLOAD)
"""Formats of which prefixes are known, or made."""
SOURCES = (*READERS, CSV, SERVEGEN, WORKLOAD)
"""Formats of files; what is a generator after them."""
_BLOCKS = {"mooncake": read_mooncake_prefixes, "agentic": read_coding_prefixes}
"""Readers of traces that identify the blocks of prompts."""


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


def read_prefixed_rows(
    source: str, style: str, limit: int | None = None, seed: int = 0, turns: tuple[float, float] = (4, 30)
) -> Rows:
    """Read or draw the rows of a source with their prefixes.

    Parameters
    ----------
    source, limit, seed
        As of `read_rows`; the workloads are those of `optsched.traces.preble.PREFIX_WORKLOADS`.
    style
        One of `PREFIXED`.
    turns
        Of ``sharegpt``, which does not record conversations: their mean number of turns, and the mean time from one to
        the next in s (`optsched.traces.sessions.conversations`).

    Raises
    ------
    InputError
        If it cannot be read, or is not of this kind. Here that is so for every wrong line.
    """
    if style == WORKLOAD:
        if limit is None:
            raise InputError("limit", Said("nothing"), "the number of requests to draw")
        return _together(draw_prefixed(source, limit, seed, rate=1).as_rows(), lambda _: None)
    text = read_text(source)
    if style in _BLOCKS:
        try:
            return _BLOCKS[style](text).as_rows()
        except InputError as error:
            raise error.located(source) from None
    if style != "sharegpt":
        raise InputError("format", style, one_of(style, PREFIXED))
    found = read_sharegpt(text)
    made = conversations(found.rows, *turns, rate=1, seed=seed).as_rows()
    return replace(_together(made, lambda row: row.conversation), bad=found.bad)


def _together(found: Rows, group: Callable[[TraceRow], Hashable]) -> Rows:
    """Return rows whose times count from the first of their group; those without a group arrive at 0."""
    first: dict[Hashable, int] = {}
    rows = []
    for row in found.rows:
        key = group(row)
        begin = row.arrival_ps if key is None else first.setdefault(key, row.arrival_ps)
        rows.append(replace(row, arrival_ps=row.arrival_ps - begin))
    return replace(found, rows=tuple(rows))
