"""Exact allocation (EconoServe, Shen and Sen, section 2): memory for as many tokens as are predicted, in whole blocks.

A request is a prompt task (PT) until it has its first token, and then a generation task (GT). A GT that outlives its
prediction takes 32 tokens more from what is free, the reserve included, or else stops, keeps its KV (*offload-free*),
and waits as a GT again (section 3.3.2). With the truth as predictor a policy is the paper's *Oracle*; padding is the
predictor's (``--predictor relative:0.3+0.15``).

Where the paper is *silent*:

- The target forward size is "the forward size that saturates GPU utilization", decodes included; here it is that of
  `optsched.policies.fcfs.saturating_tokens`. PTs run in chunks where the instance allows them; where not, one that is
  longer runs if no other does.
- If nothing can run, the first of those that hold KV takes what is reserved, too; then those behind it lose their KV,
  the last first.

It *differs*:

- A new predicted length is 32 tokens more than what is generated, a block of the paper, because the paper's L_new, the
  old prediction less what is generated, is nothing when the prediction has been reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from optsched.model.instance import Instance
from optsched.model.memory import Memory as KvMemory
from optsched.model.memory import memory_of
from optsched.model.schedule import Assignment
from optsched.model.state import Action, Place, Step
from optsched.policies.fcfs import saturating_tokens
from optsched.policies.predictors import Estimate
from optsched.simulator.replica import Job, NoBatchError, Replica

_MORE = 32
"""Tokens that a request which outlives its prediction is given."""


class Memory:
    """How many KV tokens requests have been given, whether they hold them yet or have only been promised them."""

    def __init__(self, memory: KvMemory) -> None:
        self.size = memory.size
        self._tokens: dict[Job, int] = {}
        self.free = self._capacity = memory.capacity

    def __len__(self) -> int:
        return len(self._tokens)

    def __contains__(self, job: Job) -> bool:
        return job in self._tokens

    def of(self, job: Job) -> int:
        """Return what a request has been given."""
        return self._tokens.get(job, 0)

    def owners(self) -> Iterable[Job]:
        """Return all that have been given some."""
        return self._tokens.keys()

    def resize(self, capacity: int) -> None:
        """Have ``capacity`` tokens in all."""
        self.free += capacity - self._capacity
        self._capacity = capacity

    def fits(self, job: Job, tokens: int, reserve: int = 0) -> bool:
        """Say whether a request can be given ``tokens`` in all, with a reserve that stays free."""
        return self.room_for(job, tokens) >= reserve

    def room_for(self, job: Job, tokens: int) -> int:
        """Return what is free when a request has been given ``tokens`` in all; below 0 it is short by that."""
        return self.free + self.size(job, self._tokens.get(job, 0)) - self.size(job, tokens)

    def give(self, job: Job, tokens: int) -> None:
        """Give a request ``tokens`` in all; 0 takes everything."""
        self.free += self.size(job, self._tokens.pop(job, 0)) - self.size(job, tokens)
        if tokens:
            self._tokens[job] = tokens


class TaskBatch:
    """A batch that is being formed."""

    def __init__(self, replica: Replica) -> None:
        limits = replica.limits
        self.replica = replica
        self.running = list(replica.running)
        self.most_runs = limits.batch_tokens if limits.batch_requests is None else limits.batch_requests
        self.most_decodes = min(limits.batch_tokens, self.most_runs)
        self.prompts: list[Step] = []
        self.actions: list[Action] = []
        self.considered = 0

    def may_take_away(self, job: Job) -> bool:
        """Whether a request's KV may go to the host, or be lost."""
        rules = self.replica.rules
        return bool(job.cached) and (rules.swap or rules.eviction)

    def take_away(self, job: Job) -> bool:
        """Send a request's KV to the host, or let it be lost; say whether that is allowed."""
        if not self.may_take_away(job):
            return False
        rules = self.replica.rules
        self.actions.append(Action(job.index, Place.HOST if rules.swap else Place.NOWHERE))
        self.running.remove(job)
        return True

    def take_back(self, job: Job) -> None:
        """Take a request's KV back, if it is on the host."""
        if job.swapped:
            self.actions.append(Action(job.index, Place.MACHINE))
            self.running.append(job)


class Room(NamedTuple):
    """What a batch has left for PTs: tokens at all, tokens up to the target forward size, and places."""

    tokens: int
    budget: int
    places: int


