"""Round robin between requests, and RR-SJF (Gogineni et al., Algorithm 1).

The request that has waited longest goes next, ties by priority. While memory is short for it, or all N places are
taken, requests are preempted that have generated at least a number of tokens since they started or resumed, the worst
priority first; they stay preempted, even if it still does not fit. In `rr_sjf` the priority is the predicted output, in
`rr` the order of arrival.

Preempted KV is recomputed, as in the paper's experiments. Where the instance allows it, `swaps` sends KV to the host
instead and takes it back in the batch in which the request runs next, which section 4.2 foresees.

Where the paper is *silent*:

- Which of the eligible requests is preempted: the worst priority first.
- All others decode beside those that start, where batches may be hybrid. (With batches of prefills alone, all requests
  whose slice has ended would be replaced before any of them decodes again.)
- A request that is preempted for a batch does not resume in it: it has not waited yet.
- If memory is short for a decode step, the worst priority is evicted, whatever it has generated.

It *differs*:

- A slice counts tokens since the request last started or resumed, not all that it has produced, because in Figure 1 and
  section 2.1 every request has its slice in each round.
- Algorithm 1 starts one request; here those behind it start, too, if they fit without a preemption, because else a
  batch of an empty machine would have one prefill however many wait.
- Algorithm 1 preempts while memory is short; this does so for the N places, too, because vLLM's budget, on which its
  code builds, has both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from optsched.model.schedule import Assignment
from optsched.model.state import Action, Place, Step
from optsched.policies.grouped import while_memory_lasts
from optsched.policies.predictors import TRUTH, Estimate, Online, Predicted, Predicting, Predictor
from optsched.policies.stable_queue import StableQueue
from optsched.simulator.replica import Job, NoBatchError, Occasion, Policy, PolicyFailureError, Replica


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
        Predicts the lengths.
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
    """Algorithm 1, with a memory of when each slice began; ``stays`` is whether priorities never change."""

    keeps_records = True

    def __init__(self, priority: Estimate, stays: bool, steps: int, swaps: bool) -> None:
        self._priority, self._steps, self._swaps = priority, steps, swaps
        self._begun: dict[int, int] = {}
        self._stable = StableQueue(self._turn) if stays else None

    def next_batch(self, replica: Replica) -> Assignment:
        """Preempt for the request that has waited longest, start what fits, and let all others decode."""
        queue = list(self._queue(replica.waiting)) if replica.waiting else []
        victims = self._preempted(queue[0], replica) if queue else []
        staying = [job for job in replica.running if job not in victims]
        starts = self._starts(queue, staying, replica)
        if not starts:
            return self._decodes(staying, victims, replica)
        self._begun |= {job.index: job.generated for job in starts}
        decodes = staying if replica.rules.hybrid else []
        run = [*((job.index, 1) for job in decodes), *((job.index, job.missing) for job in starts)]
        return self._assignment(replica, run, victims)

    def valid_for(self, replica: Replica, assignment: Assignment) -> int:
        """Say how long all can decode: until a slice ends while others wait, or memory is full."""
        jobs = replica.running
        if assignment.evict or assignment.swap_out or len(assignment.run) < len(jobs):
            return 1
        most = min(job.request.output - job.generated for job in jobs)
        if replica.waiting and self._may_preempt(replica):
            most = min(most, *(self._steps - self._generated(job) for job in jobs))
        return while_memory_lasts(jobs, replica.memory, max(most, 1))

    def come(self, job: Job, _: int) -> None:
        """Begin a slice of a request that has come with its KV."""
        self._begun[job.index] = job.generated

    def go(self, job: Job) -> None:
        """Forget the slice of a request that leaves."""
        del self._begun[job.index]

    def resize(self, _: int) -> None:
        """Memory is asked of the replica."""

    def has_room(self, _: Job, __: int) -> bool:
        """Nothing is promised."""
        return True

    def _generated(self, job: Job) -> int:
        """Return the tokens of its slice so far."""
        return job.generated - self._begun[job.index]

    def _order(self, job: Job) -> tuple[int, int]:
        return self._priority(job), job.rank

    def _turn(self, job: Job) -> tuple[int, int]:
        return job.queued_ps, self._priority(job)

    def _queue(self, waiting: list[Job]) -> Iterable[Job]:
        """Return the waiting requests in order."""
        if self._stable is not None:
            return self._stable.candidates(waiting)
        return sorted(waiting, key=self._turn)  # they are in order of arrival

    def _preempted(self, first: Job, replica: Replica) -> list[Job]:
        """Return the requests that are preempted for the first of the queue."""
        if not self._may_preempt(replica):
            return []
        limits, memory, grown, running = replica.limits, replica.memory, int(replica.rules.hybrid), replica.running
        need = memory.size(first, first.swapped + first.missing)
        free = memory.capacity - sum(memory.size(job, job.cached + grown) for job in running)
        places = 1 if limits.batch_requests is None else limits.batch_requests - len(running)
        eligible = sorted((job for job in running if self._generated(job) >= self._steps), key=self._order)
        victims: list[Job] = []
        while eligible and (free < need or places < 1):
            victim = eligible.pop()
            victims.append(victim)
            free, places = free + memory.size(victim, victim.cached + grown), places + 1
        return victims

    def _starts(self, queue: Sequence[Job], staying: Sequence[Job], replica: Replica) -> list[Job]:
        """Return the first of the queue, as far as they fit beside those that stay."""
        limits, memory, hybrid = replica.limits, replica.memory, replica.rules.hybrid
        free = memory.capacity - sum(memory.size(job, job.cached + int(hybrid)) for job in staying)
        places = len(queue) if limits.batch_requests is None else limits.batch_requests - len(staying)
        budget = min(limits.batch_tokens - (len(staying) if hybrid else 0), limits.prefill_tokens)
        starts: list[Job] = []
        for job in queue:
            need = memory.size(job, job.swapped + job.missing)
            alone = job.decoding and not hybrid  # KV comes back for a decode step
            if job.missing > budget or need > free or len(starts) >= places or (alone and starts):
                break
            starts.append(job)
            free, budget = free - need, budget - job.missing
            if alone:
                break
        return starts

    def _may_preempt(self, replica: Replica) -> bool:
        return replica.rules.eviction or (self._swaps and replica.rules.swap)

    def _assignment(self, replica: Replica, run: Sequence[Step], victims: Sequence[Job]) -> Assignment:
        """Return the batch, with KV taken back where it is on the host."""
        running = {index for index, _ in run}
        lost = Place.HOST if self._swaps and replica.rules.swap else Place.NOWHERE
        back = (job for job in replica.waiting if job.swapped and job.index in running)
        actions = [*(Action(job.index, lost) for job in victims), *(Action(job.index, Place.MACHINE) for job in back)]
        return Assignment.of(run, actions, len(replica.waiting))

    def _decodes(self, staying: list[Job], victims: list[Job], replica: Replica) -> Assignment:
        """Let all that stay decode, as far as memory and budgets allow."""
        limits, memory = replica.limits, replica.memory
        most = limits.batch_tokens
        if limits.batch_requests is not None:
            most = min(most, limits.batch_requests)
        staying = sorted(staying, key=self._order)
        gone = list(victims)
        while staying:
            run = staying[:most]
            held = sum(memory.size(job, job.cached + 1) for job in run)
            if held + sum(memory.size(job, job.cached) for job in staying[most:]) <= memory.capacity:
                decodes = [(job.index, 1) for job in sorted(run, key=lambda job: job.rank)]
                return self._assignment(replica, decodes, gone)
            if not self._may_preempt(replica):
                raise PolicyFailureError(run[0].index, replica.now_ps, "memory is full, and eviction is forbidden")
            gone.append(staying.pop())
        job = min(replica.waiting or replica.running, key=self._order)
        raise NoBatchError(job.index, replica.now_ps, f"its {job.missing} tokens fit no batch, and none can decode")


RR = RoundRobin(shortest=False)
RR_SJF = RoundRobin(shortest=True)
