r"""EconoServe (Shen and Sen), section 3, and what it is made of.

All allocate exactly (see `optsched.policies.tasks`), and prompts apart from outputs:

================  ============================================================================================
`econoserve_d`    PTs and GTs *decoupled*: a PT takes memory for its prompt only and fills the batch up to the
                  target forward size; GTs wait with their KV, and fill the memory, one by one
`econoserve_sd`   GTs in *time-synced* groups of the same predicted length, chosen when a group has ended
`econoserve_sdo`  both queues *ordered*: by deadline, KV held, length; in ranges
`econoserve`      *KVC pipelining*: a GT lends the second half of its allocation, which it reaches last, to guests
================  ============================================================================================

GTs are given memory first; then those that have just been given it get their guests among the GTs that are left
(Algorithm 1, lines 2 and 3); then PTs fill the batch (line 5). A share of memory is reserved for PTs; GTs use it only
to go on. A guest that outlives its prediction goes on in the buffer until its host needs the memory. Then it takes
memory of its own (section 3.3.2 allows what is reserved), or moves to main memory (section 3.2); where the instance
allows no swaps it is evicted.

`PER_TRACE` has what the paper sets for each of its traces (sections 2.2, 2.3 and 4); the policies are ShareGPT's.

==========  ========  ======  =======  =================================
trace       reserved  buffer  padding  right, under-predicted (with it)
==========  ========  ======  =======  =================================
Alpaca      1.2 %     15 %    10 %     77.5 %, 9.3 %
ShareGPT    3 %       15 %    15 %     73.2 %, 13.42 %
BookCorpus  5 %       10 %    20 %     69.8 %, 21.92 %
==========  ========  ======  =======  =================================

Where the paper is *silent*:

- While GTs wait for memory, those that wait and PTs hold no more than the reserved share; if none waits, a PT may take
  what is free. It starts only if, should all that run have ended, memory would suffice for any GT that waits: else GTs
  that wait could hold all memory, and none go on.
- The buffer is a share of the guest's predicted length (of "the predicted RL"; with the host's, quarters would lend
  next to nothing).
- If a host ends early, its guests are given memory of their own, or wait with the KV that they hold.
- The predictor's errors beyond its rates: it says the upper end of a bucket, the right one or one beside it, 4, 40 and
  190 tokens wide. These widths give the over-provisioned space of the paper's figure 5a.
- Ranges of deadlines and of KV held: up to 0.2, 0.5, 2 s away, later, and none; 128 tokens, as in the paper's examples.

It *differs*:

- GTs are also chosen where none runs, and where the last choice left none waiting, because memory is available then.
- Where the next in an ordered queue does not fit, those behind it are tried in order, because the paper's binary search
  for the size that fits would leave the order of deadlines and KV.
- Considered are those that are taken and one more, because queues are kept in order, and searched by bisection.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from heapq import merge
from itertools import chain
from math import ceil
from types import MappingProxyType
from typing import NamedTuple

from optsched.model.instance import Instance
from optsched.model.memory import Memory, memory_of
from optsched.policies.pipelining import lend
from optsched.policies.predictors import Estimate, Online, Predicting, Predictor, Rated
from optsched.policies.stable_queue import StableQueue
from optsched.policies.tasks import Allocating, TaskBatch, Tasks, by_arrival
from optsched.simulator.replica import Job, Occasion, Policy, Replica

_DEADLINES_PS = (2 * 10**11, 5 * 10**11, 2 * 10**12)
_HELD_TOKENS = 128


_SHAREGPT = Rated(40, 0.732, 0.1342)


@dataclass(frozen=True)
class EconoServe:
    """EconoServe, each of whose methods can be switched off.

    Parameters
    ----------
    synced
        Whether requests of the same predicted length go on together.
    ordered
        Whether queues are ordered; or first come, first served.
    piped
        Whether GTs lend what they do not use yet.
    reserved
        Share of memory that is reserved for PTs.
    buffer
        Share of a guest's predicted length that it ends before its host needs the memory.
    forward_tokens
        Target forward size; None for that which nearly saturates the machine.
    predictor
        What predicts.
    prompt_guests
        Whether requests that have not started may be guests, too. Not of the paper, whose guests are GTs.
    """

    synced: bool = True
    ordered: bool = True
    piped: bool = True
    reserved: Fraction = Fraction(3, 100)
    buffer: Fraction = Fraction(15, 100)
    forward_tokens: int | None = None
    predictor: Predictor | Online = _SHAREGPT
    prompt_guests: bool = False

    def prepared(self, occasion: Occasion) -> Policy:
        """Return the policy of a run."""

        def policy(estimate: Estimate) -> Policy:
            queues = _Decoupled(self, occasion.instance, estimate)
            return Allocating(
                queues.tasks,
                queues.choose,
                queues.order,
                settle=queues.settle,
                outlive=queues.outlive,
                go=queues.go,
            )

        return Predicting(policy, self.predictor).prepared(occasion)


class _Decoupled:
    """The queues of PTs and GTs.

    ``_guests`` says what each guest is lent: what it has been given itself is what it had before. ``_stable``
    keeps those PTs in order whose place only changes when they start.
    """

    keeps_records = True

    def __init__(self, settings: EconoServe, instance: Instance, estimate: Estimate) -> None:
        self._guests: dict[Job, _Loan] = {}
        self.tasks = Tasks(instance, settings.forward_tokens, estimate, lambda job: self._guests.pop(job, None))
        self._settings = settings
        self._reserve = ceil(self.tasks.capacity * settings.reserved)
        self._stable = StableQueue(self._place)
        self._now_ps = 0
        self._safe = _Safety(memory_of(instance), 0)

    # Queues -------------------------------------------------------------------------------------------------

    def order(self, jobs: Iterable[Job]) -> list[Job]:
        """Return a queue: PTs by prompt, GTs by what is left to generate, the longest first; or by arrival."""
        if not self._settings.ordered:
            return by_arrival(jobs)
        return sorted(jobs, key=lambda job: (*self._place(job), job.rank))

    def _place(self, job: Job) -> tuple[int, int, int]:
        """Return a task's place in an ordered queue: by deadline, KV held, and size."""
        slo = job.request.slo_e2e_ps
        left = None if slo is None else job.request.arrival_ps + slo - self._now_ps
        urgency = len(_DEADLINES_PS) + 1 if left is None else sum(left > bound for bound in _DEADLINES_PS)
        held = (job.cached + job.swapped) // _HELD_TOKENS
        return urgency, -held, -(self.tasks.left(job) if job.decoding else job.missing)

    def _prompts(self, filling: list[Job], fresh: list[Job]) -> Iterable[Job]:
        """Return PTs in order. Deadlines come nearer; without one a place stays as it is until its PT starts."""
        if not self._settings.ordered:
            return merge(filling, fresh, key=lambda job: job.rank)
        due = [job for job in fresh if job.request.slo_e2e_ps is not None]
        there = [job for job in fresh if job.request.slo_e2e_ps is None] if due else fresh
        return self._stable.candidates(there, [*filling, *due])

    # Before a choice ----------------------------------------------------------------------------------------

    def settle(self, forming: TaskBatch) -> None:
        """Take note of the requests that have ended; guests without a host have memory of their own then, or wait."""
        self.tasks.settle()
        self._now_ps = forming.replica.now_ps
        hostless: list[Job] = []
        for job, loan in list(self._guests.items()):
            if job.finished:
                self.tasks.stop(job)
            elif loan.host.index not in self.tasks.until:
                del self._guests[job]
                hostless += [job] if job.cached else []
            elif job.decoding:
                if job.index not in self.tasks.until:
                    self.tasks.calm = False
                    self.tasks.until[job.index] = min(job.cached + loan.due - loan.host.cached, loan.most)
            elif loan.host.cached + self.tasks.left(job) > loan.due:
                del self._guests[job]
                self.tasks.preempt(job, forming)
        self._set_apart(hostless)

    def _set_apart(self, hostless: list[Job]) -> None:
        """Give guests without a host memory of their own."""
        for job in hostless:
            # All of this is in what the host has left.
            self.tasks.memory.give(job, job.cached if job.decoding else job.cached + job.missing)
        for job in hostless:
            if job.decoding and self.tasks.memory.fits(job, self.tasks.peak(job)):
                self.tasks.let_generate(job)
            elif job.decoding:
                self.tasks.stop(job)

    def go(self, job: Job) -> None:
        """Take note of a request that leaves: its guests have no host then; if it is one, its host waits for memory."""
        loan = self._guests.pop(job, None)
        hosts = {job} if loan is None else {job, loan.host}
        for host in hosts:
            self.tasks.stop(host)
            self.tasks.memory.give(host, 0 if host is job else host.cached)
        hostless = [guest for guest, other in self._guests.items() if other.host in hosts]
        for guest in hostless:
            del self._guests[guest]
        self._set_apart([guest for guest in hostless if guest.cached])

    def outlive(self, job: Job, forming: TaskBatch) -> None:
        """Give more to a request that outlives its prediction, or stop it; a guest without memory of its own leaves."""
        guest = self._guests.pop(job, None) is not None
        if not (guest and not self.tasks.memory.fits(job, job.cached) and self.tasks.preempt(job, forming)):
            self.tasks.outlive(job)

    def choose(self, forming: TaskBatch) -> None:
        """Give memory to GTs if it is time for that, and run PTs."""
        if not self._settings.synced or not self.tasks.until or self.tasks.ended or self.tasks.emptied:
            self._choose_generating(forming)
        self._choose_prompts(forming)

    # Generation tasks ---------------------------------------------------------------------------------------

    def _choose_generating(self, forming: TaskBatch) -> None:
        """Give memory to GTs until it is full."""
        settings, memory, replica = self._settings, self.tasks.memory, forming.replica
        waiting = [job for job in forming.running if job.decoding and job.index not in self.tasks.until]
        if replica.rules.swap:
            waiting += [job for job in replica.waiting if job.swapped and job.decoding]
        queue = self.order(waiting)
        places = forming.most_decodes - len(self.tasks.until)
        used = sum(memory.size(job, memory.of(job)) for job in forming.running if job.index not in self.tasks.until)
        chosen: list[Job] = []
        left: list[Job] = []
        for job in self.tasks.by_group(queue) if settings.synced else queue:
            rest = used - memory.size(job, memory.of(job))
            full = len(chosen) == places or (left and not settings.ordered)
            if full or not memory.fits(job, self.tasks.peak(job), max(self._reserve - rest, 0)):
                left.append(job)
                continue
            self.tasks.let_generate(job)
            forming.take_back(job)
            used = rest
            chosen.append(job)
        guests = self._lend(chosen, left, places - len(chosen), forming) if settings.piped else []
        forming.considered += len(chosen) + len(guests) + (len(guests) < len(left))
        self.tasks.note_choice([*chosen, *guests], len(guests) == len(left))

    def _lend(self, hosts: list[Job], left: list[Job], places: int, forming: TaskBatch) -> list[Job]:
        """Let GTs that are left go on in memory that hosts do not use yet, and return them."""
        replica, buffer = forming.replica, self._settings.buffer
        jobs = {job.index: job for job in left if job.cached}
        sizes = sorted((self.tasks.left(job), index) for index, job in jobs.items())
        fresh = {job.index: job for job in self._startable(replica)}
        prompts = sorted((self.tasks.peak(job), index) for index, job in fresh.items())
        margin = replica.memory.block - 1
        guests: list[Job] = []
        for host in hosts:
            if not places:
                break
            held = host.cached + host.swapped
            for index, batches in lend(self.tasks.left(host), sizes, buffer, margin, prompts)[:places]:
                guest = jobs[index] if index in jobs else fresh[index]
                self._guests[guest] = _Loan(host, held + batches, batches)
                places -= 1
                if index in jobs:
                    guests.append(guest)
                    self.tasks.until[index] = guest.cached + batches
        return guests

    def _startable(self, replica: Replica) -> list[Job]:
        """Return the requests that may be guests although they have not started; they may have to leave."""
        if not self._settings.prompt_guests or not (replica.rules.swap or replica.rules.eviction):
            return []
        return [job for job in replica.waiting if not job.swapped and job not in self._guests]

    # Prompt tasks -------------------------------------------------------------------------------------------

    def _choose_prompts(self, forming: TaskBatch) -> None:
        """Run PTs until the batch has its target size."""
        replica, room = forming.replica, self.tasks.room(forming)
        fresh = [job for job in replica.waiting if not job.swapped] if replica.rules.swap else replica.waiting
        filling = [job for job in forming.running if not job.decoding]
        queue = self._prompts(filling, fresh)
        if room is None or not (fresh or filling):
            return
        self._safe = self._safety(forming)
        if self._settings.ordered:
            # Memory gets less while they are chosen, so that others will not fit either.
            most = min(self.tasks.memory.free, self._safe.room)
            queue = (job for job in queue if job.missing <= most or job in self.tasks.memory)
        if self._guests:
            guests = [job for job in self._guests if not job.decoding]
            queue = chain(guests, (job for job in queue if job not in self._guests))
        self.tasks.run_prompts(room, queue, forming, self._admit, skips=self._settings.ordered)
        held = {job.index for job in filling}
        started = sum(index not in held for index, _ in forming.prompts)
        forming.considered += started + (started < len(fresh))

    def _admit(self, job: Job) -> bool:
        """Give memory to a PT that starts, if there is enough."""
        if job in self._guests:
            return True
        if not (self.tasks.memory.fits(job, job.missing) and self._safe.admits(job, self.tasks.peak(job))):
            return False
        self.tasks.memory.give(job, job.missing)
        return True

    def _safety(self, forming: TaskBatch) -> _Safety:
        """Return what those hold that wait for memory, and the most that one of them may want besides."""
        waiting = [job for job in forming.running if job.index not in self.tasks.until and job not in self._guests]
        short = any(job.decoding for job in waiting)
        safety = _Safety(forming.replica.memory, self._reserve if short else self.tasks.capacity)
        for job in waiting:
            safety.count(job, self.tasks.memory.of(job), self.tasks.peak(job))
        return safety


