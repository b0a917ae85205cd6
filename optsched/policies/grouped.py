"""InferMax's Algorithm 1 with its parts filled in: most published batching policies are one declaration.

A policy names the groups of requests that it goes through in order, and for each group how its members are
ordered and what happens when memory is full; whether batches are hybrid and prefill chunked; a token budget
of its own; and how much memory admission reserves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from fractions import Fraction
from heapq import heapify, heappop
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from optsched.model.instance import Instance
from optsched.model.memory import Memory
from optsched.model.schedule import Assignment
from optsched.policies.forming import Forming
from optsched.policies.standing import Standing
from optsched.simulate.engine import arrival_order
from optsched.simulate.replica import Job, Replica

if TYPE_CHECKING:
    from optsched.simulate.kernel import CompiledRun
    from optsched.simulate.record import Record

Order = Callable[[Job, Replica], Any]
"""Sort key of the members of a group; the smallest goes first.

Until somebody arrives, ends, starts or is evicted, time must not change the order of those who wait, nor of those who
decode together, nor bring anybody who waits before one of these.
"""

Filter = Callable[[Job], bool]
"""Whether a request is among the members of a group; while it decodes it may only change to a group before."""

Reserve = Callable[[Job], int]
"""KV tokens that a policy sets aside for an admitted job, at least, whatever it holds now.

