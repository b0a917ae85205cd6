r"""EconoServe (Shen and Sen), section 3, and what it is made of.

All allocate exactly (see `optsched.policies.tasks`), and prompts apart from outputs:

================  ============================================================================================
`econoserve_d`    PTs and GTs *decoupled*: a PT takes memory for its prompt only and fills the batch up to the
                  target forward size; GTs wait with their KV, and fill the memory, one by one
`econoserve_sd`   GTs in *time-synced* groups of the same predicted length, chosen when a group has ended
`econoserve_sdo`  both queues *ordered*: by deadline, KV held, length; in ranges
`econoserve`      *KVC pipelining*: a GT lends the second half of its allocation, which it reaches last, to guests
================  ============================================================================================

A share of memory is reserved for PTs, which GTs use only to go on. Defaults are those of the paper's ShareGPT
experiments: 3 % reserved, a buffer of 15 %. Decisions where it is silent:

- While GTs wait for memory, those that wait and PTs hold no more than the reserved share; if none waits, a PT may take
  what is free. It starts only if, should all that run have ended, memory would suffice for any GT that waits: else GTs
  that wait could hold all memory, and none go on.
- GTs are also chosen where none runs, and where the last choice left none waiting, as memory then is available.
- A host has its guests at once, before others are given memory: who is short is a guest rather than a host. The buffer
  is a share of the guest's predicted length. A guest that outlives its prediction takes memory of its own, like all
  others; if there is none, it goes to the host where swaps are allowed, or else is evicted.
- Ranges: deadlines that are passed or up to 0.2, 0.5, 2 s away, later, and none; 128 KV tokens. Within them longer
  tasks go first. Where the next does not fit, the longest that fits goes instead.
- Considered are those that are taken and one more: queues are kept in order, and searched by bisection.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from heapq import merge
from math import ceil

from optsched.model.instance import Instance, Limits
from optsched.policies.pipelining import lend
from optsched.policies.predictors import TRUTH, Estimate, Online, Predicting, Predictor
from optsched.policies.standing import Standing
from optsched.policies.tasks import Forming, Tasks
from optsched.simulate.replica import Job, Occasion, Policy

_DEADLINES_PS = (2 * 10**11, 5 * 10**11, 2 * 10**12)
_HELD_TOKENS = 128


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
        Who predicts.
    """

    synced: bool = True
    ordered: bool = True
    piped: bool = True
    reserved: Fraction = Fraction(3, 100)
    buffer: Fraction = Fraction(15, 100)
    forward_tokens: int | None = None
    predictor: Predictor | Online = TRUTH

    def prepared(self, occasion: Occasion) -> Policy:
        """Return the policy of a run."""
        instance = occasion.instance
        return Predicting(lambda estimate: _Decoupled(self, instance, estimate), self.predictor).prepared(occasion)


