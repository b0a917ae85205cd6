"""Request traces: rows with an arrival and two lengths, from any file format, and instances made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from types import MappingProxyType

from optsched.bounds.volume import busy_ps
from optsched.model.cluster import CacheRules
from optsched.model.cost import CostModel
from optsched.model.domain import replace
from optsched.model.errors import InputError, Said, one_of
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.prefixes import PrefixTree
from optsched.traces.agentic import read_agentic
from optsched.traces.azure import read_azure
from optsched.traces.burstgpt import read_burstgpt
from optsched.traces.mooncake import read_mooncake
from optsched.traces.rows import Rows, TraceRow
from optsched.traces.sharegpt import read_sharegpt
from optsched.traces.vidur import read_vidur

READERS: Mapping[str, Callable[[str], Rows]] = MappingProxyType(
    {
        "azure": read_azure,
        "burstgpt": read_burstgpt,
        "mooncake": read_mooncake,
        "vidur": read_vidur,
        "sharegpt": read_sharegpt,
        "agentic": read_agentic,
    }
)
"""Format → reader of a file's text."""
_NO_PREFIXES, _NO_CACHE = PrefixTree(), CacheRules()
DEFAULT_LIMITS = Limits(kv_tokens=100_000, batch_tokens=16_384, prefill_tokens=16_384)


@dataclass(frozen=True)
class Trace:
    """The requests of a trace.

    Parameters
    ----------
    requests
        Ascending by arrival, the first at 0.
    bad
        The error of every rejected row.
    prefixes
        The nodes that the requests' paths name.
    """

    requests: tuple[Request, ...]
    bad: tuple[InputError, ...]
    prefixes: PrefixTree = _NO_PREFIXES


def read_trace(text: str, style: str, limit: int | None = None, starts: Iterable[int] | None = None) -> Trace:
    """Read the text of a trace file.

    Parameters
    ----------
    text
        Content of the file.
    style
        A name of `READERS`.
    limit, starts
        As in `make_trace`.

    Raises
    ------
    InputError
        For an unknown format, a file that is not of this format, or one without a usable row.
    """
    if style not in READERS:
        raise InputError("format", style, one_of(style, READERS))
    return make_trace(READERS[style](text), limit, starts)


def make_trace(found: Rows, limit: int | None = None, starts: Iterable[int] | None = None) -> Trace:
    """Make a trace of rows.

    Parameters
    ----------
    found
        The rows, and the errors of the others.
    limit
        Number of requests to keep, the first to arrive; None for all.
    starts
        When each conversation starts, and each request that is in none arrives, in ps, ascending; they take these
        times in the order in which the rows have them. None keeps the rows' times.

    Raises
    ------
    InputError
        If there is no usable row, or there are fewer starts than are needed.
    """
    if not found.rows:
        reason = f" (the first of {len(found.bad)}: {found.bad[0]})" if found.bad else ""
        raise InputError("", Said(f"no usable row{reason}"), "at least one request")
    rows = sorted(found.rows, key=_arrival_ps)
    if starts is not None:
        rows = sorted(_restarted(rows, limit, starts), key=_arrival_ps)
    first = rows[0].arrival_ps
    requests = tuple(
        Request(
            row.input,
            row.output,
            arrival_ps=row.arrival_ps - first,
            predicted_output=row.predicted,
            prefix=row.prefix,
        )
        for row in rows[:limit]
    )
    named = {name for request in requests for name in request.prefix}
    nodes = tuple(node for node in found.tree.nodes if node.name in named)
    return Trace(requests, found.bad, PrefixTree(nodes))


def _arrival_ps(row: TraceRow) -> int:
    return row.arrival_ps


def _restarted(rows: list[TraceRow], limit: int | None, starts: Iterable[int]) -> Iterator[TraceRow]:
    """Move conversations, and requests that are in none, to the starts, as far as the limit can reach."""
    groups: dict[tuple[int | None, int], list[TraceRow]] = {}
    for index, row in enumerate(rows):
        alone = row.conversation is None
        groups.setdefault((row.conversation, index if alone else 0), []).append(row)
    chosen = list(groups.values())[:limit]
    times = list(islice(starts, len(chosen)))
    if len(times) < len(chosen):
        raise InputError("arrivals", Said(f"{len(times)} arrival times"), f"at least {len(chosen)}, or a lower limit")
    for time, group in zip(times, chosen, strict=True):
        for row in group:
            yield dataclasses.replace(row, arrival_ps=time + row.arrival_ps - group[0].arrival_ps)


def trace_instance(
    trace: Trace,
    name: str,
    cost: CostModel,
    limits: Limits = DEFAULT_LIMITS,
    load: Fraction | None = None,
    *,
    cache: CacheRules = _NO_CACHE,
) -> Instance:
    """Make an instance of a trace, all rules allowed but swapping.

    Parameters
    ----------
    trace, name
        Requests, and the instance's name.
    cost, limits
        The machine.
    load
        Scale arrivals to this multiple of the sustainable rate: the number of requests over the volume bound on the
        makespan of all of them at time 0, of one machine that caches nothing. None to keep them.
    cache
        What the machine caches.

    Raises
    ------
    InputError
        If all requests arrive together and a load is asked for.
    """
    instance = Instance(name, limits, Rules(), cost, trace.requests, prefixes=trace.prefixes)
    if load is None:
        return replace(instance, cache=cache)
    span = trace.requests[-1].arrival_ps
    if not span:
        raise InputError("load", str(load), "a trace whose requests do not all arrive together")
    factor = Fraction(busy_ps(instance)) / (load * span)
    scaled = (replace(request, arrival_ps=int(request.arrival_ps * factor)) for request in trace.requests)
    return replace(instance, requests=tuple(scaled), cache=cache)


def with_deadlines(instance: Instance, scale: Fraction) -> Instance:
    """Give every request a deadline for its e2e latency: ``scale`` (t_p + t_g O), rounded down to ps.

    t_p is the time of a prefill of the mean prompt and t_g that of a decode step at the mean context, the prompt and
    half of the output, each alone in its batch (EconoServe, section 4: it measures both on each of its data sets).
    """
    requests = instance.requests
    inputs, outputs = (sum(getattr(request, part) for request in requests) for part in ("input", "output"))
    prompt, context = inputs // len(requests), (2 * inputs + outputs) // (2 * len(requests))
    prefill, step = instance.cost.batch_ps(prompt, 0, 0, [(prompt, 0)]), instance.cost.batch_ps(1, 1, context, [])
    return replace(
        instance,
        requests=tuple(
            replace(request, slo_e2e_ps=int(scale * (prefill + step * request.output))) for request in requests
        ),
    )
