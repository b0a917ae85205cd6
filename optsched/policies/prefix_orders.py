"""Orders of waiting requests that look at what is cached of them, or at what they have been promised.

- `lpm` (SGLang 0.5.23): longest cached match first. While more than 128 wait it is first come, first served. Of a
  request at most 32 of whose tokens are cached, and which shares 32 or more with an earlier one of this kind, it is
  better to wait until that one has computed them: it goes last.
- `preble_local` (Srivatsa et al., *Preble*, section 4.3): requests are in ten groups by the share of their prompts
  that is cached, and a batch takes from the groups in proportion to their rank. `preble_local_code` is what its program
  does: one group each batch, and a request stays in the group to which it came.
- `mooncake` (Qin et al., *Mooncake*, FAST 2025): its conductor refuses requests whose TTFT objective cannot be met.
  Here none is refused: a request that would miss it, if its prefill began now and ran alone, waits for those that would
  not.

On a machine without a cache `lpm` and the two of Preble are first come, first served.

Where the papers are *silent*:

- A request that was evicted has the tokens that it has to prefill again as its prompt; `mooncake` counts its objective
  as met if it has had its first token.
- If the first in the order does not fit, none behind it is admitted.

It *differs*:

- Everything but the order is as in vLLM (`optsched.policies.vllm`), because then results differ by it alone: chunks
  of prefills share batches with decode steps, the prompt of a request that is admitted has to fit, and the last that
  arrived is preempted. SGLang runs prefills by themselves, reserves memory for outputs that it estimates, and retracts
  requests with few output tokens.
- `mooncake` refuses none, because the schedule of an instance serves all of its requests; it estimates no time between
  tokens, for which requests have no objective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from optsched.cache.contents import Piece
from optsched.cache.orders import GroupTurns, WaitingRequest, by_groups, longest_match_first
from optsched.model.cost import CostModel
from optsched.model.instance import Instance
from optsched.policies.cached import Order
from optsched.policies.grouped import Group, Members
from optsched.policies.vllm import VLLM_V1
from optsched.simulator.replica import FormingCache, Job, Occasion, Policy, Replica

_MOST = 128
"""If more requests wait `lpm` does not order them."""


def _seen(job: Job, cache: FormingCache, prompt: tuple[Piece, ...] = ()) -> WaitingRequest:
    return WaitingRequest(job.index, job.missing, cache.found(job), prompt)


@dataclass(frozen=True)
class _LongestMatch:
    """SGLang's order.

    Parameters
    ----------
    instance
        The requests and their prefixes.
    """

    instance: Instance
    settled: bool = True
    prompts: dict[int, tuple[Piece, ...]] = field(default_factory=dict)

    def candidates(self, replica: Replica, cache: FormingCache) -> Iterable[Job]:
        waiting = replica.waiting
        if len(waiting) > _MOST:
            return waiting
        jobs = {job.index: job for job in waiting}
        ordered = longest_match_first([_seen(job, cache, self._prompt(job)) for job in waiting], _MOST)
        return [jobs[request.index] for request in ordered]

    def _prompt(self, job: Job) -> tuple[Piece, ...]:
        """Return the tokens of a request in pieces; those that it has generated are its own."""
        if job.index not in self.prompts:
            nodes, left = self.instance.prefixes.by_name(), job.request.input
            pieces: list[Piece] = []
            for node in job.request.prefix:
                if left:
                    pieces.append((node, 0, min(left, nodes[node].tokens)))
                    left -= pieces[-1][2]
            self.prompts[job.index] = (*pieces, (("own", job.index), 0, left)) if left else tuple(pieces)
        return self.prompts[job.index]


@dataclass(frozen=True)
class _Proportional:
    """Preble's order, as the paper has it."""

    settled: bool = True

    def candidates(self, replica: Replica, cache: FormingCache) -> Iterable[Job]:
        jobs = {job.index: job for job in replica.waiting}
        return [jobs[request.index] for request in by_groups([_seen(job, cache) for job in replica.waiting])]


@dataclass(frozen=True)
class _Turns:
    """Preble's order, as its program has it."""

    settled: bool = False
    turns: GroupTurns = field(default_factory=GroupTurns)
    seen: dict[int, WaitingRequest] = field(default_factory=dict)

    def candidates(self, replica: Replica, cache: FormingCache) -> Iterable[Job]:
        jobs = {job.index: job for job in replica.waiting}
        for job in replica.waiting:
            if job.index not in self.seen:
                self.seen[job.index] = _seen(job, cache)
        return [jobs[request.index] for request in self.turns.next_requests([self.seen[index] for index in jobs])]


@dataclass(frozen=True)
class _WithinObjective:
    """Mooncake's order.

    Parameters
    ----------
    cost
        The machine's, by which prefills are estimated.
    """

    cost: CostModel
    settled: bool = False

    def candidates(self, replica: Replica, cache: FormingCache) -> Iterable[Job]:
        return sorted(replica.waiting, key=lambda job: self.misses(job, replica.now_ps, cache.found(job)))

    def misses(self, job: Job, now_ps: int, found: int) -> bool:
        """Say whether a request has to miss its TTFT objective."""
        slo = job.request.slo_ttft_ps
        if slo is None or job.generated:
            return False
        count = job.missing - found
        return now_ps + self.cost.batch_ps(count, 0, 0, ((count, found),)) > job.request.arrival_ps + slo


@dataclass(frozen=True)
class OrderedPolicy:
    """`vllm_v1` with another order of those that wait.

    Parameters
    ----------
    order
        What makes the order of a run.
    """

    order: Callable[[Instance], Order]

    def prepared(self, occasion: Occasion) -> Policy:
        """Return the policy of a run."""
        return replace(VLLM_V1, order=self.order(occasion.instance))


@dataclass(frozen=True)
class Mooncake:
    """`vllm_v1`, behind whose admission of requests that can meet their objective all others wait."""

    def prepared(self, occasion: Occasion) -> Policy:
        """Return the policy of a run."""
        order = _WithinObjective(occasion.instance.cost)
        waiting = Group(Members.WAITING, lambda job, replica: order.misses(job, replica.now_ps, 0))
        return replace(VLLM_V1, groups=(VLLM_V1.groups[0], waiting), order=order)


LPM = OrderedPolicy(_LongestMatch)
PREBLE_LOCAL = OrderedPolicy(lambda _: _Proportional())
PREBLE_LOCAL_CODE = OrderedPolicy(lambda _: _Turns())
MOONCAKE = Mooncake()
