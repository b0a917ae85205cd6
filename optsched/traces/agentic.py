"""Conversations of coding agents: JSON lines, each a conversation with its ``requests``.

Source: callanjfox/kv-cache-tester. A request has ``t`` (s since its conversation started), ``in`` and ``out`` (tokens);
one of type ``subagent`` has none of its own but ``requests``, their ``t`` relative to its own. Conversations have no
common clock. A request arrives at the trace's time, also if the request before it has not ended in a schedule.
"""

from __future__ import annotations

from collections.abc import Iterator

from optsched.model.errors import InputError
from optsched.traces.json_lines import Entry, as_entry, member, read_json_lines
from optsched.traces.rows import Rows, TraceRow, plain, time_ps, token_count


def read_agentic(text: str) -> Rows:
    """Read the text of a file (see the module)."""
    return read_json_lines(text, _conversation)


def _conversation(entry: Entry, number: int) -> Iterator[TraceRow | InputError]:
    pending = _requests(entry, 0, "")
    while pending:
        request, start_ps, where = pending.pop()
        try:
            entry = as_entry(request, "")
            arrival_ps = start_ps + time_ps(member(entry, "t"), "t")
            if entry.get("type") == "subagent":
                pending += _requests(entry, arrival_ps, where)
                continue
            inputs, outputs = (token_count(member(entry, name), name) for name in ("in", "out"))
            yield TraceRow(arrival_ps, inputs, outputs, conversation=number)
        except InputError as error:
            yield error.within(where)


def _requests(entry: Entry, start_ps: int, where: str) -> list[tuple[object, int, str]]:
    """Return the requests of an entry, in reverse order, each with the entry's start and its place in the document."""
    requests = member(entry, "requests")
    if not isinstance(requests, list):
        raise InputError("requests", plain(requests), "a list")
    prefix = f"{where}." if where else ""
    placed = [(request, start_ps, f"{prefix}requests[{index}]") for index, request in enumerate(requests)]
    return placed[::-1]
