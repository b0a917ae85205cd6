"""What a batching policy sees of a replica, and what it may answer."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.memory import Memory
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.schedule import Assignment, Schedule
from optsched.model.state import RequestState

if TYPE_CHECKING:
    import numpy as np

    from optsched.simulator.fleet_kernel import Rule
    from optsched.simulator.record import Record

COMPILED_TOKENS = 50_000
"""With fewer tokens to generate the engine has finished before compiled code is loaded."""
_rank = attrgetter("rank")


class Job(RequestState):
    """A request on its way through the replica.

    Attributes
    ----------
    index
        The request's index in the instance.
    rank
        Its place in the order of arrival (ties by index).
    queued_ps
        Since when it has been waiting, or had been until it ran: its arrival, or its last eviction.
    """

    __slots__ = ("index", "queued_ps", "rank")

    def __init__(self, request: Request, index: int, rank: int) -> None:
        super().__init__(request)
        self.index = index
        self.rank = rank
        self.queued_ps = request.arrival_ps


class FormingCache(Protocol):
    """A machine's cache, on which a policy forms its batch: what it says to evict and to run happens at once.

    The policy then answers the `Assignment` of just that, in this order.
    """

    @property
    def free(self) -> int:
        """Blocks that runs may still take in this batch: empty ones, and cached ones that can be dropped."""

    def found(self, job: Job, /) -> int:
        """Return how many tokens a waiting request would find if it ran now; whole blocks, and never its last token."""

    def needed(self, job: Job, tokens: int, /) -> int:
        """Return how many of the `free` blocks a request takes if it runs ``tokens`` tokens now."""

    def evict(self, job: Job, /) -> None:
        """Evict a request that holds KV and does not run in this batch. What is cached of it stays."""

    def run(self, job: Job, tokens: int, /) -> bool:
        """Run ``tokens`` tokens of a request; False, and nothing changes, if memory does not suffice.

        One that waits first finds what is cached: ``tokens`` are those that run besides.
        """

    def decode(self, jobs: Iterable[Job], /) -> int:
        """Run a decode step of each of these requests in turn, up to the first for which memory does not suffice.

        The same as `run` of one token for each of them; returns how many ran.
        """


@dataclass(slots=True)
class Replica:
    """A replica between two batches.

    Parameters
    ----------
    limits, rules
        The instance's.
    now_ps
        The time at which the next batch would start.
    memory
        What its KV memory can hold, and what a request takes there.
    waiting, running
        Arrived, unfinished requests without and with KV on the GPU, each in order of arrival.
    cache
        The machine's cache, on which policies that know of it form their batches; None if it caches nothing.
    """

    limits: Limits
    rules: Rules
    now_ps: int
    memory: Memory
    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    cache: FormingCache | None = None

    def enqueue(self, job: Job) -> None:
        """Put a job among the waiting."""
        insort(self.waiting, job, key=_rank)

    def admit(self, job: Job) -> None:
        """Move a job from the waiting to the running."""
        del self.waiting[bisect_left(self.waiting, job.rank, key=_rank)]
        insort(self.running, job, key=_rank)

    def drop(self, job: Job) -> None:
        """Take a job from the running."""
        del self.running[bisect_left(self.running, job.rank, key=_rank)]


class PolicyFailureError(Exception):
    """A policy cannot serve the instance.

    Parameters
    ----------
    index
        The request at which it fails.
    now_ps
        When.
    reason
        Why.
    """

    def __init__(self, index: int, now_ps: int, reason: str) -> None:
        super().__init__(index, now_ps, reason)
        self.index = index
        self.now_ps = now_ps
        self.reason = reason


class LeftToEngineError(Exception):
    """Machine code cannot go on; the engine has to start over, and says why if the policy fails."""


class NoBatchError(PolicyFailureError):
    """The policy finds no batch now; it is asked again when another request arrives."""


class Policy(Protocol):
    """A batching policy.

    One that has ``keeps_records = True`` knows requests and memory from what it has decided itself; where requests move
    it has to be `Notified` of that.
    """

    def next_batch(self, replica: Replica) -> Assignment:
        """Say which requests run how many tokens in the next batch, and which are evicted or swapped.

        The policy reads the replica, in which at least one request waits or runs, and changes nothing in it.

        Raises
        ------
        NoBatchError
            If nothing can run now.
        PolicyFailureError
            If the policy can never serve the instance.
        """
        ...


def keeps_records(policy: Policy) -> bool:
    """Whether a policy would not notice that a request with KV has come or gone, or that there is less memory."""
    return bool(getattr(policy, "keeps_records", False))


@runtime_checkable
class Notified(Policy, Protocol):
    """A policy with records of requests and memory, which is notified of requests that come and go with their KV."""

    def come(self, job: Job, now_ps: int) -> None:
        """Take note of a decoding request that has come; the replica has it already."""

    def go(self, job: Job) -> None:
        """Take note of a request that leaves; the replica has it no more."""

    def resize(self, capacity: int) -> None:
        """Take note of the tokens of memory that are not set aside for requests on their way."""

    def has_room(self, job: Job, tokens: int) -> bool:
        """Whether ``tokens`` tokens of a request that would come fit into memory that is promised to no other."""


@runtime_checkable
class Steady(Protocol):
    """A policy that says for how many batches its decisions remain valid."""

    def next_batch(self, replica: Replica) -> Assignment:
        """Decide on the next batch (see `Policy`)."""
        ...

    def valid_for(self, replica: Replica, assignment: Assignment) -> int:
        """Return for how many batches a decision remains valid.

        Parameters
        ----------
        replica
            As it was when the policy decided.
        assignment
            What it decided: decode steps, and nothing else.

        Returns
        -------
        int
            A number, at least 1, of batches for each of which `next_batch` would answer the same, in the same order,
            as long as no request arrives and none ends.
        """
        ...


@runtime_checkable
class Compiled(Protocol):
    """A policy that serves whole instances in machine code; the schedule is the same as the engine's."""

    def serve(self, instance: Instance) -> Record | None:
        """Serve an instance; None if the engine has to, which then also says why if the policy fails."""
        ...


@runtime_checkable
class CompiledWithCache(Protocol):
    """A policy whose batches on a machine with a cache machine code can form (`optsched.simulator.fleet`)."""

    def cached_rule(self, instance: Instance) -> Rule | None:
        """Return the policy as machine code knows it; None if the engine has to serve the machine."""
        ...


@dataclass(frozen=True)
class Occasion:
    """What a policy is told before a run.

    Parameters
    ----------
    instance
        What is to be served, all lengths and arrivals; the restrictions have been applied to its rules.
    objective
        What counts.
    restrictions
        The class of schedules.
    rng
        The only source of chance.
    """

    instance: Instance
    objective: Objective
    restrictions: Restrictions
    rng: np.random.Generator


@runtime_checkable
class Planning(Protocol):
    """A policy that can serve several machines without a router: it assigns the requests itself."""

    def planned(self, occasion: Occasion) -> Schedule:
        """Return a schedule of several machines without caches and moves, unrestricted.

        Raises
        ------
        PolicyFailureError
            If it can never serve the instance.
        """
        ...


@runtime_checkable
class Preparing(Protocol):
    """What becomes a policy for one run: it predicts, has a memory of its own, or knows the future."""

    def prepared(self, occasion: Occasion) -> Policy:
        """Return the policy of a run.

        Raises
        ------
        PolicyFailureError
            If it can never serve the instance.
        """
        ...