class Tasks:
    """The tasks of a run, how much memory each has been given, and what is known of their lengths.

    Parameters
    ----------
    instance
        What is served.
    forward_tokens
        Target forward size; None for that which nearly saturates the machine.
    estimate
        What is predicted.
    on_stop
        Called with each request that stops generating.

    Attributes
    ----------
    memory
        What requests have been given.
    target, capacity
        Target forward size, and the tokens of the cache.
    until
        Of the requests that may generate, by index: up to how many KV tokens.
    group
        Number of the group that a request, by index, ends with.
    ended
        Whether a group has ended since the last choice.
    emptied
        Whether the last choice left no request waiting.
    calm
        Whether the next decision would be the same.
    """

    def __init__(
        self,
        instance: Instance,
        forward_tokens: int | None,
        estimate: Estimate,
        on_stop: Callable[[Job], object] = lambda _: None,
    ) -> None:
        memory = memory_of(instance)
        self.target = forward_tokens or saturating_tokens(instance.cost, instance.limits.batch_tokens)
        self.capacity, self._estimate, self._on_stop = memory.capacity, estimate, on_stop
        self.memory = Memory(memory)
        self.until: dict[int, int] = {}
        self.group: dict[int, int] = {}
        self.ended = self.calm = False
        self.emptied = True
        # What is expected now of requests that outlived their predictions; requests left in each group.
        self._longer: dict[int, int] = {}
        self._members: dict[int, int] = {}
        self._groups = 0

    # What is known of requests ------------------------------------------------------------------------------

    def _length(self, job: Job) -> int:
        """Return how many tokens are expected of a request, more than it has generated."""
        length = max(self._estimate(job), job.generated + 1)
        return max(length, self._longer.get(job.index, 0)) if self._longer else length

    def peak(self, job: Job) -> int:
        """Return the KV tokens in the batch that generates the last expected token."""
        return min(job.request.input + self._length(job) - 1, self.capacity)

    def left(self, job: Job) -> int:
        """Return the tokens that are left to generate."""
        return self._length(job) - job.generated

    # Requests that may generate -----------------------------------------------------------------------------

    def generating(self, forming: TaskBatch) -> list[Job]:
        """Return the running requests that may generate."""
        return [job for job in forming.running if job.index in self.until]

    def let_generate(self, job: Job) -> None:
        """Let a GT go on, with memory for all that is expected of it."""
        self.calm = False
        self.until[job.index] = self.peak(job)
        self.memory.give(job, self.until[job.index])

    def stop(self, job: Job) -> None:
        """Note that a request does not generate any more."""
        self.calm = False
        self.until.pop(job.index, None)
        group = self.group.pop(job.index, None)
        if group is not None:
            self._members[group] -= 1
            if not self._members[group]:
                del self._members[group]
                self.ended = True
        self._on_stop(job)

    def settle(self) -> None:
        """Take note of the requests that have ended."""
        for job in [job for job in self.memory.owners() if job.finished]:
            self.memory.give(job, 0)
            self.stop(job)

    def expect_more(self, job: Job) -> None:
        """Note that a request outlives its prediction."""
        self.calm = False
        self._longer[job.index] = job.generated + _MORE

    def outlive(self, job: Job) -> None:
        """Give more to a request that outlives its prediction, or stop it."""
        if self.memory.fits(job, self.peak(job)):
            self.let_generate(job)
        else:
            self.stop(job)
            self.memory.give(job, job.cached)

    def preempt(self, job: Job, forming: TaskBatch) -> bool:
        """Take a request's memory away, if the instance allows it."""
        if not forming.take_away(job):
            return False
        self.memory.give(job, 0)
        self.stop(job)
        return True

    # Requests that come and go with their KV ----------------------------------------------------------------

    def come(self, job: Job) -> None:
        """Give a GT that has come the memory that it holds; it waits for what it needs to go on."""
        self.calm = False
        self.memory.give(job, job.cached)

    def go(self, job: Job) -> None:
        """Take everything from a request that leaves."""
        self.stop(job)
        self.memory.give(job, 0)

    # Groups of the same predicted length --------------------------------------------------------------------

    def by_group(self, queue: list[Job]) -> Iterator[Job]:
        """Yield requests of the same length one after the other, groups in the order of their first members."""
        groups: dict[int, list[Job]] = {}
        for job in queue:
            groups.setdefault(self.left(job), []).append(job)
        return chain.from_iterable(groups.values())

    def note_choice(self, chosen: list[Job], emptied: bool) -> None:
        """Note that requests were chosen, which end together if they have the same length, and if none is left."""
        self.calm &= emptied == self.emptied and not chosen
        self.ended, self.emptied = False, emptied
        numbers: dict[int, int] = {}
        for job in chosen:
            number = numbers.setdefault(self.left(job), self._groups + len(numbers))
            self.group[job.index] = number
            self._members[number] = self._members.get(number, 0) + 1
        self._groups += len(numbers)

    # Prompts ------------------------------------------------------------------------------------------------

    def room(self, forming: TaskBatch) -> Room | None:
        """Return what is left for PTs, besides those that generate; None if it is nothing."""
        replica, limits = forming.replica, forming.replica.limits
        decodes = len(self.until) if replica.rules.hybrid else 0
        tokens = min(limits.prefill_tokens, limits.batch_tokens - decodes)
        budget, places = min(tokens, self.target - decodes), forming.most_runs - decodes
        return Room(tokens, budget, places) if budget > 0 and places > 0 else None

    def run_prompts(
        self, room: Room, queue: Iterable[Job], forming: TaskBatch, admit: Callable[[Job], bool], skips: bool = False
    ) -> None:
        """Run PTs in order until the batch has its target size; one that does not fit is skipped, or ends the queue.

        ``admit`` gives memory to a PT that starts, if there is enough.
        """
        budget, chunked = room.budget, forming.replica.rules.chunked_prefill
        for job in queue:
            if len(forming.prompts) == room.places or budget < 1:
                break
            count = min(job.missing, budget) if chunked else job.missing
            fits = count <= budget or (not forming.prompts and count <= room.tokens)
            if fits and (job in self.memory or admit(job)):
                forming.prompts.append((job.index, count))
                budget -= count
            elif not skips:
                break


