r"""EconoServe (Shen and Sen) and the schedulers on the way to it, sections 2 and 3.

All allocate exactly: a request gets memory for as many tokens as it is predicted to generate, in whole blocks. A
request is a prompt task (PT) until it has its first token, and then a generation task (GT).

=================  ============================================================================================
`multires`         after every batch, the request nearest to what is left of tokens and memory, again and again
`sync_coupled`     groups of requests with the same predicted length, admitted when a group has ended
`econoserve_d`     PTs and GTs *decoupled*: a PT takes memory for its prompt only and fills the batch up to the
                   target forward size; GTs wait with their KV, and fill the memory, one by one
`econoserve_sd`    GTs in *time-synced* groups of the same predicted length, chosen when a group has ended
`econoserve_sdo`   both queues *ordered*: by deadline, KV held, length; in ranges
`econoserve`       *KVC pipelining*: a GT lends the second half of its allocation, which it reaches last, to guests
=================  ============================================================================================

With the truth as predictor each of them is its *oracle*. A share of memory is reserved for PTs, which GTs use only to
go on: whoever outlives its prediction takes 32 tokens more from what is free, or else stops, keeps its KV
(*offload-free*), and waits as a GT again. Padding is the predictor's (``--predictor relative:0.3+0.15``).

Defaults are those of the paper's ShareGPT experiments: 3 % reserved, a buffer of 15 %. Decisions where it is silent:

- The target forward size is that of `optsched.policies.fcfs.saturating_tokens`, decodes included. PTs run in chunks
  where the instance allows them; where not, one that is longer runs if no other does.
- Distances (`multires`) are between shares: of the target forward size, and of the cache. A prompt that may be cut asks
  for no more tokens than are left.
- Members of a group of `sync_coupled` decode when all have their first token.
- While GTs wait for memory, those that wait and PTs hold no more than the reserved share; if none waits, a PT may take
  what is free. It starts only if, should all that run have ended, memory would suffice for any GT that waits: else GTs
  that wait could hold all memory, and none go on.
- GTs are also chosen where none runs, and where the last choice left none waiting, as memory then is available.
- A host has its guests at once, before others are given memory: who is short is a guest rather than a host. The buffer
  is a share of the guest's predicted length. A guest that outlives its prediction takes memory of its own, like all
  others; if there is none, it goes to the host where swaps are allowed, or else is evicted.
- New lengths of who outlives its prediction are 32 tokens more, a block of the paper.
- Ranges: deadlines that are passed or up to 0.2, 0.5, 2 s away, later, and none; 128 KV tokens. Within them longer
  tasks go first. Where the next does not fit, the longest that fits goes instead.
- If nothing can run, the first GT takes what is reserved, too; then those behind it lose their KV, the last first.
- Considered are those that are taken and one more: queues are kept in order, and searched by bisection. `multires`
  looks at all, for each that it takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heappop, merge
from itertools import chain, groupby
from math import hypot

from optsched.model.instance import Limits
from optsched.model.schedule import Assignment, Step
from optsched.policies.fcfs import saturating_tokens
from optsched.policies.pipelining import lend
from optsched.policies.predictors import TRUTH, Estimate, Online, Predicting, Predictor
from optsched.simulate.replica import Job, NoBatchError, Occasion, Policy, Replica

_MORE = 32
"""Tokens that whoever outlives its prediction is given."""
_DEADLINES_PS = (2 * 10**11, 5 * 10**11, 2 * 10**12)
_HELD_TOKENS = 128
Entry = tuple[int, int, int, int, Job]


@dataclass(frozen=True)
class EconoServe:
    """EconoServe, each of whose methods can be switched off.

    Parameters
    ----------
    decoupled
        Whether a request gets memory for its prompt first, and for its output later.
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

    decoupled: bool = True
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
        target = self.forward_tokens or saturating_tokens(instance.cost, instance.limits.batch_tokens)
        capacity = instance.limits.kv_capacity
        return Predicting(lambda estimate: _Tasks(self, target, capacity, estimate), self.predictor).prepared(occasion)


