r"""FastServe (Wu et al. 2023, "Fast distributed inference serving for large language models").

A multi-level feedback queue, without any idea of output lengths. Level i has a quantum of :math:`2^i q`. A new request
skips the levels whose quantum is shorter than its prefill (*skip-join*), and whoever has been served for longer than
its level's quantum is demoted by one. Each batch is formed anew, from the highest level down. Whoever is not in it
keeps its KV while there is room; if not, KV of the lowest priorities goes to the host. It does so *proactively*, as
long as fewer tokens are free than newcomers may need, and comes back ahead of time, the highest priorities first, when
more are.

The rule is the paper's section 4, the settings are those of EconoServe's experiments (section 2.1: 5 levels, batches of
8), and otherwise of the authors' implementation (LLMServe/FastServe, `scheduler.py`). Decisions where these are silent,
or differ:

- q is what a batch of one decode takes at least, as in the paper (10 ms in the code, about as much).
- Time beyond a quantum counts towards the next one, and the lowest level has no end.
- Within a level requests go in order of arrival.
- Every 1,000 batches whoever has waited for 3 s since it last ran goes to the highest level, as in the code.
- What a request holds is allocated, as in the code; EconoServe says that FastServe allocates the maximum.
- Prefills are whole, unless a prompt does not fit P at all and may be cut. Without hybrid batches the first request
  decides the phase.
- 16 tokens a place of the batch are kept free: a block of the code's size each.
- Where the instance does not allow swaps, KV is lost instead, and only if memory is short.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from optsched.model.cost import CostModel
from optsched.model.schedule import Assignment
from optsched.policies.grouped import longest
from optsched.simulate.replica import Job, NoBatchError, Occasion, Policy, Replica

_SECOND = 10**12


@dataclass(frozen=True)
class FastServe:
    """Skip-join multi-level feedback queue.

    Parameters
    ----------
    levels
        How many queues there are.
    size
        Requests of a batch, at most.
    free_tokens
        KV tokens that are kept free, by swapping ahead, for each of them.
    starvation_ps, period
        After how long a wait a request goes to the highest level, and after how many batches that is looked at.
    """

    levels: int = 5
    size: int = 8
    free_tokens: int = 16
    starvation_ps: int = 3 * _SECOND
    period: int = 1000

    def prepared(self, occasion: Occasion) -> Policy:
        """Return the policy of a run."""
        return _Levels(self, occasion.instance.cost)


class _Levels:
    """The queue, with a memory of who was served for how long."""

    def __init__(self, settings: FastServe, cost: CostModel) -> None:
        self._settings, self._cost = settings, cost
        least = max(cost.linear_ps(1) + cost.decode_req, 1)
        self._quanta = [least << level for level in range(settings.levels - 1)]
        self._joined: dict[int, int] = {}
        self._served: dict[int, int] = {}
        self._ran_ps: dict[int, int] = {}
        self._batch: list[Job] = []
        self._begun_ps = self._batches = self._generated = 0

    def next_batch(self, replica: Replica) -> Assignment:
        """Choose the highest priorities, and make room for them."""
        self._account(replica.now_ps)
        queue = sorted(chain(replica.running, replica.waiting), key=lambda job: (self._level(job, replica), job.rank))
        chosen = self._choose(queue, replica)
        victims = self._make_room(queue, chosen, replica)
        back = [job.index for job in queue if job.index in chosen and job.swapped]
        swaps = replica.rules.swap
        if swaps and not victims:
            back += self._ahead(queue, chosen, replica)
        lost = [job.index for job in victims]
        self._batch, self._begun_ps = [job for job in queue if job.index in chosen], replica.now_ps
        self._generated = self._batch[0].generated
        run = [(job.index, chosen[job.index]) for job in sorted(self._batch, key=lambda job: job.rank)]
        return Assignment(run, [] if swaps else lost, lost if swaps else [], back, len(replica.waiting))

    def stands(self, replica: Replica, assignment: Assignment) -> int:
        """Say how long everybody can decode, if nobody else is there: levels do not matter, memory does."""
        jobs, limits = replica.running, replica.limits
        if replica.waiting or len(assignment.run) < len(jobs):
            return 1

        def lasts(times: int) -> bool:
            return sum(limits.occupied(job.cached + times) for job in jobs) <= limits.kv_capacity

        return longest(min(job.request.output - job.generated for job in jobs), lasts)

    def _account(self, now_ps: int) -> None:
        """Count the time of the last batch, or of those that were repeated."""
        if self._batch:
            self._batches += max(1, self._batch[0].generated - self._generated)
        for job in self._batch:
            self._served[job.index] += now_ps - self._begun_ps
            self._ran_ps[job.index] = now_ps
        self._batch = []

    def _level(self, job: Job, replica: Replica) -> int:
        """Return the level of a request, 0 the highest; newcomers join one, and who has starved the highest."""
        index, now = job.index, replica.now_ps
        if index not in self._joined:
            prompt = job.request.input
            prefill = self._cost.batch_ps(prompt, 0, 0, [(prompt, 0)])
            skipped = (level for level, quantum in enumerate(self._quanta) if quantum >= prefill)
            self._joined[index], self._served[index] = next(skipped, len(self._quanta)), 0
            self._ran_ps[index] = job.request.arrival_ps
        elif self._batches % self._settings.period == 0 and now - self._ran_ps[index] >= self._settings.starvation_ps:
            self._joined[index] = self._served[index] = 0
        left = self._served[index]
        for level in range(self._joined[index], len(self._quanta)):
            left -= self._quanta[level]
            if left <= 0:
                return level
        return len(self._quanta)

    def _choose(self, queue: list[Job], replica: Replica) -> dict[int, int]:
        """Return the tokens that the highest priorities run, up to the first that does not fit the budgets."""
        limits, rules = replica.limits, replica.rules
        size = min(self._settings.size, limits.batch_requests or self._settings.size)
        budget, prefill_budget = limits.batch_tokens, limits.prefill_tokens
        chosen: dict[int, int] = {}
        for job in queue:
            if not rules.hybrid and chosen and job.decoding != queue[0].decoding:
                continue
            count = job.missing
            if rules.chunked_prefill and not job.decoding:
                count = min(count, limits.prefill_tokens)
            if len(chosen) == size or count > budget or (not job.decoding and count > prefill_budget):
                break
            chosen[job.index] = count
            budget -= count
            prefill_budget -= 0 if job.decoding else count
        return chosen

    def _make_room(self, queue: list[Job], chosen: dict[int, int], replica: Replica) -> list[Job]:
        """Return who loses its KV, from the lowest priority up; at last the batch itself gets smaller."""
        limits, rules = replica.limits, replica.rules
        free = self._free(queue, chosen, replica)
        ahead = self._settings.size * self._settings.free_tokens if rules.swap else 0
        victims: list[Job] = []
        for job in reversed(queue):
            if free >= (0 if job.index in chosen else ahead):
                break
            if job.index in chosen:
                count = chosen.pop(job.index)
                free += limits.occupied(job.cached + job.swapped + count) - limits.occupied(job.cached)
            if job.cached and (rules.swap or rules.eviction):
                victims.append(job)
                free += limits.occupied(job.cached)
        if free < 0 or not chosen:
            job = queue[0]
            reason = f"its {job.missing} tokens fit no batch, or memory is short by {max(-free, 0)} tokens"
            raise NoBatchError(job.index, replica.now_ps, reason)
        return victims

    def _free(self, queue: list[Job], chosen: dict[int, int], replica: Replica) -> int:
        """Return the KV tokens that are free after the steps of the batch."""
        limits = replica.limits
        held = (
            limits.occupied(job.cached + job.swapped + chosen[job.index])
            if job.index in chosen
            else limits.occupied(job.cached)
            for job in queue
        )
        return limits.kv_capacity - sum(held)

    def _ahead(self, queue: list[Job], chosen: dict[int, int], replica: Replica) -> list[int]:
        """Return who gets its KV back although it does not run: of the next in the queue those that fit."""
        size, free = self._settings.size, self._free(queue, chosen, replica)
        free -= size * self._settings.free_tokens
        found: list[int] = []
        for job in [job for job in queue if job.index not in chosen][:size]:
            held = replica.limits.occupied(job.swapped)
            if 0 < held <= free:
                found.append(job.index)
                free -= held
        return found


FASTSERVE = FastServe()
