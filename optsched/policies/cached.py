"""Batches on a machine with a prefix cache: vLLM's, with any order of those that wait.

vLLM's V1 scheduler, as `optsched.policies.vllm` has it, with what its prefix cache changes: a waiting request first
finds what is cached of it, and the rest of its prompt has to fit the blocks that are empty or can be dropped, less the
ones that it finds and no other request holds. Then `Order` says which of those that wait comes next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from optsched.model.instance import Instance
from optsched.model.schedule import Assignment
from optsched.policies.algorithm import Parts, Reserve, nothing, whole_at_admission, whole_prompt, worst_case
from optsched.policies.grouped import GroupedPolicy
from optsched.simulator.replica import FormingCache, Job, NoBatchError, PolicyFailureError, Replica

if TYPE_CHECKING:
    from optsched.simulator.fleet_kernel import Rule
    from optsched.simulator.kernel import CompiledRun


class Order(Protocol):
    """In which order waiting requests are admitted."""

    @property
    def settled(self) -> bool:
        """Whether it stays the same until a request arrives or ends, or a block is cached or dropped."""
        ...

    def candidates(self, replica: Replica, cache: FormingCache) -> Iterable[Job]:
        """Return the waiting requests that may be admitted to a batch, the first one first."""
        ...


class FirstCome:
    """First come, first served."""

    settled = True

    def candidates(self, replica: Replica, _: FormingCache) -> Iterable[Job]:
        """Return the waiting requests in order of arrival."""
        return replica.waiting


FIRST_COME = FirstCome()


_ASKS_FOR_ALL: dict[Reserve, bool] = {whole_at_admission: True, whole_prompt: True, worst_case: True, nothing: False}
"""Reservations of which it is known whether the whole prompt has to fit before its request is admitted."""
_decodes = attrgetter("decoding")


class _Forming:
    """One batch, as it is formed on a cache."""

    def __init__(self, parts: GroupedPolicy, replica: Replica, cache: FormingCache) -> None:
        limits, rules = replica.limits, replica.rules
        self._replica, self._cache, self._reserve = replica, cache, parts.reserve
        self._hybrid = parts.hybrid and rules.hybrid
        self._chunked = parts.chunked and rules.chunked_prefill
        self._budget, self._prefill_budget = limits.batch_tokens, limits.prefill_tokens
        self._most = limits.batch_requests
        self._run: list[tuple[int, int]] = []
        self._evicted: list[int] = []
        self._prefilling: bool | None = None

    def assignment(self, order: Order) -> Assignment:
        """Return the batch."""
        self._go_on()
        considered, waiting = 0, self._replica.waiting
        if waiting and (self._hybrid or self._prefilling is not False):
            # As in Algorithm 1: one after the other, up to the first that does not fit; all, if they are ordered.
            considered = 1 if isinstance(order, FirstCome) else len(waiting)
            if not self._evicted and self._has_room(prefill=True):
                admitted = sum(1 for _ in takewhile(self._admit, order.candidates(self._replica, self._cache)))
                considered = max(considered, min(admitted + 1, len(waiting)))
        if self._run:
            return Assignment(self._run, self._evicted, considered=considered)
        job = (self._replica.running or waiting)[0]
        raise NoBatchError(job.index, self._replica.now_ps, "no legal batch: nothing that may run now fits")

    def _go_on(self) -> None:
        """Let those that hold KV run, and preempt the last of them if blocks run short."""
        running, cache = list(self._replica.running), self._cache
        place = 0
        while place < len(running):
            job = running[place]
            prefill = not job.decoding
            if not self._hybrid and self._prefilling not in {None, prefill}:
                place += 1
                continue
            count = self._tokens_of(job.missing, prefill)
            if not count:
                return
            if not prefill and (decoded := self._decode(running, place)):
                place += decoded
                continue
            while not cache.run(job, count):
                victim = running.pop()
                if not self._replica.rules.eviction:
                    raise PolicyFailureError(
                        job.index,
                        self._replica.now_ps,
                        f"it needs more blocks than the {cache.free} that are free, and the instance forbids "
                        f"the eviction of request {victim.index}",
                    )
                cache.evict(victim)
                self._evicted.append(victim.index)
                if victim is job:
                    return
            self._add(job, count, prefill)
            place += 1

    def _decode(self, running: Sequence[Job], place: int) -> int:
        """Let all that decode from a place on run, up to one that does not fit; return how many do."""
        most = self._budget if self._most is None else min(self._budget, self._most - len(self._run))
        jobs = list(takewhile(_decodes, running[place : place + most]))
        count = self._cache.decode(jobs)
        if count:
            self._prefilling = False
            self._budget -= count
            self._run += [(job.index, 1) for job in jobs[:count]]
        return count

    def _admit(self, job: Job) -> bool:
        """Admit a request if what is to be reserved for it fits; say whether it was."""
        cache = self._cache
        missing = job.missing - cache.found(job)
        count = self._tokens_of(missing, prefill=True)
        if not count:
            return False
        asked = max(count, min(missing, self._reserve(job)))
        if cache.needed(job, asked) > cache.free or not cache.run(job, count):
            return False
        self._add(job, count, prefill=True)
        return True

    def _has_room(self, *, prefill: bool) -> bool:
        """Say whether one more step may be in the batch, however short."""
        if not self._budget or (self._most is not None and len(self._run) == self._most):
            return False
        return not prefill or (self._prefill_budget > 0 and (self._hybrid or self._prefilling is not False))

    def _tokens_of(self, missing: int, prefill: bool) -> int:
        """Return the tokens of a step within all budgets, 0 if there can be none."""
        if not self._has_room(prefill=prefill):
            return 0
        budget = min(self._budget, self._prefill_budget) if prefill else self._budget
        count = min(missing, budget) if prefill and self._chunked else missing
        return count if count <= budget else 0

    def _add(self, job: Job, count: int, prefill: bool) -> None:
        self._prefilling = prefill
        self._budget -= count
        if prefill:
            self._prefill_budget -= count
        self._run.append((job.index, count))


@dataclass(frozen=True)
class CachedPolicy(GroupedPolicy):
    """A policy of Algorithm 1 that forms batches as vLLM does on a machine with a cache.

    Without one it is Algorithm 1 with its groups.

    Parameters
    ----------
    order
        Of the waiting requests on a machine with a cache.
    """

    order: Order = FIRST_COME

    def next_batch(self, replica: Replica) -> Assignment:
        """Form the next batch."""
        if replica.cache is None:
            return super().next_batch(replica)
        return _Forming(self, replica, replica.cache).assignment(self.order)

    def compiled_run(self, instance: Instance) -> CompiledRun | None:
        """Return a run in machine code, as of the policy without a cache; None on a machine with one.

        None, too, if the order is not settled: then `valid_for` has every batch formed anew.
        """
        if not self.order.settled:
            return None
        plain = GroupedPolicy(**{part.name: getattr(self, part.name) for part in fields(Parts)})
        return plain.compiled_run(instance)

    def cached_rule(self, instance: Instance) -> Rule | None:
        """Return the policy as machine code knows it that forms batches on a cache; None if it does not."""
        if type(self) is not CachedPolicy or type(self.order) is not FirstCome or self.reserve not in _ASKS_FOR_ALL:
            return None
        # Compiled code takes a while to load.
        from optsched.simulator.fleet_kernel import rule_of  # noqa: PLC0415

        return rule_of(instance, self.hybrid, self.chunked, _ASKS_FOR_ALL[self.reserve])

    def valid_for(self, replica: Replica, assignment: Assignment) -> int:
        """Say for how many batches the same requests decode.

        On a machine with a cache the engine sees to it that nothing is dropped, so memory lasts. As long as no block is
        completed, waiting requests find what they found, and no more blocks are free.
        """
        if replica.waiting and not self.order.settled:
            return 1
        if replica.cache is None:
            return super().valid_for(replica, assignment)
        ran, limits = {index for index, _ in assignment.run}, replica.limits
        jobs = [job for job in replica.running if job.index in ran]
        most = min(job.request.output - job.generated for job in jobs)
        full = len(jobs) in {limits.batch_requests, limits.batch_tokens}
        if full or not (replica.waiting and self.hybrid and replica.rules.hybrid):
            return most
        # What a batch completes may be found in it already.
        return max(1, min(most, *(limits.kv_block - 1 - job.cached % limits.kv_block for job in jobs)))
