r"""FastServe (Wu et al. 2023, "Fast distributed inference serving for large language models").

A multi-level feedback queue, without any idea of output lengths. Level i has a quantum of :math:`2^i q`. A new request
skips the levels whose quantum is shorter than its prefill (*skip-join*), and one that has been served for longer than
its level's quantum is demoted by one. Each batch is formed anew, from the highest level down. A request that is not in
it keeps its KV while there is room; if not, KV of the lowest priorities goes to the host. It does so *proactively*, as
long as fewer tokens are free than newcomers may need, and comes back ahead of time, the highest priorities first, when
more are.

The rule is the paper's section 4, the settings are those of EconoServe's experiments (section 2.1: 5 levels, batches of
8), and otherwise of the authors' implementation (LLMServe/FastServe, `scheduler.py`). `fastserve_max` is FastServe as
EconoServe describes and runs it (section 1), with the memory of the longest output allocated to each request that holds
KV; the authors' code, and `fastserve`, allocate what is held.

Where these are *silent*:

- q, the least time of a batch, is that of one decode without KV.
- Time beyond a quantum counts towards the next one, and the lowest level has no end.
- Within a level requests go in order of arrival.
- Every 1,000 batches a request that has waited for 3 s since it last ran goes to the highest level, as in the code.
- Prefills are whole, unless a prompt does not fit P at all and may be cut. Without hybrid batches the first request
  decides the phase.
- 16 tokens a place of the batch are kept free: a block of the code's size each.

It *differs*:

- q is the paper's, not the 10 ms of the code, because that is the time of a batch on another machine.
- Where the instance does not allow swaps, KV is lost instead, and only if memory is short, because what is lost has to
  be run again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter

from optsched.model.instance import Instance
from optsched.model.memory import memory_of
from optsched.model.schedule import Assignment
from optsched.model.state import Action, Place
from optsched.policies.fcfs import largest_allocation
from optsched.policies.grouped import while_memory_lasts
from optsched.simulator.replica import Job, NoBatchError, Occasion, Policy, Replica

_SECOND = 10**12


def _nothing(_: Job) -> int:
    """Reserve nothing: what is held is allocated."""
    return 0


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
    maximal
        Whether a request that holds KV is allocated its prompt and the longest output of the instance.
    """

    levels: int = 5
    size: int = 8
    free_tokens: int = 16
    starvation_ps: int = 3 * _SECOND
    period: int = 1000
    maximal: bool = False

    def prepared(self, occasion: Occasion) -> Policy:
        """Return the policy of a run."""
        return _Levels(self, occasion.instance)


Turn = tuple[int, int]
"""Level and rank of a request: its place in a queue."""


