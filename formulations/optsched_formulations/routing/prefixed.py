r"""Bounds that hold in whatever order requests are served, where machines cache prefixes that requests share.

A token of a prompt that another request has in common may be found in a cache and cost nothing, so that bounds of
requests one by one are false. What remains is *private*, or run once for all.

Let a request r have :math:`s_r` positions that another request may have left in a cache: whole blocks of its path, up
to the last node that another request has, too; 0 if no machine caches. Of its positions 0 … :math:`I_r + O_r - 2`

- those from :math:`I_r - 1` on are *forced*: r runs each of them itself, in :math:`O_r` different batches, since the
  last token before a generated one is never found;
- those from :math:`s_r` to :math:`I_r - 2` are *own*: r runs them itself at least once;
- a node's position in front of :math:`\min(s_r, I_r - 1)` is run by at least one of the requests that have it; where it
  is forced for one of them, that is counted already.

Times are those of one affine piece (β, τ) of the batch time on a machine that is as good in each respect as the best: a
prefill of position p takes at least :math:`τ + \mathrm{prefill\_sq}\,(2p + 1)`, the first token `prefill_req` besides,
a later forced position the less of that and :math:`τ + \mathrm{decode\_kv}\,p + \mathrm{decode\_req}` if it may be
evicted, and else the latter.

Theorem
-------
*Work.* Let W be what own and forced positions take, and each shared position once; T their number. With R machines the
largest load is at least :math:`⌈(β J + W) / R⌉`, where

.. math::
    J = \max\Bigl(⌈T / C⌉, ⌈\textstyle\sum_r O_r / N⌉,
        \bigl⌈(\textstyle\sum_r \sum_k q_{rk} + \sum_B n_B) / M\bigr⌉\Bigr),

:math:`q_{rk}` are the blocks that r has for itself when it generates token k, and of a shared block B

.. math:: n_B = \max\Bigl(\max_r n_{rB}, \bigl⌈\textstyle\sum_r n_{rB} / \mathrm{cap}_B\bigr⌉\Bigr),

:math:`n_{rB}` the tokens that r generates while it holds B, and :math:`\mathrm{cap}_B` how many requests fit a machine
beside B and the blocks in front of it. The makespan is at least that, and, counted from a release :math:`t_0`, the same
of requests that arrive then or later, without the positions that an earlier one may have left in a cache.

*Sums.* Each request needs :math:`p_r`, its own and forced positions and any share θ of
:math:`β \sum_k q_{rk} / M` and 1 − θ of β / C for each of these positions. The i-th completion is no earlier than the
i-th of a machine R times as fast that runs the least work left first (SRPT), nor than the i-th of what requests take
alone with everything shared in a warm cache. Offline, the sum is at least :math:`\sum_k ⌈k/R⌉\, p_{(k)}`, p descending.

*Sums, once.* The sum of latencies is at least what requests take alone with everything shared in a warm cache, and
besides the time of each shared position, once, that is forced for no request and in the last block of no prompt.

Proof
-----
*Runs.* A position of r is in the cache of its machine before r runs it only if another request of that machine has run
it, or r before an eviction: no move brings it. A match ends before the last token of a sequence, so that forced
positions are run. *Batches.* A batch runs at most C tokens, of at most N requests. When r generates token k, its batch
holds :math:`I_r + k - 1` of its tokens, of which whole blocks of the path count once for all requests. B is in as many
batches as the request that has it longest takes, and each batch serves at most :math:`\mathrm{cap}_B` requests that
hold it. *Work.* A batch lasts at least β and what its positions take, by the piece; summed over all machines that is
at most R times the largest load. What an earlier request may have run before :math:`t_0` is left out. *Sums.* Shares of
a batch's base add up to at most β, as private blocks fit M and tokens C. So in the time from its arrival to its end a
machine gives r at least :math:`p_r`; R machines do no more than one that is R times as fast (Schrage 1968; Conway,
Maxwell and Miller 1967). *Sums, once.* The first of all runs of such a position is before the first token of the
request that runs it: afterwards a request fills again only what it has had in its cache. It is not among those that
this request runs alone beside a warm cache: of shared positions these are forced, or in the last block of its prompt.
The batches that run a request do not overlap, and by the piece of the batch time they take that much longer. ∎

*Tight* where private work is most of it and the cache holds what is shared. *Loose* where prefixes are recomputed over
and over, since each is counted once, on one machine.

Conditions
----------
No roles, no moves. `optsched.check.certificates.prefixed.prefixed_bound` computes all of it again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from optsched.bounds.bound import Bound
from optsched.model.cluster import CacheMode, Role
from optsched.model.instance import Instance
from optsched.model.objectives import Latency, Objective, value_at
from optsched.solvers.formulation import UnsupportedError
from optsched_formulations.routing.prefix_tree import PlacedRequest, PrefixTree
from optsched_formulations.routing.speedy import ends_of_fast_machine, ends_offline

_SHARES = 8
"""θ are multiples of 1 / 8."""
_MOST_RELEASES = 32


@dataclass(frozen=True)
class _BestMachine:
    """What is best of any machine: coefficients of one affine piece, and limits; blocks of one token if sizes differ.

    ``requests`` is N, None for any number; ``prompt`` the most tokens of a prefill step.
    """

    number: int
    base: int
    token: int
    decode_kv: int
    decode_req: int
    prefill_sq: int
    prefill_req: int
    refills: bool
    block: int
    blocks: int
    tokens: int
    prompt: int | None
    requests: int | None

    def prefill(self, begin: int, end: int) -> int:
        """Return what prefills of the positions from ``begin`` to before ``end`` take."""
        return self.token * (end - begin) + self.prefill_sq * (end**2 - begin**2) if end > begin else 0

    def forced(self, prompt: int, output: int) -> int:
        """Return what the positions take that generate the tokens."""
        first = self.prefill(prompt - 1, prompt) + self.prefill_req
        return first + sum(self._later(place) for place in range(prompt, prompt + output - 1))

    def _later(self, place: int) -> int:
        decode = self.decode_kv * place + self.decode_req
        refill = self.prefill_sq * (2 * place + 1) + self.prefill_req
        return self.token + (min(decode, refill) if self.refills else decode)


def _best_machines(cluster: Instance) -> list[_BestMachine]:
    """Return the best machine by every piece of the batch time."""
    machines = cluster.machines
    sizes = {machine.limits.kv_block for machine in machines}
    block = sizes.pop() if len(sizes) == 1 else 1
    most = [machine.limits.batch_requests for machine in machines]
    chunked = [machine.rules.chunked_prefill for machine in machines]
    found = []
    for piece in range(max(len(machine.cost.affine) for machine in machines)):
        pieces = [machine.cost.affine[min(piece, len(machine.cost.affine) - 1)] for machine in machines]
        found.append(
            _BestMachine(
                number=len(machines),
                base=min(base for base, _ in pieces),
                token=min(token for _, token in pieces),
                decode_kv=min(machine.cost.decode_kv for machine in machines),
                decode_req=min(machine.cost.decode_req for machine in machines),
                prefill_sq=min(machine.cost.prefill_sq for machine in machines),
                prefill_req=min(machine.cost.prefill_req for machine in machines),
                refills=any(machine.rules.eviction for machine in machines),
                block=block,
                blocks=max(machine.limits.kv_tokens for machine in machines) // block,
                tokens=max(machine.limits.batch_tokens for machine in machines),
                prompt=max(machine.limits.prefill_tokens for machine in machines) if all(chunked) else None,
                requests=max(each for each in most if each is not None) if None not in most else None,
            )
        )
    return found


@dataclass(frozen=True)
class _Node:
    """A node that several requests have: its positions, its requests, and the next one in front, if there is one."""

    name: str
    front: str | None
    begin: int
    end: int
    users: tuple[int, ...]


@dataclass(frozen=True)
class _Own:
    """What one request needs by itself: time of own and forced positions, their number, blocks held, and batches."""

    work: int
    tokens: int
    held: int
    batches: int


def prefixed_bound(cluster: Instance, objective: Objective) -> Bound | None:
    """Bound an objective; None for times between tokens.

    Raises
    ------
    UnsupportedError
        If requests move.
    """
    if any(machine.role is not Role.BOTH for machine in cluster.machines):
        raise UnsupportedError("a machine has a role, so that requests move")
    if any(machine.rules.migration for machine in cluster.machines):
        raise UnsupportedError("the rule migration lets requests move")
    if not objective.is_monotone and objective is not Objective.MAX_LOAD:
        return None
    best = Bound(0, {"kind": "prefixed", "piece": 0})
    for piece, machine in enumerate(_best_machines(cluster)):
        problem = _Problem(cluster, machine)
        if objective is not Objective.MAX_LOAD:
            value = value_at(cluster.requests, objective, *problem.alone())
            if objective in {Objective.MEAN_E2E, Objective.MEAN_TTFT}:
                value += problem.once()
            best = max(best, Bound(value, {"kind": "prefixed", "piece": piece}), key=_value)
        if objective in {Objective.MAKESPAN, Objective.MAX_LOAD}:
            for release in problem.releases() if objective is Objective.MAKESPAN else [cluster.start_ps]:
                value = release - cluster.start_ps + problem.load(release)
                stated = {"kind": "prefixed", "piece": piece, "release_ps": release}
                best = max(best, Bound(value, stated), key=_value)
        if objective in {Objective.MEAN_E2E, Objective.MEAN_TTFT}:
            for share in range(_SHARES + 1):
                value = problem.sum_of_latencies(objective.latency is Latency.TTFT, share)
                stated = {"kind": "prefixed", "piece": piece, "memory_share": [share, _SHARES]}
                best = max(best, Bound(value, stated), key=_value)
    return best


def placement_of(cluster: Instance) -> PrefixTree:
    """Return what has to be placed on equal machines: shared nodes, and what each request needs by itself.

    Times are those of `prefixed_bound` by the first affine piece, with shares of bases by tokens: no schedule of an
    assignment of requests has a smaller largest load than the placement has.

    Raises
    ------
    UnsupportedError
        If machines differ.
    """
    if len(set(cluster.machines)) > 1:
        raise UnsupportedError("machines that differ")
    return _Problem(cluster, _best_machines(cluster)[0]).placement()


def least_steps(instance: Instance) -> list[list[int]]:
    """Return for each request of one machine how long it takes at least alone from each number of tokens on.

    Each list has O + 1 numbers, the last of which is 0.
    """
    problems = [_Problem(instance, machine) for machine in _best_machines(instance)]
    lists = zip(*(problem.steps() for problem in problems), strict=True)
    return [[max(values) for values in zip(*options, strict=True)] for options in lists]


def _value(bound: Bound) -> int:
    return bound.value


class _Problem:
    """The requests on one best machine."""

    def __init__(self, cluster: Instance, machine: _BestMachine) -> None:
        self._requests, self._machine = cluster.requests, machine
        self._start = cluster.start_ps
        self._nodes, self._shared = _shared_nodes(cluster, machine.block)
        self._owns = [self._own(index, request.output) for index, request in enumerate(cluster.requests)]

    def alone(self) -> tuple[list[int], list[int]]:
        """Return the least TTFT and the least e2e latency of every request, if what it shares is cached."""
        machine, first, last = self._machine, [], []
        for request, shared in zip(self._requests, self._shared, strict=True):
            found = min(shared, (request.input - 1) // machine.block * machine.block)
            steps = -(-(request.input - found) // machine.prompt) if machine.prompt else 1
            begins = steps * (machine.base + machine.prefill_req)
            first.append(begins + machine.prefill(found, request.input))
            later = machine.forced(request.input, request.output) - machine.forced(request.input, 1)
            last.append(first[-1] + machine.base * (request.output - 1) + later)
        return first, last

    def once(self) -> int:
        """Return what shared positions take at least that no request runs alone beside a warm cache."""
        parts = (part for node in self._nodes for part in self._run_once(node, self._machine.block))
        return sum(self._machine.prefill(*part) for part in parts)

    def steps(self) -> list[list[int]]:
        """Return what every request takes alone from each number of tokens on."""
        found = []
        for request, first in zip(self._requests, self.alone()[0], strict=True):
            machine = self._machine
            ends = [machine.forced(request.input, number) for number in range(1, request.output + 1)]
            later = [machine.base * (request.output - 1 - k) + ends[-1] - end for k, end in enumerate(ends)]
            found.append([first + later[0], *later])
        return found

    def placement(self) -> PrefixTree:
        """Return shared nodes and requests as `prefix_placement` takes them."""
        number = {node.name: position for position, node in enumerate(self._nodes)}
        deepest = dict[int, int]()
        for position, node in enumerate(self._nodes):
            for user in node.users:
                if user not in deepest or self._nodes[deepest[user]].end < node.end:
                    deepest[user] = position
        tokens = self._machine.tokens
        once = [self._run_once(node) for node in self._nodes]
        return PrefixTree(
            tuple(None if node.front is None else number[node.front] for node in self._nodes),
            tuple(sum(self._machine.prefill(*part) for part in parts) for parts in once),
            tuple(
                PlacedRequest(deepest.get(index), own.work + self._machine.base * own.tokens // tokens)
                for index, own in enumerate(self._owns)
            ),
        )

    def releases(self) -> list[int]:
        arrivals = sorted({request.arrival_ps for request in self._requests})
        return arrivals[:: -(-len(arrivals) // _MOST_RELEASES)]

    def load(self, release: int) -> int:
        """Return what the busiest machine does at least after a release."""
        machine = self._machine
        served = [index for index, request in enumerate(self._requests) if request.arrival_ps >= release]
        needs = [self._owns[index] for index in served]
        work, tokens = sum(need.work for need in needs), sum(need.tokens for need in needs)
        held = sum(need.held for need in needs)
        for node in self._nodes:
            users = [user for user in node.users if self._requests[user].arrival_ps >= release]
            held += self._blocks_held(node, users)
            if len(users) < len(node.users):
                continue  # An earlier request may have left it in a cache.
            for begin, end in self._run_once(node):
                work += machine.prefill(begin, end)
                tokens += end - begin
        batches = max(-(-tokens // machine.tokens), -(-held // machine.blocks))
        if machine.requests is not None:
            batches = max(batches, -(-sum(need.batches for need in needs) // machine.requests))
        return -(-(machine.base * batches + work) // machine.number)

    def sum_of_latencies(self, first: bool, share: int) -> int:
        """Return the least sum with that share of bases, in eighths, by memory, and the rest by tokens."""
        machine = self._machine
        arrivals = [request.arrival_ps - self._start for request in self._requests]
        needs = []
        for own in [self._own(index, 1) for index in range(len(self._requests))] if first else self._owns:
            by_memory = share * own.held * machine.tokens
            by_tokens = (_SHARES - share) * own.tokens * machine.blocks
            whole = _SHARES * machine.tokens * machine.blocks
            needs.append(own.work + machine.base * (by_memory + by_tokens) // whole)
        alone = sorted(map(sum, zip(arrivals, self.alone()[0 if first else 1], strict=True)))
        fast = ends_of_fast_machine(arrivals, needs, machine.number)
        best = sum(map(max, fast, alone)) - sum(arrivals)
        return best if any(arrivals) else max(best, ends_offline(needs, machine.number))

    def _own(self, index: int, output: int) -> _Own:
        """Return what a request needs by itself until it has that many tokens."""
        request, shared, machine = self._requests[index], self._shared[index], self._machine
        own = max(0, request.input - 1 - shared)
        work = machine.prefill(shared, request.input - 1) + machine.forced(request.input, output)
        held = sum(self._private_blocks(index, request.input + token) for token in range(output))
        return _Own(work, own + output, held, output)

    def _private_blocks(self, index: int, tokens: int) -> int:
        block = self._machine.block
        return -(-tokens // block) - min(self._shared[index], tokens) // block

    def _blocks_held(self, node: _Node, users: Sequence[int]) -> int:
        """Return in how many batches each block of a node is held at least, summed over its blocks."""
        machine = self._machine
        first, last = node.begin // machine.block, node.end // machine.block
        # What holds at the last block counts for all of them.
        generated = [
            self._requests[user].output - max(0, last * machine.block - self._requests[user].input) for user in users
        ]
        # A path that goes on into the output may leave a request no block of its own.
        beyond = any(self._shared[user] > self._requests[user].input for user in users)
        least = min((self._private_blocks(user, self._requests[user].input) for user in users), default=0)
        least = 0 if beyond else least
        most = len(users) if machine.requests is None else min(len(users), machine.requests)
        if least:
            most = min(most, max(1, (machine.blocks - first - 1) // least))
        positive = [count for count in generated if count > 0]
        if last <= first or not positive:
            return 0
        return (last - first) * max(*positive, -(-sum(positive) // most))

    def _run_once(self, node: _Node, block: int = 1) -> list[tuple[int, int]]:
        """Return the positions of a node that are forced for no request, as ranges.

        With ``block`` only those that are not in the last block of a prompt either.
        """
        end = max(min(self._shared[user], self._requests[user].input - 1) for user in node.users)
        forced = sorted(
            (
                (self._requests[user].input - 1) // block * block,
                self._requests[user].input + self._requests[user].output - 1,
            )
            for user in node.users
        )
        begin, end, found = node.begin, min(end, node.end), []
        for start, until in forced:
            if begin < min(start, end):
                found.append((begin, min(start, end)))
            begin = max(begin, until)
        if begin < end:
            found.append((begin, end))
        return found


def _shared_nodes(cluster: Instance, block: int) -> tuple[list[_Node], list[int]]:
    """Return the nodes that several requests have, and how many positions of each request others may have cached."""
    shared = [0] * len(cluster.requests)
    if not any(machine.cache.mode is not CacheMode.NONE for machine in cluster.machines):
        return [], shared
    lengths = {node.name: node.tokens for node in cluster.prefixes.nodes}
    users: defaultdict[str, list[int]] = defaultdict(list)
    for index, request in enumerate(cluster.requests):
        for name in request.prefix:
            users[name].append(index)
    ends: dict[str, int] = {}
    for index, request in enumerate(cluster.requests):
        end = 0
        for name in request.prefix:
            end = ends[name] = end + lengths[name]
            if len(users[name]) > 1:
                shared[index] = end // block * block
    front: dict[str, str | None] = {}
    for request in cluster.requests:
        front.update(zip(request.prefix, (None, *request.prefix), strict=False))
    nodes: dict[str, _Node] = {}
    for name, end in ends.items():
        begin, until = (end - lengths[name]) // block * block, end // block * block
        if len(users[name]) > 1 and until > begin:
            before = front[name]
            while before is not None and before not in nodes:
                before = front[before]
            nodes[name] = _Node(name, before, begin, until, tuple(users[name]))
    return list(nodes.values()), shared
