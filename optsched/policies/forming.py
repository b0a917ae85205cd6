"""One batch of InferMax's Algorithm 1, as it is formed."""

from __future__ import annotations

import math
from collections.abc import Iterator

from optsched.model.schedule import Assignment
from optsched.model.state import Action, Place, Step
from optsched.policies.algorithm import Group, Parts
from optsched.simulator.replica import Job, NoBatchError, PolicyFailureError, Replica

_FULL = "no more requests may hold KV now"


class GroupedBatch:
    """A batch that a policy forms, group by group (see `optsched.policies.grouped.GroupedPolicy`).

    Parameters
    ----------
    policy, replica
        The policy that forms it, and the replica.
    """

    def __init__(self, policy: Parts, replica: Replica) -> None:
        limits, memory = replica.limits, replica.memory
        self._policy, self._replica, self._limits, self._memory = policy, replica, limits, memory
        self._hybrid = policy.hybrid and replica.rules.hybrid
        self._chunked = policy.chunked and replica.rules.chunked_prefill
        own_tokens = limits.batch_tokens if policy.batch_tokens is None else policy.batch_tokens
        self._batch_tokens = min(own_tokens, limits.batch_tokens)
        self._own_budget = self._batch_tokens if policy.token_budget is None else policy.token_budget
        self._most = math.inf if limits.batch_requests is None else limits.batch_requests
        self._watermark, self._spare = policy.margins.tokens(memory)
        self._held = memory.reserving(policy.reserve)
        self._holds = {job.index: self._held(job, job.cached) for job in replica.running}
        self._free = memory.capacity - sum(self._holds.values())
        # M − Σ m of `GroupedPolicy.asks`.
        self._unheld = memory.capacity - sum(memory.size(job, job.cached) for job in replica.running if policy.asks)
        self._tokens = self._prefill_tokens = self._prefills = self._longest = 0
        self._run: list[Step] = []
        self._prefilling: bool | None = None
        self._swaps = policy.swaps and replica.rules.swap
        self._evicted: dict[int, Job] = {}
        self._back: list[int] = []
        self._considered = 0
        self._admitted: list[Job] = []
        self._ladder: list[Job] = []
        self._blocked: tuple[Job, str] | None = None

    def go_through(self, group: Group) -> None:
        """Allocate the candidates of a group, up to the first that does not fit."""
        candidates = group.candidates(self._replica)
        if group.admits_only and not self._has_room():
            if self._replica.waiting:
                self._block(self._replica.waiting[0], _FULL)
            return
        if group.order is not None and group.members.wait:
            self._considered += len(self._replica.waiting)
        for job in candidates:
            if job.decoding and job.cached and self._decodes(job):
                continue
            prefill = not job.decoding
            if job.index in self._evicted or (not self._hybrid and self._prefilling not in {None, prefill}):
                continue
            if group.order is None and not job.cached:
                self._considered += 1
            count = self._tokens_of(job)
            if not count or (not job.cached and not self._may_join(job, group)):
                return
            need = self._held(job, job.cached + job.swapped + count) - self._holds.get(job.index, 0)
            asked = max(need, self._spare) if not prefill else need if job.cached else self._asked(job, need)
            if asked > self._free and group.evicts:
                self._make_room(job, asked)
                if job.index in self._evicted:
                    continue
            if asked > self._free:
                self._block(job, f"{asked} more KV tokens do not fit the {self._free} that are free")
                return
            self._add(job, count, need)

    def _decodes(self, job: Job) -> bool:
        """Put a decode step into the batch, if nothing prevents it, which is the usual case."""
        if (
            self._tokens == self._batch_tokens
            or len(self._run) == self._most
            or job.index in self._evicted
            or (self._prefilling and not self._hybrid)
        ):
            return False
        need = 0 if job.cached < self._holds[job.index] else self._memory.block
        if need > self._free or self._spare > self._free:
            return False
        self._free -= need
        self._tokens += 1
        self._prefilling = False
        self._run.append((job.index, 1))
        return True

    def result(self) -> Assignment:
        """Return the batch.

        Raises
        ------
        NoBatchError
            If no request runs in it.
        """
        if self._run:
            lost = Place.HOST if self._swaps else Place.NOWHERE
            actions = [Action(index, lost) for index in self._evicted]
            actions += (Action(index, Place.MACHINE) for index in self._back)
            return Assignment.of(self._run, actions, self._considered)
        replica = self._replica
        job, reason = self._blocked or ((replica.running or replica.waiting)[0], "the batch may not hold its phase")
        step = "a decode step" if job.decoding else f"a {'chunked' if self._chunked else 'whole'} prefill"
        raise NoBatchError(job.index, replica.now_ps, f"no legal batch for {step}: {reason}")

    def _block(self, job: Job, reason: str) -> None:
        """Remember the first request that did not fit, and why."""
        self._blocked = self._blocked or (job, reason)

    def _has_room(self) -> bool:
        """Say whether one more request may hold KV, however little."""
        margins, holders = self._policy.margins, len(self._replica.running)
        if margins.together and holders:
            return False
        return margins.residents is None or holders + len(self._admitted) - len(self._evicted) < margins.residents

    def _asked(self, job: Job, need: int) -> int:
        """Return the capacity that has to be free for a request without KV to join, of which it takes ``need``."""
        asks = self._policy.asks
        asked = need if asks is None else max(need, self._memory.size(job, asks(job)) - self._unheld + self._free)
        return asked + self._watermark

    def _tokens_of(self, job: Job) -> int:
        """Return the tokens that a candidate can run within all budgets, 0 if it cannot."""
        count, budget = job.missing, self._batch_tokens - self._tokens
        if not job.decoding:
            budget = min(budget, self._limits.prefill_tokens - self._prefill_tokens, self._own_budget - self._tokens)
            if self._chunked:
                count = min(count, budget)
        if not 1 <= count <= budget or len(self._run) == self._most:
            self._block(job, f"{count} tokens do not fit what the batch has left, {budget}")
            return 0
        if self._policy.margins.padded and not job.decoding:
            padded = max(self._longest, count) * (self._prefills + 1)
            if padded > min(self._own_budget, self._limits.prefill_tokens):
                self._block(job, f"{padded} tokens, all prefills as long as the longest, are too many")
                return 0
        return count

    def _may_join(self, job: Job, group: Group) -> bool:
        """Say whether a request without KV may get some."""
        replica, admits = self._replica, self._policy.admits
        if any(group.before(victim, job, replica) for victim in self._evicted.values()):
            return False
        if not self._has_room():
            self._block(job, _FULL)
            return False
        if admits is not None:
            others = [other for other in replica.running if other.index not in self._evicted]
            if not admits(job, others + self._admitted):
                self._block(job, "it may not join those that hold KV now")
                return False
        return True

    def _make_room(self, job: Job, asked: int) -> None:
        """Evict or swap requests of lower priority, at last the candidate itself, until what is asked for is there."""
        if not self._ladder:
            groups, replica = self._policy.groups, self._replica
            self._ladder = [found for group in groups for found in group.candidates(replica)]
        for victim in self._victims(job):
            if not (self._swaps or self._replica.rules.eviction):
                raise PolicyFailureError(
                    job.index,
                    self._replica.now_ps,
                    f"it needs {asked} more KV tokens, {self._free} are free, and the instance forbids "
                    f"the eviction of request {victim.index}",
                )
            self._evicted[victim.index] = victim
            self._free += self._holds[victim.index]
            self._unheld += self._memory.size(victim, victim.cached)
            if asked <= self._free:
                return

    def _victims(self, candidate: Job) -> Iterator[Job]:
        """Take jobs with KV off the ladder of priorities, the lowest first, down to the candidate itself.

        What is taken off stays off: it is evicted, or waits. The next candidate has lower priority than this one
        had; if it was taken off, none is left below it. What is in the batch is above and stays on.
        """
        ladder = self._ladder
        place = ladder.index(candidate) if candidate in ladder else len(ladder)
        while len(ladder) > place:
            job = ladder.pop()
            if job.cached:
                yield job

    def _add(self, job: Job, count: int, need: int) -> None:
        """Put a candidate into the batch."""
        self._free -= need
        self._tokens += count
        self._prefilling = not job.decoding
        if self._prefilling:
            self._prefill_tokens += count
            self._prefills, self._longest = self._prefills + 1, max(self._longest, count)
        if not job.cached:
            self._admitted.append(job)
            self._unheld -= self._memory.size(job, job.swapped + count)
        if job.swapped:
            self._back.append(job.index)
        self._run.append((job.index, count))
