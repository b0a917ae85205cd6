"""Metrics of a legal schedule of several machines, or of one with a cache, exact."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from optsched.model.cost import CostModel
from optsched.model.instance import Instance
from optsched.model.metrics import document, ratios, summary
from optsched.model.objectives import PLAIN_OBJECTIVES, Objective, value_of
from optsched.model.schedule import Batch, Move, Schedule
from optsched.model.spread import Ramp, Spread
from optsched.model.state import MachineState, RequestState, decode_work

_FEW = 1000
"""Repeats up to which times between tokens are counted one by one."""


@dataclass
class ClusterTally:
    """What metrics need to know of a schedule.

    Attributes
    ----------
    first, last
        When every request has its first and its last token, ps.
    load
        Duration of all batches of each machine, ps.
    tokens, prefill_tokens, hit_tokens
        Tokens that are run, those of prefill steps, and those found in the cache, in all.
    moves, moved_tokens
        How many requests have moved, and how many tokens were copied.
    gaps, ramps
        Times between consecutive tokens of a request, ps, and how many there are of each.
    """

    first: list[int]
    last: list[int]
    load: list[int]
    tokens: int = 0
    prefill_tokens: int = 0
    hit_tokens: int = 0
    moves: int = 0
    moved_tokens: int = 0
    gaps: Counter[int] = field(default_factory=Counter)
    ramps: list[Ramp] = field(default_factory=list)


def cluster_tally(instance: Instance, schedule: Schedule) -> ClusterTally:
    """Follow a legal schedule and count."""
    count = len(instance.requests)
    machines = instance.machines
    tally = ClusterTally([0] * count, [0] * count, [0] * len(machines))
    states = [RequestState(request) for request in instance.requests]
    player, moving = MachineState(states), _Moving(schedule, states)
    for batch in schedule.batches:
        moving.note(batch)
        for index, hit in batch.hits:
            states[index].cached = hit
            tally.hit_tokens += hit
        tally.load[batch.replica] += batch.end_ps - batch.start_ps
        if batch.repeat == 1:
            _note_batch(tally, batch, player)
        else:
            _note_repeats(tally, batch, player, machines[batch.replica].cost)
    tally.moves, tally.moved_tokens = moving.moves, moving.tokens
    return tally


def _note_batch(tally: ClusterTally, batch: Batch, player: MachineState[RequestState]) -> None:
    work, end = player.carry_out(batch.actions, batch.run), batch.end_ps
    tally.tokens += work.tokens
    tally.prefill_tokens += work.tokens - work.decodes
    for index in work.generated:
        if player.states[index].generated == 1:
            tally.first[index] = end
        else:
            tally.gaps[end - tally.last[index]] += 1
        tally.last[index] = end


def _note_repeats(tally: ClusterTally, batch: Batch, player: MachineState[RequestState], cost: CostModel) -> None:
    """Count the same decode steps several times in a row: each takes longer than the one before by the same."""
    runs, times = len(batch.run), batch.repeat
    duration = decode_work([player.states[index].cached for index, _ in batch.run]).duration_ps(
        cost, cost, batch.considered
    )
    player.repeat(batch.run, times)
    tally.tokens += runs * times
    slower = cost.decode_kv * runs
    for index, _ in batch.run:
        tally.gaps[batch.start_ps + duration - tally.last[index]] += 1
        tally.last[index] = batch.end_ps
    if times > _FEW:
        tally.ramps.append(Ramp(duration + slower, slower, runs, 0, times - 1))
    else:
        for number in range(1, times):
            tally.gaps[duration + number * slower] += runs


class _Moving:
    """What is copied when requests move.

    A request does not run from the last stage of its move on until it has moved, so what it holds then is what it holds
    in its next batch.
    """

    def __init__(self, schedule: Schedule, states: list[RequestState]) -> None:
        self._states = states
        self._moves: dict[int, deque[Move]] = {}
        self.moves = self.tokens = 0
        for move in schedule.moves:
            if not move.aborted:
                self._moves.setdefault(move.request, deque()).append(move)

    def note(self, batch: Batch) -> None:
        """Count the moves of the requests of a batch that have ended before it."""
        if not self._moves:
            return
        for index in (*(index for index, _ in batch.run), *batch.evict):
            moves = self._moves.get(index)
            while moves and _is_over(moves[0], batch):
                moves.popleft()
                self.moves += 1
                self.tokens += self._states[index].cached


def _is_over(move: Move, batch: Batch) -> bool:
    """Whether a move of a request ends before a batch of it; at the same instant unless the batch is at its source."""
    return move.end_ps < batch.start_ps or (move.end_ps == batch.start_ps and move.source != batch.replica)


def cluster_metrics(instance: Instance, schedule: Schedule, tally: ClusterTally | None = None) -> dict[str, Any]:
    """Return all objective values and metrics of a legal schedule of a cluster.

    Returns
    -------
    dict
        ``objectives`` as `optsched.model.metrics.metrics` has them, over all requests, and ``max_load``, the largest
        sum of batch times of a machine (ps). ``hit_tokens`` are found in caches in the first steps of fills,
        ``computed_tokens`` are run, of which ``prefill_tokens`` in prefill steps. ``load_ps`` has the sum of batch
        times of each machine, ``imbalance`` is the largest over their mean (None without any). ``moves`` are those that
        end, ``moved_tokens`` what they copy. The rest is as of one machine.
    """
    tally = cluster_tally(instance, schedule) if tally is None else tally
    requests = instance.requests
    ttft = [end - request.arrival_ps for end, request in zip(tally.first, requests, strict=True)]
    e2e = [end - request.arrival_ps for end, request in zip(tally.last, requests, strict=True)]
    decoding = [index for index, request in enumerate(requests) if request.output > 1]
    decode_ps = [e2e[index] - ttft[index] for index in decoding]
    gaps = Spread.of(tally.gaps, tally.ramps)
    objectives = {
        objective.value: value_of(instance, objective, ttft, e2e)
        for objective in PLAIN_OBJECTIVES
        if objective is not Objective.P99_TBT
    }
    objectives[Objective.P99_TBT.value] = 0 if gaps is None else gaps.percentile(99)
    objectives[Objective.MAX_LOAD.value] = most = max(tally.load)
    makespan, misses = objectives[Objective.MAKESPAN.value], objectives[Objective.SLO_MISSES.value]
    total, count = sum(tally.load), len(requests)

    def per_second(amount: int) -> float | None:
        return amount * 10**12 / makespan if makespan else None

    return {
        "objectives": objectives,
        "batches": schedule.length,
        "evictions": schedule.evictions,
        "hit_tokens": tally.hit_tokens,
        "computed_tokens": tally.tokens,
        "prefill_tokens": tally.prefill_tokens,
        "load_ps": tally.load,
        "imbalance": float(Fraction(most * len(tally.load), total)) if total else None,
        "moves": tally.moves,
        "moved_tokens": tally.moved_tokens,
        "ttft_ps": summary(sorted(ttft)),
        "tpot_ps": ratios(decode_ps, [requests[index].output - 1 for index in decoding]),
        "tbt_ps": document(gaps),
        "e2e_ps": summary(sorted(e2e)),
        "ttft_per_input_ps": ratios(ttft, [request.input for request in requests]),
        "e2e_per_output_ps": ratios(e2e, [request.output for request in requests]),
        "output_tokens_per_s": per_second(sum(request.output for request in requests)),
        "requests_per_s": per_second(count),
        "goodput_requests_per_s": per_second(count - misses),
        "slo_attainment": (count - misses) / count,
    }


class RequestRow(NamedTuple):
    """What happens to one request.

    Parameters
    ----------
    request
        Its index.
    machine
        The machine that it was routed to; 0 where there is one.
    hit_tokens
        Tokens that it found in the cache when it first ran.
    ttft_ps, e2e_ps
        From its arrival to its first, and to its last token.
    moves
        How often it has moved.
    """

    request: int
    machine: int
    hit_tokens: int
    ttft_ps: int
    e2e_ps: int
    moves: int


def request_rows(instance: Instance, schedule: Schedule) -> list[RequestRow]:
    """Return what happens to each request in a legal schedule."""
    tally = cluster_tally(instance, schedule)
    hits = dict[int, int]()
    ran = set[int]()
    for batch in schedule.batches:
        if batch.hits:
            hits.update((index, found) for index, found in batch.hits if index not in ran)
        ran.update(index for index, _ in batch.run)
    moves = Counter(move.request for move in schedule.moves if not move.aborted)
    routes = schedule.routes or (0,) * len(instance.requests)
    return [
        RequestRow(
            index,
            routes[index],
            hits.get(index, 0),
            tally.first[index] - request.arrival_ps,
            tally.last[index] - request.arrival_ps,
            moves[index],
        )
        for index, request in enumerate(instance.requests)
    ]
