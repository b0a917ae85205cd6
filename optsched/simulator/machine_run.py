"""A policy on one of several machines: what routers see of it, and what they are notified of."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from enum import Enum, auto
from typing import NamedTuple

from optsched.cache.blocks import CacheSetting
from optsched.cache.foresight import BlockUses
from optsched.model.cost import BatchCost
from optsched.model.instance import Instance, Request
from optsched.model.memory import PrivateBlocks
from optsched.model.schedule import Assignment, Batch
from optsched.model.state import RequestState, Step, Work
from optsched.routers.router import RoutedRequest
from optsched.routers.views import Snapshot, nothing_cached
from optsched.simulator.caching import BatchCache, MovingCache
from optsched.simulator.engine import PolicyRun
from optsched.simulator.replica import Job, Notified, Policy, keeps_records


class Happening(Enum):
    """What routers are notified of."""

    FIRST_TOKEN = auto()
    FINISHED = auto()
    DROPPED = auto()


class Notice(NamedTuple):
    """A request has its first, or its last, token at the end of a batch; or cached tokens of it are dropped at a start.

    ``tokens`` are those that its fill found in the cache, with its first token, or the leading ones that no drop is
    about.
    """

    time_ps: int
    machine: int
    number: int
    happening: Happening
    request: int
    tokens: int = 0


class Instant(NamedTuple):
    """When a machine is looked at.

    Parameters
    ----------
    now_ps
        What ends then has ended.
    arrived_ps
        Requests that arrive later are not there.
    """

    now_ps: int
    arrived_ps: int


class MachineRun(PolicyRun):
    """A policy on one machine of several.

    A batch that has started before a time and ends after it is under way: its runs are still to be done, what it holds
    after its steps is in use, and requests that it finishes are there. Requests have the indices that they have in the
    whole instance.

    Parameters
    ----------
    instance
        What the machine would have to do alone, with all requests (`Instance.on`).
    policy
        Its own object.
    machine
        Its index.
    setting
        How it keeps its cache.
    uses
        What machines share if they keep their caches by it (`optsched.cache.blocks.uses_of`).
    cost
        How long the steps of batches take, if not what the instance says.
    jumps
        As `optsched.simulator.engine.run_policy` takes it.
    notices
        Whether what routers are notified of is collected.
    remembers
        Whether what is cached is remembered, for `snapshot`.
    moves
        Whether requests may come and go with their KV.
    layerwise
        Whether it counts how long prefills take (`optsched.model.cluster.Link`).
    prefills
        Whether requests have to go when they have their first token (`optsched.model.cluster.Role`).
    """

    def __init__(
        self,
        instance: Instance,
        policy: Policy,
        machine: int,
        setting: CacheSetting,
        uses: BlockUses | None,
        *,
        cost: BatchCost | None = None,
        jumps: bool,
        notices: bool,
        remembers: bool,
        moves: bool = False,
        layerwise: bool = False,
        prefills: bool = False,
    ) -> None:
        # Between the batches of a jump nothing could be remembered.
        jumps &= not (remembers and instance.is_cached)
        kind = MovingCache if moves else BatchCache
        cache = kind(instance, setting, uses) if instance.is_cached else None
        super().__init__(instance, policy, cost=cost, jumps=jumps, cache=cache, machine=machine)
        self._notified = policy if keeps_records(policy) and isinstance(policy, Notified) else None
        self._moving = cache if isinstance(cache, MovingCache) else None
        self._instance = instance
        self._noting, self._remembers = notices, remembers
        self._noted: deque[Notice] = deque()
        self._numbers = 0
        self._hits: dict[int, int] = {}
        """Where notices are collected: what requests without a token found in the first step of their fill."""
        self._latest: Assignment | None = None
        self._latest_end_ps = 0
        self._ending: list[Request] = []
        self._filling = 0
        """Prefill tokens of the latest batch."""
        self._memory = PrivateBlocks(instance.limits)
        self._replica.memory = self._memory
        self._held: dict[int, int] = {}
        """Requests that the policy does not see, and the memory that they take."""
        self.expected: dict[int, Job] = {}
        """Requests that are to come from other machines."""
        self._layerwise = layerwise
        self._filled: dict[int, tuple[int, int]] = {}
        """If it counts them: what requests hold after the latest prefill step, and how long those of the fill took."""
        self._fences: dict[int, int] = {}
        """Requests that are copied while they run, and the ends of the stages."""
        self.left: deque[tuple[int, Job]] = deque()
        """Where only prefills run: requests that have their first token and must go, and since when."""
        self._free = 0
        """Blocks that were free in the latest batch."""
        self._past: set[Hashable] = set()
        """What was cached when the machine was last seen by a router that sees it later."""
        self._changes: deque[tuple[int, Collection[Hashable], Collection[Hashable]]] = deque()
        """What is dropped, and what is cached from a time on."""
        self.prefills = prefills
        self.is_begun = False
        """Whether it has been asked to carry out batches; if not, all that it has are submitted requests."""

    @property
    def batches(self) -> list[Batch]:
        """All batches so far."""
        return self._batches

    @property
    def submitted(self) -> list[int]:
        """Requests that have been submitted and that the policy has not seen yet."""
        return list(self._coming)

    def advance(self, until_ps: int | None = None) -> None:
        """Carry out all batches that start before a time (`PolicyRun.advance`)."""
        self.is_begun = True
        super().advance(until_ps)
        if until_ps is None or self.now_ps <= until_ps:
            self._settle()

    def notices(self, until_ps: int) -> Iterator[Notice]:
        """Yield, once, what has happened up to a time, which it has been advanced to."""
        while self._noted and self._noted[0].time_ps <= until_ps:
            yield self._noted.popleft()

    # Moves ------------------------------------------------------------------------------------------------------

    def is_under_way(self, index: int, now_ps: int) -> bool:
        """Whether a request runs in the batch that is under way."""
        return self.now_ps > now_ps and self._latest is not None and any(index == run for run, _ in self._latest.run)

    @property
    def can_go_on(self) -> bool:
        """Whether the policy has not said that it finds no batch for what is there."""
        return bool(self.unfinished) and self._stuck is None

    def job(self, index: int) -> Job | None:
        """Return a request that is there, with KV or without."""
        return self._present.get(index)

    def fence(self, index: int, time_ps: int) -> None:
        """Let a request run in no batch that starts before a time and ends after it."""
        self._fences[index] = time_ps
        self._cut = None

    def unfence(self, index: int) -> None:
        """Forget a `fence`, if there is one."""
        self._fences.pop(index, None)

    def shortest(self) -> Job | None:
        """Return the decoding request with the fewest tokens of KV; None if none is decoding."""
        decoding = (job for job in self._replica.running if job.decoding)
        return min(decoding, key=lambda job: (job.cached, job.index), default=None)

    def take(self, index: int, now_ps: int) -> Job:
        """Take a request with KV away from the policy. What it holds is still in use, until `free`."""
        job = self._present.pop(index)
        self._replica.drop(job)
        if self._notified is not None:
            self._notified.go(job)
        self.hold(index, job.cached, now_ps)
        return job

    def hold(self, index: int, tokens: int, now_ps: int) -> None:
        """Set memory aside for ``tokens`` tokens of a request that the policy does not see."""
        self._held[index] = self._instance.limits.occupied(tokens)
        self._set_capacity(now_ps)

    def expect(self, job: Job, tokens: int, now_ps: int) -> tuple[int, Sequence[Step]]:
        """Set memory aside for ``tokens`` tokens of a request that comes from now on.

        Returns
        -------
        tuple
            Its tokens that are cached here, and the blocks that are dropped for it, as a `Move` names them.
        """
        self.expected[job.index] = job
        found, drop = 0, list[Step]()
        if self._moving is not None:
            found, dropped = self._moving.expect(job)
            drop = self._moving.owners(dropped)
            if self._noting:
                self._note_drops(drop, now_ps)
            if self._remembers:
                self._changes.append((now_ps, dropped, ()))
        self.hold(job.index, tokens, now_ps)
        return found, drop

    def prefill_ps(self, job: Job) -> int:
        """Return how long the batches took that filled a request, if it has been filled here and run nothing since."""
        tokens, time_ps = self._filled.get(job.index, (0, 0))
        return time_ps if tokens == job.cached else 0

    def release(self, index: int, now_ps: int) -> None:
        """Free what a request holds that was taken and has moved away."""
        self._filled.pop(index, None)
        if self._moving is not None:
            self._moving.leave(index)
        self.free(index, now_ps)

    def free(self, index: int, now_ps: int) -> None:
        """Free what `hold` or `take` has set aside."""
        del self._held[index]
        self._set_capacity(now_ps)

    def land(self, job: Job, now_ps: int) -> None:
        """Let a request come with its KV, for which memory was set aside."""
        self.expected.pop(job.index, None)
        if self._moving is not None:
            published = self._moving.land(job)
            if self._remembers:
                self._changes.append((now_ps, (), published))
        job.rank = self._arrived
        self._arrived += 1
        self._present[job.index] = job
        self._replica.running.append(job)
        if self._notified is not None:
            self._notified.come(job, now_ps)
        self.free(job.index, now_ps)

    def has_room(self, job: Job, tokens: int, at: Instant) -> bool:
        """Whether a request can come now: ``tokens`` tokens of it fit beside all that is in use.

        Requests that were evicted here go first. Where none can be evicted, there has to be room for all to finish.
        """
        if any(waiting.generated for waiting in self._replica.waiting):
            return False
        if self._notified is not None and not self._notified.has_room(job, tokens):
            return False
        size = self._instance.limits.occupied
        if self._instance.rules.eviction:
            if self._moving is not None:
                return self._moving.has_room(job, tokens)
            return self.kv_used(at) + size(tokens) <= self.kv_capacity
        coming = [other for index, other in self.expected.items() if index in self._held]
        there = [other.request for other in (*self._replica.running, *coming, job)] + self._ended(at)
        return sum(size(request.peak_tokens) for request in there) <= self.kv_capacity

    def _set_capacity(self, now_ps: int) -> None:
        """Let the policy see the memory that is left, and decide anew."""
        self._memory.capacity = self.kv_capacity - sum(self._held.values())
        if self._notified is not None:
            self._notified.resize(self._memory.capacity)
        if self._cache is not None:
            self._free = self._cache.free
        self._stuck = self._cut = None
        self._replica.now_ps = max(self._replica.now_ps, now_ps)

    # What is seen at a time that it has been advanced to --------------------------------------------------------

    def waiting(self, at: Instant) -> int:
        """Return how many requests are there without KV, or are to come with it."""
        return len(self._replica.waiting) + sum(1 for _ in self._arrived_by(at)) + len(self.expected)

    def running(self, at: Instant) -> int:
        """Return how many requests are there with KV."""
        leaving = sum(index not in self.expected for index in self._held)
        return len(self._replica.running) + len(self._ended(at)) + leaving

    def queued_tokens(self, at: Instant) -> int:
        """Return the tokens that waiting requests have to prefill."""
        waiting = sum(job.missing for job in self._replica.waiting)
        return waiting + sum(request.input for request in self._arrived_by(at))

    def filling_tokens(self, at: Instant) -> int:
        """Return the tokens that requests with KV have to prefill, those under way included."""
        there = sum(job.missing for job in self._replica.running if not job.decoding)
        return there + (self._filling if self._runs_at(at) else 0)

    def pending_tokens(self, at: Instant) -> int:
        """Return the prompt and output tokens that are still to be run, those under way included."""
        there = sum(job.request.peak_tokens - job.cached for job in self._jobs())
        return there + sum(request.peak_tokens for request in self._arrived_by(at)) + self._under_way(at)

    def kv_used(self, at: Instant) -> int:
        """Return the tokens of memory in use, in whole blocks; a cached block that can be dropped is not."""
        size, under_way = self._instance.limits.occupied, self._runs_at(at)
        if self._cache is not None:
            free = self._free if under_way else self._cache.free
            return self.kv_capacity - free * self._instance.limits.kv_block
        held = sum(size(job.cached) for job in self._replica.running) + sum(self._held.values())
        return held + sum(size(request.peak_tokens) for request in self._ended(at))

    def work_ps(self, at: Instant) -> int:
        """Return how long what is left of each request takes if it is run alone, summed; and of the batch under way."""
        coming = (RequestState(request) for request in self._arrived_by(at))
        left = sum(self._alone_ps(state) for states in (self._jobs(), coming) for state in states)
        return left + max(0, self._latest_end_ps - at.now_ps)

    def cached(self, request: RoutedRequest, at: Instant) -> int:
        """Return the leading prompt tokens of a request that it would find."""
        if self._cache is None:
            return 0
        return self._cache.known(request.index, request.input, under_way=self._runs_at(at))

    def snapshot(self, name: int, at: Instant) -> Snapshot:
        """Return all of this at once, under a name for the machine."""
        return Snapshot(
            name,
            self.waiting(at),
            self.running(at),
            self.queued_tokens(at),
            self.pending_tokens(at),
            self.kv_used(at),
            self.kv_capacity,
            self.work_ps(at),
            self.filling_tokens(at),
            nothing_cached if self._cache is None else self._remembered(at),
            self._latest_end_ps if self._runs_at(at) else 0,
        )

    @property
    def kv_capacity(self) -> int:
        """The tokens that its blocks hold."""
        return self._instance.limits.kv_capacity

    def _runs_at(self, at: Instant) -> bool:
        """Whether a batch is under way; the clock of an idle machine may be at an arrival that is still to come."""
        return self._latest_end_ps > at.now_ps

    def _jobs(self) -> Iterator[RequestState]:
        yield from self._replica.waiting
        yield from self._replica.running
        yield from self.expected.values()

    def _arrived_by(self, at: Instant) -> Iterator[Request]:
        """Yield the requests that have arrived and that the policy has not seen yet."""
        for index in self._coming:
            if self._requests[index].arrival_ps > at.arrived_ps:
                return
            yield self._requests[index]

    def _ended(self, at: Instant) -> list[Request]:
        """Return the requests that the batch under way finishes."""
        return self._ending if self._runs_at(at) else []

    def _under_way(self, at: Instant) -> int:
        """Return the tokens that the batch under way runs."""
        if self._latest is None or not self._runs_at(at):
            return 0
        return sum(tokens for _, tokens in self._latest.run)

    def _alone_ps(self, state: RequestState) -> int:
        """Return how long a request still takes alone: one prefill step, if it is filling, and its decodes."""
        cost, request, generated = self._instance.cost, state.request, state.generated
        prefill = 0
        if not state.decoding:
            prefill = cost.batch_ps(state.missing, 0, 0, ((state.missing, state.cached),))
            generated += 1
        if generated >= request.output:
            return prefill
        return prefill + cost.repeated_ps(1, request.input + generated - 1, request.output - generated)

    def _remembered(self, at: Instant) -> Callable[[RoutedRequest], int]:
        """Return what a prompt would have found then."""
        cache = self._cache
        assert cache is not None
        past, changes = self._past, self._changes

        # What is seen is never older than what was seen before.
        def found(request: RoutedRequest) -> int:
            while changes and changes[0][0] <= at.now_ps:
                _, dropped, added = changes.popleft()
                past.difference_update(dropped)
                past.update(added)
            return cache.leading(past, request.index, request.input)

        return found

    # Batches ----------------------------------------------------------------------------------------------------

    def _repeats(self, assignment: Assignment) -> int:
        return 1 if self._fences else super()._repeats(assignment)

    def _within_fences(self, assignment: Assignment) -> Assignment:
        """Return a batch without the requests that must not run in it, because it would not end in time."""
        tokens, prefills, read = 0, list[tuple[int, int]](), list[int]()
        for index, count in assignment.run:
            job = self._present[index]
            tokens += count
            if job.decoding:
                read.append(job.cached)
            else:
                prefills.append((count, job.cached))
        work = Work(tokens, len(read), sum(read), prefills)
        end = self.now_ps + work.duration_ps(self._cost, self._overheads, assignment.considered)
        # Of swaps it is not known here what they take.
        late = {index for index, time_ps in self._fences.items() if assignment.actions or end > time_ps}
        return assignment._replace(run=[step for step in assignment.run if step[0] not in late])

    def _carry_out(self, assignment: Assignment, until_ps: int | None) -> None:
        present = self._present
        if self._fences:
            assignment = self._within_fences(assignment)
            if not assignment.run:
                self._decided = self._latest = None
                self._ending = []
                self._filling = 0
                self._replica.now_ps = min(time_ps for time_ps in self._fences.values() if time_ps > self.now_ps)
                return
        filling = [step for step in assignment.run if (job := present.get(step[0])) and not job.decoding]
        fresh = [index for index, _ in filling if not present[index].generated]
        start = self.now_ps
        before = self._prefilled(assignment) if self._layerwise else {}
        if self._noting and self._cache is not None:
            self._note_drops(assignment.drop, start)
            self._note_hits(assignment)
        super()._carry_out(assignment, until_ps)
        self._latest, self._latest_end_ps = assignment, self.now_ps
        self._filling = sum(tokens for _, tokens in filling)
        if self._cache is not None and self._remembers:
            self._changes.append((start, self._cache.dropped, ()))
            if self._moving is None:
                self._changes.append((self.now_ps, (), self._cache.published))
        for index, spent in before.items():
            if index in present:
                self._filled[index] = present[index].cached, spent + self.now_ps - start
        ended = [index for index, _ in assignment.run if index not in present]
        if self.prefills:
            for index, _ in assignment.run:
                if index in present and present[index].generated:
                    # Moves of an instant start before its batches, also before one that takes no time.
                    self.left.append((max(self.now_ps, start + 1), self.take(index, self.now_ps)))
        self._ending = [self._requests[index] for index in ended]
        if self._noting:
            for index in fresh:
                if index not in present or present[index].generated:
                    self._note(Happening.FIRST_TOKEN, index, self.now_ps, self._hits.pop(index, 0))
            for index in ended:
                self._note(Happening.FINISHED, index, self.now_ps)

    def _prefilled(self, assignment: Assignment) -> dict[int, int]:
        """Return how long earlier prefill steps of the same fill took, of each request that a batch fills."""
        filling = (job for index, _ in assignment.run if (job := self._present.get(index)) and not job.decoding)
        return {job.index: self._filled.get(job.index, (0, 0))[1] if job.cached else 0 for job in filling}

    def _let_go(self, finished: Iterable[int]) -> None:
        if self._cache is not None:
            self._free = self._cache.free
        super()._let_go(finished)

    def _welcome(self) -> None:
        self._settle()
        super()._welcome()

    def _settle(self) -> None:
        """Let what the latest batch has completed be cached, if only its end does that."""
        if self._moving is not None and self._moving.settle() and self._remembers:
            self._changes.append((self._latest_end_ps, (), self._moving.published))

    def _note_drops(self, drop: Sequence[Step], now_ps: int) -> None:
        """Note what a batch or a move that starts now drops, once for each request that is named."""
        kept: dict[int, int] = {}
        for index, block in drop:
            kept[index] = min(block, kept.get(index, block))
        later = list[Notice]()
        # What a batch under way will have done is noted already.
        while self._noted and self._noted[-1].time_ps > now_ps:
            later.append(self._noted.pop())
        for index, blocks in kept.items():
            self._note(Happening.DROPPED, index, now_ps, blocks * self._instance.limits.kv_block)
        self._noted.extend(reversed(later))

    def _note_hits(self, assignment: Assignment) -> None:
        """Remember what a batch finds, for the notices of first tokens."""
        for index in assignment.evict:
            self._hits.pop(index, None)
        self._hits.update((index, found) for index, found in assignment.hits if not self._present[index].generated)

    def _note(self, happening: Happening, request: int, time_ps: int, tokens: int = 0) -> None:
        self._noted.append(Notice(time_ps, self._index, self._numbers, happening, request, tokens))
        self._numbers += 1