def by_arrival(jobs: Iterable[Job]) -> list[Job]:
    """Return a queue in the order of arrival."""
    return sorted(jobs, key=lambda job: job.rank)


class Allocating:
    """A policy that allocates exactly.

    Parameters
    ----------
    tasks
        Of the run.
    choose
        Chooses the requests that may generate, and the prompts that run.
    order
        Returns a queue, the first request first.
    settle
        Takes note of the requests that have ended; `Tasks.settle` if it is None.
    outlive
        Gives more to a request that outlives its prediction, or stops it; `Tasks.outlive` if it is None.
    go
        Takes note of a request that leaves for another machine; `Tasks.go` if it is None.
    """

    keeps_records = True

    def __init__(
        self,
        tasks: Tasks,
        choose: Callable[[TaskBatch], None],
        order: Callable[[Iterable[Job]], list[Job]] = by_arrival,
        *,
        settle: Callable[[TaskBatch], None] | None = None,
        outlive: Callable[[Job, TaskBatch], None] | None = None,
        go: Callable[[Job], None] | None = None,
    ) -> None:
        self._tasks, self._choose, self._order = tasks, choose, order
        self._settle = settle or (lambda _: tasks.settle())
        self._outlive = outlive or (lambda job, _: tasks.outlive(job))
        self._go = go or tasks.go

    def next_batch(self, replica: Replica) -> Assignment:
        """Let the requests go on that may, and choose further ones."""
        forming, tasks = TaskBatch(replica), self._tasks
        tasks.calm = not tasks.ended
        self._settle(forming)
        for job in tasks.generating(forming):
            if job.cached >= tasks.until[job.index]:
                tasks.expect_more(job)
                self._outlive(job, forming)
        self._choose(forming)
        if not (forming.prompts or tasks.until):
            self._insist(forming)
        return self._result(forming)

    def valid_for(self, replica: Replica, assignment: Assignment) -> int:
        """Say how long the same requests decode: until one of them outlives its prediction."""
        if not self._tasks.calm:
            return 1
        running = {job.index: job for job in replica.running}
        return max(1, min(self._tasks.until[index] - running[index].cached for index, _ in assignment.run))

    def come(self, job: Job, _: int) -> None:
        """Let a request that has come with its KV wait for memory to go on."""
        self._tasks.come(job)

    def go(self, job: Job) -> None:
        """Take note of a request that leaves with its KV."""
        self._go(job)

    def resize(self, capacity: int) -> None:
        """Take note of the memory that is not set aside for requests on their way."""
        self._tasks.memory.resize(capacity)

    def has_room(self, job: Job, tokens: int) -> bool:
        """Whether ``tokens`` tokens of a request fit into memory that is given to no other."""
        memory = self._tasks.memory
        # Those that have ended since the last choice still have theirs.
        ended = sum(memory.size(other, memory.of(other)) for other in memory.owners() if other.finished)
        return memory.size(job, tokens) <= memory.free + ended

    def _insist(self, forming: TaskBatch) -> None:
        """Let the first of those that hold KV go on, with all that is free; if need be, at the cost of the last."""
        replica, tasks = forming.replica, self._tasks
        holders = [job for job in chain(forming.running, replica.waiting) if job.decoding or job.cached]
        queue = self._order(holders)
        if not queue:
            return
        first, *others = queue
        tokens = tasks.peak(first) if first.decoding else first.cached + first.missing
        free, victims = tasks.memory.room_for(first, tokens), list[Job]()
        for job in reversed(others):
            if free >= 0:
                break
            if forming.may_take_away(job):
                victims.append(job)
                free += tasks.memory.size(job, tasks.memory.of(job))
        # In vain nothing is lost: requests that move may make room later.
        if free < 0:
            return
        for job in victims:
            tasks.preempt(job, forming)
        if first.decoding:
            tasks.let_generate(first)
            forming.take_back(first)
        else:
            tasks.memory.give(first, tokens)
            limits = replica.limits
            count = min(first.missing, limits.prefill_tokens) if replica.rules.chunked_prefill else first.missing
            if count <= limits.prefill_tokens:
                forming.prompts.append((first.index, count))

    def _result(self, forming: TaskBatch) -> Assignment:
        replica, tasks = forming.replica, self._tasks
        generating = by_arrival(tasks.generating(forming)) if replica.rules.hybrid or not forming.prompts else []
        run = [*((job.index, 1) for job in generating), *forming.prompts]
        if not run:
            job = (replica.running or replica.waiting)[0]
            reason = f"its {job.missing} tokens do not fit the {tasks.memory.free} KV tokens that are free"
            raise NoBatchError(job.index, replica.now_ps, reason)
        return Assignment.of(run, forming.actions, forming.considered)
