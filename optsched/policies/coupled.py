"""Exact allocation as it was before EconoServe (Shen and Sen, sections 2.1 and 2.2): prompt and output coupled.

A request starts when there is memory for all that it is predicted to hold (see `optsched.policies.tasks`).

- `multires`: after every batch, the request nearest to what is left of tokens and memory, again and again.
- `sync_coupled`: groups of requests with the same predicted length, admitted when a group has ended.

The paper runs both with known lengths (section 2.1), which is the default.

Where the paper is *silent*:

- Distances (`multires`) are between shares: of the target forward size, and of the cache. A prompt that may be cut asks
  for no more tokens than are left.
- Members of a group of `sync_coupled` decode when all have their first token.
- `sync_coupled` admits groups also where none is there, and where the last choice left none waiting.
- `sync_coupled` considers those that are taken and one more.

It *differs* in nothing else: `multires` looks at all that wait for each that it takes, as in section 2.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import hypot
from typing import NamedTuple

from optsched.policies.predictors import TRUTH, Estimate, Online, Predicted, Predicting, Predictor
from optsched.policies.tasks import Allocating, TaskBatch, Tasks, by_arrival
from optsched.simulator.replica import Job, Occasion, Policy


@dataclass(frozen=True)
class Coupled:
    """Exact allocation for prompt and output at once.

    Parameters
    ----------
    synced
        Whether requests of the same predicted length start together; or those whose demands are nearest.
    forward_tokens
        Target forward size; None for that which nearly saturates the machine.
    predictor
        What predicts.
    """

    synced: bool
    forward_tokens: int | None = None
    predictor: Predictor | Online = TRUTH

    def prepared(self, occasion: Occasion) -> Policy:
        """Return the policy of a run."""

        def policy(estimate: Estimate) -> Policy:
            tasks = Tasks(occasion.instance, self.forward_tokens, estimate)
            if self.synced:
                return Allocating(tasks, partial(_choose_groups, tasks))
            nearest = _Nearest(tasks, changes=not isinstance(estimate, Predicted))
            return Allocating(tasks, nearest.choose)

        return Predicting(policy, self.predictor).prepared(occasion)


def _go_on(tasks: Tasks, forming: TaskBatch) -> None:
    """Let the requests generate that have their first token, in a group when all of it have."""
    filling = {tasks.group.get(job.index) for job in tasks.memory.owners() if not job.decoding} - {None}
    for job in forming.running:
        # Requests that come from other machines may be more than a batch has runs.
        if len(tasks.until) >= forming.most_decodes:
            return
        ready = job.decoding and job.index not in tasks.until and tasks.group.get(job.index) not in filling
        if ready and tasks.memory.fits(job, tasks.peak(job)):
            tasks.let_generate(job)


def _admit(job: Job, tasks: Tasks, forming: TaskBatch) -> bool:
    """Give a request memory for prompt and output, if there is enough."""
    peak = tasks.peak(job)
    if not tasks.memory.fits(job, peak) or len(tasks.memory) >= forming.most_decodes:
        return False
    tasks.memory.give(job, peak)
    return True


class _Demand(NamedTuple):
    """What a request that starts asks for: tokens to run, KV tokens at the end, and these in whole blocks."""

    job: Job
    prompt: int
    peak: int
    occupied: int


class _Nearest:
    """The policy `multires`; ``changes`` is whether predictions do during a run."""

    def __init__(self, tasks: Tasks, *, changes: bool) -> None:
        self._tasks, self._changes = tasks, changes
        self._demands: dict[int, _Demand] = {}

    def choose(self, forming: TaskBatch) -> None:
        """Start the requests whose demands are nearest to what is left."""
        _go_on(self._tasks, forming)

        def admit(job: Job) -> bool:
            self._demands.pop(job.index, None)
            return _admit(job, self._tasks, forming)

        if (room := self._tasks.room(forming)) is not None:
            filling = [job for job in forming.running if not job.decoding]
            tokens = room.budget - sum(job.missing for job in filling)
            self._tasks.run_prompts(room, chain(filling, self._nearest(tokens, forming)), forming, admit)

    def _demand(self, job: Job) -> _Demand:
        """Return what a request asks for, and keep it until it starts."""
        peak = self._tasks.peak(job)
        self._demands[job.index] = _Demand(job, job.missing, peak, self._tasks.memory.size(job, peak))
        return self._demands[job.index]

    def _nearest(self, tokens: int, forming: TaskBatch) -> Iterator[Job]:
        """Yield the requests whose demands are nearest to what is left, while both suffice."""
        chunked, tasks = forming.replica.rules.chunked_prefill, self._tasks
        target, capacity = tasks.target, tasks.capacity
        queue = [job for job in forming.replica.waiting if not job.swapped]
        if self._changes:
            self._demands.clear()
        known, count = self._demands.get, len(queue)
        left = [known(job.index) or self._demand(job) for job in queue]
        while tokens > 0:
            forming.considered += count
            memory = tasks.memory.free
            left = [one for one in left if one.occupied <= memory and (chunked or one.prompt <= tokens)]
            if not left:
                return
            best = min(  # ranks differ
                (hypot(max(tokens - one.prompt, 0) / target, (memory - one.peak) / capacity), one.job.rank, one)
                for one in left
            )[-1]
            left.remove(best)
            count -= 1
            tokens -= min(best.prompt, tokens)
            yield best.job


def _choose_groups(tasks: Tasks, forming: TaskBatch) -> None:
    """Start groups (the policy `sync_coupled`), and run their prompts."""
    _go_on(tasks, forming)
    if not tasks.group or tasks.ended or tasks.emptied:
        _admit_groups(tasks, forming)
    if (room := tasks.room(forming)) is not None:
        promised = [job for job in tasks.memory.owners() if not (job.decoding or job.swapped)]
        tasks.run_prompts(room, by_arrival(promised), forming, admit=lambda _: False)


def _admit_groups(tasks: Tasks, forming: TaskBatch) -> None:
    """Promise memory to groups of requests of the same length."""
    queue = [job for job in forming.replica.waiting if job not in tasks.memory]
    chosen: list[Job] = []
    for job in tasks.by_group(queue):
        peak = tasks.peak(job)
        if not tasks.memory.fits(job, peak) or len(tasks.group) + len(chosen) >= forming.most_decodes:
            break
        tasks.memory.give(job, peak)
        chosen.append(job)
    forming.considered += len(chosen) + (len(chosen) < len(queue))
    tasks.note_choice(chosen, len(chosen) == len(queue))


MULTIRES = Coupled(synced=False)
SYNC_COUPLED = Coupled(synced=True)
