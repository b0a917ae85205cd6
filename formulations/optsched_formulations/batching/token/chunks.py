r"""CP-SAT model with chunked prefill: the state of every request in every batch.

Variables for request r and batch j ∈ {1, …, H}, with the tokens that it generates as the spine:

- :math:`\mathit{by}_{rkj}`: token k is generated in batch j or before; it rises with j, and
  :math:`\mathit{by}_{r,k+1,j} ⇒ \mathit{by}_{rk,j-1}`. So :math:`g_{rj} = \sum_k \mathit{by}_{rkj}` tokens are
  generated after batch j, and r is *done* before it if :math:`\mathit{by}_{rO,j-1}`;
- :math:`\mathit{run}, \mathit{decode}, \mathit{evict}, \mathit{decoding}` (before the batch), :math:`\mathit{gen} =
  g_{rj} - g_{r,j-1}`, all Boolean;
- :math:`c_{rj}`, tokens run, and :math:`m_{rj}`, tokens cached after the batch, before a finished request is freed.

Transitions are those of docs/problem.md, each enforced by its Boolean:

- not done, not evicted: :math:`m_j = m_{j-1} + c_j`; evicted: :math:`m_{j-1} ≥ 1, m_j = 0`, no run; done: no run, no
  eviction, :math:`m_j = 0`;
- run ⇔ :math:`c_j ≥ 1`; :math:`\mathit{gen} ⇒ \mathit{run}` and :math:`m_j = I + g_{j-1}`; a run that does not generate
  has :math:`m_j < I + g_{j-1}`;
- :math:`\mathit{decode} = \mathit{run} ∧ \mathit{decoding}_j`, with c = 1 and gen; :math:`\mathit{decoding}_{j+1} =
  \mathit{gen}_j ∨ (\mathit{decoding}_j ∧ ¬\mathit{evict}_j)`.

Budgets are sums over each batch: Σ c ≤ C, Σ (c − decode) ≤ P (a decode step runs one token), Σ run ≤ N,
Σ ⌈m/b⌉ ≤ ⌊M/b⌋, and Σ run ≥ 1 if the batch is used.

*Attention.* :math:`a_{rj} ≥` prefill_sq :math:`(m_j² - m_{j-1}²)` + prefill_kv :math:`m_{j-1}` + prefill_req if it is a
prefill step, decode_kv :math:`m_{j-1}` + decode_req if it is a decode step. The squares are variables; for a prefill
:math:`m_{j-1}` is what is cached before it, since a done request does not run.

*Clock.* As `clock.BatchClock`: :math:`S_j ≥ E_{j-1}`, :math:`S_j ≥ T_r` if r runs,
:math:`E_j ≥ S_j + L_j + \sum_r a_{rj}`, and :math:`F_{rk} ≥ E_j` if token k is not generated before j. Redundantly
:math:`E_j ≥ \mathrm{base}\, j + \sum_{rk} w_{rk} \mathit{by}_{rkj}` for used batches and each piece, with w the least
work of a token: all its chunks lie in batches up to its own.

*How many batches.* Call a run useful if its fill generates a token in the end, or if it is its request's first and an
order of first runs is asked for. Drop all other runs from batches with useful ones: that shortens batches and holds
less. Of neighbouring batches with useless runs only, keep the last if it is needed as the pause of an eviction (a
request that needs it does not run in it), else none. So H = useful runs + pauses are enough: I runs for a first token;
for each later one a decode, or I + k − 1 chunks and a pause; with an order two more for each request (its dropped first
run, and the pause after that). The value to beat mostly asks for far fewer (`costs.Horizon`).

*Symmetry.* Interchangeable requests generate their first tokens in order, unless an order of first runs is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ortools.sat.python import cp_model

from optsched.model.objectives import Objective
from optsched.model.schedule import Assignment, Schedule, timed
from optsched.solvers.cpsat import Values
from optsched.solvers.deadline import Deadline
from optsched.solvers.formulation import Task, UnsupportedError
from optsched_formulations.batching.costs import Costs, Horizon, Token, interchangeable, value_to_beat
from optsched_formulations.batching.objective import add_goal, require_horizon
from optsched_formulations.batching.token.variables import Linear

_MOST_STATES = 200_000


@dataclass(frozen=True)
class _State:
    """The variables of one request in one batch."""

    run: cp_model.IntVar
    decode: cp_model.IntVar
    evict: cp_model.IntVar
    decoding: cp_model.IntVar
    generates: cp_model.IntVar
    tokens: cp_model.IntVar
    held: cp_model.IntVar
    square: cp_model.IntVar
    attention: cp_model.IntVar


class ChunkModel:
    """Variables, constraints and objective of one task with chunked prefill.

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
        self._deadline = deadline
        self._instance = task.instance
        self._costs = Costs(task.instance)
        self._require_size(1)
        self._horizon = Horizon(self._costs, task.objective, value_to_beat(task), self._most_runs())
        self._count = self._horizon.batches
        self._require_size(self._count)
        require_horizon(self._horizon)
        self.cp = cp = cp_model.CpModel()
        self._used = [cp.new_bool_var(f"used[{j}]") for j in self._batches]
        for one, other in pairwise(self._used):
            cp.add_implication(other, one)
        self._by = {token: self._add_spine(token) for token in self._costs.tokens}
        for r, k in self._costs.tokens:
            self._add_order_of_tokens(r, k)
        self._states = [self._add_request(r) for r in range(len(self._costs.requests))]
        for j in self._batches:
            self._add_batch(j)
        self._add_restrictions()
        self._add_volume()
        self._filled = self._add_fills()
        self._ends = self._add_clock()
        self.goal = add_goal(cp, task, self._costs, self._horizon, self._end_of)
        if task.objective == Objective.MAKESPAN:
            cp.add(self.goal.expression >= self._ends[-1])  # what each F says, without its condition
        if task.incumbent is not None:
            self._add_hint(task.incumbent)

    def _require_size(self, batches: int) -> None:
        """Refuse models that have too many states with some batches, or more."""
        states = len(self._costs.tokens) * batches
        if states > _MOST_STATES:
            raise UnsupportedError(f"{states} pairs of a token and a batch, it builds up to {_MOST_STATES}")

    def _most_runs(self) -> int:
        """Return how many batches are enough (see the module)."""
        total = 0
        for token in self._costs.tokens:
            size = self._costs.size(token)
            total += size if token[1] == 1 else size + 1 if self._costs.can_refill(token) else 1
        ordered = self._task.restrictions.first_runs(self._instance) and self._instance.rules.eviction
        return total + (2 * len(self._costs.requests) if ordered else 0)

    @property
    def _batches(self) -> range:
        return range(1, self._count + 1)

    # Requests -------------------------------------------------------------------------------------------

    def _add_spine(self, token: Token) -> list[cp_model.IntVar]:
        """Return the literals by[j] for j = 0, …, H: false before the first possible batch, true at the end."""
        self._deadline.require()
        r, k = token
        first = self._costs.fewest_fills[r] + k - 1
        last = self._count - (self._costs.requests[r].output - k)
        found = [
            self.cp.new_int_var(int(j >= last), int(j >= first), f"by[{r},{k},{j}]") for j in range(self._count + 1)
        ]
        for one, other in pairwise(found):
            self.cp.add_implication(one, other)
        return found

    def _add_order_of_tokens(self, r: int, k: int) -> None:
        """Each token has a later batch than the one before it."""
        if k > 1:
            for j in self._batches:
                self.cp.add_implication(self._by[r, k][j], self._by[r, k - 1][j - 1])

    def _generated(self, r: int, j: int) -> Linear:
        """Tokens that request r has generated after batch j."""
        return cp_model.LinearExpr.sum([self._by[r, k][j] for k in range(1, self._costs.requests[r].output + 1)])

    def _add_request(self, r: int) -> list[_State]:
        """Return the states of a request in batches 1 to H."""
        states: list[_State] = []
        for j in self._batches:
            states.append(self._add_state(r, j, states[-1] if states else None))
        return states

    def _add_state(self, r: int, j: int, before: _State | None) -> _State:
        """Add a request's transition in batch j (see the module)."""
        self._deadline.require()
        cp, limits, rules = self.cp, self._instance.limits, self._instance.rules
        request = self._costs.requests[r]
        peak = request.peak_tokens
        state = _State(
            run=cp.new_bool_var(f"run[{r},{j}]"),
            decode=cp.new_bool_var(f"decode[{r},{j}]"),
            evict=cp.new_int_var(0, int(rules.eviction and before is not None), f"evict[{r},{j}]"),
            decoding=cp.new_int_var(0, int(before is not None), f"decoding[{r},{j}]"),
            generates=cp.new_bool_var(f"gen[{r},{j}]"),
            tokens=cp.new_int_var(0, min(peak, limits.prefill_tokens), f"c[{r},{j}]"),
            held=cp.new_int_var(0, peak, f"m[{r},{j}]"),
            square=cp.new_int_var(0, peak * peak, f"m²[{r},{j}]"),
            attention=cp.new_int_var(0, self._costs.longest_batch, f"a[{r},{j}]"),
        )
        done = self._by[r, request.output][j - 1]
        generated = self._generated(r, j - 1)
        held: Linear = 0 if before is None else before.held
        cp.add(state.generates == self._generated(r, j) - generated)

        cp.add(state.held == held + state.tokens).only_enforce_if(~done, ~state.evict)
        cp.add(state.held == 0).only_enforce_if(state.evict)
        if before is not None:
            cp.add(held >= 1).only_enforce_if(state.evict)
        cp.add_implication(state.evict, ~state.run)
        cp.add(state.held == 0).only_enforce_if(done)
        cp.add_implication(done, ~state.run)
        cp.add_implication(done, ~state.evict)

        cp.add(state.tokens >= 1).only_enforce_if(state.run)
        cp.add(state.tokens == 0).only_enforce_if(~state.run)
        cp.add_implication(state.generates, state.run)
        cp.add(state.held == request.input + generated).only_enforce_if(state.generates)
        cp.add(state.held < request.input + generated).only_enforce_if(state.run, ~state.generates)

        cp.add_bool_and(state.run, state.decoding, state.generates).only_enforce_if(state.decode)
        cp.add_bool_or(~state.run, ~state.decoding, state.decode)
        cp.add(state.tokens == 1).only_enforce_if(state.decode)
        if before is not None:
            cp.add_implication(before.generates, state.decoding)
            cp.add_bool_or(~before.decoding, before.evict, state.decoding)
            cp.add_bool_or(~state.decoding, before.generates, before.decoding)
            cp.add_bool_or(~state.decoding, before.generates, ~before.evict)
        self._add_attention(state, before)
        return state

    def _add_attention(self, state: _State, before: _State | None) -> None:
        """Bound the attention time of a step from below, by its kind."""
        cost, unit = self._instance.cost, self._costs.scale
        square, read, each = cost.prefill_sq // unit, cost.prefill_kv // unit, cost.prefill_req // unit
        held: Linear = 0 if before is None else before.held
        if square:
            self.cp.add_multiplication_equality(state.square, state.held, state.held)
        squares = state.square - (0 if before is None else before.square)
        self.cp.add(state.attention >= square * squares + read * held + each).only_enforce_if(state.run, ~state.decode)
        decode_read, decode_each = cost.decode_kv // unit, cost.decode_req // unit
        self.cp.add(state.attention >= decode_read * held + decode_each).only_enforce_if(state.decode)

    # Batches --------------------------------------------------------------------------------------------

    def _add_batch(self, j: int) -> None:
        """Budgets, memory, purity and use of batch j; later batches generate nothing."""
        cp, limits = self.cp, self._instance.limits
        states = [request[j - 1] for request in self._states]
        used = self._used[j - 1]
        cp.add_bool_or([*(state.run for state in states), ~used])
        for state in states:
            cp.add_implication(state.run, used)
            cp.add_implication(state.evict, used)
        tokens = cp_model.LinearExpr.sum([state.tokens for state in states])
        decodes = cp_model.LinearExpr.sum([state.decode for state in states])
        cp.add(tokens <= limits.batch_tokens)
        cp.add(tokens - decodes <= limits.prefill_tokens)
        if limits.batch_requests is not None:
            cp.add(cp_model.LinearExpr.sum([state.run for state in states]) <= limits.batch_requests)
        cp.add(cp_model.LinearExpr.sum([self._blocks(state) for state in states]) <= limits.kv_blocks)
        if not self._instance.rules.hybrid:
            prefills = cp.new_bool_var(f"prefills[{j}]")
            for state in states:
                cp.add_implication(state.decode, ~prefills)
                cp.add_bool_or(~state.run, state.decode, prefills)

    def _blocks(self, state: _State) -> cp_model.IntVar:
        """Return a variable that is at least ⌈m/b⌉."""
        block = self._instance.limits.kv_block
        if block == 1:
            return state.held
        blocks = self.cp.new_int_var(0, self._instance.limits.kv_blocks, "")
        self.cp.add(block * blocks >= state.held)
        return blocks

    def _add_fills(self) -> dict[Token, cp_model.IntVar]:
        """Return literals: a refill generates the token; then two batches later than the one before it."""
        found: dict[Token, cp_model.IntVar] = {}
        for r, k in self._costs.tokens:
            if k == 1 or not self._costs.can_refill((r, k)):
                continue
            filled = found[r, k] = self.cp.new_bool_var(f"filled[{r},{k}]")
            by, before = self._by[r, k], self._by[r, k - 1]
            for j in self._batches:
                decode = self._states[r][j - 1].decode
                self.cp.add_bool_or(~by[j], by[j - 1], decode, filled)
                self.cp.add_bool_or(~by[j], by[j - 1], ~decode, ~filled)
                self.cp.add_bool_or(~by[j], ~filled, before[max(j - 2, 0)])
        return found

    def _add_restrictions(self) -> None:
        """Order of first runs: started[other] ⇒ started[one]; evictions are counted; symmetry."""
        restrictions = self._task.restrictions
        order = restrictions.first_runs(self._instance)
        if restrictions.max_evictions is not None:
            evictions = [state.evict for request in self._states for state in request]
            self.cp.add(cp_model.LinearExpr.sum(evictions) <= restrictions.max_evictions)
        started = {r: self._started(r) for r in order}
        for one, other in pairwise(order):
            for j in self._batches:
                self.cp.add_implication(started[other][j - 1], started[one][j - 1])
        if not order:
            for members in interchangeable(self._task):
                for one, other in pairwise(members):
                    for j in self._batches:
                        self.cp.add_implication(self._by[other, 1][j], self._by[one, 1][j])

    def _started(self, r: int) -> list[cp_model.IntVar]:
        """Return literals: request r runs in batch j or before."""
        found: list[cp_model.IntVar] = []
        for j, state in enumerate(self._states[r], start=1):
            literal = self.cp.new_bool_var(f"started[{r},{j}]")
            earlier = found[-1:]
            self.cp.add_bool_or(state.run, *earlier).only_enforce_if(literal)
            for cause in (state.run, *earlier):
                self.cp.add_implication(cause, literal)
            found.append(literal)
        return found

    # Time -----------------------------------------------------------------------------------------------

    def _add_clock(self) -> list[cp_model.IntVar]:
        """Return the ends of all batches (see the module)."""
        cp, costs, latest = self.cp, self._costs, self._horizon.end
        longest = max(base + slope * costs.instance.limits.batch_tokens for base, slope in costs.pieces)
        ends: list[cp_model.IntVar] = []
        for j in self._batches:
            states = [request[j - 1] for request in self._states]
            used = self._used[j - 1]
            start, end = cp.new_int_var(0, latest, f"S[{j}]"), cp.new_int_var(0, latest, f"E[{j}]")
            if ends:
                cp.add(start >= ends[-1])
            for state, arrival in zip(states, costs.arrivals, strict=True):
                if arrival:
                    cp.add(start >= arrival).only_enforce_if(state.run)
            linear = cp.new_int_var(0, longest, f"L[{j}]")
            tokens = cp_model.LinearExpr.sum([state.tokens for state in states])
            for base, slope in costs.pieces:
                cp.add(linear >= base * used + slope * tokens)
                work = [costs.least(token, slope) * self._by[token][j] for token in costs.tokens]
                cp.add(end >= base * cp_model.LinearExpr.sum(self._used[:j]) + cp_model.LinearExpr.sum(work))
            cp.add(end >= start + linear + cp_model.LinearExpr.sum([state.attention for state in states]))
            ends.append(end)
        for base, slope in costs.pieces:
            total = [self._work(token, slope) for token in costs.tokens]
            cp.add(ends[-1] >= base * cp_model.LinearExpr.sum(self._used) + cp_model.LinearExpr.sum(total))
        return ends

    def _work(self, token: Token, slope: int) -> Linear:
        """Return the least own time of the token as a decode, or as the refill that it is."""
        costs = self._costs
        fill = slope * costs.size(token) + costs.fill(token)
        if token[1] == 1:
            return fill
        decode = slope + costs.decode(token)
        return decode + (fill - decode) * self._filled[token] if token in self._filled else decode

    def _add_volume(self) -> None:
        r"""Bound the tokens generated by KV: the first j batches hold at most ⌊M/b⌋ j blocks, and each token is in one.

        :math:`\sum_{rk} ⌈(I_r+k-1)/b⌉ \mathit{by}_{rkj} ≤ ⌊M/b⌋ \sum_{i ≤ j} \mathit{used}_i`.
        """
        limits = self._instance.limits
        capacity = limits.kv_blocks
        blocks = {token: limits.blocks(self._costs.size(token)) for token in self._costs.tokens}
        for j in self._batches:
            held = [blocks[token] * self._by[token][j] for token in self._costs.tokens]
            self.cp.add(cp_model.LinearExpr.sum(held) <= capacity * cp_model.LinearExpr.sum(self._used[:j]))

    def _end_of(self, token: Token) -> cp_model.IntVar:
        """Return a variable that is at least the end of the token's batch."""
        r, k = token
        least = self._costs.arrivals[r] + self._costs.shortest[r][k - 1]
        end = self.cp.new_int_var(least, self._horizon.end, f"F[{r},{k}]")
        for j in self._batches:
            self.cp.add(end >= self._ends[j - 1]).only_enforce_if(~self._by[token][j - 1])
        return end

    # Schedules in and out -------------------------------------------------------------------------------

    def _add_hint(self, schedule: Schedule) -> None:
        """Start from a schedule: what runs, what is evicted."""
        for j, assignment in enumerate(schedule.assignments()):
            if j >= self._count:
                return
            run, evict = dict(assignment.run), set(assignment.evict)
            self.cp.add_hint(self._used[j], 1)
            for r, states in enumerate(self._states):
                self.cp.add_hint(states[j].run, int(r in run))
                self.cp.add_hint(states[j].tokens, run.get(r, 0))
                self.cp.add_hint(states[j].evict, int(r in evict))

    def schedule(self, value_of: Values) -> Schedule:
        """Read the solution."""
        batches = []
        for j in self._batches:
            if value_of(self._used[j - 1]):
                states = [request[j - 1] for request in self._states]
                batches.append(
                    Assignment(
                        [(r, value_of(state.tokens)) for r, state in enumerate(states) if value_of(state.run)],
                        [r for r, state in enumerate(states) if value_of(state.evict)],
                    )
                )
        return timed(self._instance, batches)
