"""Equal machines with prefix caches, simulated together in machine code (`optsched.simulator.fleet_kernel`).

All machines run up to a moment in one call, as soon as a router looks at one of them then: what a machine does by a
time does not depend on which router looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from optsched.arrays import RequestArrays, machine_arrays
from optsched.cache.blocks import CacheSetting
from optsched.model.cluster import CacheMode
from optsched.model.instance import Instance
from optsched.model.ints import Ints
from optsched.model.table import MachineTable
from optsched.routers.router import RoutedRequest
from optsched.simulator import block_tree, fleet_kernel
from optsched.simulator.block_tree import Held, Paths, ShortInts
from optsched.simulator.engine import arrival_order
from optsched.simulator.fleet_kernel import Fleet, Log, Machines, Requests, Rule
from optsched.simulator.kernel import longest_batch_ps
from optsched.simulator.machine_run import Happening, Instant, Notice
from optsched.simulator.replica import CompiledWithCache, LeftToEngineError, Policy

_MOST_ENTRIES = 10**8
"""Numbers in the arrays of all machines together."""
_NEVER = 2 * fleet_kernel.MOST_PS
_LOG_ROWS = 1 << 14


Numbers = TypeVar("Numbers", Ints, ShortInts)


class FleetRun:
    """All machines of a cluster, and the requests that are sent to them.

    Parameters
    ----------
    instance
        What each machine would have to do alone, with all requests.
    rule
        The policy.
    machines
        How many there are.
    """

    def __init__(self, instance: Instance, rule: Rule, machines: int) -> None:
        self._instance = instance
        self._order = np.array(arrival_order(instance), np.int32)
        self._ranks = np.empty_like(self._order)
        self._ranks[self._order] = np.arange(len(self._order))
        self._fleet = _new_fleet(instance, rule, machines, self._order.tolist())
        self._reached = -1
        self._changes = 0
        self._asked: list[tuple[int, int]] = []
        self._seen: tuple[tuple[int, int, int], Ints] = (-1, -1, -1), np.empty((machines, fleet_kernel.SEEN), np.int64)
        self._cached: tuple[tuple[int, int], list[int]] = (-1, -1), []
        self._noticed = 0
        self._coming: list[Notice] = []
        self.machines = [FleetMachine(self, number, instance.limits.kv_capacity) for number in range(machines)]

    def submit(self, machine: int, index: int) -> None:
        """Let a request arrive at a machine at its arrival time."""
        state, rank = self._fleet.machines.state[machine], self._ranks[index]
        self._fleet.machines.queue[machine, state[fleet_kernel.KNOWN]] = rank
        state[fleet_kernel.KNOWN] += 1
        self._changes += 1

    def advance(self, until_ps: int | None = None) -> None:
        """Carry out all batches that start before a time; or all batches, None."""
        until = _NEVER if until_ps is None else min(until_ps, _NEVER)
        if until <= self._reached:
            return
        asked = np.array(self._asked, np.int64).reshape(-1, 2)
        self._asked.clear()
        while (code := fleet_kernel.advance(self._fleet, until, asked)) == fleet_kernel.FULL:
            self._fleet, asked = self._fleet._replace(log=_grown(self._fleet.log)), asked[:0]
        if code == fleet_kernel.OVER:
            raise LeftToEngineError
        self._reached = until

    def cached(self, machine: int, request: RoutedRequest, now_ps: int) -> int:
        """Return the leading prompt tokens of a request that it would find on a machine."""
        rank = int(self._ranks[request.index])
        self._asked.append((machine, rank))
        if self._cached[0] != (rank, now_ps):
            found = np.empty(len(self.machines), np.int64)
            fleet_kernel.cached_tokens(self._fleet, rank, request.input, now_ps, found)
            self._cached = (rank, now_ps), found.tolist()
        return self._cached[1][machine]

    def seen(self, machine: int, column: int, at: Instant) -> int:
        """Return what routers see of a machine, a column of `fleet_kernel.look`."""
        key = at.now_ps, at.arrived_ps, self._changes
        if self._seen[0] != key:
            fleet_kernel.look(self._fleet, at.now_ps, at.arrived_ps, self._seen[1])
            self._seen = key, self._seen[1]
        return int(self._seen[1][machine, column])

    def notices(self, until_ps: int) -> list[Notice]:
        """Return, once, what has happened at all machines up to a time, to which they run."""
        self.advance(until_ps)
        log = self._fleet.log
        last = int(log.sizes[fleet_kernel.NOTICES])
        for time_ps, at, number, ended, rank, tokens in log.notices[self._noticed : last].tolist():
            happening = Happening.FINISHED if ended else Happening.FIRST_TOKEN
            self._coming.append(Notice(time_ps, at, number, happening, int(self._order[rank]), tokens))
        self._noticed = last
        found = [notice for notice in self._coming if notice.time_ps <= until_ps]
        if found:
            self._coming = [notice for notice in self._coming if notice.time_ps > until_ps]
        return found

    def tables(self) -> list[MachineTable]:
        """Return what each machine has done."""
        log, sizes = self._fleet.log, self._fleet.log.sizes
        rows = log.rows[: sizes[fleet_kernel.ROWS]]
        return [
            self._table(np.flatnonzero(rows[:, fleet_kernel.MACHINE] == number)) for number in range(len(self.machines))
        ]

    def _table(self, mine: Ints) -> MachineTable:
        log = self._fleet.log
        rows = log.rows[mine]
        before = np.where((mine > 0)[:, None], log.rows[mine - 1], 0)

        def part(column: int, entries: ShortInts) -> tuple[Ints, ShortInts, ShortInts]:
            counts = rows[:, column] - before[:, column]
            begin = np.append(0, np.cumsum(counts))
            chosen = np.repeat(before[:, column] - begin[:-1], counts) + np.arange(begin[-1])
            return begin, self._order[entries[chosen, 0]], entries[chosen, -1]

        evict_begin, evict, _ = part(fleet_kernel.LOST_END, log.lost)
        starts, ends, repeat = (
            rows[:, column] for column in (fleet_kernel.START, fleet_kernel.STOP, fleet_kernel.REPEAT)
        )
        return MachineTable(
            starts,
            ends,
            repeat,
            *part(fleet_kernel.RUNS_END, log.runs),
            evict_begin,
            evict,
            *part(fleet_kernel.HITS_END, log.hits),
            *part(fleet_kernel.DROPS_END, log.drops),
        )


class FleetMachine:
    """One of the machines, as routers are shown it (`optsched.simulator.machine_run.MachineRun`)."""

    is_begun = True

    def __init__(self, fleet: FleetRun, number: int, kv_capacity: int) -> None:
        self._fleet, self._number = fleet, number
        self.kv_capacity = kv_capacity

    def submit(self, index: int) -> None:
        """Let a request arrive at its arrival time."""
        self._fleet.submit(self._number, index)

    def advance(self, until_ps: int | None = None) -> None:
        """Carry out all batches that start before a time."""
        self._fleet.advance(until_ps)

    def waiting(self, at: Instant) -> int:
        """Return how many requests are there without KV."""
        return self._fleet.seen(self._number, fleet_kernel.SEEN_WAITING, at)

    def running(self, at: Instant) -> int:
        """Return how many requests are there with KV."""
        return self._fleet.seen(self._number, fleet_kernel.SEEN_RUNNING, at)

    def queued_tokens(self, at: Instant) -> int:
        """Return the tokens that waiting requests have to prefill."""
        return self._fleet.seen(self._number, fleet_kernel.SEEN_QUEUED, at)

    def filling_tokens(self, at: Instant) -> int:
        """Return the tokens that requests with KV have to prefill, those under way included."""
        return self._fleet.seen(self._number, fleet_kernel.SEEN_FILLING, at)

    def pending_tokens(self, at: Instant) -> int:
        """Return the prompt and output tokens that are still to be run, those under way included."""
        return self._fleet.seen(self._number, fleet_kernel.SEEN_PENDING, at)

    def kv_used(self, at: Instant) -> int:
        """Return the tokens of memory in use, in whole blocks; a cached block that can be dropped is not."""
        return self._fleet.seen(self._number, fleet_kernel.SEEN_USED, at)

    def work_ps(self, at: Instant) -> int:
        """Return how long what is left of each request takes if it is run alone, summed; and of the batch under way."""
        return self._fleet.seen(self._number, fleet_kernel.SEEN_WORK, at)

    def cached(self, request: RoutedRequest, at: Instant) -> int:
        """Return the leading prompt tokens of a request that it would find."""
        return self._fleet.cached(self._number, request, at.now_ps)


def fleet_of(instance: Instance, policies: Sequence[Policy], setting: CacheSetting) -> FleetRun | None:
    """Return machines that would each have to serve an instance alone, with policies; None if the engine has to.

    Their caches drop the least recently used block first, a scheduler does not pay for what it considers, no rule
    allows less than these machines know, and numbers fit 64 bits and the arrays memory.
    """
    if setting != CacheSetting() or instance.cache.mode is CacheMode.NONE or instance.cost.cpu_request:
        return None
    if not {"swap", "migration"}.issuperset(instance.rules.added):
        return None
    rules = [policy.cached_rule(instance) if isinstance(policy, CompiledWithCache) else None for policy in policies]
    rule = rules[0]
    if rule is None or any(other != rule for other in rules) or _longest_ps(instance) > fleet_kernel.MOST_PS:
        return None
    blocks, requests = instance.limits.kv_blocks, len(instance.requests)
    entries = 14 * blocks + 8 * (requests + len(instance.prefixes.nodes))
    return FleetRun(instance, rule, len(policies)) if entries * len(policies) <= _MOST_ENTRIES else None


def _longest_ps(instance: Instance) -> int:
    """Return more than all requests take one after the other, more than any batch, and than the last arrival."""
    cost = instance.cost
    last = max(request.arrival_ps for request in instance.requests)
    one_by_one = 0
    for request in instance.requests:
        tokens = request.input + request.output
        one_by_one += cost.linear_ps(tokens) + cost.prefill_ps(tokens, tokens)
        one_by_one += request.output * (cost.linear_ps(1) + cost.decode_ps(tokens))
    return last + one_by_one + longest_batch_ps(instance)


def _new_fleet(instance: Instance, rule: Rule, machines: int, order: Sequence[int]) -> Fleet:
    requests, blocks = [instance.requests[index] for index in order], instance.limits.kv_blocks
    number = len(requests)
    paths, on_path = _paths(instance, order)
    facts = np.array([(each.arrival_ps, each.input, each.output) for each in requests], np.int64)
    whole = (facts[:, 1] + facts[:, 2]) // rule.block
    most = np.array(on_path, np.int64) if instance.cache.mode is CacheMode.PREFIX else whole
    segments = len(paths.first)
    state = np.zeros((machines, fleet_kernel.STATES), np.int64)
    state[:, fleet_kernel.NOW] = instance.start_ps
    sums = np.zeros((machines, block_tree.CACHE_SUMS), np.int64)
    sums[:, block_tree.BLOCKS] = blocks

    def short(*shape: int) -> ShortInts:
        return np.zeros((machines, *shape), np.int32)

    # Each node has a block at least, and as many nodes as that are leaves.
    rows = min(blocks, int(whole.sum())) + 2
    made = Machines(
        state,
        short(number),
        short(number),
        short(number),
        sums,
        np.zeros((machines, rows, block_tree.NODE_COLUMNS), np.int64),
        np.zeros((machines, 2 * rows + 64, 3), np.int64),
        short(segments),
        short(segments) - np.int32(1),
        short(segments),
        short(segments),
        short(segments),
        short(segments),
        short(number),
    )
    return Fleet(
        rule,
        machine_arrays(instance, RequestArrays(*np.zeros((3, 1), np.int64))).costs,
        paths,
        Requests(
            np.ascontiguousarray(facts[:, 0]),
            np.ascontiguousarray(facts[:, 1]),
            np.ascontiguousarray(facts[:, 2]),
            *(np.full(number, start, np.int64) for start in (0, 0, 0, 0, -1)),
        ),
        Held(most, *(np.zeros(number, np.int64) for _ in range(4))),
        made,
        _new_log(number, blocks),
        np.zeros(fleet_kernel.LEFT_OVER, np.int64),
    )


def _paths(instance: Instance, order: Sequence[int]) -> tuple[Paths, list[int]]:
    """Return the sequences of requests in this order, and how many leading blocks of each are on its path."""
    block, nodes = instance.limits.kv_block, instance.prefixes.nodes
    numbers = {node.name: number for number, node in enumerate(nodes)}
    tokens = [node.tokens for node in nodes]
    first, size = [0] * (len(nodes) + len(order)), [0] * (len(nodes) + len(order))
    begin, segments, on_path = [0], list[int](), list[int]()
    for rank, index in enumerate(order):
        request = instance.requests[index]
        known = done = 0
        for name in request.prefix:
            number = numbers[name]
            done += tokens[number]
            first[number], size[number] = known, done // block - known
            if size[number]:
                segments.append(number)
                known += size[number]
        on_path.append(known)
        private = (request.input + request.output) // block - known
        if private:
            segments.append(len(nodes) + rank)
            first[len(nodes) + rank], size[len(nodes) + rank] = known, private
        begin.append(len(segments))
    columns = np.array(first, np.int64), np.array(size, np.int64), np.array(begin, np.int64)
    return Paths(*columns, np.array(segments, np.int32)), on_path


def _new_log(requests: int, blocks: int) -> Log:
    """Return an empty log with room for at least two batches of all requests that drop all blocks."""
    return Log(
        np.empty((_LOG_ROWS, fleet_kernel.ROW_COLUMNS), np.int64),
        np.empty((_LOG_ROWS + 2 * requests, 2), np.int32),
        np.empty((_LOG_ROWS + 2 * requests, 1), np.int32),
        np.empty((_LOG_ROWS + 2 * requests, 2), np.int32),
        np.empty((_LOG_ROWS + 2 * blocks, 2), np.int32),
        np.empty((_LOG_ROWS + 4 * requests, fleet_kernel.NOTICE_COLUMNS), np.int64),
        np.zeros(6, np.int64),
    )


def _grown(log: Log) -> Log:
    """Return a log with twice the room wherever no more than half is left."""
    sizes = log.sizes.tolist()
    return Log(
        _doubled(log.rows, sizes[fleet_kernel.ROWS]),
        _doubled(log.runs, sizes[fleet_kernel.RUNS]),
        _doubled(log.lost, sizes[fleet_kernel.LOST]),
        _doubled(log.hits, sizes[fleet_kernel.HITS]),
        _doubled(log.drops, sizes[fleet_kernel.DROPS]),
        _doubled(log.notices, sizes[fleet_kernel.NOTICES]),
        log.sizes,
    )


def _doubled(array: Numbers, size: int) -> Numbers:
    if 2 * size < len(array):
        return array
    larger = np.empty((2 * len(array), *array.shape[1:]), array.dtype)
    larger[:size] = array[:size]
    return larger
