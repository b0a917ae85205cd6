r"""Instances in which nothing but memory binds, and their requests by class: what `state_search` works on.

Prefills run whole, batches are hybrid, the batch time has one affine piece, C, P and N admit a step of every request at
once, and no refill costs less than the decode in its place. The objective is the makespan, or a sum of e2e latencies,
weighted if all requests arrive together.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from itertools import accumulate

from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.solvers.formulation import Task, UnsupportedError
from optsched_formulations.batching.refills import least_beyond_ps

_WEIGHTED = frozenset({Objective.MEAN_E2E, Objective.WEIGHTED_E2E})


class Alike(StrEnum):
    """What requests of one class, of one weight each, have in common."""

    OUTPUT = "output"
    """Input and output."""
    INPUT = "input"
    """The input."""
    SIZE = "size"
    """They are linked by sizes that they both have while they run: classes have no size in common."""


class Classes:
    """Requests by what the problem knows of them, and their items.

    Requests of one input may be one class, whatever their outputs are. Until one of them has as many tokens as the
    shortest of these outputs nothing tells it from the others; then it ends, or goes on. *Ends* are items, too, behind
    those of tokens: of each output but the longest of its class one, that as many requests wait for as have it; one of
    them is taken whenever a request ends there.

    *Theorem.* Offline, such schedules are those of the instance: as many requests of a class begin, and as many end
    after every output, so each can be told, when it ends, which one it has been.

    If only sizes tell requests apart, I + k − 1 for token k, some wait for their first fill where others wait for a
    refill, which costs as much. What a refill costs beyond a decode, e for the size, is then charged for first fills,
    too, and their number times e taken off the constant work.

    *Theorem.* Offline, every schedule of the instance is one of classes by size, and costs as much. (Not the other way
    round: a request that began with a short prompt may end where only those with a long one do.)

    Parameters
    ----------
    instance
        The problem.
    objective
        ``makespan``, or a sum of e2e latencies; the former for classes by size.
    alike
        What requests of a class have in common.

    Attributes
    ----------
    kinds, members
        (I, the longest O, weight) and the request indices of every class, in order of arrival; the weight is 0 for the
        makespan. By size I is the least one, and O such that the largest size is I + O − 1.
    tokens
        Number of items that are tokens; the others are ends.
    owner, token
        Class and k ≥ 1 of every item; of an end k is the token that its requests do not generate.
    reach
        Requests of the class that grow as large as the item, or that end there.
    fresh
        How many requests wait for every item at the begin.
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
        Work of all first fills and decode steps, less what fills of items are charged for the former.
    """

    def __init__(
        self, instance: Instance, objective: Objective = Objective.MAKESPAN, *, alike: Alike = Alike.OUTPUT
    ) -> None:
        cost, limits = instance.cost, instance.limits
        slope = cost.token
        self.weighted = objective in _WEIGHTED
        groups: dict[tuple[int, int, int], list[int]] = {}
        inputs = [request.input for request in instance.requests]
        largest = [request.input + request.output - 1 for request in instance.requests]
        linked = _linked(inputs, largest)
        for index in sorted(range(len(instance.requests)), key=lambda r: instance.requests[r].arrival_ps):
            request = instance.requests[index]
            weight = request.weight if objective == Objective.WEIGHTED_E2E else int(self.weighted)
            least = linked[index] if alike == Alike.SIZE else request.input
            groups.setdefault((least, request.output if alike == Alike.OUTPUT else 0, weight), []).append(index)
        self.members = [groups[key] for key in sorted(groups)]
        self.kinds = [
            (least, max(largest[index] for index in groups[least, output, weight]) - least + 1, weight)
            for least, output, weight in sorted(groups)
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
        self.fresh: list[int] = []
        decodes: list[int] = []
        for number, (prompt, output, _) in enumerate(self.kinds):
            sizes = Counter((inputs[index], largest[index]) for index in self.members[number]).items()
            for k in range(1, output + 1):
                held = prompt + k - 1
                self.owner.append(number)
                self.token.append(k)
                self.size.append(limits.blocks(held))
                self.following.append(len(self.following) + 1 if k < output else -1)
                self.fill_ps.append(slope * held + cost.prefill_ps(held, 0))
                self.decode_ps.append(slope + cost.decode_ps(held - 1))
                self.reach.append(sum(count for (_, last), count in sizes if last >= held))
                self.fresh.append(sum(count for (begin, _), count in sizes if begin == held))
                decodes.append(sum(count for (begin, last), count in sizes if begin < held <= last))
        # Only a request that would decode may be filled again.
        self._extra_ps = [
            fill - decode if requests else 0
            for fill, decode, requests in zip(self.fill_ps, self.decode_ps, decodes, strict=True)
        ]
        self.constant_ps = sum(
            first * (fill - extra) + requests * decode
            for first, fill, extra, requests, decode in zip(
                self.fresh, self.fill_ps, self._extra_ps, decodes, self.decode_ps, strict=True
            )
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
        self.fresh += self.reach[self.tokens :]
        self._extra_ps += [0] * ends
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
        """Return what filling the item costs beyond the constant work: 0 if all are first fills."""
        return self._extra_ps[item]

    @property
    def first(self) -> list[int]:
        """The item of the first token of every class."""
        return [item for item, k in enumerate(self.token) if k == 1]

    @property
    def ends(self) -> list[int]:
        """The item that a request is due for when it takes an end, for every end."""
        return [item for item, end in enumerate(self.ending) if end >= 0]


def _linked(inputs: list[int], largest: list[int]) -> list[int]:
    """Return for every request the least size of all that are linked with it."""
    least, until, found = 0, -1, [0] * len(inputs)
    for index in sorted(range(len(inputs)), key=lambda index: inputs[index]):
        if inputs[index] > until:
            least = inputs[index]
        until = max(until, largest[index])
        found[index] = least
    return found


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