class _Tasks:
    """The queues of PTs and GTs, and who has been given how much memory.

    ``_given`` says it of every request that holds some or has been promised it, in tokens; ``_until`` of those that
    may generate, up to how many tokens. For guests these differ. ``_ended`` is whether a group has ended since the last
    choice, ``_emptied`` whether that left nobody waiting, ``_calm`` whether the next decision would be the same.
    """

    def __init__(self, settings: EconoServe, target: int, capacity: int, estimate: Estimate) -> None:
        self._settings, self._target, self._capacity, self._estimate = settings, target, capacity, estimate
        self._longer: dict[int, int] = {}
        self._given: dict[int, int] = {}
        self._until: dict[int, int] = {}
        self._group: dict[int, int] = {}
        self._members = Counter[int]()
        self._guests: dict[int, int] = {}
        self._standing: dict[int, Entry] = {}
        self._ended = self._calm = False
        self._emptied = True

    # What is known of requests ------------------------------------------------------------------------------

    def _length(self, job: Job) -> int:
        """Return how many tokens are expected of a request, more than it has generated."""
        length = max(self._estimate(job), job.generated + 1)
        return max(length, self._longer.get(job.index, 0)) if self._longer else length

    def _peak(self, job: Job) -> int:
        """Return the KV tokens in the batch that generates the last expected token."""
        return min(job.request.input + self._length(job) - 1, self._capacity)

    def _order(self, jobs: Iterable[Job], now_ps: int) -> list[Job]:
        """Return a queue: PTs by prompt, GTs by what is left to generate, the longest first; or by arrival."""
        if not self._settings.ordered:
            return sorted(jobs, key=lambda job: job.rank)
        return [entry[-1] for entry in sorted(self._entry(job, now_ps) for job in jobs)]

    def _entry(self, job: Job, now_ps: int) -> Entry:
        """Return a task with what it is ordered by: deadline, KV held, size, and arrival."""
        slo = job.request.slo_e2e_ps
        left = None if slo is None else job.request.arrival_ps + slo - now_ps
        urgency = len(_DEADLINES_PS) + 1 if left is None else sum(left > bound for bound in _DEADLINES_PS)
        held = (job.cached + job.swapped) // _HELD_TOKENS
        return urgency, -held, -(self._left(job) if job.decoding else job.missing), job.rank, job

    def _prompts_in_order(self, filling: list[Job], fresh: list[Job], most: int, now_ps: int) -> Iterator[Job]:
        """Yield PTs in order, without those that start with more than so many tokens; few are asked for."""
        heap = [self._entry(job, now_ps) for job in filling]
        for job in fresh:
            entry = self._standing.get(job.index)
            if entry is None:
                entry = self._entry(job, now_ps)
                if job.request.slo_e2e_ps is None:
                    self._standing[job.index] = entry  # until it starts, nothing changes its place
            if -entry[2] <= most:
                heap.append(entry)
        heapify(heap)
        while heap:
            yield heappop(heap)[-1]

    def _left(self, job: Job) -> int:
        """Return the tokens that are left to generate."""
        return self._length(job) - job.generated

    # One batch ----------------------------------------------------------------------------------------------

    def next_batch(self, replica: Replica) -> Assignment:
        """Choose GTs for the memory, then PTs for the tokens."""
        forming = _Forming(replica, self._given)
        self._calm = not self._ended
        self._settle(forming)
        self._go_on(forming)
        if self._settings.decoupled:
            self._choose_generating(forming)
        elif self._settings.synced:
            self._admit_groups(forming)
        self._choose_prompts(forming)
        if not (forming.prompts or self._generating(forming)):
            self._insist(forming)
        return self._result(forming)

    def stands(self, replica: Replica, assignment: Assignment) -> int:
        """Say how long the same requests decode: until one of them outlives its prediction."""
        if not self._calm:
            return 1
        running = {job.index: job for job in replica.running}
        return max(1, min(self._until[index] - running[index].cached for index, _ in assignment.run))

    def _generating(self, forming: _Forming) -> list[Job]:
        return [job for job in forming.running if job.index in self._until]

    def _result(self, forming: _Forming) -> Assignment:
        replica = forming.replica
        generating = self._generating(forming)
        if forming.prompts and not replica.rules.hybrid:
            generating = []
        generating.sort(key=lambda job: job.rank)
        run = [*((job.index, 1) for job in generating), *forming.prompts]
        if not run:
            job = (replica.running or replica.waiting)[0]
            reason = f"its {job.missing} tokens do not fit the {forming.free} KV tokens that are free"
            raise NoBatchError(job.index, replica.now_ps, reason)
        return Assignment(run, forming.evicted, forming.swapped, forming.back, forming.considered)

    def _settle(self, forming: _Forming) -> None:
        """Forget who has ended, and give memory of their own to guests whose hosts have."""
        there = {job.index for job in chain(forming.replica.running, forming.replica.waiting)}
        for index in [index for index in self._given if index not in there]:
            forming.give(index, 0)
            self._stop(index)
        for job in forming.running:
            if job.index in self._guests and self._guests[job.index] not in self._until:
                del self._guests[job.index]
                forming.give(job.index, self._until[job.index])
        for job in reversed(self._generating(forming)):
            if forming.free >= 0:
                break
            self._preempt(job, forming)

    def _stop(self, index: int) -> None:
        """Note that a request does not generate any more."""
        self._calm = False
        self._until.pop(index, None)
        self._guests.pop(index, None)
        group = self._group.pop(index, None)
        if group is not None:
            self._members[group] -= 1
            self._ended |= not self._members[group]

    def _preempt(self, job: Job, forming: _Forming) -> bool:
        """Take a request's memory away, if the instance allows it."""
        if not forming.take_away(job):
            return False
        self._stop(job.index)
        return True

    def _go_on(self, forming: _Forming) -> None:
        """Give more to those who outlive their predictions, or stop them; let those go on who were given all before."""
        for job in self._generating(forming):
            if job.cached < self._until[job.index]:
                continue
            self._calm = False
            guest = self._guests.pop(job.index, None) is not None
            self._longer[job.index] = job.generated + _MORE
            more = self._peak(job)
            if forming.fits(job, more):
                forming.give(job.index, more)
                self._until[job.index] = more
            else:
                self._stop(job.index)
                if not (guest and not forming.fits(job, job.cached) and self._preempt(job, forming)):
                    forming.give(job.index, job.cached)
        if self._settings.decoupled:
            return
        everybody = chain(forming.running, forming.replica.waiting)
        filling = {self._group.get(job.index) for job in everybody if not job.decoding} - {None}
        for job in forming.running:
            if job.decoding and job.index not in self._until and self._group.get(job.index) not in filling:
                peak = self._peak(job)
                if forming.fits(job, peak):
                    self._calm = False
                    forming.give(job.index, peak)
                    self._until[job.index] = peak

    # Generation tasks ---------------------------------------------------------------------------------------

    def _choose_generating(self, forming: _Forming) -> None:
        """Give memory to GTs until it is full."""
        settings, generating = self._settings, self._generating(forming)
        if settings.synced and generating and not (self._ended or self._emptied):
            return
        replica = forming.replica
        waiting = [job for job in forming.running if job.decoding and job.index not in self._until]
        waiting += [job for job in replica.waiting if job.swapped and job.decoding]
        queue = self._order(waiting, replica.now_ps)
        places = forming.most_decodes - len(generating)
        occupied = replica.limits.occupied
        reserve = self._reserve
        used = sum(occupied(self._given.get(job.index, 0)) for job in forming.running if job.index not in self._until)
        left = {job.index: job for job in queue}
        chosen: list[Job] = []
        for job in self._by_group(queue) if settings.synced else queue:
            if job.index not in left:
                continue  # it is somebody's guest
            if len(queue) - len(left) >= places:
                break
            rest = used - occupied(self._given.get(job.index, 0))
            if forming.fits(job, self._peak(job), max(reserve - rest, 0)):
                self._start(job, forming)
                used = rest
                forming.considered += 1
                chosen.append(left.pop(job.index))
                if settings.piped:
                    chosen += self._lend(job, left, places - len(queue) + len(left), forming)
            elif not settings.ordered:
                break
        forming.considered += bool(left)
        self._note_choice(not left)
        self._number_groups(sorted(chosen, key=self._left))

    def _by_group(self, queue: list[Job]) -> Iterator[Job]:
        """Yield requests of the same length one after the other, groups in the order of their first members."""
        groups: dict[int, list[Job]] = {}
        for job in queue:
            groups.setdefault(self._left(job), []).append(job)
        return chain.from_iterable(groups.values())

    def _note_choice(self, emptied: bool) -> None:
        """Note that there was a choice, and whether it left nobody waiting."""
        self._calm &= emptied == self._emptied
        self._ended, self._emptied = False, emptied

    def _number_groups(self, chosen: list[Job]) -> None:
        """Make groups of neighbours of the same length, which end together."""
        for _, members in groupby(chosen, key=self._left):
            indices = [job.index for job in members]
            number = max(self._members, default=0) + 1
            self._members[number] = len(indices)
            self._group |= dict.fromkeys(indices, number)
            self._calm = False

    def _start(self, job: Job, forming: _Forming) -> None:
        """Let a GT go on, with memory for all that is expected of it."""
        peak = self._peak(job)
        self._calm = False
        forming.give(job.index, peak)
        forming.take_back(job)
        self._until[job.index] = peak

    def _lend(self, host: Job, left: dict[int, Job], places: int, forming: _Forming) -> list[Job]:
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

    def _choose_prompts(self, forming: _Forming) -> None:
        """Run PTs until the batch has its target size."""
        replica, limits = forming.replica, forming.replica.limits
        decodes = len(self._generating(forming)) if replica.rules.hybrid else 0
        room = min(limits.prefill_tokens, limits.batch_tokens - decodes)
        budget = min(room, self._target - decodes)
        places = forming.most_runs - decodes
        fresh = [job for job in replica.waiting if not job.swapped]
        filling = [job for job in forming.running if not job.decoding]
        if budget < 1 or places < 1 or not (fresh or filling):
            return
        safe = self._safety(forming)
        queue: Iterable[Job] = merge(filling, fresh, key=lambda job: job.rank)
        if self._settings.ordered:
            # Memory gets less while they are chosen, so that others will not fit either.
            queue = self._prompts_in_order(filling, fresh, min(forming.free, safe.room), replica.now_ps)
        elif self._settings.synced and not self._settings.decoupled:
            queue = [job for job in queue if job.index in self._given]
        elif not self._settings.decoupled:
            queue = chain(filling, self._nearest(fresh, budget - sum(job.missing for job in filling), forming))
        for job in queue:
            if len(forming.prompts) == places or budget < 1:
                break
            count = min(job.missing, budget) if replica.rules.chunked_prefill else job.missing
            if count > budget and (forming.prompts or count > room):
                if self._settings.ordered:
                    continue
                break
            if job.index not in self._given and not self._admit(job, forming, safe):
                if self._settings.ordered:
                    continue
                break
            self._standing.pop(job.index, None)
            forming.prompts.append((job.index, count))
            budget -= count
        if self._settings.decoupled:
            held = {job.index for job in filling}
            started = sum(index not in held for index, _ in forming.prompts)
            forming.considered += started + (started < len(fresh))

    def _admit(self, job: Job, forming: _Forming, safe: _Safety) -> bool:
        """Give memory to a PT that starts, if there is enough."""
        peak = self._peak(job)
        if self._settings.decoupled:
            if not (forming.fits(job, job.missing) and safe.admits(job.missing, peak)):
                return False
            forming.give(job.index, job.missing)
            return True
        if not forming.fits(job, peak) or len(self._given) == forming.most_decodes:
            return False
        forming.give(job.index, peak)
        return True

    def _safety(self, forming: _Forming) -> _Safety:
        """Return what those hold that wait for memory, and the most that one of them may want besides."""
        if not self._settings.decoupled:
            return _Safety(forming.replica.limits, 0)
        waiting = [job for job in forming.running if job.index not in self._until]
        crowded = any(job.decoding for job in waiting)
        safety = _Safety(forming.replica.limits, self._reserve if crowded else self._capacity)
        for job in waiting:
            safety.count(self._given[job.index], self._peak(job))
        return safety

    @property
    def _reserve(self) -> int:
        """KV tokens that are reserved for PTs."""
        share = self._settings.reserved
        return -(-self._capacity * share.numerator // share.denominator)

    def _nearest(self, queue: list[Job], tokens: int, forming: _Forming) -> Iterator[Job]:
        """Yield the requests whose demands are nearest to what is left, while both suffice (`multires`)."""
        limits, chunked = forming.replica.limits, forming.replica.rules.chunked_prefill
        occupied = limits.occupied
        short = [job for job in queue if job.missing <= forming.free]
        left = [(job, peak) for job in short if occupied(peak := self._peak(job)) <= forming.free]
        count = len(queue)
        while tokens > 0:
            forming.considered += count
            memory, room = forming.free, tokens

            def distance(found: tuple[Job, int], memory: int = memory, room: int = room) -> tuple[float, int]:
                job, peak = found
                spare = max(room - job.missing, 0)
                return hypot(spare / self._target, (memory - peak) / self._capacity), job.rank

            left = [found for found in left if occupied(found[1]) <= memory and (chunked or found[0].missing <= room)]
            if not left:
                return
            best = min(left, key=distance)
            left.remove(best)
            count -= 1
            tokens -= min(best[0].missing, room)
            yield best[0]

    def _admit_groups(self, forming: _Forming) -> None:
        """Promise memory to groups of requests of the same length, when another group has ended (`sync_coupled`)."""
        if self._group and not (self._ended or self._emptied):
            return
        replica = forming.replica
        queue = [job for job in replica.waiting if job.index not in self._given]
        chosen: list[Job] = []
        for job in self._by_group(queue):
            peak = self._peak(job)
            if not forming.fits(job, peak) or len(self._group) + len(chosen) == forming.most_decodes:
                break
            forming.give(job.index, peak)
            chosen.append(job)
        forming.considered += len(chosen) + (len(chosen) < len(queue))
        self._note_choice(len(chosen) == len(queue))
        self._number_groups(sorted(chosen, key=self._left))

    # If nothing else helps ----------------------------------------------------------------------------------

    def _insist(self, forming: _Forming) -> None:
        """Let the first of those that hold KV go on, with all that is free; if need be, at the cost of the last."""
        replica = forming.replica
        holders = [job for job in chain(forming.running, replica.waiting) if job.decoding or job.cached]
        queue = self._order(holders, replica.now_ps)
        if not queue:
            return
        first, *others = queue
        tokens = self._peak(first) if first.decoding else first.cached + first.missing
        for job in reversed(others):
            if forming.fits(first, tokens):
                break
            self._preempt(job, forming)
        if not forming.fits(first, tokens):
            return
        if first.decoding:
            self._start(first, forming)
        else:
            forming.give(first.index, tokens)
            limits = replica.limits
            count = min(first.missing, limits.prefill_tokens) if replica.rules.chunked_prefill else first.missing
            if count <= limits.prefill_tokens:
                forming.prompts.append((first.index, count))


class _Forming:
    """A batch that is being formed, and the memory that is left."""

    def __init__(self, replica: Replica, given: dict[int, int]) -> None:
        limits = replica.limits
        self.replica, self._given = replica, given
        self.running = list(replica.running)
        self.free = limits.kv_capacity - sum(map(limits.occupied, given.values()))
        self.most_runs = limits.batch_tokens if limits.batch_requests is None else limits.batch_requests
        self.most_decodes = min(limits.batch_tokens, self.most_runs)
        self.prompts: list[Step] = []
        self.evicted: list[int] = []
        self.swapped: list[int] = []
        self.back: list[int] = []
        self.considered = 0

    def fits(self, job: Job, tokens: int, reserve: int = 0) -> bool:
        """Say whether a request can be given so many tokens in all, with a reserve that stays free."""
        occupied = self.replica.limits.occupied
        return occupied(tokens) - occupied(self._given.get(job.index, 0)) + reserve <= self.free

    def give(self, index: int, tokens: int) -> None:
        """Give a request so many tokens in all; 0 takes everything."""
        occupied = self.replica.limits.occupied
        self.free += occupied(self._given.pop(index, 0)) - occupied(tokens)
        if tokens:
            self._given[index] = tokens

    def take_away(self, job: Job) -> bool:
        """Send a request's KV to the host, or let it be lost; say whether that is allowed."""
        rules = self.replica.rules
        if not job.cached or not (rules.swap or rules.eviction):
            return False
        (self.swapped if rules.swap else self.evicted).append(job.index)
        self.running.remove(job)
        self.give(job.index, 0)
        return True

    def take_back(self, job: Job) -> None:
        """Take a request's KV back, if it is on the host."""
        if job.swapped:
            self.back.append(job.index)
            self.running.append(job)


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


MULTIRES = EconoServe(decoupled=False, synced=False, ordered=False, piped=False)
SYNC_COUPLED = EconoServe(decoupled=False, ordered=False, piped=False)
ECONOSERVE_D = EconoServe(synced=False, ordered=False, piped=False)
ECONOSERVE_SD = EconoServe(ordered=False, piped=False)
ECONOSERVE_SDO = EconoServe(piped=False)
ECONOSERVE = EconoServe()
