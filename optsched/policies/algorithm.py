"""The parts that a policy fills in of InferMax's Algorithm 1 (Kim et al., section 3.1), as data.

A policy names the groups of requests that it goes through in order, and for each group how its members are
ordered and what happens when memory is full; whether batches are hybrid and prefill chunked; a token budget
of its own; and how much memory admission reserves. What is done with them is in `optsched.policies.forming`, one
batch, and `optsched.policies.grouped`, the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from fractions import Fraction
from heapq import heapify, heappop
from itertools import chain
from operator import attrgetter
from typing import Any

from optsched.model.memory import Memory
from optsched.policies.stable_queue import StableQueue
from optsched.simulator.replica import Job, Replica

Order = Callable[[Job, Replica], Any]
"""Sort key of the members of a group; the smallest goes first.

Until a request arrives, ends, starts or is evicted, time must not change the order of waiting requests, nor of those
that decode together, nor bring a waiting one before one of these.
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


def whole_at_admission(job: Job) -> int:
    """Ask for what the whole prefill will hold when a request is admitted, and set nothing aside after that."""
    return 0 if job.cached else job.missing


def nothing(_: Job) -> int:
    """Set nothing aside."""
    return 0


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
        if self.members.wait and isinstance(self.order, StableQueue):
            running = replica.running if self.members is Members.ALL else ()
            there = self.order.candidates(replica.waiting, running)
            return there if self.where is None else filter(self.where, there)
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
        Whether requests are admitted only when no request holds KV.
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
class Parts:
    """What Algorithm 1 leaves open.

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
