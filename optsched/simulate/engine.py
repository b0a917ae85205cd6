"""The engine: one replica, from one decision of a policy to the next, exact."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from optsched.model.cost import BatchCost, RepeatedCost
from optsched.model.domain import MAX_PS
from optsched.model.errors import shown
from optsched.model.feasibility import require_feasible
from optsched.model.instance import Instance
from optsched.model.schedule import Assignment, Batch, Schedule
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
        How long the steps of batches take, if not what the instance says.
    jumps
        False lets the policy decide on every batch. The schedule is the same.

    Raises
    ------
    InfeasibleInstanceError
        If no schedule exists.
    PolicyFailureError
        If the policy finds no batch while work remains and nobody else will arrive, goes through more batches
        without a generated token than there are tokens in all (it would never end), or answers what cannot
        be followed: a batch of no run, an eviction without KV, a swap of what is not there, tokens that do not exist;
        or if a batch ends later than any time that a schedule can state (`MAX_PS`).
        Whether it keeps the instance's limits is for the checker to say.
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
        self._besides_ps, self._priced = instance.cost.besides_ps, instance.cost.cpu_request > 0
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
        if not isinstance(assignment, Assignment):
            raise TypeError(f"next_batch answers {shown(assignment)}, which is no Assignment")
        if not self._priced:
            assignment = Assignment(*assignment[:4])  # nobody counts who is considered
        begin = replica.now_ps
        if not assignment.run:
            raise PolicyFailureError(next(iter(self._present)), begin, "the policy's batch runs nothing")
        repeat, generated = self._repeats(assignment), True
        if repeat > 1:
            repeat = self._decode(assignment, repeat)
        else:
            self._evict(assignment.evict)
            generated = self._run(assignment, self._swap(assignment.swap_out, assignment.swap_in))
        if replica.now_ps > MAX_PS:
            reason = f"the batch ends at {replica.now_ps} ps, later than a schedule can state, {MAX_PS} ps"
            raise PolicyFailureError(assignment.run[0][0], begin, reason)
        self.batches.append(assignment.between(begin, replica.now_ps, repeat))
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

    def _holder(self, index: int, deed: str) -> Job:
        """Return the job that something is to be done to, which has to hold KV."""
        job = self._present.get(index)
        if job is None or not job.cached:
            reason = f"the policy {deed} request {index}, which holds no KV"
            raise PolicyFailureError(self._known(index), self._replica.now_ps, reason)
        return job

    def _evict(self, evict: Sequence[int]) -> None:
        for index in evict:
            job = self._holder(index, "evicts")
            job.evict()
            self._queue(job)

    def _queue(self, job: Job) -> None:
        """Let a job wait that has run."""
        job.queued_ps = self._replica.now_ps
        self._replica.drop(job)
        self._replica.enqueue(job)

    def _swap(self, swap_out: Sequence[int], swap_in: Sequence[int]) -> tuple[int, int]:
        """Swap, and return the KV tokens that leave the GPU and that come back."""
        left = back = 0
        for index in swap_out:
            job = self._holder(index, "swaps out")
            left += job.cached
            job.swap_out()
            self._queue(job)
        for index in swap_in:
            found = self._present.get(index)
            if found is None or not found.swapped:
                reason = f"the policy swaps in request {index}, which has no KV on the host"
                raise PolicyFailureError(self._known(index), self._replica.now_ps, reason)
            back += found.swapped
            found.swap_in()
            self._replica.admit(found)
        return left, back

    def _run(self, assignment: Assignment, swapped: tuple[int, int]) -> bool:
        """Run one batch; say whether it generates a token."""
        replica, present = self._replica, self._present
        tokens = decodes = read = 0
        prefills: list[tuple[int, int]] = []
        generated = False
        for index, count in assignment.run:
            job = present.get(index)
            if job is not None and job.decoding and count == 1 and not job.swapped:
                decodes += 1
                read += job.cached
                if job.decode():
                    self._let_go(job)
                continue
            if job is None or job.swapped or not 1 <= count <= job.missing:
                missing = 0 if job is None or job.swapped else job.missing
                reason = f"the policy runs {count} tokens of request {index}, which has {missing} to run"
                raise PolicyFailureError(self._known(index), replica.now_ps, reason)
            tokens += count
            prefills.append((count, job.cached))
            if job.cached == 0:
                replica.admit(job)
            if job.run(count):
                generated = True
                if job.finished:
                    self._let_go(job)
        duration = self._cost.batch_ps(tokens + decodes, decodes, read, prefills)
        replica.now_ps += duration + self._besides_ps(duration, *swapped, assignment.considered)
        return generated or decodes > 0

    def _known(self, index: int) -> int:
        """Return a request to blame: one that is there."""
        return index if index in self._present else next(iter(self._present))

    def _let_go(self, job: Job) -> None:
        """Forget a request that has ended."""
        self._replica.drop(job)
        del self._present[job.index]
        self.unfinished -= 1

    def _repeats(self, assignment: Assignment) -> int:
        """Return how often a decision can be carried out before the policy has to be asked again."""
        if self._steady is None or assignment.evict or assignment.swap_out or assignment.swap_in:
            return 1
        most = self._requests[assignment.run[0][0]].output
        for index, _ in reversed(assignment.run):  # prefills often stand last
            job = self._present.get(index)
            if job is None or not job.decoding:
                return 1
            most = min(most, job.request.output - job.generated)
        return most if most == 1 else min(most, self._steady.stands(self._replica, assignment))

    def _decode(self, assignment: Assignment, most: int) -> int:
        """Repeat decode steps until somebody has arrived, but at most so often; return how often."""
        replica, jobs = self._replica, [self._present[index] for index, _ in assignment.run]
        besides = self._besides_ps(0, 0, 0, assignment.considered)
        times, duration = self._span(len(jobs), sum(job.cached for job in jobs), most, besides)
        replica.now_ps += duration
        for job in jobs:
            if job.decode(times):
                self._let_go(job)
        return times

    def _span(self, decodes: int, read: int, most: int, besides: int) -> tuple[int, int]:
        """Return how many of so many batches start before the next arrival, and how long they take.

        Each of them takes so many ps besides.
        """
        left = self._next_arrival_ps - self._replica.now_ps if self._arrived < len(self._order) else None
        if self._closed is None:
            times = duration = 0
            while times < most and (left is None or duration < left):
                duration += self._cost.batch_ps(decodes, decodes, read + times * decodes, ()) + besides
                times += 1
            return times, duration
        closed = self._closed

        def until(times: int) -> int:
            return closed.repeated_ps(decodes, read, times) + times * besides

        times = most if left is None else bisect_left(range(most), left, key=until)
        return times, until(times)
