"""InferMax's Algorithm 1 with its parts filled in: most published batching policies are one declaration.

The parts are described in `optsched.policies.algorithm`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING

from optsched.model.instance import Instance
from optsched.model.memory import Memory
from optsched.model.schedule import Assignment
from optsched.policies.algorithm import (
    Group,
    Margins,
    Members,
    Parts,
    Reserve,
    nothing,
    whole_at_admission,
    whole_prompt,
    worst_case,
)
from optsched.policies.forming import GroupedBatch
from optsched.simulator.engine import arrival_order
from optsched.simulator.replica import Job, Replica

if TYPE_CHECKING:
    from optsched.simulator.kernel import CompiledRun
    from optsched.simulator.record import Record

__all__ = [
    "Group",
    "GroupedPolicy",
    "Margins",
    "Members",
    "longest",
    "while_memory_lasts",
]

_CODES = {Members.WAITING: 0, Members.FILLING: 1, Members.DECODING: 2, Members.RUNNING: 3}
_RESERVES: Mapping[Reserve, int] = MappingProxyType({whole_prompt: 0, worst_case: 1, whole_at_admission: 2, nothing: 3})
"""What `optsched.simulator.kernel` calls them."""


@dataclass(frozen=True)
class GroupedPolicy(Parts):
    """InferMax's Algorithm 1 (Kim et al., section 3.1).

    The groups are gone through in order, and in each its candidates. A candidate whose phase differs from
    that of the batch is passed over if batches are not hybrid (step 2). It is allocated (step 3) if its
    tokens fit C, for a prefill also P and the policy's own budget, and if its reservation fits M. If memory
    is short and the group evicts, running requests lose their KV in reverse order of priority until it fits;
    if none of lower priority is left, the candidate itself is evicted (step 4). If anything else is short,
    or the group does not evict, the rest of the group is skipped.

    Where the paper is *silent*:

    - Waiting requests, evicted ones among them, are served in order of arrival, and the first that does not
      fit holds up those behind it. A request that was evicted for this batch cannot run in it, so it too
      holds up later ones.
    - The policy's rules only tighten the instance's: it chunks and swaps only where the instance allows it.
    - It considers those that wait one after the other, up to the first that does not fit; all of them, if it has to
      order them.

    It *differs*:

    - The paper checks m_reserve ≤ M − Σ m over the running requests, m being the tokens that a request has processed.
      Here the requests that are already in the batch count with what they hold after it, because else a batch could
      outgrow M, and with their reservation, because the eviction-free variants would evict without it. ``asks`` is
      the paper's check.
    - If it swaps, KV goes to the host where it would be lost, and comes back in the batch in which its request runs
      next; until then the request is one that waits. The paper recomputes (section 2.2); this can swap, because
      EconoServe's vLLM does.
    """

    def next_batch(self, replica: Replica) -> Assignment:
        """Form the next batch (Algorithm 1, GETNEXTBATCH)."""
        forming = GroupedBatch(self, replica)
        for group in self.groups:
            forming.go_through(group)
        assignment = forming.result()
        if any(group.order is not None or group.where is not None for group in self.groups):
            return _decodes_by_arrival(assignment, replica)
        return assignment

    def serve(self, instance: Instance) -> Record | None:
        """Serve an instance in machine code, if groups are in order of arrival; None if the engine has to.

        The engine then also says why, if the policy fails.
        """
        run = self.compiled_run(instance)
        if run is None:
            return None
        run.submit(arrival_order(instance))
        run.advance()
        return run.record()

    def compiled_run(self, instance: Instance) -> CompiledRun | None:
        """Return a run in machine code of the requests that will be submitted; None if the engine has to."""
        # The compiled code knows no cache, and no other rule; of swaps it needs to know nothing, as it makes none.
        if instance.is_cached or not self._is_plain or not {"swap"}.issuperset(instance.rules.added):
            return None
        from optsched.simulator.kernel import Rule, as_array, begin_run  # noqa: PLC0415  # compiled code takes a while to load

        limits, rules = instance.limits, instance.rules
        rule = Rule(
            as_array([_CODES[group.members] for group in self.groups]),
            as_array([group.evicts for group in self.groups]),
            self.hybrid and rules.hybrid,
            self.chunked and rules.chunked_prefill,
            _RESERVES[self.reserve],
            limits.batch_tokens if self.batch_tokens is None else self.batch_tokens,
            limits.batch_tokens if self.token_budget is None else self.token_budget,
            len(instance.requests) if self.margins.residents is None else self.margins.residents,
        )
        return begin_run(instance, rule)

    @property
    def _is_plain(self) -> bool:
        """Whether nothing but Algorithm 1 decides: no order or reservation of the policy's own."""
        groups = [group.members for group in self.groups]
        return (
            type(self) is GroupedPolicy
            and replace(self.margins, residents=None) == Margins()
            and self.admits is None
            and self.asks is None
            and not self.swaps
            and self.reserve in _RESERVES
            and all(group.order is None and group.where is None for group in self.groups)
            and Members.ALL not in groups
            and not any(group.evicts for group in self.groups if group.members is Members.WAITING)
            # Decodes are in a row: the log says no more than how many of them run. Where all that run are one group and
            # those that wait come after it, at most one is in its prefill, the last that was admitted.
            and not (self.chunked and Members.RUNNING in groups and groups != [Members.RUNNING, Members.WAITING])
        )

    def valid_for(self, replica: Replica, assignment: Assignment) -> int:
        """Say for how many batches the same requests decode: as long as memory lasts.

        Then none is evicted. A request that did not run in this batch will not in the next: no more is left of any
        budget, and less of memory. The order of those that run does not change either (see `Order`); where an order may
        change between those that run and those that do not, the decision is valid for one batch.
        """
        ran = {index for index, _ in assignment.run}
        held = replica.memory.reserving(self.reserve)
        resting = [job for job in replica.running if job.index not in ran]
        if resting and any(group.order is not None for group in self.groups):
            return 1
        if replica.waiting and self.admits is not None:
            return 1
        _, spare = self.margins.tokens(replica.memory)
        free = replica.memory.capacity - sum(held(job, job.cached) for job in resting) - spare
        jobs = [job for job in replica.running if job.index in ran]
        most = min(job.request.output - job.generated for job in jobs)

        def lasts(times: int) -> bool:
            return sum(held(job, job.cached + times) for job in jobs) <= free

        return longest(most, lasts)


def longest(most: int, lasts: Callable[[int], bool]) -> int:
    """Return the most batches, up to ``most`` and at least 1, that memory lasts for; it lasts for all fewer, too."""
    return most if lasts(most) else max(bisect_left(range(1, most), True, key=lambda times: not lasts(times)), 1)


def while_memory_lasts(jobs: Sequence[Job], memory: Memory, most: int) -> int:
    """Return for how many batches, up to ``most`` and at least 1, all of these and no others can decode."""
    return longest(most, lambda times: sum(memory.size(job, job.cached + times) for job in jobs) <= memory.capacity)


def _decodes_by_arrival(assignment: Assignment, replica: Replica) -> Assignment:
    """List decode steps, which take place at the same time, in an order that does not change from batch to batch."""
    running = {job.index: job.rank for job in chain(replica.running, replica.waiting) if job.decoding}
    decodes = sorted((step for step in assignment.run if step[0] in running), key=lambda step: running[step[0]])
    place = next((number for number, step in enumerate(assignment.run) if step[0] in running), 0)
    others = [step for step in assignment.run if step[0] not in running]
    return assignment._replace(run=others[:place] + decodes + others[place:])
