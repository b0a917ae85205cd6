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

    Requests of one input and weight may be one class, whatever their outputs are. Until one of them has as many tokens
    as the shortest of these outputs nothing tells it from the others; then it ends, or goes on. *Ends* are items, too,
    behind those of tokens: of each output but the longest of its class one, that as many requests wait for as have it;
    one of them is taken whenever a request ends there.

    *Theorem.* Offline, such schedules are those of the instance: as many requests of a class begin, and as many end
    after every output, so each can be told, when it ends, which one it has been.

    Parameters
    ----------
    instance
        The problem.
    objective
        ``makespan``, or a sum of e2e latencies.
    by_input
        Whether requests of one input are a class, not only those of one output as well.

    Attributes
    ----------
    kinds, members
        (I, the longest O, weight) and the request indices of every class, in order of arrival; the weight is 0 for the
        makespan.
    tokens
        Number of items that are tokens; the others are ends.
    owner, token
        Class and k ≥ 1 of every item; of an end k is the token that its requests do not generate.
    reach
        Requests of the class that generate the item's token, or that end there.
    ending
        The end that a request of the class may take when it is due for the item, −1 if there is none.
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

    def __init__(
        self, instance: Instance, objective: Objective = Objective.MAKESPAN, *, by_input: bool = False
    ) -> None:
        cost, limits = instance.cost, instance.limits
        slope = cost.token
        self.weighted = objective in _WEIGHTED
        groups: dict[tuple[int, int, int], list[int]] = {}
        outputs = [request.output for request in instance.requests]
        for index in sorted(range(len(instance.requests)), key=lambda r: instance.requests[r].arrival_ps):
            request = instance.requests[index]
            weight = request.weight if objective == Objective.WEIGHTED_E2E else int(self.weighted)
            groups.setdefault((request.input, 0 if by_input else request.output, weight), []).append(index)
        self.members = [groups[key] for key in sorted(groups)]
        self.kinds = [
            (prompt, max(outputs[index] for index in groups[prompt, output, weight]), weight)
            for prompt, output, weight in sorted(groups)
        ]
        self.capacity = limits.kv_blocks
        self.base_ps = cost.affine[0][0]
        self.owner: list[int] = []
        self.token: list[int] = []
        self.size: list[int] = []
        self.following: list[int] = []
        self.fill_ps: list[int] = []
        self.decode_ps: list[int] = []
        self.reach: list[int] = []
        for number, (prompt, output, _) in enumerate(self.kinds):
            for k in range(1, output + 1):
                held = prompt + k - 1
                self.owner.append(number)
                self.token.append(k)
                self.size.append(limits.blocks(held))
                self.following.append(len(self.following) + 1 if k < output else -1)
                self.fill_ps.append(slope * held + cost.prefill_ps(held, 0))
                self.decode_ps.append(slope + cost.decode_ps(held - 1))
                self.reach.append(sum(outputs[index] >= k for index in self.members[number]))
        self.constant_ps = sum(
            requests * (fill if k == 1 else decode)
            for requests, k, fill, decode in zip(self.reach, self.token, self.fill_ps, self.decode_ps, strict=True)
        )
        self.tokens = len(self.token)
        self.ending = [-1] * self.tokens
        for item in range(1, self.tokens):
            ends = self.reach[item - 1] - self.reach[item] if self.token[item] > 1 else 0
            if ends:
                self.ending[item] = len(self.token)
                self.owner.append(self.owner[item])
                self.token.append(self.token[item])
                self.reach.append(ends)
        ends = len(self.token) - self.tokens
        self.ending += [-1] * ends
        self.following += [-1] * ends
        self.size += [0] * ends
        self.fill_ps += [0] * ends
        self.decode_ps += [0] * ends
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

    @property
    def fresh(self) -> list[int]:
        """How many requests wait for every item at the begin."""
        return [
            requests if k == 1 or item >= self.tokens else 0
            for item, (k, requests) in enumerate(zip(self.token, self.reach, strict=True))
        ]

    @property
    def ends(self) -> list[int]:
        """The item that a request is due for when it takes an end, for every end."""
        return [item for item, end in enumerate(self.ending) if end >= 0]


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
