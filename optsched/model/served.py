"""One row for each request of a schedule: when it came, when its tokens came, and what became of its KV."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass

from optsched.model.activity import Change, Span, activities
from optsched.model.instance import Instance
from optsched.model.schedule import Schedule


@dataclass(frozen=True)
class ServedRequest:
    """What a schedule does for one request; the fields are the columns of ``--requests``.

    Parameters
    ----------
    request, id
        Its index, and its name if the instance gives it one.
    machine
        Where its last token is generated.
    input, output
        I and O, tokens.
    arrival_ps, first_token_ps, last_token_ps
        When it arrives, and when the batches of its first and last token end.
    ttft_ps, e2e_ps
        TTFT and e2e latency: these times minus the arrival.
    tpot_ps
        (e2e − TTFT) / (O − 1), rounded once to the nearest float; None if O = 1.
    evictions, swaps
        How often its KV is lost, and how often it leaves for the host.
    computed_tokens
        Tokens that it runs: I + O − 1, more if it is evicted, fewer if a cache has some.
    hit_tokens
        Tokens found in prefix caches.
    routed_to
        The machine that it was routed to; 0 where there is one.
    moves
        How often it has moved to another machine.
    """

    request: int
    id: str | None
    machine: int
    input: int
    output: int
    arrival_ps: int
    first_token_ps: int
    last_token_ps: int
    ttft_ps: int
    e2e_ps: int
    tpot_ps: float | None
    evictions: int
    swaps: int
    computed_tokens: int
    hit_tokens: int
    routed_to: int
    moves: int


COLUMNS = tuple(field.name for field in dataclasses.fields(ServedRequest))


def served_requests(instance: Instance, schedule: Schedule) -> tuple[ServedRequest, ...]:
    """Return a row for each request of a legal schedule, in the order of their indices."""
    found = activities(instance, schedule)
    changes, hits, computed = Counter[tuple[int, Change]](), Counter[int](), Counter[int]()
    first: dict[int, int] = {}
    last: dict[int, Span] = {}
    for mark in found.marks:
        changes[mark.request, mark.change] += 1
        if mark.change is Change.HIT:
            hits[mark.request] += mark.tokens
    for span in found.spans:
        computed[span.request] += span.tokens * span.batches
        if span.generated:
            first.setdefault(span.request, span.end_ps)
            last[span.request] = span
    moves = Counter(move.request for move in schedule.moves if not move.aborted)
    routes = schedule.routes or (0,) * len(instance.requests)
    rows = []
    for index, request in enumerate(instance.requests):
        ttft, e2e = first[index] - request.arrival_ps, last[index].end_ps - request.arrival_ps
        rows.append(
            ServedRequest(
                request=index,
                id=request.id,
                machine=last[index].machine,
                input=request.input,
                output=request.output,
                arrival_ps=request.arrival_ps,
                first_token_ps=first[index],
                last_token_ps=last[index].end_ps,
                ttft_ps=ttft,
                e2e_ps=e2e,
                tpot_ps=(e2e - ttft) / (request.output - 1) if request.output > 1 else None,
                evictions=changes[index, Change.EVICT],
                swaps=changes[index, Change.SWAP_OUT],
                computed_tokens=computed[index],
                hit_tokens=hits[index],
                routed_to=routes[index],
                moves=moves[index],
            )
        )
    return tuple(rows)
