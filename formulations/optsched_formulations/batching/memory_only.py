r"""Instances in which nothing but memory binds, and their requests by class: what `state_search` works on.

Prefills run whole, batches are hybrid, the batch time has one affine piece, C, P and N admit a step of every request at
once, and no refill costs less than the decode in its place. The objective is the makespan, or a sum of e2e latencies,
weighted if all requests arrive together.
"""

from __future__ import annotations

from itertools import accumulate

from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.solvers.formulation import Task, UnsupportedError
from optsched_formulations.batching.refills import least_beyond_ps

_WEIGHTED = frozenset({Objective.MEAN_E2E, Objective.WEIGHTED_E2E})


class Classes:
    """Requests by what the problem knows of them, and their items.

    Parameters
    ----------
    instance
        The problem.
    objective
        ``makespan``, or a sum of e2e latencies.

    Attributes
    ----------
    kinds, members
        (I, O, weight) and the request indices of every class, in order of arrival; the weight is 0 for the makespan.
    owner, token
        Class and k ≥ 1 of every item.
    size
        Blocks that it holds in its batch.
    following
        The item of the next token; −1 after the last.
    places, radix
        A pool is a number whose digits count how many of every item wait: the digits' values and bases.
    fill_ps, decode_ps
        Own time of generating the item's token by a prefill and, for k ≥ 2, by a decode.
    constant_ps
        Work of all first fills and decode steps.
    """

    def __init__(self, instance: Instance, objective: Objective = Objective.MAKESPAN) -> None:
        cost, limits = instance.cost, instance.limits
        slope = cost.token
        self.weighted = objective in _WEIGHTED
        groups: dict[tuple[int, int, int], list[int]] = {}
        for index in sorted(range(len(instance.requests)), key=lambda r: instance.requests[r].arrival_ps):
            request = instance.requests[index]
            weight = request.weight if objective == Objective.WEIGHTED_E2E else int(self.weighted)
            groups.setdefault((request.input, request.output, weight), []).append(index)
        self.kinds = sorted(groups)
        self.members = [groups[kind] for kind in self.kinds]
        self.capacity = limits.kv_blocks
        self.base_ps = cost.affine[0][0]
        self.owner: list[int] = []
        self.token: list[int] = []
        self.size: list[int] = []
        self.following: list[int] = []
        self.fill_ps: list[int] = []
        self.decode_ps: list[int] = []
        for number, (prompt, output, _) in enumerate(self.kinds):
            for k in range(1, output + 1):
                held = prompt + k - 1
                self.owner.append(number)
                self.token.append(k)
                self.size.append(limits.blocks(held))
                self.following.append(len(self.following) + 1 if k < output else -1)
                self.fill_ps.append(slope * held + cost.prefill_ps(held, 0))
                self.decode_ps.append(slope + cost.decode_ps(held - 1))
        self.constant_ps = sum(
            len(self.members[owner]) * (fill if k == 1 else decode)
            for owner, k, fill, decode in zip(self.owner, self.token, self.fill_ps, self.decode_ps, strict=True)
        )
        # Without eviction nothing is ever due for a refill.
        self.evictable = [
            instance.rules.eviction and following >= 0 and limits.prefill_tokens >= self.held(following)
            for following in self.following
        ]
        self.radix = [len(self.members[owner]) + 1 for owner in self.owner]
        self.places = list(accumulate(self.radix[:-1], lambda product, base: product * base, initial=1))

    def waiting(self, pool: int, item: int) -> int:
        """Return how many of ``item`` are in a pool, a number whose digits count every item."""
        return pool // self.places[item] % self.radix[item]

    def held(self, item: int) -> int:
        """Return the tokens that an item holds in its batch: I + k − 1."""
        return self.kinds[self.owner[item]][0] + self.token[item] - 1

    def extra_ps(self, item: int) -> int:
        """Return what filling the item costs beyond the constant work: 0 for first fills."""
        return self.fill_ps[item] - self.decode_ps[item] if self.token[item] > 1 else 0

    @property
    def first(self) -> list[int]:
        """The item of the first token of every class."""
        return [item for item, k in enumerate(self.token) if k == 1]


def require_memory_only(task: Task) -> None:
    """Raise `UnsupportedError` unless nothing but memory binds."""
    instance, limits = task.instance, task.instance.limits
    if task.objective not in {Objective.MAKESPAN, Objective.MAX_E2E, *_WEIGHTED}:
        raise UnsupportedError(f"objective {task.objective.value}, it minimises the makespan or a sum of e2e latencies")
    if task.objective == Objective.MAX_E2E and not instance.offline:
        raise UnsupportedError(f"objective {task.objective.value} with arrivals, it is offline then")
    weights = {request.weight for request in instance.requests}
    if task.objective == Objective.WEIGHTED_E2E and not instance.offline and len(weights) > 1:
        raise UnsupportedError(f"objective {task.objective.value} with arrivals and different weights")
    if instance.rules.chunked_prefill:
        raise UnsupportedError("chunked prefill, it runs prefills whole (forbid chunked)")
    if not instance.rules.hybrid:
        raise UnsupportedError("batches of one kind, it needs hybrid ones")
    if len(instance.cost.affine) > 1:
        raise UnsupportedError("a batch time of several pieces, it needs one")
    restrictions = task.restrictions
    if restrictions.max_evictions is not None or restrictions.first_runs(instance):
        raise UnsupportedError("an order of first runs or a number of evictions")
    most = sum(request.peak_tokens for request in instance.requests)
    if most > min(limits.batch_tokens, limits.prefill_tokens):
        raise UnsupportedError("token budgets that may bind, only memory may")
    if limits.batch_requests is not None and limits.batch_requests < len(instance.requests):
        raise UnsupportedError("a cap on the batch size, only memory may bind")
    if least_beyond_ps(instance) < 0:
        raise UnsupportedError("refills that are cheaper than decode steps")
