r"""Token-indexed CP-SAT model of the makespan: offline, whole prefills, with or without eviction.

The model indexes output tokens, not requests × batches as InferMax's constraint programme does (Kim et al.,
section 5). Every output token k of request r has

- :math:`t_{rk} \in \{1, …, J\}`: the batch that generates it, strictly increasing in k;
- :math:`\mathit{keep}_{rk}`: whether its KV stays until token k + 1. If it does, token k + 1 is a decode step.
  If not, the request is evicted in batch :math:`t_{rk} + 1` and token k + 1 is a refill of I + k tokens, two
  batches later at the earliest: :math:`t_{r,k+1} ≥ t_{rk} + 2`.

Evicting at once is no restriction: an eviction later on holds memory longer and changes nothing else.

*Memory.* Token k occupies :math:`s_{rk} = ⌈(I+k-1)/b⌉` blocks from batch :math:`t_{rk}` until before
:math:`t_{r,k+1}` if kept, else in :math:`t_{rk}` alone: a cumulative constraint over intervals of these lengths
with capacity :math:`⌊M/b⌋`. The same areas, summed, are at most capacity × J (the volume bound).

*Budgets.* Unit intervals at :math:`t_{rk}` with the tokens run (C), the prefill tokens run (P) and 1 (N).

*Objective.* With one affine piece the makespan is

.. math:: \mathrm{base} \cdot J + \mathrm{const} + \sum_{rk} (\mathrm{refill}_{rk} - \mathrm{decode}_{rk})
          (1 - \mathit{keep}_{rk}),

linear in J and keep. With several pieces the number of tokens of every batch becomes an expression, its time the
maximum of the pieces: fewest batches are not always fastest.

*No empty batch.* A batch in which nothing runs is no batch, yet an eviction might use one as the pause that it
needs. With one piece, hybrid batches and no refill cheaper than the decode in its place this never pays: leave the
empty batch out, and where it was the only pause keep the KV instead, which holds no more memory (the two batches
are now neighbours) and costs at most as much. Otherwise the model says which token is in which batch, and asks
for one in each.

*Symmetry.* Requests with equal (I, O) are interchangeable: their first tokens are ordered; without eviction all
their tokens, since two requests that hold equally many tokens can swap futures.

Coefficients are divided by their greatest common divisor; everything in the model is an integer.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import gcd

from ortools.sat.python import cp_model

from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.result import Badge
from optsched.model.schedule import Assignment, Schedule, timed
from optsched.solvers.cpsat import Values, minimize_cpsat
from optsched.solvers.formulation import Outcome, Task, Termination, UnsupportedError

Token = tuple[int, int]
"""``(request index, k)``: the k-th output token, k ≥ 1."""


class TokenCpSat:
    """The formulation of this module, as `optsched.solvers.formulation.Formulation`."""

    def solve(self, task: Task) -> Outcome:
        """Minimise the makespan of an offline instance with whole prefills.

        Raises
        ------
        UnsupportedError
            For another objective, chunked prefill, or requests that arrive at different times.
        """
        if task.objective != Objective.MAKESPAN:
            raise UnsupportedError(f"objective {task.objective.value}, it minimises the makespan")
        if task.instance.rules.chunked_prefill:
            raise UnsupportedError("chunked prefill, it runs prefills whole (forbid chunked)")
        if not task.instance.offline:
            raise UnsupportedError("requests that arrive at different times, it is offline")
        model = _Model(task)
        answer = minimize_cpsat(model.cp, model.objective, task, model.to_value)
        if answer.termination == Termination.INFEASIBLE:
            # Only schedules better than the incumbent were admitted, so there are none.
            return Outcome(Termination.OPTIMAL, task.incumbent, task.incumbent_value, Badge.SOLVER_CLAIMED)
        schedule = None if answer.value_of is None else model.schedule(answer.value_of)
        bound = task.bound if answer.bound is None else max(task.bound, model.to_value(answer.bound))
        return Outcome(answer.termination, schedule, bound, Badge.SOLVER_CLAIMED)


@dataclass(frozen=True)
class _Costs:
    """What tokens cost under one piece, and the scale that makes the numbers small."""

    instance: Instance

    @cached_property
    def tokens(self) -> list[Token]:
        return [(r, k) for r, q in enumerate(self.instance.requests) for k in range(1, q.output + 1)]

    def size(self, token: Token) -> int:
        """KV tokens of the request in the batch that generates the token: I + k − 1."""
        return self.instance.requests[token[0]].input + token[1] - 1

    def can_refill(self, token: Token) -> bool:
        """Whether the token may be generated by a refill."""
        return self.instance.rules.eviction and self.size(token) <= self.instance.limits.prefill_tokens

    def fill_ps(self, token: Token) -> int:
        """Attention time of generating the token by a whole prefill."""
        return self.instance.cost.prefill_ps(self.size(token), 0)

    def decode_ps(self, token: Token) -> int:
        """Attention time of generating the token by a decode step."""
        return self.instance.cost.decode_ps(self.size(token) - 1)


class _Model:
    """Variables, constraints and objective of one task."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._instance = instance = task.instance
        self._costs = _Costs(instance)
        self.cp = cp_model.CpModel()
        self._most_batches = self._horizon()
        self._add_variables()
        self._add_sequence()
        self._add_memory()
        self._add_budgets()
        self._add_symmetry()
        self._slots: dict[int, dict[Token, cp_model.IntVar]] = {}
        if self._needs_slots():
            self._add_slots()
        if not instance.rules.hybrid:
            self._add_pure_batches()
        self._add_objective()
        if task.incumbent is not None:
            self._add_hint(task.incumbent)

    # Variables ------------------------------------------------------------------------------------------

    def _horizon(self) -> int:
        """Return the most batches of a schedule that is no worse than the incumbent.

        Every run of a whole prefill or decode generates a token, so there are at most Σ O batches, and the
        makespan is at least base × batches + the least work.
        """
        requests, cost = self._instance.requests, self._instance.cost
        most = sum(request.output for request in requests)
        if self._task.incumbent_value is not None:
            for base, token in cost.affine:
                work = sum(self._least_ps(item, token) for item in self._costs.tokens)
                if base:
                    most = min(most, (self._task.incumbent_value - work) // base)
        return most

    def _least_ps(self, token: Token, slope: int) -> int:
        fill = slope * self._costs.size(token) + self._costs.fill_ps(token)
        if token[1] == 1:
            return fill
        decode = slope + self._costs.decode_ps(token)
        return min(decode, fill) if self._costs.can_refill(token) else decode

    def _add_variables(self) -> None:
        cp, requests = self.cp, self._instance.requests
        longest = max(request.output for request in requests)
        self._batches = cp.new_int_var(longest, self._most_batches, "J")
        self._time: dict[Token, cp_model.IntVar] = {}
        self._keep: dict[Token, cp_model.IntVar] = {}
        for r, k in self._costs.tokens:
            last = self._most_batches - (requests[r].output - k)
            self._time[r, k] = cp.new_int_var(k, last, f"t[{r},{k}]")
            if k < requests[r].output:
                least = 0 if self._costs.can_refill((r, k + 1)) else 1
                self._keep[r, k] = cp.new_int_var(least, 1, f"keep[{r},{k}]")

    # Constraints ----------------------------------------------------------------------------------------

    def _add_sequence(self) -> None:
        """Tokens follow each other, two batches apart if the KV was dropped; J is the last batch."""
        for (r, k), keep in self._keep.items():
            self.cp.add(self._time[r, k + 1] >= self._time[r, k] + 2 - keep)
        for r, request in enumerate(self._instance.requests):
            self.cp.add(self._batches >= self._time[r, request.output])

    def _add_memory(self) -> None:
        """Resident blocks are at most ⌊M/b⌋ in every batch, and in sum at most ⌊M/b⌋ J."""
        limits = self._instance.limits
        capacity = limits.kv_tokens // limits.kv_block
        intervals, demands = [], []
        areas: list[cp_model.LinearExprT] = []
        for token in self._costs.tokens:
            r, k = token
            blocks = limits.occupied(self._costs.size(token)) // limits.kv_block
            start = self._time[token]
            if token in self._keep:
                keep, most = self._keep[token], self._most_batches
                length = self.cp.new_int_var(1, most, f"length[{r},{k}]")
                end = self.cp.new_int_var(k + 1, most, f"end[{r},{k}]")
                self.cp.add(end == self._time[r, k + 1]).only_enforce_if(keep)
                self.cp.add(length == 1).only_enforce_if(~keep)
                interval = self.cp.new_interval_var(start, length, end, f"kv[{r},{k}]")
                areas.append(blocks * length)
            else:
                interval = self.cp.new_fixed_size_interval_var(start, 1, f"kv[{r},{k}]")
                areas.append(blocks)
            intervals.append(interval)
            demands.append(blocks)
        self.cp.add_cumulative(intervals, demands, capacity)
        self.cp.add(cp_model.LinearExpr.sum(areas) <= capacity * self._batches)

    def _add_budgets(self) -> None:
        """Σ c ≤ C, Σ c over prefills ≤ P, runs ≤ N in every batch, where they can bind."""
        limits, tokens = self._instance.limits, self._costs.tokens
        units = [self.cp.new_fixed_size_interval_var(self._time[token], 1, "") for token in tokens]
        largest = self._most_tokens()

        def at_most(demands: list[cp_model.LinearExprT], capacity: int, most: int) -> None:
            if most > capacity:
                self.cp.add_cumulative(units, demands, capacity)

        at_most([self._tokens_run(token, decode=1) for token in tokens], limits.batch_tokens, largest)
        at_most([self._tokens_run(token, decode=0) for token in tokens], limits.prefill_tokens, largest)
        if limits.batch_requests is not None:
            at_most([1] * len(tokens), limits.batch_requests, len(self._instance.requests))

    def _tokens_run(self, token: Token, decode: int) -> cp_model.LinearExprT:
        """Tokens that generating ``token`` runs; ``decode`` is what a decode step counts."""
        r, k = token
        if k == 1:
            return self._costs.size(token)
        return decode + (self._costs.size(token) - decode) * (1 - self._keep[r, k - 1])

    def _most_tokens(self) -> int:
        """Return the tokens of a batch in which every request takes its largest step."""
        return sum(
            max(
                self._costs.size((r, k))
                for k in range(1, request.output + 1)
                if k == 1 or self._costs.can_refill((r, k))
            )
            for r, request in enumerate(self._instance.requests)
        )

    def _add_symmetry(self) -> None:
        """Order interchangeable requests."""
        for members in self._classes():
            last = 1 if self._instance.rules.eviction else self._output(members[0])
            for one, other in pairwise(members):
                for k in range(1, last + 1):
                    self.cp.add(self._time[one, k] <= self._time[other, k])

    def _classes(self) -> list[list[int]]:
        """Return the requests grouped by (I, O)."""
        classes: dict[tuple[int, int], list[int]] = defaultdict(list)
        for r, request in enumerate(self._instance.requests):
            classes[request.input, request.output].append(r)
        return list(classes.values())

    def _needs_slots(self) -> bool:
        """Whether the model must say which token is in which batch (see the module: no empty batch)."""
        rules, (first, *more) = self._instance.rules, self._instance.cost.affine
        slope = first[1]
        return (
            bool(more)
            or not rules.hybrid
            or any(
                self._costs.can_refill(token)
                and slope * self._costs.size(token) + self._costs.fill_ps(token) < slope + self._costs.decode_ps(token)
                for token in self._costs.tokens
                if token[1] > 1
            )
        )

    def _add_slots(self) -> None:
        """``slot[j][r,k]`` ⇔ t[r,k] = j; every batch up to J has one."""
        for j in range(1, self._most_batches + 1):
            self._slots[j] = {}
        for token, start in self._time.items():
            literals = []
            for j in range(1, self._most_batches + 1):
                literal = self.cp.new_bool_var(f"slot[{token[0]},{token[1]},{j}]")
                self._slots[j][token] = literal
                literals.append(literal)
            self.cp.add_exactly_one(literals)
            self.cp.add(start == sum(j * literal for j, literal in enumerate(literals, start=1)))
        self._used = {j: self.cp.new_bool_var(f"used[{j}]") for j in self._slots}
        for j, used in self._used.items():
            self.cp.add(self._batches >= j).only_enforce_if(used)
            self.cp.add(self._batches < j).only_enforce_if(~used)
            self.cp.add_bool_or([*self._slots[j].values(), ~used])
        self.cp.add(self._batches == sum(self._used.values()))

    def _add_pure_batches(self) -> None:
        """Without hybrid batching a batch is all prefills or all decodes."""
        for j, slots in self._slots.items():
            prefills = self.cp.new_bool_var(f"prefills[{j}]")
            for (r, k), literal in slots.items():
                if k == 1:
                    self.cp.add_implication(literal, prefills)
                else:
                    kept = self._keep[r, k - 1]
                    self.cp.add_bool_or([~literal, kept, prefills])
                    self.cp.add_bool_or([~literal, ~kept, ~prefills])

    # Objective ------------------------------------------------------------------------------------------

    def _add_objective(self) -> None:
        """Minimise the makespan, less its constant part, in units of the coefficients' common divisor."""
        pieces = self._instance.cost.affine
        slope = pieces[0][1] if len(pieces) == 1 else 0
        constant = 0
        terms: list[tuple[int, cp_model.LinearExprT]] = []
        for token in self._costs.tokens:
            r, k = token
            fill = slope * self._costs.size(token) + self._costs.fill_ps(token)
            if k == 1:
                constant += fill
                continue
            decode = slope + self._costs.decode_ps(token)
            constant += decode
            terms.append((fill - decode, 1 - self._keep[r, k - 1]))
        if len(pieces) == 1:
            terms.append((pieces[0][0], self._batches))
            scale = gcd(*(coefficient for coefficient, _ in terms)) or 1
        else:
            scale = gcd(*(c for c, _ in terms), *(c for piece in pieces for c in piece)) or 1
            terms += [(scale, time) for time in self._batch_times(scale)]
        self._scale, self._constant = scale, constant
        objective: cp_model.LinearExprT = cp_model.LinearExpr.weighted_sum(
            [variable for _, variable in terms], [coefficient // scale for coefficient, _ in terms]
        )
        if self._task.bound or self._task.incumbent_value is not None:
            # A bound belongs in a variable's domain: as a row on the sum it misleads CP-SAT's search.
            lower = -(-(self._task.bound - constant) // scale)
            upper = 2**62 if self._task.incumbent_value is None else (self._task.incumbent_value - constant) // scale
            total = self.cp.new_int_var(min(lower, upper), upper, "makespan")
            self.cp.add(total == objective)
            objective = total
        self.objective = objective

    def _batch_times(self, scale: int) -> list[cp_model.IntVar]:
        """Non-attention time of every batch: at least each piece, if the batch is used."""
        pieces = self._instance.cost.affine
        most = min(self._most_tokens(), self._instance.limits.batch_tokens)
        longest = max(base + slope * most for base, slope in pieces) // scale
        times = []
        for j, slots in self._slots.items():
            tokens = cp_model.LinearExpr.sum([self._run_in(token, literal, j) for token, literal in slots.items()])
            time = self.cp.new_int_var(0, longest, f"time[{j}]")
            for base, slope in pieces:
                self.cp.add(time >= base // scale * self._used[j] + slope // scale * tokens)
            times.append(time)
        return times

    def _run_in(self, token: Token, literal: cp_model.IntVar, j: int) -> cp_model.LinearExprT:
        """Tokens that ``token`` runs in batch j: its size if filled there, 1 if decoded, else 0."""
        r, k = token
        size = self._costs.size(token)
        if k == 1:
            return size * literal
        refilled = self.cp.new_bool_var(f"refilled[{r},{k},{j}]")
        self.cp.add_bool_and([literal, ~self._keep[r, k - 1]]).only_enforce_if(refilled)
        self.cp.add_bool_or([~literal, self._keep[r, k - 1], refilled])
        return cp_model.LinearExpr.weighted_sum([literal, refilled], [1, size - 1])

    def to_value(self, objective: int) -> int:
        """Translate the model's objective to the makespan in ps."""
        return self._constant + self._scale * objective

    # Schedules in and out -------------------------------------------------------------------------------

    def _add_hint(self, schedule: Schedule) -> None:
        """Start from a schedule."""
        generated = [0] * len(self._instance.requests)
        dropped: set[int] = set()
        hints: dict[Token, int] = {}
        keeps: dict[Token, int] = {}
        for j, batch in enumerate(schedule.batches, start=1):
            dropped.update(batch.evict)
            for r, _ in batch.run:
                if generated[r]:
                    keeps[r, generated[r]] = int(r not in dropped)
                dropped.discard(r)
                generated[r] += 1
                hints[r, generated[r]] = j
        # Interchangeable requests are renamed in the order of their tokens, as the model has them.
        for members in self._classes():
            by_first = sorted(members, key=lambda r: [hints[r, k] for k in range(1, 1 + self._output(r))])
            for model_r, schedule_r in zip(members, by_first, strict=True):
                for k in range(1, self._output(model_r) + 1):
                    self.cp.add_hint(self._time[model_r, k], hints[schedule_r, k])
                    if (schedule_r, k) in keeps:
                        self.cp.add_hint(self._keep[model_r, k], keeps[schedule_r, k])
        self.cp.add_hint(self._batches, len(schedule.batches))

    def _output(self, r: int) -> int:
        return self._instance.requests[r].output

    def schedule(self, value_of: Values) -> Schedule:
        """Read the solution: batches with their runs, evictions right after the token before them."""
        run: dict[int, list[tuple[int, int]]] = defaultdict(list)
        evict: dict[int, list[int]] = defaultdict(list)
        for token in self._costs.tokens:
            r, k = token
            j = value_of(self._time[token])
            decode = k > 1 and value_of(self._keep[r, k - 1])
            run[j].append((r, 1 if decode else self._costs.size(token)))
            if token in self._keep and not value_of(self._keep[token]):
                evict[j + 1].append(r)
        return timed(self._instance, [Assignment(run[j], evict[j]) for j in sorted(run)])
