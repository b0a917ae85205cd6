"""Metrics of a legal schedule of several machines, or of one with a cache, exact."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
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
from optsched.model.table import MachineTable


@dataclass
class ClusterTally:
    """What metrics need to know of a schedule.

    Attributes
    ----------
    times
        When requests have their tokens.
    load
        Duration of all batches of each machine, ps.
    tokens, prefill_tokens, recomputed_tokens, hit_tokens
        Tokens that are run, those of prefill steps, those of them that their request held before it was evicted, and
        those found in the cache, in all.
    saved_ps
        What hits save (`saved_by_hits`).
    moves, moved_tokens
        How many requests have moved, and how many tokens were copied.
    """

    times: TokenTimes
    load: list[int]
    tokens: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    hit_tokens: int = 0
    saved_ps: int = 0
    moves: int = 0
    moved_tokens: int = 0


def cluster_tally(instance: Instance, schedule: Schedule) -> ClusterTally:
    """Follow a legal schedule and count."""
    if schedule.machine_tables is not None:
        return _tally_of_tables(instance, schedule.machine_tables)
    machines = instance.machines
    tally = ClusterTally(TokenTimes(len(instance.requests)), [0] * len(machines))
    states = [RequestState(request) for request in instance.requests]
    player, moving, lost = MachineState(states), _Moving(schedule, states), _Lost(states)
    for batch in schedule.batches:
        moving.note(batch)
        tally.recomputed_tokens += lost.recomputed(batch)
        tally.load[batch.replica] += batch.end_ps - batch.start_ps
        if batch.repeat == 1:
            _note_batch(tally, batch, player, machines[batch.replica].cost)
        else:
            _note_repeats(tally, batch, player, machines[batch.replica].cost)
    tally.moves, tally.moved_tokens = moving.moves, moving.tokens - found_by_moves(instance, schedule)
    return tally


def _tally_of_tables(instance: Instance, tables: Sequence[MachineTable]) -> ClusterTally:
    """Return the same of a schedule of tables, in compiled code, which takes a while to load."""
    from optsched.model.table_tally import hits_of, tally_tables  # noqa: PLC0415

    found = tally_tables(instance, tables)
    return ClusterTally(
        TokenTimes.of(found.first, found.last, found.gaps),
        [int((table.end_ps - table.start_ps).sum()) for table in tables],
        found.tokens,
        found.prefill_tokens,
        found.recomputed_tokens,
        sum(int(table.hit_tokens.sum()) for table in tables),
        sum(
            saved_by_hits(machine.cost, tokens, hits)
            for table, machine in zip(tables, instance.machines, strict=True)
            for tokens, hits in hits_of(table)
        ),
    )


def _note_batch(tally: ClusterTally, batch: Batch, player: MachineState[RequestState], cost: CostModel) -> None:
    work = player.carry_out(batch.actions, batch.run, hits=batch.hits)
    tally.tokens += work.tokens
    tally.prefill_tokens += work.tokens - work.decodes
    if batch.hits:
        hits = [found for _, found in batch.hits]
        tally.hit_tokens += sum(hits)
        tally.saved_ps += saved_by_hits(cost, work.tokens, hits)
    tally.times.note(work.generated, player.states, batch.end_ps)


def _note_repeats(tally: ClusterTally, batch: Batch, player: MachineState[RequestState], cost: CostModel) -> None:
    indices = [index for index, _ in batch.run]
    pace = decode_work([player.states[index].cached for index in indices]).pace_ps(cost, batch.considered)
    player.repeat(batch.run, batch.repeat)
    tally.tokens += len(indices) * batch.repeat
    tally.times.note_repeats(indices, batch, *pace)


def saved_by_hits(cost: CostModel, tokens: int, hits: Sequence[int]) -> int:
    r"""Return by how much longer a batch would take without its hits, in ps.

    A run of c tokens that finds h would then be one of h + c on nothing, so that with the C tokens of the batch, and
    the non-attention time :math:`\lambda`, it would take

    .. math:: \lambda(C + \sum h) - \lambda(C) + \sum (\text{prefill\_sq} \cdot h^2 - \text{prefill\_kv} \cdot h)

    more, as :math:`(h + c)^2 = c^2 + 2hc + h^2`. Limits of the batch do not matter here. Where reading KV costs more
    than computing it, this is below 0.

    Parameters
    ----------
    cost
        Of its machine.
    tokens
        C, tokens that it runs.
    hits
        h of each of its runs that finds some.
    """
    found = sum(hits)
    steps_ps = cost.prefill_sq * sum(hit**2 for hit in hits) - cost.prefill_kv * found
    return cost.linear_ps(tokens + found) - cost.linear_ps(tokens) + steps_ps


class _Lost:
    """What requests held when they were evicted, and still have to run again."""

    def __init__(self, states: Sequence[RequestState]) -> None:
        self._states = states
        self._held: dict[int, int] = {}

    def recomputed(self, batch: Batch) -> int:
        """Return how many tokens of a batch that comes next were lost before."""
        held = self._held
        for index in batch.evict:
            held[index] = max(held.get(index, 0), self._states[index].cached)
        if not held:
            return 0
        hits, again = dict(batch.hits), 0
        for index, tokens in batch.run:
            if index in held:
                before = hits.get(index, self._states[index].cached)
                again += max(0, min(before + tokens, held[index]) - before)
                if before + tokens >= held[index]:
                    del held[index]
        return again


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
            # Moves of an instant end before its batches start.
            while moves and moves[0].end_ps <= batch.start_ps:
                moves.popleft()
                self.moves += 1
                self.tokens += self._states[index].cached


def cluster_metrics(instance: Instance, schedule: Schedule, tally: ClusterTally | None = None) -> dict[str, Any]:
    """Return all objective values and metrics of a legal schedule of a cluster.

    Returns
    -------
    dict
        ``objectives`` as `optsched.model.metrics.metrics` has them, over all requests, and ``max_load``, the largest
        sum of batch times of a machine (ps). ``hit_tokens`` are found in caches in the first steps of fills,
        ``computed_tokens`` are run, of which ``prefill_tokens`` in prefill steps, and of these ``recomputed_tokens``
        that their request held already when it was evicted. ``hit_rate`` is the share of hits in hits and prefill
        tokens. ``saved_ps`` is by how much longer batches would take without their hits (`saved_by_hits`), and
        ``hit_time_rate`` its share in itself and the time of all batches. ``load_ps`` has the sum of batch times of
        each machine, ``imbalance`` is the largest over their mean. ``moves`` are those that end, ``moved_tokens`` what
        they copy, and ``moved_bytes`` the same in bytes, None where `Link.kv_bytes` is not known. Ratios of nothing are
        None. The rest is as of one machine.
    """
    tally = cluster_tally(instance, schedule) if tally is None else tally
    times = tally.times
    objectives, latencies = latency_metrics(instance, times.first, times.latest, times.between())
    most, total, per_token = max(tally.load), sum(tally.load), instance.links.kv_bytes
    return {
        "objectives": objectives | {Objective.MAX_LOAD.value: most},
        "batches": schedule.length,
        "evictions": schedule.evictions,
        "recomputed_tokens": tally.recomputed_tokens,
        "hit_tokens": tally.hit_tokens,
        "computed_tokens": tally.tokens,
        "prefill_tokens": tally.prefill_tokens,
        "hit_rate": _quotient(tally.hit_tokens, tally.hit_tokens + tally.prefill_tokens),
        "saved_ps": tally.saved_ps,
        "hit_time_rate": _quotient(tally.saved_ps, tally.saved_ps + total),
        "load_ps": tally.load,
        "imbalance": _quotient(most * len(tally.load), total),
        "moves": tally.moves,
        "moved_tokens": tally.moved_tokens,
        "moved_bytes": None if per_token is None else per_token * tally.moved_tokens,
        **latencies,
    }


def _quotient(numerator: int, denominator: int) -> float | None:
    return float(Fraction(numerator, denominator)) if denominator else None
