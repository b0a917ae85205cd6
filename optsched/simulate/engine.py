"""The engine: one replica, from one decision of a policy to the next, exact."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial

from optsched.model.cost import BatchCost, RepeatedCost
from optsched.model.feasibility import require_feasible
from optsched.model.instance import Instance
from optsched.model.schedule import Assignment, Batch, Schedule, Step
from optsched.simulate.replica import Job, NoBatchError, Policy, PolicyFailureError, Replica, Steady


def run_policy(instance: Instance, policy: Policy, *, cost: BatchCost | None = None, jumps: bool = True) -> Schedule:
    """Let a policy schedule an instance (InferMax, Algorithm 1, the outer loop).

    A batch starts when the previous one ends; when nothing can run, at the next arrival. A policy that says how long a
    decision stands (`Steady`) is asked again when it does not any more, or when somebody has arrived or ended; the
    batches of decode steps before that are run at once.

    Parameters
    ----------
    instance, policy
        What is to be scheduled, and who does it.
    cost
        How long batches take, if not what the instance says.
    jumps
        False lets the policy decide on every batch. The schedule is the same.

    Raises
    ------
    InfeasibleInstanceError
        If no schedule exists.
    PolicyFailureError
        If the policy finds no batch while work remains and nobody else will arrive, goes through more batches
        without a generated token than there are tokens in all (it would never end), or answers what cannot
        be followed: a batch of no run, an eviction without KV, tokens that do not exist. Whether it keeps the
        instance's limits is for the checker to say.
    """
    require_feasible(instance)
    run = _Run(instance, policy, cost or instance.cost, jumps=jumps)
    while run.unfinished:
        run.advance()
    return Schedule(tuple(run.batches))


class _Run:
    """A policy's way through an instance."""

    def __init__(self, instance: Instance, policy: Policy, cost: BatchCost, *, jumps: bool) -> None:
        requests = instance.requests
        self._requests, self._policy, self._cost = requests, policy, cost
        self._closed = cost if isinstance(cost, RepeatedCost) else None
        self._steady = policy if jumps and isinstance(policy, Steady) else None
        self._order = sorted(range(len(requests)), key=lambda index: requests[index].arrival_ps)
        self._present: dict[int, Job] = {}
        self._replica = Replica(instance.limits, instance.rules, instance.start_ps)
        self._arrived = 0
        self._patience = sum(request.input + request.output for request in requests)
        self._fruitless = 0
        self.unfinished = len(requests)
        self.batches: list[Batch] = []

    def advance(self) -> None:
        """Run what the policy decides next; if that is nothing, let time pass until somebody arrives."""
        replica = self._replica
        self._welcome()
        try:
            assignment = self._policy.next_batch(replica)
        except NoBatchError:
            if self._arrived == len(self._order):
                raise
            replica.now_ps = self._next_arrival_ps
            return
        begin = replica.now_ps
        if not assignment.run:
            raise PolicyFailureError(next(iter(self._present)), begin, "the policy's batch runs nothing")
        repeat, generated = self._repeats(assignment), True
        if repeat > 1:
            repeat = self._decode(assignment.run, repeat)
        else:
            self._evict(assignment.evict)
            generated = self._run(assignment.run)
        run, evict = tuple(assignment.run), tuple(assignment.evict)
        self.batches.append(Batch(begin, replica.now_ps, run, evict, repeat=repeat))
        self._fruitless = 0 if generated else self._fruitless + 1
        if self._fruitless > self._patience:
            reason = f"no token was generated in {self._fruitless} batches"
            raise PolicyFailureError(assignment.run[0][0], replica.now_ps, reason)

    @property
    def _next_arrival_ps(self) -> int:
        return self._requests[self._order[self._arrived]].arrival_ps

    def _welcome(self) -> None:
        """Let everybody in who has arrived; if nobody is there, wait for the next one."""
        replica = self._replica
        if not (replica.waiting or replica.running):
            replica.now_ps = max(replica.now_ps, self._next_arrival_ps)
        while self._arrived < len(self._order) and self._next_arrival_ps <= replica.now_ps:
            index = self._order[self._arrived]
            self._present[index] = Job(self._requests[index], index, self._arrived)
            replica.enqueue(self._present[index])
            self._arrived += 1

    def _evict(self, evict: Sequence[int]) -> None:
        replica = self._replica
        for index in evict:
            job = self._present.get(index)
            if job is None or not job.cached:
                reason = f"the policy evicts request {index}, which holds no KV"
                raise PolicyFailureError(self._known(index), replica.now_ps, reason)
            job.evict()
            job.queued_ps = replica.now_ps
            replica.drop(job)
            replica.enqueue(job)

    def _run(self, run: Sequence[Step]) -> bool:
        """Run one batch; say whether it generates a token."""
        replica = self._replica
        tokens = decodes = read = 0
        prefills: list[tuple[int, int]] = []
        generated = False
        for index, count in run:
            job = self._present.get(index)
            if job is None or not 1 <= count <= job.missing:
                missing = 0 if job is None else job.missing
                reason = f"the policy runs {count} tokens of request {index}, which has {missing} to run"
                raise PolicyFailureError(self._known(index), replica.now_ps, reason)
            tokens += count
            if job.decoding:
                decodes += 1
                read += job.cached
            else:
                prefills.append((count, job.cached))
                if job.cached == 0:
                    replica.admit(job)
            if job.run(count):
                generated = True
                self._let_go(job)
        replica.now_ps += self._cost.batch_ps(tokens, decodes, read, prefills)
        return generated

    def _known(self, index: int) -> int:
        """Return a request to blame: one that is there."""
        return index if index in self._present else next(iter(self._present))

    def _let_go(self, job: Job) -> None:
        if job.finished:
            self._replica.drop(job)
            del self._present[job.index]
            self.unfinished -= 1

    def _repeats(self, assignment: Assignment) -> int:
        """Return how often a decision can be carried out before the policy has to be asked again."""
        if self._steady is None or assignment.evict:
            return 1
        most = self._requests[assignment.run[0][0]].output
        for index, _ in assignment.run:
            job = self._present.get(index)
            if job is None or not job.decoding:
                return 1
            most = min(most, job.request.output - job.generated)
        return most if most == 1 else min(most, self._steady.stands(self._replica, assignment))

    def _decode(self, run: Sequence[Step], most: int) -> int:
        """Repeat decode steps until somebody has arrived, but at most so often; return how often."""
        replica, jobs = self._replica, [self._present[index] for index, _ in run]
        times, duration = self._span(len(jobs), sum(job.cached for job in jobs), most)
        replica.now_ps += duration
        for job in jobs:
            job.decode(times)
            self._let_go(job)
        return times

    def _span(self, decodes: int, read: int, most: int) -> tuple[int, int]:
        """Return how many of so many batches start before the next arrival, and how long they take."""
        left = self._next_arrival_ps - self._replica.now_ps if self._arrived < len(self._order) else None
        if self._closed is None:
            times = duration = 0
            while times < most and (left is None or duration < left):
                duration += self._cost.batch_ps(decodes, decodes, read + times * decodes, ())
                times += 1
            return times, duration
        until = partial(self._closed.repeated_ps, decodes, read)
        times = most if left is None else bisect_left(range(most), left, key=until)
        return times, until(times)