class _Loan(NamedTuple):
    """In whose memory a guest is, the tokens of the host at which it must be gone, and the most it may hold itself.

    The last counts for a guest that brought no tokens of its own.
    """

    host: Job
    due: int
    most: int


class _Safety:
    """Whether any of those that wait for memory could go on if all that run had ended.

    They hold some tokens in all, at most ``most``, and each wants no more than a known number in addition.
    """

    def __init__(self, memory: Memory, most: int) -> None:
        self._memory, self._allowed = memory, most
        self._held = self._most = 0

    @property
    def room(self) -> int:
        """Tokens that others may hold besides."""
        return self._allowed - self._held

    def count(self, job: Job, tokens: int, peak: int) -> None:
        """Count one that holds ``tokens`` now, and ``peak`` at the end."""
        held = self._memory.size(job, tokens)
        self._held += held
        self._most = max(self._most, self._memory.size(job, peak) - held)

    def admits(self, job: Job, peak: int) -> bool:
        """Say whether it holds with one more that fills what it misses; if so, count that one."""
        held = self._memory.size(job, job.missing)
        wanted = max(self._most, self._memory.size(job, peak) - held)
        if held > self.room or self._held + held + wanted > self._memory.capacity:
            return False
        self.count(job, job.missing, peak)
        return True


PER_TRACE = MappingProxyType(
    {
        "alpaca": EconoServe(reserved=Fraction(12, 1000), predictor=Rated(4, 0.775, 0.093)),
        "sharegpt": EconoServe(),
        "bookcorpus": EconoServe(
            reserved=Fraction(5, 100), buffer=Fraction(10, 100), predictor=Rated(190, 0.698, 0.2192)
        ),
    }
)
"""EconoServe as the paper sets it for each of its traces."""

ECONOSERVE_D = EconoServe(synced=False, ordered=False, piped=False)
ECONOSERVE_SD = EconoServe(ordered=False, piped=False)
ECONOSERVE_SDO = EconoServe(piped=False)
ECONOSERVE = EconoServe()
