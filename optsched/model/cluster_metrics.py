"""Metrics of a legal schedule of several machines, or of one with a cache, exact."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from optsched.model.cost import CostModel
from optsched.model.found import found_by_moves
from optsched.model.instance import Instance
from optsched.model.latencies import TokenTimes, latency_metrics
from optsched.model.objectives import Objective
from optsched.model.schedule import Batch, Move, Schedule
from optsched.model.state import MachineState, RequestState, decode_work


@dataclass
class ClusterTally:
    """What metrics need to know of a schedule.

    Attributes
    ----------
    times
        When requests have their tokens.
    load
        Duration of all batches of each machine, ps.
    tokens, prefill_tokens, hit_tokens
        Tokens that are run, those of prefill steps, and those found in the cache, in all.
    moves, moved_tokens
        How many requests have moved, and how many tokens were copied.
    """

    times: TokenTimes
    load: list[int]
    tokens: int = 0
    prefill_tokens: int = 0
    hit_tokens: int = 0
    moves: int = 0
    moved_tokens: int = 0


def cluster_tally(instance: Instance, schedule: Schedule) -> ClusterTally:
    """Follow a legal schedule and count."""
    machines = instance.machines
    tally = ClusterTally(TokenTimes(len(instance.requests)), [0] * len(machines))
    states = [RequestState(request) for request in instance.requests]
    player, moving = MachineState(states), _Moving(schedule, states)
    for batch in schedule.batches:
        moving.note(batch)
        tally.load[batch.replica] += batch.end_ps - batch.start_ps
        if batch.repeat == 1:
            _note_batch(tally, batch, player)
        else:
            _note_repeats(tally, batch, player, machines[batch.replica].cost)
    tally.moves, tally.moved_tokens = moving.moves, moving.tokens - found_by_moves(instance, schedule)
    return tally


def _note_batch(tally: ClusterTally, batch: Batch, player: MachineState[RequestState]) -> None:
    work = player.carry_out(batch.actions, batch.run, hits=batch.hits)
    tally.tokens += work.tokens
    tally.prefill_tokens += work.tokens - work.decodes
    tally.hit_tokens += sum(hit for _, hit in batch.hits)
    tally.times.note(work.generated, player.states, batch.end_ps)


def _note_repeats(tally: ClusterTally, batch: Batch, player: MachineState[RequestState], cost: CostModel) -> None:
    indices = [index for index, _ in batch.run]
    pace = decode_work([player.states[index].cached for index in indices]).pace_ps(cost, batch.considered)
    player.repeat(batch.run, batch.repeat)
    tally.tokens += len(indices) * batch.repeat
    tally.times.note_repeats(indices, batch, *pace)


class _Moving:
    """What requests hold when they move.

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
    times = tally.times
    objectives, latencies = latency_metrics(instance, times.first, times.latest, times.between())
    most, total = max(tally.load), sum(tally.load)
    return {
        "objectives": objectives | {Objective.MAX_LOAD.value: most},
        "batches": schedule.length,
        "evictions": schedule.evictions,
        "hit_tokens": tally.hit_tokens,
        "computed_tokens": tally.tokens,
        "prefill_tokens": tally.prefill_tokens,
        "load_ps": tally.load,
        "imbalance": float(Fraction(most * len(tally.load), total)) if total else None,
        "moves": tally.moves,
        "moved_tokens": tally.moved_tokens,
        **latencies,
    }