class _Decoupled(Tasks):
    """The queues of PTs and GTs.

    ``_guests`` says in whose memory a guest is: what it has been given is what it had before. ``_standing``
    keeps those PTs in order whose place only changes when they start.
    """

    def __init__(self, settings: EconoServe, instance: Instance, estimate: Estimate) -> None:
        super().__init__(instance, settings.forward_tokens, estimate)
        self._settings = settings
        self._reserve = ceil(self._capacity * settings.reserved)
        self._guests: dict[int, int] = {}
        self._standing = Standing(self._place)
        self._now_ps = 0
        self._safe = _Safety(instance.limits, 0)

    # Queues -------------------------------------------------------------------------------------------------

    def _order(self, jobs: Iterable[Job]) -> list[Job]:
        """Return a queue: PTs by prompt, GTs by what is left to generate, the longest first; or by arrival."""
        if not self._settings.ordered:
            return sorted(jobs, key=lambda job: job.rank)
        return sorted(jobs, key=lambda job: (*self._place(job), job.rank))

    def _place(self, job: Job) -> tuple[int, int, int]:
        """Return a task's place in an ordered queue: by deadline, KV held, and size."""
        slo = job.request.slo_e2e_ps
        left = None if slo is None else job.request.arrival_ps + slo - self._now_ps
        urgency = len(_DEADLINES_PS) + 1 if left is None else sum(left > bound for bound in _DEADLINES_PS)
        held = (job.cached + job.swapped) // _HELD_TOKENS
        return urgency, -held, -(self._left(job) if job.decoding else job.missing)

    def _prompts(self, filling: list[Job], fresh: list[Job]) -> Iterable[Job]:
        """Return PTs in order. Deadlines come nearer; without one a place stays as it is until its PT starts."""
        if not self._settings.ordered:
            return merge(filling, fresh, key=lambda job: job.rank)
        due = [job for job in fresh if job.request.slo_e2e_ps is not None]
        standing = [job for job in fresh if job.request.slo_e2e_ps is None] if due else fresh
        return self._standing.candidates(standing, [*filling, *due])

    # Before a choice ----------------------------------------------------------------------------------------

    def _settle(self, forming: Forming) -> None:
        """Besides, give memory of their own to guests whose hosts have ended."""
        super()._settle(forming)
        self._now_ps = forming.replica.now_ps
        for job in forming.running if self._guests else ():
            if job.index in self._guests and self._guests[job.index] not in self._until:
                del self._guests[job.index]
                self._memory.give(job, self._until[job.index])
        if self._memory.free < 0:
            for job in reversed(self._generating(forming)):
                if self._memory.free >= 0:
                    break
                self._preempt(job, forming)

    def _outlive(self, job: Job, forming: Forming) -> None:
        """Besides, send a guest away for which there is no memory of its own."""
        guest = self._guests.pop(job.index, None) is not None
        if not (guest and not self._memory.fits(job, job.cached) and self._preempt(job, forming)):
            super()._outlive(job, forming)

    def _stop(self, job: Job) -> None:
        super()._stop(job)
        self._guests.pop(job.index, None)

    def _choose(self, forming: Forming) -> None:
        if not self._settings.synced or not self._until or self._ended or self._emptied:
            self._choose_generating(forming)
        self._choose_prompts(forming)

    # Generation tasks ---------------------------------------------------------------------------------------

    def _choose_generating(self, forming: Forming) -> None:
        """Give memory to GTs until it is full."""
        settings, memory, replica = self._settings, self._memory, forming.replica
        waiting = [job for job in forming.running if job.decoding and job.index not in self._until]
        if replica.rules.swap:
            waiting += [job for job in replica.waiting if job.swapped and job.decoding]
        queue = self._order(waiting)
        places = forming.most_decodes - len(self._until)
        occupied = replica.limits.occupied
        used = sum(occupied(memory.of(job)) for job in forming.running if job.index not in self._until)
        left = {job.index: job for job in queue}
        chosen: list[Job] = []
        for job in self._by_group(queue) if settings.synced else queue:
            if job.index not in left:
                continue  # it is somebody's guest
            if len(queue) - len(left) >= places:
                break
            rest = used - occupied(memory.of(job))
            if memory.fits(job, self._peak(job), max(self._reserve - rest, 0)):
                self._let_generate(job)
                forming.take_back(job)
                used = rest
                forming.considered += 1
                chosen.append(left.pop(job.index))
                if settings.piped:
                    chosen += self._lend(job, left, places - len(queue) + len(left), forming)
            elif not settings.ordered:
                break
        forming.considered += bool(left)
        self._note_choice(not left)
        self._number_groups(chosen)

    def _lend(self, host: Job, left: dict[int, Job], places: int, forming: Forming) -> list[Job]:
        """Let GTs go on in memory that a host does not use yet; return them, and leave the others."""
        sizes = [(self._left(job), index) for index, job in left.items() if job.cached]
        margin = forming.replica.limits.kv_block - 1
        guests: list[Job] = []
        for index in lend(self._left(host), sizes, self._settings.buffer, margin)[:places]:
            guest = left.pop(index)
            guests.append(guest)
            self._guests[index] = host.index
            self._until[index] = self._peak(guest)
        forming.considered += len(guests)
        return guests

    # Prompt tasks -------------------------------------------------------------------------------------------

    def _choose_prompts(self, forming: Forming) -> None:
        """Run PTs until the batch has its target size."""
        replica, room = forming.replica, self._room(forming)
        fresh = [job for job in replica.waiting if not job.swapped] if replica.rules.swap else replica.waiting
        filling = [job for job in forming.running if not job.decoding]
        queue = self._prompts(filling, fresh)
        if room is None or not (fresh or filling):
            return
        self._safe = self._safety(forming)
        if self._settings.ordered:
            # Memory gets less while they are chosen, so that others will not fit either.
            most = min(self._memory.free, self._safe.room)
            queue = (job for job in queue if job.missing <= most or job in self._memory)
        self._run_prompts(room, queue, forming, skips=self._settings.ordered)
        held = {job.index for job in filling}
        started = sum(index not in held for index, _ in forming.prompts)
        forming.considered += started + (started < len(fresh))

    def _admit(self, job: Job, forming: Forming) -> bool:
        if not (self._memory.fits(job, job.missing) and self._safe.admits(job.missing, self._peak(job))):
            return False
        self._memory.give(job, job.missing)
        return True

    def _safety(self, forming: Forming) -> _Safety:
        """Return what those hold that wait for memory, and the most that one of them may want besides."""
        waiting = [job for job in forming.running if job.index not in self._until]
        crowded = any(job.decoding for job in waiting)
        safety = _Safety(forming.replica.limits, self._reserve if crowded else self._capacity)
        for job in waiting:
            safety.count(self._memory.of(job), self._peak(job))
        return safety


class _Safety:
    """Whether any of those that wait for memory could go on if all that run had ended.

    They hold some tokens in all, at most so many, and none of them wants more than so many besides.
    """

    def __init__(self, limits: Limits, most: int) -> None:
        self._limits, self._allowed = limits, most
        self._held = self._most = 0

    @property
    def room(self) -> int:
        """Tokens that others may hold besides."""
        return self._allowed - self._held

    def count(self, tokens: int, peak: int) -> None:
        """Count one that holds so many tokens now, and so many at the end."""
        occupied = self._limits.occupied
        self._held += occupied(tokens)
        self._most = max(self._most, occupied(peak) - occupied(tokens))

    def admits(self, tokens: int, peak: int) -> bool:
        """Say whether it holds with one more; if so, count that one."""
        occupied = self._limits.occupied
        wanted = max(self._most, occupied(peak) - occupied(tokens))
        if occupied(tokens) > self.room or self._held + occupied(tokens) + wanted > self._limits.kv_capacity:
            return False
        self.count(tokens, peak)
        return True


ECONOSERVE_D = EconoServe(synced=False, ordered=False, piped=False)
ECONOSERVE_SD = EconoServe(ordered=False, piped=False)
ECONOSERVE_SDO = EconoServe(piped=False)
ECONOSERVE = EconoServe()