While it decodes they never get fewer.
"""


def whole_prompt(job: Job) -> int:
    """Reserve what the running prefill will hold when it is done; a decode reserves only what it holds."""
    return 0 if job.decoding else job.request.input + job.generated


def worst_case(job: Job) -> int:
    """Reserve I + O − 1, so that no eviction is ever needed (InferMax's eviction-free variants)."""
    return job.request.peak_tokens


_rank = attrgetter("rank")


Admission = Callable[[Job, Sequence[Job]], bool]
"""Whether a waiting request may join those that will hold KV, if everything else allows it."""


class Members(Enum):
    """Which requests form a group."""

    ALL = auto()
    WAITING = auto()
    FILLING = auto()
    DECODING = auto()
    RUNNING = auto()

    @property
    def wait(self) -> bool:
        """Whether requests without KV are among them."""
        return self in {Members.ALL, Members.WAITING}

    def of(self, replica: Replica) -> list[Job]:
        """Return the members in order of arrival."""
        match self:
            case Members.ALL:
                return sorted(chain(replica.running, replica.waiting), key=_rank)
            case Members.WAITING:
                return replica.waiting
            case Members.RUNNING:
                return replica.running
            case Members.DECODING:
                return [job for job in replica.running if job.decoding]
            case Members.FILLING:
                return [job for job in replica.running if not job.decoding]


def _by_key(jobs: list[Job], order: Order, replica: Replica) -> Iterator[Job]:
    """Yield jobs by key; mostly only the first few are asked for."""
    heap = [(order(job, replica), job.rank, job) for job in jobs]
    heapify(heap)
    while heap:
        yield heappop(heap)[-1]


_CODES = {Members.WAITING: 0, Members.FILLING: 1, Members.DECODING: 2, Members.RUNNING: 3}
"""What `optsched.simulate.kernel` calls them."""


@dataclass(frozen=True)
class Group:
    """A group of requests in Algorithm 1.

    Parameters
    ----------
    members
        Which requests.
    order
        Their order, ties by arrival; None for the order of arrival.
    evicts
        What happens when memory does not suffice for a candidate: running requests of lower priority are
        evicted, or (if False) the rest of the group is skipped.
    where
        Which of the members; None for all.
    """

    members: Members
    order: Order | None = None
    evicts: bool = False
    where: Filter | None = None

    @property
    def admits_only(self) -> bool:
        """Whether none of its members holds KV."""
        return self.members is Members.WAITING

    def before(self, one: Job, other: Job, replica: Replica) -> bool:
        """Say whether ``one`` would be a candidate before ``other``."""
        if self.order is None:
            return one.rank < other.rank
        return bool((self.order(one, replica), one.rank) < (self.order(other, replica), other.rank))

    def candidates(self, replica: Replica) -> Iterable[Job]:
        """Return the members, first candidate first."""
        if self.members.wait and isinstance(self.order, Standing):
            running = replica.running if self.members is Members.ALL else ()
            standing = self.order.candidates(replica.waiting, running)
            return standing if self.where is None else filter(self.where, standing)
        found = self.members.of(replica)
        if self.where is not None:
            found = [job for job in found if self.where(job)]
        return found if self.order is None else _by_key(found, self.order, replica)


@dataclass(frozen=True)
class Margins:
    """What a policy leaves free, or counts, beyond what Algorithm 1 needs.

    Parameters
    ----------
    residents
        The most requests that hold KV; None for no limit.
    watermark
        The share of the cache that stays free when a request is admitted, in whole blocks, rounded down.
    spare_block
        Whether a decode step needs a free block although it takes none.
    padded
        Whether every prefill of a batch counts as many tokens as its longest.
    together
        Whether requests are admitted only when nobody holds KV.
    """

    residents: int | None = None
    watermark: Fraction = Fraction(0)
    spare_block: bool = False
    padded: bool = False
    together: bool = False

    def tokens(self, memory: Memory) -> tuple[int, int]:
        """Return the watermark, and what a decode step asks for at least, in tokens."""
        blocks = memory.capacity // memory.block
        return int(self.watermark * blocks) * memory.block, memory.block if self.spare_block else 0


@dataclass(frozen=True)
class GroupedPolicy:
    """InferMax's Algorithm 1 (Kim et al., section 3.1).

    The groups are gone through in order, and in each its candidates. A candidate whose phase differs from
    that of the batch is passed over if batches are not hybrid (step 2). It is allocated (step 3) if its
    tokens fit C, for a prefill also P and the policy's own budget, and if its reservation fits M. If memory
    is short and the group evicts, running requests lose their KV in reverse order of priority until it fits;
    if none of lower priority is left, the candidate itself is evicted (step 4). If anything else is short,
    or the group does not evict, the rest of the group is skipped.

    Where the paper is *silent*:

    - Waiting requests, evicted ones among them, are served in order of arrival, and the first that does not
      fit holds up those behind it. A request that was evicted for this batch cannot run in it, so it too
      holds up later ones.
    - The policy's rules only tighten the instance's: it chunks and swaps only where the instance allows it.
    - It considers those that wait one after the other, up to the first that does not fit; all of them, if it has to
      order them.

    It *differs*:

    - The paper checks m_reserve ≤ M − Σ m over the running requests, m being the tokens that a request has processed.
      Here the requests that are already in the batch count with what they hold after it, because else a batch could
      outgrow M, and with their reservation, because the eviction-free variants would evict without it. ``asks`` is
      the paper's check.
    - If it swaps, KV goes to the host where it would be lost, and comes back in the batch in which its request runs
      next; until then the request is one that waits. The paper recomputes (section 2.2); this can swap, because
      EconoServe's vLLM does.

    Parameters
    ----------
    groups
        In order of priority; no request is in two of them.
    hybrid
        Whether prefill and decode steps may share a batch.
    chunked
        Whether a prefill may be cut to what the budgets leave.
    reserve
        How much memory an admitted request holds at least.
    asks
        KV tokens that have to be free for a request without KV to join (m_reserve of step 3), of which it takes only
        what ``reserve`` sets aside. The check is m_reserve ≤ M − Σ m, where m is what a request holds when the batch
        is formed, or runs if it is admitted in it. None for no more than ``reserve`` sets aside.
    token_budget
        The policy's own P. It counts all tokens of the batch, decodes too; None for no own limit.
    margins
        What it leaves free or counts besides.
    admits
        What else has to allow that a waiting request runs; None for nothing.
    swaps
        Whether KV waits on the host instead of being lost.
    batch_tokens
        The policy's own C: no batch has more tokens; None for no own limit.
    """

    groups: tuple[Group, ...]
    hybrid: bool
    chunked: bool
    reserve: Reserve = whole_prompt
    asks: Reserve | None = None
    token_budget: int | None = None
    margins: Margins = Margins()
    admits: Admission | None = None
    swaps: bool = False
    batch_tokens: int | None = None

    def next_batch(self, replica: Replica) -> Assignment:
        """Form the next batch (Algorithm 1, GETNEXTBATCH)."""
        forming = Forming(self, replica)
        for group in self.groups:
            forming.go_through(group)
        assignment = forming.result()
        if any(group.order is not None or group.where is not None for group in self.groups):
            return _decodes_by_arrival(assignment, replica)
        return assignment

    def serve(self, instance: Instance) -> Record | None:
        """Serve an instance in machine code, if groups are in order of arrival; None if the engine has to.

        The engine then also says why, if the policy fails.
        """
        run = self.compiled_run(instance)
        if run is None:
            return None
        run.submit(arrival_order(instance))
        run.advance()
        return run.record()

    def compiled_run(self, instance: Instance) -> CompiledRun | None:
        """Return a run in machine code of the requests that will be submitted; None if the engine has to."""
        if not self._is_plain:
            return None
        # Compiled code takes a while to load.
        from optsched.simulate.kernel import Rule, as_array, begin_run  # noqa: PLC0415

        limits, rules = instance.limits, instance.rules
        rule = Rule(
            as_array([_CODES[group.members] for group in self.groups]),
            as_array([group.evicts for group in self.groups]),
            self.hybrid and rules.hybrid,
            self.chunked and rules.chunked_prefill,
            self.reserve is worst_case,
            limits.batch_tokens if self.token_budget is None else self.token_budget,
        )
        return begin_run(instance, rule)

    @property
    def _is_plain(self) -> bool:
        """Whether nothing but Algorithm 1 decides: no order or reservation of the policy's own."""
        groups = [group.members for group in self.groups]
        return (
            type(self) is GroupedPolicy
            and self.margins == Margins()
            and self.admits is None
            and self.asks is None
            and not self.swaps
            and self.reserve in {whole_prompt, worst_case}
            and self.batch_tokens is None
            and all(group.order is None and group.where is None for group in self.groups)
            and Members.ALL not in groups
            and not any(group.evicts for group in self.groups if group.members is Members.WAITING)
            # Those that decode form one group: the log says no more than how many of them run.
            and not (self.chunked and Members.RUNNING in groups)
        )

    def stands(self, replica: Replica, assignment: Assignment) -> int:
        """Say for how many batches the same requests decode: as long as memory lasts.

        Then nobody is evicted. Whoever did not run in this batch will not in the next: there is no more left of any
        budget, and of memory there is less. The order of those who run does not change either (see `Order`); where an
        order may change between those who run and those who do not, the decision stands for one batch.
        """
        ran = {index for index, _ in assignment.run}
        held = replica.memory.reserving(self.reserve)
        resting = [job for job in replica.running if job.index not in ran]
        if resting and any(group.order is not None for group in self.groups):
            return 1
        if replica.waiting and self.admits is not None:
            return 1
        _, spare = self.margins.tokens(replica.memory)
        free = replica.memory.capacity - sum(held(job, job.cached) for job in resting) - spare
        jobs = [job for job in replica.running if job.index in ran]
        most = min(job.request.output - job.generated for job in jobs)

        def lasts(times: int) -> bool:
            return sum(held(job, job.cached + times) for job in jobs) <= free

        return longest(most, lasts)


def longest(most: int, lasts: Callable[[int], bool]) -> int:
    """Return the most batches, up to ``most`` and at least 1, that memory lasts for; it lasts for all fewer, too."""
    return most if lasts(most) else max(bisect_left(range(1, most), True, key=lambda times: not lasts(times)), 1)


def while_memory_lasts(jobs: Sequence[Job], memory: Memory, most: int) -> int:
    """Return for how many batches, up to ``most`` and at least 1, all of these and nobody else can decode."""
    return longest(most, lambda times: sum(memory.size(job, job.cached + times) for job in jobs) <= memory.capacity)


def _decodes_by_arrival(assignment: Assignment, replica: Replica) -> Assignment:
    """List decode steps, which take place at the same time, in an order that does not change from batch to batch."""
    running = {job.index: job.rank for job in chain(replica.running, replica.waiting) if job.decoding}
    decodes = sorted((step for step in assignment.run if step[0] in running), key=lambda step: running[step[0]])
    place = next((number for number, step in enumerate(assignment.run) if step[0] in running), 0)
    others = [step for step in assignment.run if step[0] not in running]
    return assignment._replace(run=others[:place] + decodes + others[place:])
