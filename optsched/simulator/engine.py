"""The engine: one machine, from one decision of a policy to the next, exact."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from optsched.cache.blocks import CacheSetting
from optsched.model.cost import BatchCost, RepeatedCost
from optsched.model.domain import MAX_PS
from optsched.model.errors import InputError, shown
from optsched.model.feasibility import require_feasible
from optsched.model.instance import Instance
from optsched.model.memory import memory_of
from optsched.model.schedule import Assignment, Batch, Schedule
from optsched.model.state import Action, MachineState, Place
from optsched.simulator.caching import BatchCache
from optsched.simulator.replica import Job, NoBatchError, Policy, PolicyFailureError, Replica, Steady

_LRU = CacheSetting()


def run_policy(
    instance: Instance,
    policy: Policy,
    *,
    cost: BatchCost | None = None,
    jumps: bool = True,
    setting: CacheSetting = _LRU,
) -> Schedule:
    """Let a policy schedule an instance (InferMax, Algorithm 1, the outer loop).

    A batch starts when the previous one ends; when nothing can run, at the next arrival. A policy that says how long a
    decision remains valid (`Steady`) is asked again after that, or when a request arrives or ends; the batches of
    decode steps until then are computed at once.

    Parameters
    ----------
    instance, policy
        What is to be scheduled, and what schedules it.
    cost
        How long the steps of batches take, if not what the instance says.
    jumps
        False lets the policy decide on every batch. The schedule is the same.
    setting
        How the machine keeps its cache, if it has one.

    Raises
    ------
    InfeasibleInstanceError
        If no schedule exists.
    PolicyFailureError
        If the policy finds no batch while work remains and no request will arrive, goes through more batches
        without a generated token than there are tokens in all (it would never end), or answers what cannot
        be followed: a batch of no run, an eviction without KV, a swap of what is not there, tokens that do not exist;
        or if a batch ends later than any time that a schedule can state (`MAX_PS`).
        Whether it keeps the instance's limits is for the checker to say.
    """
    require_feasible(instance)
    cache = BatchCache(instance, setting) if instance.is_cached else None
    return serve(instance, policy, cost=cost, jumps=jumps, cache=cache)


def serve(
    instance: Instance,
    policy: Policy,
    *,
    cost: BatchCost | None = None,
    jumps: bool = True,
    cache: BatchCache | None = None,
) -> Schedule:
    """Run a policy as `run_policy` does, on an instance that is known to be feasible and a machine with this cache."""
    run = PolicyRun(instance, policy, cost=cost, jumps=jumps, cache=cache)
    for index in arrival_order(instance):
        run.submit(index)
    run.advance()
    return run.schedule()


def arrival_order(instance: Instance) -> list[int]:
    """Return the indices of all requests in order of arrival, ties by index."""
    return sorted(range(len(instance.requests)), key=lambda index: instance.requests[index].arrival_ps)


class _Cut(NamedTuple):
    """A decision whose repeats a pause has cut short: when they began, how many are done, and how many are left."""

    assignment: Assignment
    begin_ps: int
    done: int
    left: int


class PolicyRun:
    """A policy on one machine, which can be paused at any time, and asked what it would do next.

    Requests are submitted in order of arrival, at any time before the machine has come to their arrival. However often
    a run is paused, the schedule is the same.

    Parameters
    ----------
    instance, policy, cost, jumps
        As `run_policy` takes them; of the instance's requests those count that are submitted.
    cache
        The machine's cache, if it has one.
    machine
        Which machine it is, as batches name it.
    """

    def __init__(
        self,
        instance: Instance,
        policy: Policy,
        *,
        cost: BatchCost | None = None,
        jumps: bool = True,
        cache: BatchCache | None = None,
        machine: int = 0,
    ) -> None:
        steps = cost or instance.cost
        self._requests, self._policy, self._cost, self._overheads = instance.requests, policy, steps, instance.cost
        self._index = machine
        self._closed = steps if isinstance(steps, RepeatedCost) else None
        self._steady = policy if jumps and isinstance(policy, Steady) else None
        self._coming: deque[int] = deque()
        self._present: dict[int, Job] = {}
        self._replica = Replica(instance.limits, instance.rules, instance.start_ps, memory_of(instance))
        self._cache = self._replica.cache = cache
        self._machine = MachineState(self._present)
        self._patience = sum(request.input + request.output for request in instance.requests)
        self._arrived = self._fruitless = self._open_ps = 0
        self._decided: Assignment | None = None
        self._stuck: NoBatchError | None = None
        self._cut: _Cut | None = None
        self._batches: list[Batch] = []

    @property
    def now_ps(self) -> int:
        """When the latest batch ends; no batch starts before."""
        return self._replica.now_ps

    @property
    def unfinished(self) -> int:
        """Requests that have been submitted and have not ended."""
        return len(self._coming) + len(self._present)

    def schedule(self) -> Schedule:
        """Return all batches so far."""
        return Schedule(tuple(self._batches))

    def submit(self, index: int) -> None:
        """Let a request arrive at its arrival time.

        Raises
        ------
        InputError
            If it arrives before another one that was submitted earlier, or before what has been decided already.
        """
        request = self._requests[index]
        if request.arrival_ps < self._open_ps:
            expected = f"an arrival at {self._open_ps} ps or later, after those that the machine knows"
            raise InputError(f"requests[{index}].arrival_ps", request.arrival_ps, expected)
        self._coming.append(index)
        self._open_ps = request.arrival_ps

    def upcoming(self) -> tuple[int, Assignment] | None:
        """Return when the next batch will start and what it will do, if no request is submitted that arrives by then.

        None if nothing will run. The policy is not asked again when the batch is carried out.
        """
        assignment = self._decide(None)
        if assignment is None:
            return None
        self._open_ps = max(self._open_ps, self.now_ps + 1)
        return self.now_ps, assignment

    def advance(self, until_ps: int | None = None) -> None:
        """Carry out all batches that start before a time; or all batches, None.

        Raises
        ------
        PolicyFailureError
            As `run_policy` says. That the policy finds no batch is no failure while more requests may be submitted.
        """
        while (assignment := self._decide(until_ps)) is not None:
            self._carry_out(assignment, until_ps)
        if until_ps is None and self._stuck is not None:
            raise self._stuck

    # Decisions ----------------------------------------------------------------------------------------------

    def _decide(self, until_ps: int | None) -> Assignment | None:
        """Return what the next batch does, letting time pass until there is one; None if none starts before."""
        replica = self._replica
        while self._decided is None:
            if self._stuck is not None:
                if not self._coming:
                    return None
                replica.now_ps, self._stuck = self._next_arrival_ps, None
            elif not self._present:
                if not self._coming:
                    return None
                replica.now_ps = max(replica.now_ps, self._next_arrival_ps)
            if until_ps is not None and replica.now_ps >= until_ps:
                return None
            self._welcome()
            if self._cut is not None:
                return self._cut.assignment
            try:
                self._decided = self._asked()
            except NoBatchError as stuck:
                if self._cache is not None and self._cache.formed is not None:
                    raise PolicyFailureError(stuck.index, self.now_ps, f"a batch was begun: {stuck.reason}") from stuck
                self._stuck = stuck
        return self._decided if until_ps is None or replica.now_ps < until_ps else None

    def _asked(self) -> Assignment:
        """Return what the policy answers."""
        if self._cache is not None:
            self._cache.begin()
        assignment = self._policy.next_batch(self._replica)
        if not isinstance(assignment, Assignment):
            raise TypeError(f"next_batch answers {shown(assignment)}, which is no Assignment")
        if not assignment.run:
            raise PolicyFailureError(next(iter(self._present)), self.now_ps, "the policy's batch runs nothing")
        if self._cache is not None:
            return self._formed(self._cache, assignment)
        # Without a price the requests that are considered are not counted.
        return assignment if self._overheads.cpu_request else Assignment(*assignment[:4])

    def _formed(self, cache: BatchCache, assignment: Assignment) -> Assignment:
        """Return what is done on a machine that caches, which is formed there now if the policy did not."""
        for index in (*assignment.swap_out, *assignment.swap_in):
            raise self._failure(index, f"the policy swaps request {index}, where prefixes are cached")
        formed = cache.formed
        if formed is None:
            for _ in self._possible_actions(assignment.actions):
                pass
            for index, tokens in assignment.run:
                if index not in self._present:
                    raise self._no_run(index, tokens, 0)
            try:
                short = cache.apply(assignment, self._present)
            except ValueError as wrong:
                raise self._failure(assignment.run[0][0], str(wrong)) from None
            if short is not None:
                raise self._failure(short, "memory does not suffice for its run, whatever is dropped")
            formed = cache.formed
            assert formed is not None
        elif (list(assignment.run), list(assignment.evict)) != (formed.run, formed.evict):
            index = assignment.run[0][0]
            raise self._failure(index, "the policy answers another batch than it has formed in the cache")
        return formed._replace(considered=assignment.considered) if self._overheads.cpu_request else formed

    @property
    def _next_arrival_ps(self) -> int:
        return self._requests[self._coming[0]].arrival_ps

    def _welcome(self) -> None:
        """Let requests that have arrived into the queue; the latest decision is then no longer valid."""
        replica = self._replica
        while self._coming and self._next_arrival_ps <= replica.now_ps:
            index = self._coming.popleft()
            self._present[index] = Job(self._requests[index], index, self._arrived)
            replica.enqueue(self._present[index])
            self._arrived += 1
            self._cut = None

    # Batches ------------------------------------------------------------------------------------------------

    def _carry_out(self, assignment: Assignment, until_ps: int | None) -> None:
        """Carry out a decision, and repeat it until the policy has to be asked again."""
        replica, cut = self._replica, self._cut
        self._decided = self._cut = None
        begin, done = replica.now_ps, 0
        if cut is not None:
            begin, done, repeat = cut.begin_ps, cut.done, cut.left
            self._batches.pop()
        else:
            repeat = self._repeats(assignment)
        generated = True
        if done or repeat > 1:
            times = self._decode(assignment, repeat, until_ps)
            done += times
            if times < repeat:
                self._cut = _Cut(assignment, begin, done, repeat - times)
        else:
            generated, done = self._run(assignment), 1
        if replica.now_ps > MAX_PS:
            reason = f"the batch ends at {replica.now_ps} ps, later than a schedule can state, {MAX_PS} ps"
            raise PolicyFailureError(assignment.run[0][0], begin, reason)
        self._batches.append(assignment.between(begin, replica.now_ps, done, self._index))
        self._fruitless = 0 if generated else self._fruitless + 1
        if self._fruitless > self._patience:
            reason = f"no token was generated in {self._fruitless} batches"
            raise PolicyFailureError(assignment.run[0][0], replica.now_ps, reason)

    def _run(self, assignment: Assignment) -> bool:
        """Run one batch; say whether it generates a token."""
        replica, present, actions = self._replica, self._present, assignment.actions
        doable = self._possible_actions(actions) if actions else ()
        try:
            work = self._machine.carry_out(doable, assignment.run, self._require_run, assignment.hits)
        except KeyError as unknown:
            (index,) = unknown.args
            raise self._no_run(index, dict(assignment.run)[index], 0) from None
        for index, place in actions:
            if place is Place.MACHINE:
                replica.admit(present[index])
            else:
                present[index].queued_ps = replica.now_ps
                replica.drop(present[index])
                replica.enqueue(present[index])
        for index in work.started:
            replica.admit(present[index])
        if self._cache is not None:
            self._cache.end()
        self._let_go(work.finished)
        replica.now_ps += work.duration_ps(self._cost, self._overheads, assignment.considered)
        return bool(work.generated)

    def _possible_actions(self, actions: Iterable[Action]) -> Iterator[Action]:
        """Yield actions one after the other, and fail at one that cannot be done."""
        for action in actions:
            index, place = action
            job = self._present.get(index)
            if place is Place.MACHINE:
                if job is None or not job.swapped:
                    raise self._failure(index, f"the policy swaps in request {index}, which has no KV on the host")
            elif job is None or not job.cached:
                verb = "evicts" if place is Place.NOWHERE else "swaps out"
                raise self._failure(index, f"the policy {verb} request {index}, which holds no KV")
            yield action

    def _require_run(self, index: int, tokens: int) -> None:
        """Fail at a run of tokens that are not there to run."""
        job = self._present[index]
        missing = 0 if job.swapped or job.finished else job.missing
        if not 1 <= tokens <= missing:
            raise self._no_run(index, tokens, missing)

    def _no_run(self, index: int, tokens: int, missing: int) -> PolicyFailureError:
        """Return the failure of a run that is none."""
        return self._failure(index, f"the policy runs {tokens} tokens of request {index}, which has {missing} to run")

    def _failure(self, index: int, reason: str) -> PolicyFailureError:
        """Return a failure now, at a request that is there."""
        return PolicyFailureError(index if index in self._present else next(iter(self._present)), self.now_ps, reason)

    def _let_go(self, finished: Iterable[int]) -> None:
        """Forget requests that have ended."""
        for index in finished:
            self._replica.drop(self._present.pop(index))
            if self._cache is not None:
                self._cache.finish(index)

    def _repeats(self, assignment: Assignment) -> int:
        """Return how often a decision can be carried out before the policy has to be asked again."""
        if self._steady is None or assignment.actions or assignment.drop:
            return 1
        most = self._requests[assignment.run[0][0]].output
        for index, _ in reversed(assignment.run):  # prefills are often last
            job = self._present.get(index)
            if job is None or not job.decoding:
                return 1
            most = min(most, job.request.output - job.generated)
        if most > 1:
            most = min(most, self._steady.valid_for(self._replica, assignment))
        return most if most == 1 or self._cache is None else self._cache.lasts(assignment.run, most)

    def _decode(self, assignment: Assignment, most: int, until_ps: int | None) -> int:
        """Repeat decode steps until a request arrives or a time has come, at most ``most`` times; return how often."""
        replica, jobs = self._replica, [self._present[index] for index, _ in assignment.run]
        ends = [self._next_arrival_ps] if self._coming else []
        if until_ps is not None:
            ends.append(until_ps)
        left = min(ends) - replica.now_ps if ends else None
        overhead_ps = self._overheads.overhead_ps(0, 0, 0, assignment.considered)
        times, duration = self._span(len(jobs), sum(job.cached for job in jobs), most, overhead_ps, left)
        replica.now_ps += duration
        if self._cache is not None:
            self._cache.repeat(assignment.run, times)
        self._let_go(self._machine.repeat(assignment.run, times))
        return times

    def _span(self, decodes: int, read: int, most: int, overhead_ps: int, left: int | None) -> tuple[int, int]:
        """Return how many of ``most`` batches start before ``left`` ps have passed, and how long they take.

        Each of them takes ``overhead_ps`` more.
        """
        if self._closed is None:
            times = duration = 0
            while times < most and (left is None or duration < left):
                duration += self._cost.batch_ps(decodes, decodes, read + times * decodes, ()) + overhead_ps
                times += 1
            return times, duration
        closed = self._closed

        def until(times: int) -> int:
            return closed.repeated_ps(decodes, read, times) + times * overhead_ps

        times = most if left is None else bisect_left(range(most), left, key=until)
        return times, until(times)
