"""Round robin between requests, and RR-SJF (Gogineni et al., Algorithm 1).

Whoever has waited longest goes next, ties by priority. If memory is short for it, or all N places are taken, requests
are preempted that have generated at least so many tokens since they started or resumed, the worst priority first. In
`rr_sjf` the priority is the predicted output, in `rr` the order of arrival.

Decisions where the paper is silent:

- Every batch lets one request in that needs room, and after it those that find room as it is; everybody else decodes
  beside them, where batches may be hybrid. (With batches of prefills alone, all whose slice has ended would be replaced
  before anybody decodes again.)
- If even all who may be preempted do not free enough, nobody is preempted.
- Tokens are counted since the request last started: its time slice.
- If memory is short for a decode step, the worst priority is evicted, whatever it has generated.
- Recompute is the preemption mechanism, as in the paper's experiments; where the instance allows swaps, `swaps` sends
  KV to the host instead, and takes it back in the batch in which the request runs next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from optsched.model.schedule import Assignment, Step
from optsched.policies.grouped import while_memory_lasts
from optsched.policies.predictors import TRUTH, Estimate, Online, Predicted, Predicting, Predictor
from optsched.policies.standing import Standing
from optsched.simulate.replica import Job, NoBatchError, Occasion, Policy, PolicyFailureError, Replica


@dataclass(frozen=True)
class RoundRobin:
    """Round robin with time slices in tokens.

    Parameters
    ----------
    shortest
        Whether priority is the predicted output, the smallest first; or the order of arrival.
    steps
        Tokens that a request may generate before it can be preempted.
    predictor
        Who predicts.
    swaps
        Whether KV waits on the host instead of being lost.
    """

    shortest: bool
    steps: int = 5
    predictor: Predictor | Online = TRUTH
    swaps: bool = False

    def prepared(self, occasion: Occasion) -> Policy:
        """Return the policy of a run."""
        if not self.shortest:
            return _Slices(lambda job: job.rank, True, self.steps, self.swaps)

        def make(estimate: Estimate) -> Policy:
            return _Slices(estimate, isinstance(estimate, Predicted), self.steps, self.swaps)

        return Predicting(make, self.predictor).prepared(occasion)


class _Slices:
    """Algorithm 1, with a memory of when everybody's slice began; ``stays`` is whether priorities never change."""

    def __init__(self, priority: Estimate, stays: bool, steps: int, swaps: bool) -> None:
        self._priority, self._steps, self._swaps = priority, steps, swaps
        self._begun: dict[int, int] = {}
        self._standing = Standing(self._turn) if stays else None

    def next_batch(self, replica: Replica) -> Assignment:
        """Start who has waited longest, and let everybody decode."""
        queue = self._queue(replica.waiting)
        found = self._starts(queue, replica) if replica.waiting else None
        if found is None:
            return self._decodes(replica)
        started = {index for index, _ in found.run}
        self._begun |= {job.index: job.generated for job in replica.waiting if job.index in started}
        return found

    def stands(self, replica: Replica, assignment: Assignment) -> int:
        """Say how long everybody can decode: until somebody's slice ends who might make room, or memory is full."""
        jobs = replica.running
        most = min(job.request.output - job.generated for job in jobs)
        if replica.waiting or len(assignment.run) < len(jobs):
            # Whoever can be preempted now does not make enough room; somebody else's slice may.
            ends = [self._steps - self._generated(job) for job in jobs]
            later = [end for end in ends if end > 0]
            if len(later) < len(ends) or len(assignment.run) < len(jobs):
                return 1
            most = min(most, *later)
        return while_memory_lasts(jobs, replica.limits, most)

    def _generated(self, job: Job) -> int:
        """Return the tokens of its slice so far."""
        return job.generated - self._begun[job.index]

    def _order(self, job: Job) -> tuple[int, int]:
        return self._priority(job), job.rank

    def _turn(self, job: Job) -> tuple[int, int]:
        return job.queued_ps, self._priority(job)

    def _queue(self, waiting: list[Job]) -> Iterable[Job]:
        """Return those who wait in order."""
        if self._standing is not None:
            return self._standing.candidates(waiting)
        return sorted(waiting, key=self._turn)  # they stand in order of arrival

    def _starts(self, queue: Iterable[Job], replica: Replica) -> Assignment | None:
        """Return a batch in which somebody starts, or None if nobody can."""
        limits, running = replica.limits, replica.running
        grown = int(replica.rules.hybrid)
        held = {job.index: limits.occupied(job.cached + grown) for job in running}
        free = limits.kv_capacity - sum(held.values())
        if free < 0:
            return None
        places = len(replica.waiting) if limits.batch_requests is None else limits.batch_requests - len(running)
        budget = min(limits.batch_tokens - grown * len(running), limits.prefill_tokens)
        eligible = sorted((job for job in running if self._generated(job) >= self._steps), key=self._order)
        if not self._may_preempt(replica):
            eligible = []
        run: list[Step] = []
        evict: list[int] = []
        for job in queue:
            if not grown and run and job.decoding:
                break
            need, room, victims = limits.occupied(job.swapped + job.missing), free, 0
            while (room < need or places + victims < 1) and victims < len(eligible):
                victims += 1
                room += held[eligible[-victims].index]
            if job.missing > budget or room < need or places + victims < 1:
                break
            evict = evict or [victim.index for victim in eligible[len(eligible) - victims :]]
            eligible = []
            free, places, budget = room - need, places + victims - 1, budget - job.missing
            run.append((job.index, job.missing))
            if not grown and job.decoding:
                break
        if not run:
            return None
        decodes = [(job.index, 1) for job in running if job.index not in evict] if grown else []
        return self._preempting(replica, [*decodes, *run], evict)

    def _may_preempt(self, replica: Replica) -> bool:
        return replica.rules.eviction or (self._swaps and replica.rules.swap)

    def _preempting(self, replica: Replica, run: Sequence[Step], victims: Sequence[int]) -> Assignment:
        """Return the batch, with KV taken back where it is on the host."""
        running = {index for index, _ in run}
        back = [job.index for job in replica.waiting if job.swapped and job.index in running]
        swaps = self._swaps and replica.rules.swap
        return Assignment(run, [] if swaps else victims, victims if swaps else [], back, len(replica.waiting))

    def _decodes(self, replica: Replica) -> Assignment:
        """Let everybody decode, as far as memory and budgets allow."""
        limits = replica.limits
        most = limits.batch_tokens
        if limits.batch_requests is not None:
            most = min(most, limits.batch_requests)
        staying = sorted(replica.running, key=self._order)
        evict: list[int] = []
        while staying:
            run = staying[:most]
            held = sum(limits.occupied(job.cached + 1) for job in run)
            if held + sum(limits.occupied(job.cached) for job in staying[most:]) <= limits.kv_capacity:
                decodes = [(job.index, 1) for job in sorted(run, key=lambda job: job.rank)]
                return self._preempting(replica, decodes, evict)
            if not self._may_preempt(replica):
                raise PolicyFailureError(run[0].index, replica.now_ps, "memory is full, and eviction is forbidden")
            evict.append(staying.pop().index)
        job = min(replica.waiting or replica.running, key=self._order)
        raise NoBatchError(job.index, replica.now_ps, f"its {job.missing} tokens fit no batch, and nobody can decode")


RR = RoundRobin(shortest=False)
RR_SJF = RoundRobin(shortest=True)