class _Levels:
    """The queue, which remembers for how long each request was served.

    Only those that ran change their place, or how much they hold, and those that lose it; so a decision takes time for
    them, and not for all that wait.
    """

    keeps_records = True

    def __init__(self, settings: FastServe, instance: Instance) -> None:
        cost = instance.cost
        self._settings, self._cost = settings, cost
        least = max(cost.linear_ps(1) + cost.decode_req, 1)
        self._quanta = [least << level for level in range(settings.levels - 1)]
        self._served: dict[int, int] = {}
        self._ran_ps: dict[int, int] = {}
        self._jobs: dict[Turn, Job] = {}
        self._queue: list[Turn] = []
        self._holders: list[Turn] = []
        self._occupied: dict[Turn, int] = {}
        self._free = self._capacity = instance.limits.kv_capacity
        self._batch: list[Turn] = []
        self._newest = -1
        reserve = largest_allocation(instance) if settings.maximal else _nothing
        self._size = memory_of(instance).reserving(reserve)
        self._begun_ps = self._batches = self._generated = 0
        self._first: Job | None = None

    def next_batch(self, replica: Replica) -> Assignment:
        """Choose the highest priorities, and make room for them."""
        self._account(replica)
        self._welcome(replica)
        if self._batches % self._settings.period == 0:
            self._promote(replica.now_ps)
        chosen = self._choose(replica)
        victims = self._make_room(chosen, replica)
        back = [job.index for job in map(self._jobs.__getitem__, chosen) if job.swapped]
        if replica.rules.swap and not victims:
            back += self._ahead(chosen, replica)
        self._batch, self._begun_ps = list(chosen), replica.now_ps
        self._first = self._jobs[self._batch[0]]
        self._generated = self._first.generated
        run = [(self._jobs[place].index, chosen[place]) for place in sorted(chosen, key=itemgetter(1))]
        lost = Place.HOST if replica.rules.swap else Place.NOWHERE
        actions = [*(Action(index, lost) for index in victims), *(Action(index, Place.MACHINE) for index in back)]
        return Assignment.of(run, actions, len(replica.waiting))

    def valid_for(self, replica: Replica, assignment: Assignment) -> int:
        """Say how long all can decode, if no other request is there: levels do not matter, memory does."""
        jobs = replica.running
        if replica.waiting or len(assignment.run) < len(jobs):
            return 1
        return while_memory_lasts(jobs, replica.memory, min(job.request.output - job.generated for job in jobs))

    # Places in the queue ------------------------------------------------------------------------------------

    def _account(self, replica: Replica) -> None:
        """Count the time of the last batch, or of those that were repeated, and move those that were in it."""
        now, passed, quanta = replica.now_ps, replica.now_ps - self._begun_ps, self._quanta
        jobs, times, ran_ps, occupied, lowest = self._jobs, self._served, self._ran_ps, self._occupied, len(quanta)
        self._count()
        for place in self._batch:
            job = jobs[place]
            level, rank = place
            served = times[rank] + passed
            while level < lowest and served > quanta[level]:
                served -= quanta[level]
                level += 1
            times[rank], ran_ps[rank] = served, now
            if job.finished:
                self._leave(place)
            elif level != place[0]:
                self._leave(place)
                self._enter(level, job, self._allocated(job, job.cached))
            elif (held := self._allocated(job, job.cached)) != occupied.get(place, 0):
                self._hold(place, held)
        self._batch = []

    def _count(self) -> None:
        """Count the last batch, or how often it was repeated."""
        if self._first is not None:
            self._batches += max(1, self._first.generated - self._generated)
            self._first = None

    def _welcome(self, replica: Replica) -> None:
        """Let newcomers join the levels that suit their prompts."""
        for job in reversed(replica.waiting):
            if job.rank <= self._newest:
                break
            self._join(job, job.request.arrival_ps)
        if replica.waiting:
            self._newest = max(self._newest, replica.waiting[-1].rank)

    def _join(self, job: Job, since_ps: int) -> None:
        """Let a request join the level that suits its prompt."""
        prompt = job.request.input
        prefill = self._cost.batch_ps(prompt, 0, 0, [(prompt, 0)])
        skipped = (level for level, quantum in enumerate(self._quanta) if quantum >= prefill)
        self._served[job.rank], self._ran_ps[job.rank] = 0, since_ps
        self._enter(next(skipped, len(self._quanta)), job, self._allocated(job, job.cached))

    # Requests that come and go with their KV ----------------------------------------------------------------

    def come(self, job: Job, now_ps: int) -> None:
        """Let a request that has come with its KV join the level that suits its prompt."""
        self._newest = job.rank
        self._join(job, now_ps)

    def go(self, job: Job) -> None:
        """Forget a request that leaves."""
        if job is self._first:
            self._count()
        place = next((level, job.rank) for level in range(len(self._quanta) + 1) if (level, job.rank) in self._jobs)
        self._leave(place)
        if place in self._batch:
            self._batch.remove(place)

    def resize(self, capacity: int) -> None:
        """Take note of the memory that is not set aside for requests on their way."""
        self._free += capacity - self._capacity
        self._capacity = capacity

    def has_room(self, job: Job, tokens: int) -> bool:
        """Whether ``tokens`` tokens of a request fit into memory that is allocated to no other."""
        # What it has noted is of before the last batch.
        jobs = self._jobs.values()
        held = sum(self._allocated(other, other.cached) for other in jobs)
        return held + self._size(job, tokens) <= self._capacity

    # Priorities ---------------------------------------------------------------------------------------------

    def _promote(self, now_ps: int) -> None:
        """Let those that have not run for long go to the highest level."""
        starved = [place for place in self._queue if now_ps - self._ran_ps[place[1]] >= self._settings.starvation_ps]
        for place in starved:
            job, held = self._jobs[place], self._occupied.get(place, 0)
            self._leave(place)
            self._served[job.rank] = 0
            self._enter(0, job, held)

    def _enter(self, level: int, job: Job, held: int) -> None:
        """Put a request, which holds ``tokens`` tokens, where it belongs."""
        place = level, job.rank
        insort(self._queue, place)
        self._jobs[place] = job
        self._hold(place, held)

    def _leave(self, place: Turn) -> None:
        """Take a request out."""
        self._hold(place, 0)
        del self._queue[bisect_left(self._queue, place)], self._jobs[place]

    def _hold(self, place: Turn, tokens: int) -> None:
        """Note how many tokens a request holds, in whole blocks."""
        before = self._occupied.get(place, 0)
        if tokens == before:
            return
        self._free += before - tokens
        if tokens:
            self._occupied[place] = tokens
            if not before:
                insort(self._holders, place)
        elif before:
            del self._occupied[place], self._holders[bisect_left(self._holders, place)]

    # What a batch does --------------------------------------------------------------------------------------

    def _choose(self, replica: Replica) -> dict[Turn, int]:
        """Return the tokens that the highest priorities run, up to the first that does not fit the budgets."""
        limits, rules = replica.limits, replica.rules
        size = min(self._settings.size, limits.batch_requests or self._settings.size)
        budget, prefill_budget = limits.batch_tokens, limits.prefill_tokens
        chosen: dict[Turn, int] = {}
        for place in self._queue:
            job = self._jobs[place]
            if not rules.hybrid and chosen and job.decoding != self._jobs[self._queue[0]].decoding:
                continue
            count = job.missing
            if rules.chunked_prefill and not job.decoding:
                count = min(count, limits.prefill_tokens)
            if len(chosen) == size or count > budget or (not job.decoding and count > prefill_budget):
                break
            chosen[place] = count
            budget -= count
            prefill_budget -= 0 if job.decoding else count
        return chosen

    def _make_room(self, chosen: dict[Turn, int], replica: Replica) -> list[int]:
        """Return the requests that lose their KV, the lowest priority first; at last the batch itself gets smaller."""
        rules = replica.rules
        ahead = self._settings.size * self._settings.free_tokens if rules.swap else 0
        may_lose = rules.swap or rules.eviction
        more = self._more(chosen.items())
        victims: list[int] = []
        lost: list[tuple[Turn, int]] = []

        def lose(place: Turn) -> None:
            victims.append(self._jobs[place].index)
            lost.append((place, self._occupied[place]))
            self._hold(place, 0)

        if self._free - more < ahead and may_lose:
            for place in reversed(tuple(self._holders)):
                if self._free - more >= ahead:
                    break
                if place not in chosen:
                    lose(place)
        while self._free < more and chosen:
            place, count = chosen.popitem()
            more -= self._more([(place, count)])
            if place in self._occupied and may_lose:
                lose(place)
        if not chosen:
            job = self._jobs[self._queue[0]]
            reason = f"its {job.missing} tokens fit no batch, or memory is short by {max(more - self._free, 0)} tokens"
            # Requests that move may make room later; until then nothing is lost.
            for place, held in lost:
                self._hold(place, held)
            raise NoBatchError(job.index, replica.now_ps, reason)
        return victims

    def _more(self, steps: Iterable[tuple[Turn, int]]) -> int:
        """Return the KV tokens that requests take more if each runs its number of tokens."""
        jobs, size, occupied, more = self._jobs, self._size, self._occupied, 0
        for place, count in steps:
            job = jobs[place]
            more += size(job, job.cached + job.swapped + count) - occupied.get(place, 0)
        return more

    def _allocated(self, job: Job, tokens: int) -> int:
        """Return what one that holds that number of tokens is allocated, in whole blocks."""
        return self._size(job, tokens) if tokens else 0

    def _ahead(self, chosen: dict[Turn, int], replica: Replica) -> list[int]:
        """Return the requests that get their KV back without running: of the next in the queue those that fit."""
        size = self._settings.size
        free = self._free - self._more(chosen.items())
        free -= size * self._settings.free_tokens
        found: list[int] = []
        for place in islice((place for place in self._queue if place not in chosen), size):
            job = self._jobs[place]
            held = self._allocated(job, job.swapped)
            if 0 < held <= free:
                found.append(job.index)
                free -= held
                self._hold(place, held)
        return found


FASTSERVE = FastServe()
FASTSERVE_MAX = FastServe(maximal=True)
