"""What is known of a task before InferMax' programme is written out; why is in `infermax_milp`."""

from __future__ import annotations

from functools import cached_property
from math import ceil, gcd

from optsched.model.metrics import evaluate
from optsched.model.objectives import Objective
from optsched.model.schedule import Schedule
from optsched.solvers.claims import Part, Values
from optsched.solvers.formulation import Task
from optsched_formulations.batching.costs import one_after_another

_SPAN_UNITS = 10**4
"""Units of time up to the last end, where the coefficients' common divisor makes them more."""


class Plan:
    """What is known before the model is built: a schedule, limits of batches and time, the unit of time."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.instance = task.instance
        self.arrivals = task.instance.arrivals_ps
        self.peaks = [request.peak_tokens for request in task.instance.requests]

    def value(self, schedule: Schedule) -> int:
        """Return the exact objective value of a legal schedule."""
        found: int = evaluate(self.instance, schedule)["objectives"][self.task.objective.value]
        return found

    @cached_property
    def start(self) -> tuple[int, Schedule]:
        """The best schedule that is known, with its value: the incumbent or the sequential one."""
        sequential = one_after_another(self.task)
        known = [(self.value(sequential), sequential)]
        if self.task.incumbent is not None:
            known.append((self.value(self.task.incumbent), self.task.incumbent))
        return _least(known)

    @cached_property
    def batches(self) -> int:
        """J: batches that some optimal schedule does not exceed (see `infermax_milp`, Number of batches)."""
        instance, restrictions = self.instance, self.task.restrictions
        if instance.rules.chunked_prefill:
            most = sum(self.peaks)
            if instance.rules.eviction:
                refills = [q.input + k - 1 for q in instance.requests for k in range(2, q.output + 1)]
                most += sum(sorted(refills, reverse=True)[: restrictions.max_evictions])
                if restrictions.first_runs(instance):
                    most += 2 * len(instance.requests)
        else:
            most = sum(request.output for request in instance.requests)
        if self._known_end is not None:
            for base, token in instance.cost.affine:
                if base:
                    most = min(most, (self._known_end - self._least_work(token)) // base)
        return max(most, 1)

    @cached_property
    def _known_end(self) -> int | None:
        """When the last batch of a schedule as good as the best known ends at the latest; None if that says nothing."""
        value = self.start[0]
        if self.task.restrictions.at_most is not None:
            value = min(value, self.task.restrictions.at_most)
        least_weight = min(request.weight for request in self.instance.requests)
        match self.task.objective:
            case Objective.MAKESPAN:
                return value
            case Objective.MEAN_E2E | Objective.MAX_E2E:
                return max(self.arrivals) + value
            case Objective.WEIGHTED_E2E if least_weight:
                return max(self.arrivals) + value // least_weight
            case _:
                return None

    def _least_work(self, token: int) -> int:
        """Time that the tokens take at least, at ``token`` ps each, without the batches' bases."""
        cost, total = self.instance.cost, 0
        for request in self.instance.requests:
            for k in range(1, request.output + 1):
                size = request.input + k - 1
                fill = token * size + cost.prefill_ps(size, 0)
                total += fill if k == 1 else min(fill, token + cost.decode_ps(size - 1))
        return total

    @cached_property
    def end(self) -> int:
        """H: when the last batch of some optimal schedule ends at the latest, in ps after the earliest arrival."""
        if self._known_end is not None:
            return self._known_end
        cost, limits = self.instance.cost, self.instance.limits
        own = sum(max(cost.prefill_ps(peak, peak), cost.decode_ps(peak)) for peak in self.peaks)
        longest = cost.linear_ps(min(limits.batch_tokens, sum(self.peaks))) + own
        return max(self.arrivals) + self.batches * longest

    @cached_property
    def divisor(self) -> int:
        """Greatest common divisor of all times, in ps, which divides every objective value; 1 for a count of misses."""
        cost, times = self.instance.cost, list(self.arrivals)
        times += [number for piece in cost.affine for number in piece]
        times += [cost.decode_kv, cost.decode_req, cost.prefill_sq, cost.prefill_kv, cost.prefill_req]
        return gcd(*times) or 1

    @cached_property
    def values(self) -> Values:
        """What the objective can be (see `infermax_milp`, Numbers)."""
        instance, cost = self.instance, self.instance.cost
        if self.task.objective == Objective.SLO_MISSES:
            return Values(0, 1)
        if self.task.objective != Objective.MAKESPAN or not instance.offline or len(cost.affine) > 1:
            return Values(0, self.divisor)
        (base, token), requests = cost.affine[0], instance.requests
        origin = sum(token * q.input + cost.prefill_ps(q.input, 0) for q in requests)
        parts: list[Part] = [(base, self.batches)]
        for request in requests:
            for size in range(request.input + 1, request.peak_tokens + 1):
                decode, fill = token + cost.decode_ps(size - 1), token * size + cost.prefill_ps(size, 0)
                origin += decode
                if instance.rules.eviction:
                    parts.append((fill - decode, 1))
        if instance.rules.chunked_prefill:
            if instance.rules.eviction:
                return Values(0, self.divisor)
            # A prompt in c chunks, the last of which reads less than the prompt, takes c − 1 steps more.
            parts += [(cost.prefill_req, q.input - 1) for q in requests]
            parts += [(cost.prefill_kv, q.input**2) for q in requests]
        return Values(origin, self.divisor, tuple((part // self.divisor, most) for part, most in parts))

    @cached_property
    def unit(self) -> int:
        """Ps of one unit of time in the model."""
        spans = self.end // self.divisor
        return self.divisor * (ceil(spans / _SPAN_UNITS) if spans > 100 * _SPAN_UNITS else 1)


def _least(known: list[tuple[int, Schedule]]) -> tuple[int, Schedule]:
    """Return the first of the pairs with the least value."""
    return min(known, key=lambda pair: pair[0])
