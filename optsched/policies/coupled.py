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

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from math import hypot
from typing import NamedTuple

from optsched.model.instance import Instance
from optsched.policies.predictors import TRUTH, Estimate, Online, Predicted, Predicting, Predictor
from optsched.policies.tasks import Forming, Tasks
from optsched.simulate.replica import Job, Occasion, Policy


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
        Who predicts.
    """

    synced: bool
    forward_tokens: int | None = None
    predictor: Predictor | Online = TRUTH

    def prepared(self, occasion: Occasion) -> Policy:
        """Return the policy of a run."""
        kind: Callable[..., Policy] = _Groups if self.synced else _Nearest
        instance, target = occasion.instance, self.forward_tokens
        return Predicting(lambda estimate: kind(instance, target, estimate), self.predictor).prepared(occasion)


class _Coupled(Tasks):
    """Whoever starts is given memory for everything."""

    def _order(self, jobs: Iterable[Job]) -> list[Job]:
        return sorted(jobs, key=lambda job: job.rank)

    def _go_on(self, forming: Forming) -> None:
        """Let those generate who have their first token, in a group when all of it have."""
        filling = {self._group.get(job.index) for job in self._memory.owners() if not job.decoding} - {None}
        for job in forming.running:
            ready = job.decoding and job.index not in self._until and self._group.get(job.index) not in filling
            if ready and self._memory.fits(job, self._peak(job)):
                self._let_generate(job)

    def _admit(self, job: Job, forming: Forming) -> bool:
        peak = self._peak(job)
        if not self._memory.fits(job, peak) or len(self._memory) == forming.most_decodes:
            return False
        self._memory.give(job, peak)
        return True


class _Demand(NamedTuple):
    """What a request that starts asks for: tokens to run, KV tokens at the end, and these in whole blocks."""

    job: Job
    prompt: int
    peak: int
    occupied: int


class _Nearest(_Coupled):
    """The policy `multires`."""

    def __init__(self, instance: Instance, forward_tokens: int | None, estimate: Estimate) -> None:
        super().__init__(instance, forward_tokens, estimate)
        self._changes = not isinstance(estimate, Predicted)
        self._demands: dict[int, _Demand] = {}

    def _choose(self, forming: Forming) -> None:
        self._go_on(forming)
        if (room := self._room(forming)) is not None:
            filling = [job for job in forming.running if not job.decoding]
            tokens = room.budget - sum(job.missing for job in filling)
            self._run_prompts(room, chain(filling, self._nearest(tokens, forming)), forming)

    def _admit(self, job: Job, forming: Forming) -> bool:
        self._demands.pop(job.index, None)
        return super()._admit(job, forming)

    def _demand(self, job: Job) -> _Demand:
        """Return what a request asks for, and keep it until it starts."""
        peak = self._peak(job)
        self._demands[job.index] = _Demand(job, job.missing, peak, self._memory.size(job, peak))
        return self._demands[job.index]

    def _nearest(self, tokens: int, forming: Forming) -> Iterator[Job]:
        """Yield the requests whose demands are nearest to what is left, while both suffice."""
        chunked, target, capacity = forming.replica.rules.chunked_prefill, self._target, self._capacity
        queue = [job for job in forming.replica.waiting if not job.swapped]
        if self._changes:
            self._demands.clear()
        known, count = self._demands.get, len(queue)
        left = [known(job.index) or self._demand(job) for job in queue]
        while tokens > 0:
            forming.considered += count
            memory = self._memory.free
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


class _Groups(_Coupled):
    """The policy `sync_coupled`."""

    def _choose(self, forming: Forming) -> None:
        self._go_on(forming)
        if not self._group or self._ended or self._emptied:
            self._admit_groups(forming)
        if (room := self._room(forming)) is not None:
            promised = [job for job in self._memory.owners() if not (job.decoding or job.swapped)]
            self._run_prompts(room, self._order(promised), forming)

    def _admit_groups(self, forming: Forming) -> None:
        """Promise memory to groups of requests of the same length."""
        queue = [job for job in forming.replica.waiting if job not in self._memory]
        chosen: list[Job] = []
        for job in self._by_group(queue):
            peak = self._peak(job)
            if not self._memory.fits(job, peak) or len(self._group) + len(chosen) == forming.most_decodes:
                break
            self._memory.give(job, peak)
            chosen.append(job)
        forming.considered += len(chosen) + (len(chosen) < len(queue))
        self._note_choice(len(chosen) == len(queue))
        self._number_groups(chosen)


MULTIRES = Coupled(synced=False)
SYNC_COUPLED = Coupled(synced=True)
