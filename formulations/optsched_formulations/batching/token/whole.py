r"""Token-indexed CP-SAT model with whole prefills: constraints, and which clock tells when batches end.

Variables are those of `variables`, objectives those of `objective`.

*Eviction at once is no restriction*, under any rule and objective: an eviction later on holds memory longer and
changes neither what runs nor when. Each dropped KV is one eviction, wherever it happens.

*No empty batch.* A batch in which nothing runs is no batch, yet an eviction might use one as the pause that it needs.
With one piece, hybrid batches and no refill cheaper than the decode in its place this never pays, whatever the
objective: leave the empty batch out, and where it was the only pause keep the KV instead. That holds no more memory
(the two batches are now neighbours), runs fewer tokens, evicts less, moves no first run past another, and no batch
ends later. Otherwise the model says which token is in which batch, and asks for one in each.

*Symmetry.* Interchangeable requests are those with equal arrival, I, O and, where the objective reads them, weight or
SLOs (`costs.interchangeable`). Renaming them changes nothing, so their last tokens are ordered where the
objective adds up or ranks e2e latencies or counts misses, which lifts the bound most, and else their first. An order of
first runs limits renaming: then first tokens are ordered, as it asks for anyhow. Without eviction *all* their tokens
are ordered: let the first of two requests take the earlier k-th token for every k and the second the later one. In
every batch the two then hold together what they held before, the ends of first and of last tokens are the same two
values, and the requests that meet their SLOs are no fewer, since the earlier of both values meets an SLO if one of them
does.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from math import gcd

from ortools.sat.python import cp_model

from optsched.model.objectives import Latency, Objective
from optsched.model.schedule import Assignment, Schedule, timed
from optsched.solvers.cpsat import Values
from optsched.solvers.deadline import Deadline
from optsched.solvers.formulation import Task, UnsupportedError
from optsched_formulations.batching.costs import Costs, Horizon, Token, interchangeable, value_to_beat
from optsched_formulations.batching.objective import Goal, add_goal, bounded, require_horizon
from optsched_formulations.batching.token.clock import BatchClock, PairClock
from optsched_formulations.batching.token.variables import TokenVariables

_MOST_LITERALS = 2_000_000
_OF_LAST_TOKENS = frozenset(
    objective for objective in Objective if objective.latency is Latency.E2E and objective != Objective.MAX_E2E
) | {Objective.SLO_MISSES}


class WholeModel:
    """Variables, constraints and objective of one task with whole prefills.

    Parameters
    ----------
    task
        What to solve.
    deadline
        When the model has to be built.

    Attributes
    ----------
    cp, goal
        The model, and what it minimises.
    """

    def __init__(self, task: Task, deadline: Deadline) -> None:
        self._task = task
        self._instance = task.instance
        self._costs = costs = Costs(task.instance)
        # Every run of a whole prefill or a decode step generates a token.
        self._horizon = Horizon(costs, task.objective, value_to_beat(task), len(costs.tokens))
        self._classes = interchangeable(task)
        require_horizon(self._horizon)
        self._require_size()
        self.cp = cp_model.CpModel()
        self._variables = TokenVariables(self.cp, costs, self._horizon.batches, deadline)
        self._add_sequence()
        self._add_memory()
        self._add_budgets()
        self._add_symmetry()
        self._add_restrictions()
        if self._needs_slots:
            self._add_used_batches()
        if not self._instance.rules.hybrid:
            self._add_pure_batches()
        self.goal = self._goal()
        if task.incumbent is not None:
            self._add_hint(task.incumbent)

    @property
    def _offline_total(self) -> bool:
        """Whether the objective is the total time of batches without idle time."""
        return self._instance.offline and self._task.objective in {Objective.MAKESPAN, Objective.MAX_E2E}

    @property
    def _needs_slots(self) -> bool:
        """Whether the model must say which token is in which batch (see the module: no empty batch)."""
        costs = self._costs
        slope = costs.pieces[0][1]
        return (
            len(costs.pieces) > 1
            or not self._instance.rules.hybrid
            or any(
                costs.can_refill(token) and slope * costs.size(token) + costs.fill(token) < slope + costs.decode(token)
                for token in costs.tokens
                if token[1] > 1
            )
        )

    def _require_size(self) -> None:
        """Refuse models of too many literals: tokens in batches, and tokens against first and last tokens."""
        tokens = len(self._costs.tokens)
        slots = tokens * self._horizon.batches if self._needs_slots else 0
        pairs = 0 if self._offline_total else 2 * tokens * len(self._instance.requests)
        if slots + pairs > _MOST_LITERALS:
            raise UnsupportedError(f"a model of {slots + pairs} literals, it builds up to {_MOST_LITERALS}")

    # Constraints ----------------------------------------------------------------------------------------

    def _add_sequence(self) -> None:
        r"""Tokens follow each other, two batches apart if the KV was dropped; J is the last batch.

        :math:`t_{r,k+1} ≥ t_{rk} + 2 - \mathit{keep}_{rk}` and :math:`J ≥ t_{rO}`.
        """
        time = self._variables.time
        for (r, k), keep in self._variables.keep.items():
            self.cp.add(time[r, k + 1] >= time[r, k] + 2 - keep)
        for r in range(len(self._costs.requests)):
            self.cp.add(self._variables.batches >= time[self._variables.last(r)])

    def _add_memory(self) -> None:
        """Resident blocks are at most ⌊M/b⌋ in every batch, and in sum at most ⌊M/b⌋ J.

        Token k occupies :math:`⌈(I+k-1)/b⌉` blocks from batch :math:`t_{rk}` until before :math:`t_{r,k+1}` if kept,
        else in :math:`t_{rk}` alone: a cumulative constraint over intervals of these lengths.
        """
        limits, variables, most = self._instance.limits, self._variables, self._horizon.batches
        capacity = limits.kv_blocks
        intervals, demands = [], []
        areas: list[cp_model.LinearExprT] = []
        for token in self._costs.tokens:
            r, k = token
            blocks = limits.blocks(self._costs.size(token))
            start = variables.time[token]
            if token in variables.keep:
                keep = variables.keep[token]
                length = self.cp.new_int_var(1, most, f"length[{r},{k}]")
                end = self.cp.new_int_var(k + 1, most, f"end[{r},{k}]")
                self.cp.add(end == variables.time[r, k + 1]).only_enforce_if(keep)
                self.cp.add(length == 1).only_enforce_if(~keep)
                interval = self.cp.new_interval_var(start, length, end, f"kv[{r},{k}]")
                areas.append(blocks * length)
            else:
                interval = self.cp.new_fixed_size_interval_var(start, 1, f"kv[{r},{k}]")
                areas.append(blocks)
            intervals.append(interval)
            demands.append(blocks)
        self.cp.add_cumulative(intervals, demands, capacity)
        self.cp.add(cp_model.LinearExpr.sum(areas) <= capacity * variables.batches)

    def _add_budgets(self) -> None:
        """Σ c ≤ C, Σ c over prefills ≤ P, runs ≤ N in every batch, where they can bind: unit intervals at t."""
        limits, tokens = self._instance.limits, self._costs.tokens
        units = [self.cp.new_fixed_size_interval_var(self._variables.time[token], 1, "") for token in tokens]
        largest = self._costs.largest_steps

        def at_most(demands: list[cp_model.LinearExprT], capacity: int, most: int) -> None:
            if most > capacity:
                self.cp.add_cumulative(units, demands, capacity)

        at_most([self._tokens_run(token, decode=1) for token in tokens], limits.batch_tokens, largest)
        at_most([self._tokens_run(token, decode=0) for token in tokens], limits.prefill_tokens, largest)
        if limits.batch_requests is not None:
            at_most([1] * len(tokens), limits.batch_requests, len(self._instance.requests))

    def _tokens_run(self, token: Token, decode: int) -> cp_model.LinearExprT:
        """Tokens that generating ``token`` runs; ``decode`` is what a decode step counts."""
        if token[1] == 1:
            return self._costs.size(token)
        return decode + (self._costs.size(token) - decode) * self._variables.dropped(token)

    def _add_symmetry(self) -> None:
        """Order interchangeable requests (see the module)."""
        time, requests = self._variables.time, self._instance.requests
        for members in self._classes:
            output = requests[members[0]].output
            if not self._instance.rules.eviction:
                ordered = range(1, output + 1)
            elif self._by_completion:
                ordered = range(output, output + 1)
            else:
                ordered = range(1, 2)
            for one, other in pairwise(members):
                for k in ordered:
                    self.cp.add(time[one, k] <= time[other, k])

    @property
    def _by_completion(self) -> bool:
        """Whether interchangeable requests that may be evicted are ordered by their last tokens."""
        return self._task.objective in _OF_LAST_TOKENS and not self._task.restrictions.first_runs(self._instance)

    def _add_restrictions(self) -> None:
        """First runs are first tokens, :math:`t_{q1} ≤ t_{r1}`; evictions are dropped KV, :math:`Σ(1-keep) ≤ q`."""
        restrictions, variables = self._task.restrictions, self._variables
        for one, other in pairwise(restrictions.first_runs(self._instance)):
            self.cp.add(variables.time[one, 1] <= variables.time[other, 1])
        if restrictions.max_evictions is not None and variables.keep:
            kept = cp_model.LinearExpr.sum(list(variables.keep.values()))
            self.cp.add(kept >= len(variables.keep) - restrictions.max_evictions)

    def _add_used_batches(self) -> None:
        r"""Every batch up to J generates a token: :math:`\sum_{rk} x_{rkj} ≥ \mathit{used}_j`, and no later one."""
        for j, used in enumerate(self._variables.used, start=1):
            slots = [literal for _, literal in self._variables.in_batch(j)]
            self.cp.add_bool_or([*slots, ~used])
            for slot in slots:
                self.cp.add_implication(slot, used)

    def _add_pure_batches(self) -> None:
        """Without hybrid batching a batch is all prefills or all decodes."""
        for j in range(1, self._horizon.batches + 1):
            prefills = self.cp.new_bool_var(f"prefills[{j}]")
            for (r, k), literal in self._variables.in_batch(j):
                if k == 1:
                    self.cp.add_implication(literal, prefills)
                else:
                    kept = self._variables.keep[r, k - 1]
                    self.cp.add_bool_or([~literal, kept, prefills])
                    self.cp.add_bool_or([~literal, ~kept, ~prefills])

    # Objective ------------------------------------------------------------------------------------------

    def _goal(self) -> Goal:
        """Choose how time is counted: in total, by pairs of tokens, or batch by batch."""
        if self._offline_total:
            return self._total_time()
        pairs = PairClock(self._variables, self._horizon)
        if len(self._costs.pieces) == 1:
            return add_goal(self.cp, self._task, self._costs, self._horizon, pairs.end_of)
        clock = BatchClock(self._variables, self._horizon, pairs)
        return add_goal(self.cp, self._task, self._costs, self._horizon, clock.end_of)

    def _total_time(self) -> Goal:
        r"""Return the makespan, less its constant part, in units of the coefficients' common divisor.

        With one affine piece it is

        .. math:: \mathrm{base} \cdot J + \mathrm{const} + \sum_{rk} (\mathrm{refill}_{rk} - \mathrm{decode}_{rk})
                  (1 - \mathit{keep}_{rk}),

        linear in J and keep. With several pieces the time of each batch is a variable, at least each piece: fewest
        batches are not always fastest.
        """
        costs, variables = self._costs, self._variables
        slope = costs.pieces[0][1] if len(costs.pieces) == 1 else 0
        constant = 0
        terms: list[tuple[int, cp_model.LinearExprT]] = []
        for token in costs.tokens:
            fill = slope * costs.size(token) + costs.fill(token)
            if token[1] == 1:
                constant += fill
                continue
            decode = slope + costs.decode(token)
            constant += decode
            terms.append((fill - decode, variables.dropped(token)))
        if len(costs.pieces) == 1:
            terms.append((costs.pieces[0][0], variables.batches))
            scale = gcd(*(coefficient for coefficient, _ in terms)) or 1
        else:
            scale = 1
            clock = BatchClock(variables, self._horizon, None)
            terms += [(1, clock.linear(j)) for j in range(1, self._horizon.batches + 1)]
        expression = cp_model.LinearExpr.weighted_sum(
            [variable for _, variable in terms], [coefficient // scale for coefficient, _ in terms]
        )
        unit = costs.scale
        return bounded(self.cp, Goal(expression, unit * scale, unit * constant), self._task, self._horizon.value)

    # Schedules in and out -------------------------------------------------------------------------------

    def _add_hint(self, schedule: Schedule) -> None:
        """Start from a schedule."""
        generated = [0] * len(self._instance.requests)
        dropped: set[int] = set()
        hints: dict[Token, int] = {}
        keeps: dict[Token, int] = {}
        for j, batch in enumerate(schedule.assignments(), start=1):
            dropped.update(batch.evict)
            for r, _ in batch.run:
                if generated[r]:
                    keeps[r, generated[r]] = int(r not in dropped)
                dropped.discard(r)
                generated[r] += 1
                hints[r, generated[r]] = j
        # Interchangeable requests are renamed in the order of their tokens, as the model has them.
        for members in self._classes:
            step = -1 if self._by_completion else 1
            renamed = sorted(members, key=lambda r: [hints[r, k] for k in range(1, 1 + self._output(r))][::step])
            for model_r, schedule_r in zip(members, renamed, strict=True):
                for k in range(1, self._output(model_r) + 1):
                    self.cp.add_hint(self._variables.time[model_r, k], hints[schedule_r, k])
                    if (schedule_r, k) in keeps:
                        self.cp.add_hint(self._variables.keep[model_r, k], keeps[schedule_r, k])
        self.cp.add_hint(self._variables.batches, schedule.length)

    def _output(self, r: int) -> int:
        return self._instance.requests[r].output

    def schedule(self, value_of: Values) -> Schedule:
        """Read the solution: batches with their runs, evictions right after the token before them.

        Batches in which nothing runs are left out, and the KV is kept where they were the only pause.
        """
        time = {token: value_of(variable) for token, variable in self._variables.time.items()}
        number = {j: position for position, j in enumerate(sorted(set(time.values())))}
        batches = [Assignment([], []) for _ in number]
        run: dict[int, list[tuple[int, int]]] = defaultdict(list)
        evict: dict[int, list[int]] = defaultdict(list)
        for token in self._costs.tokens:
            r, k = token
            j = number[time[token]]
            refilled = k == 1
            if k > 1 and not value_of(self._variables.keep[r, k - 1]):
                before = number[time[r, k - 1]]
                refilled = before + 1 < j
                if refilled:
                    evict[before + 1].append(r)
            run[j].append((r, self._costs.size(token) if refilled else 1))
        return timed(self._instance, [Assignment(run[j], evict[j]) for j in range(len(batches))])
