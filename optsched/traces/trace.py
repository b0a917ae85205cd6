"""Request traces: rows with an arrival and two lengths, whichever file they come from, and instances made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from optsched.bounds.volume import busy_ps
from optsched.model.cost import CostModel
from optsched.model.domain import replace
from optsched.model.errors import InputError, Said
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.traces.azure import read_azure
from optsched.traces.rows import Rows

READERS: Mapping[str, Callable[[str], Rows]] = MappingProxyType({"azure": read_azure})
"""Format → what reads the text of a file."""
DEFAULT_LIMITS = Limits(kv_tokens=100_000, batch_tokens=16_384, prefill_tokens=16_384)


@dataclass(frozen=True)
class Trace:
    """The requests of a trace.

    Parameters
    ----------
    requests
        Ascending by arrival, the first at 0.
    bad
        What was wrong with every row that was left out.
    """

    requests: tuple[Request, ...]
    bad: tuple[InputError, ...]


def read_trace(text: str, style: str, limit: int | None = None) -> Trace:
    """Read the text of a trace file.

    Parameters
    ----------
    text
        What the file holds.
    style
        A name of `READERS`.
    limit
        Keep only so many requests, the first to arrive.

    Raises
    ------
    InputError
        For an unknown format, a file that is not of this format, or one without a usable row.
    """
    if style not in READERS:
        raise InputError("format", style, f"one of {', '.join(READERS)}")
    found = READERS[style](text)
    if not found.rows:
        raise InputError("", Said("no usable row"), "at least one request")
    rows = sorted(found.rows, key=lambda row: row.arrival_ps)[:limit]
    start = rows[0].arrival_ps
    requests = tuple(Request(row.input, row.output, arrival_ps=row.arrival_ps - start) for row in rows)
    return Trace(requests, found.bad)


def trace_instance(
    trace: Trace, name: str, cost: CostModel, limits: Limits = DEFAULT_LIMITS, load: Fraction | None = None
) -> Instance:
    """Make an instance of a trace, all rules allowed.

    Parameters
    ----------
    trace, name
        Its requests, and what to call it.
    cost, limits
        The machine.
    load
        Scale arrivals to this multiple of the sustainable rate: the number of requests over the volume bound on the
        makespan of all of them at time 0. None to keep them.

    Raises
    ------
    InputError
        If all requests arrive together and a load is asked for.
    """
    instance = Instance(name, limits, Rules(), cost, trace.requests)
    if load is None:
        return instance
    span = trace.requests[-1].arrival_ps
    if not span:
        raise InputError("load", str(load), "a trace whose requests do not all arrive together")
    factor = Fraction(busy_ps(instance)) / (load * span)
    scaled = (replace(request, arrival_ps=int(request.arrival_ps * factor)) for request in trace.requests)
    return replace(instance, requests=tuple(scaled))
