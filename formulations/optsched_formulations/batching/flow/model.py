r"""Flows of interchangeable requests through (tokens generated, resident or not, batch), for any solver.

Requests with equal I and O form a class c of :math:`n_c`; nothing else about them matters to the makespan offline. So
the model counts them instead of naming them.

*Variables*, integer, for class c, token k and batch j:

- :math:`x_{ckj}`: prefills that generate token k in batch j, for k = 1 the first, for k ≥ 2 a refill;
- :math:`d_{ckj}`: decode steps that generate token k ≥ 2;
- :math:`e_{ckj}`: evictions in batch j of those with k tokens; :math:`w_{ckj}`: those that wait, evicted earlier;
- :math:`s_{ckj}`: those that keep the KV of k tokens through batch j and do not run: *idle arcs*.

*Conservation.* A request with k tokens that is resident after batch j − 1 runs, idles or is evicted in batch j; one
that is evicted in batch j is refilled in batch j + 1 or later, so two tokens with an eviction between them lie two
batches apart:

.. math:: x_{ck,j-1} + d_{ck,j-1} + s_{ck,j-1} &= d_{c,k+1,j} + s_{ckj} + e_{ckj} \\
          e_{ck,j-1} + w_{ck,j-1} &= w_{ckj} + x_{c,k+1,j}, \qquad \sum_j x_{c1j} = n_c

A request that has generated O tokens leaves. Variables exist where k tokens fit before the batch and O − k after it, so
none is left over. Evictions right after a token suffice (they free memory sooner and change no run), so
:math:`e_{ckj} ≤ x_{ck,j-1} + d_{ck,j-1}` where there are idle arcs.

*Batches.* With blocks :math:`b_{ck} = ⌈(I+k-1)/b⌉`, and :math:`u_j` (falling in j) whether batch j is used:
:math:`\sum b_{ck} (x_{ckj} + d_{ckj} + s_{ckj}) ≤ ⌊M/b⌋ u_j` and :math:`\sum (x_{ckj} + d_{ckj}) ≥ u_j`, since there
are no empty batches; where they can bind, :math:`\sum (I+k-1) x_{ckj} + d_{ckj} ≤ C`,
:math:`\sum (I+k-1) x_{ckj} ≤ P`, :math:`\sum x_{ckj} + d_{ckj} ≤ N`. Without hybrid batching
:math:`p_j ∈ \{0, 1\}` says whether batch j prefills:
:math:`\sum b x ≤ ⌊M/b⌋ p_j` and :math:`\sum b d ≤ ⌊M/b⌋ (1 - p_j)`.

*Makespan.* With one affine piece it is a constant and :math:`\mathrm{base} \sum_j u_j + \sum_{k ≥ 2}
(\mathrm{refill}_{ck} - \mathrm{decode}_{ck}) x_{ckj}`. With several, batch j has a variable
:math:`T_j ≥ \mathrm{base}_i u_j + \mathrm{token}_i \sum c` for every piece i, and :math:`\sum T_j` takes the
place of the first sum and of token costs in the second.

*The reduced model* has no idle arcs. It is exact where only memory binds, no batch is of one kind, there is one affine
piece and no refill is cheaper than a decode: then some optimal schedule has no pauses (`resident_graph`). The argument
moves first runs later and evicts no more, so it also covers a limit on evictions, but an order of first runs only where
all requests are of one class.

*Restrictions.* At most q evictions: :math:`\sum e ≤ q`. An order of first runs: those up to batch j are the first ones
of the order, Booleans :math:`y_{ij}` falling along the order with :math:`\sum_{i ∈ c} y_{ij} = \sum_{j' ≤ j} x_{c1j'}`;
members of a class are named in the order.

*From flows to requests.* Within a class and a token count requests are alike, so the first to come goes first. Every
legal schedule gives flows and every flow a legal schedule, of the same makespan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import gcd

from optsched.model.restrictions import Restrictions
from optsched.model.schedule import Assignment, Schedule, timed
from optsched.solvers.claims import Values
from optsched.solvers.formulation import Task, UnsupportedError
from optsched_formulations.batching.costs import Costs, interchangeable
from optsched_formulations.batching.memory_only import require_memory_only
from optsched_formulations.batching.packing import HeldClass, Packing, packing

Place = tuple[int, int, int]
"""``(class, tokens, batch)``, the last two counted from 1."""
Terms = list[tuple[int, int]]
"""``(coefficient, variable)`` pairs."""

_MOST_VARIABLES = 1_000_000


@dataclass(frozen=True)
class FlowRow:
    """``lower ≤ Σ coefficient × variable ≤ upper``; None for no limit."""

    terms: Terms
    lower: int | None
    upper: int | None


class Program:
    """An integer programme as plain numbers.

    Attributes
    ----------
    lower, upper
        Domain of every variable.
    rows
        Constraints.
    continuous
        Variables that need not be whole; all others are.
    objective
        To be minimised.
    """

    def __init__(self) -> None:
        self.lower: list[int] = []
        self.upper: list[int] = []
        self.rows: list[FlowRow] = []
        self.continuous: set[int] = set()
        self.objective: Terms = []

    def variable(self, lower: int, upper: int) -> int:
        """Add a variable."""
        self.lower.append(lower)
        self.upper.append(upper)
        return len(self.lower) - 1

    def row(self, terms: Terms, lower: int | None, upper: int | None) -> None:
        """Add a constraint."""
        self.rows.append(FlowRow(terms, lower, upper))


def pauses_may_pay(task: Task) -> bool:
    """Return whether the model needs idle arcs (see the module, the reduced model)."""
    if task.restrictions.first_runs(task.instance) and len(interchangeable(task)) > 1:
        return True
    try:
        require_memory_only(replace(task, restrictions=Restrictions()))
    except UnsupportedError:
        return True
    return False


def holdings(task: Task) -> tuple[list[HeldClass], int]:
    """Return what requests of every class can hold, and the blocks of the cache."""
    requests, limits = task.instance.requests, task.instance.limits
    held = []
    for members in interchangeable(task):
        request = requests[members[0]]
        blocks = [limits.blocks(request.input + k) for k in range(request.output)]
        held.append(HeldClass(len(members), blocks))
    return held, limits.kv_blocks


def find_packing(task: Task, seconds: float) -> Packing | None:
    """Return an inequality on what batches hold, if one is found within a time limit."""
    return packing(*holdings(task), seconds)


class FlowModel:
    """The model of one task.

    Parameters
    ----------
    task
        An offline makespan task with whole prefills.
    fewest, most
        Number of batches; fixed if the two are equal.
    packing
        The inequality of `packing`, if there is one.

    Attributes
    ----------
    program
        Variables, rows and objective.
    scale, constant
        The makespan in ps is ``constant + scale × objective``.
    values
        What the makespan can be, in ps.
    """

    def __init__(self, task: Task, fewest: int, most: int, packing: Packing | None) -> None:
        self._task = task
        self._instance = task.instance
        self._costs = Costs(task.instance)
        self._classes = interchangeable(task)
        self._batches = range(1, most + 1)
        self._limits = task.instance.limits
        self._capacity = self._limits.kv_blocks
        self._idle = pauses_may_pay(task)
        self.program = Program()
        self._fill: dict[Place, int] = {}
        self._decode: dict[Place, int] = {}
        self._keep: dict[Place, int] = {}
        self._evict: dict[Place, int] = {}
        self._wait: dict[Place, int] = {}
        self._used: dict[int, int] = {}
        self._phase: dict[int, int] = {}
        self._time: dict[int, int] = {}
        self._started: dict[tuple[int, int], int] = {}
        self._require_size()
        self._add_flows()
        self._add_conservation()
        self._add_used(fewest)
        self._add_limits(packing)
        self._add_restrictions()
        self.scale, self.constant, self.values = self._add_objective(fewest)

    def to_value(self, objective: int) -> int:
        """Translate an objective value to ps."""
        return self.constant + self.scale * objective

    def _require_size(self) -> None:
        levels = sum(self._output(c) for c in range(len(self._classes)))
        if 5 * levels * len(self._batches) > _MOST_VARIABLES:
            raise UnsupportedError(
                f"{levels} tokens of classes in {len(self._batches)} batches, too many for its model"
            )

    # Classes --------------------------------------------------------------------------------------------------

    def _output(self, c: int) -> int:
        return self._instance.requests[self._classes[c][0]].output

    def _size(self, c: int, k: int) -> int:
        return self._costs.size((self._classes[c][0], k))

    def _blocks(self, c: int, k: int) -> int:
        return self._limits.blocks(self._size(c, k))

    def _refillable(self, c: int, k: int) -> bool:
        return k > 1 and self._costs.can_refill((self._classes[c][0], k))

    def _work(self, c: int, k: int, slope: int) -> tuple[int, int]:
        """Return the own time of a fill and of a decode that generate token k, at ``slope`` a token."""
        token = self._classes[c][0], k
        return slope * self._size(c, k) + self._costs.fill(token), slope + self._costs.decode(token)

    # Variables ------------------------------------------------------------------------------------------------

    def _add_flows(self) -> None:
        """Variables of every class, where k batches lie before and O − k after."""
        new = self.program.variable
        for c, members in enumerate(self._classes):
            output = self._output(c)
            for k in range(1, output + 1):
                resident = min(len(members), self._capacity // self._blocks(c, k))
                runs = min(resident, self._limits.batch_requests or resident)
                fills = min(runs, self._limits.prefill_tokens // self._size(c, k))
                latest = self._batches[-1] - output + k
                for j in range(k, latest + 1):
                    if k == 1 or (j > k and self._refillable(c, k)):
                        self._fill[c, k, j] = new(0, fills)
                    if k > 1:
                        self._decode[c, k, j] = new(0, runs)
                    if self._idle and k < output and j > k:
                        self._keep[c, k, j] = new(0, resident)
                    if k < output and j > k and self._refillable(c, k + 1):
                        self._evict[c, k, j] = new(0, resident)
                        if j > k + 1:
                            self._wait[c, k, j] = new(0, len(members))

    def _add_conservation(self) -> None:
        """Say that a request with k tokens after a batch has them before the next, resident or not."""
        row = self.program.row
        for c, members in enumerate(self._classes):
            output = self._output(c)
            first = [(1, self._fill[c, 1, j]) for j in self._batches if (c, 1, j) in self._fill]
            row(first, len(members), len(members))
            for k in range(1, output):
                for j in range(k + 1, self._batches[-1] - output + k + 2):
                    here, before, next_token = (c, k, j), (c, k, j - 1), (c, k + 1, j)
                    fresh = _terms(1, before, self._fill, self._decode)
                    row(
                        fresh
                        + _terms(1, before, self._keep)
                        + _terms(-1, next_token, self._decode)
                        + _terms(-1, here, self._keep, self._evict),
                        0,
                        0,
                    )
                    pool = (
                        _terms(1, before, self._evict, self._wait)
                        + _terms(-1, here, self._wait)
                        + _terms(-1, next_token, self._fill)
                    )
                    if pool:
                        row(pool, 0, 0)
                    if here in self._keep and here in self._evict:
                        row(fresh + _terms(-1, here, self._evict), 0, None)

    def _add_used(self, fewest: int) -> None:
        """Let used batches come first."""
        for j in self._batches:
            self._used[j] = self.program.variable(int(j <= fewest), 1)
            if j > max(fewest, 1):
                self.program.row([(1, self._used[j - 1]), (-1, self._used[j])], 0, None)

    # Batches --------------------------------------------------------------------------------------------------

    def _add_limits(self, packing: Packing | None) -> None:
        """Memory, runs, budgets and kinds of steps of every batch."""
        row, limits, largest = self.program.row, self._limits, self._costs.largest_steps
        held: dict[int, Terms] = {j: [] for j in self._batches}
        prefilled: dict[int, Terms] = {j: [] for j in self._batches}
        decoded: dict[int, Terms] = {j: [] for j in self._batches}
        packed: dict[int, Terms] = {j: [] for j in self._batches}
        weights = {} if packing is None else packing.weights
        for flows, parts in ((self._fill, (held, prefilled)), (self._decode, (held, decoded)), (self._keep, (held,))):
            for (c, k, j), variable in flows.items():
                for part in parts:
                    part[j].append((self._blocks(c, k), variable))
                if (c, k) in weights:
                    packed[j].append((weights[c, k], variable))
        for j in self._batches:
            used, runs = self._used[j], [(1, variable) for _, variable in prefilled[j] + decoded[j]]
            row([*held[j], (-self._capacity, used)], None, 0)
            if packing is not None:
                row([*packed[j], (-packing.most, used)], None, 0)
            row([*runs, (-1, used)], 0, None)
            if largest > limits.batch_tokens:
                row(self._tokens[j], None, limits.batch_tokens)
            if largest > limits.prefill_tokens:
                row(self._prefill_tokens[j], None, limits.prefill_tokens)
            if limits.batch_requests is not None and limits.batch_requests < len(self._instance.requests):
                row(runs, None, limits.batch_requests)
            if not self._instance.rules.hybrid:
                self._phase[j] = phase = self.program.variable(0, 1)
                row([*prefilled[j], (-self._capacity, phase)], None, 0)
                row([*decoded[j], (self._capacity, phase)], None, self._capacity)

    @cached_property
    def _prefill_tokens(self) -> dict[int, Terms]:
        """Tokens of the prefill steps of every batch."""
        found: dict[int, Terms] = {j: [] for j in self._batches}
        for (c, k, j), variable in self._fill.items():
            found[j].append((self._size(c, k), variable))
        return found

    @cached_property
    def _tokens(self) -> dict[int, Terms]:
        """Tokens that every batch runs."""
        found = {j: list(terms) for j, terms in self._prefill_tokens.items()}
        for (_, _, j), variable in self._decode.items():
            found[j].append((1, variable))
        return found

    def _add_restrictions(self) -> None:
        """Limit the number of evictions, and keep the order of first runs."""
        restrictions, row = self._task.restrictions, self.program.row
        if restrictions.max_evictions is not None:
            row([(1, variable) for variable in self._evict.values()], None, restrictions.max_evictions)
        order = restrictions.first_runs(self._instance)
        if not order or len(self._classes) == 1:
            return
        for j in self._batches:
            for r in order:
                self._started[r, j] = self.program.variable(0, 1)
            for one, other in pairwise(order):
                row([(1, self._started[one, j]), (-1, self._started[other, j])], 0, None)
            for c, members in enumerate(self._classes):
                begun = [(1, self._fill[c, 1, i]) for i in range(1, j + 1) if (c, 1, i) in self._fill]
                row(begun + [(-1, self._started[r, j]) for r in members], 0, 0)

    def _add_objective(self, fewest: int) -> tuple[int, int, Values]:
        """Set the objective; return how many ps it counts in, the constant part of the makespan, and all it can be."""
        costs, program = self._costs, self.program
        several = len(costs.pieces) > 1
        base, slope = (0, 0) if several else costs.pieces[0]
        constant = 0
        terms: Terms = [] if several else [(base, self._used[j]) for j in self._batches]
        for c, members in enumerate(self._classes):
            for k in range(1, self._output(c) + 1):
                constant += len(members) * self._work(c, k, slope)[int(k > 1)]
        for (c, k, _), variable in self._fill.items():
            if k > 1:
                fill, decode = self._work(c, k, slope)
                terms.append((fill - decode, variable))
        if several:
            longest = max(base + slope * costs.most_tokens for base, slope in costs.pieces)
            for j in self._batches:
                self._time[j] = time = program.variable(0, longest)
                program.continuous.add(time)
                tokens = self._tokens[j]
                for base, slope in costs.pieces:
                    weighted = [(-slope * coefficient, variable) for coefficient, variable in tokens]
                    program.row([(1, time), (-base, self._used[j]), *weighted], 0, None)
                terms.append((1, time))
        divisor = gcd(*(coefficient for coefficient, _ in terms)) or 1
        program.objective = [(coefficient // divisor, variable) for coefficient, variable in terms if coefficient]
        scale, constant = costs.scale * divisor, costs.scale * constant
        if several:
            return scale, constant, Values(constant, scale)
        parts = [(base, self._batches[-1] - fewest)]
        for c, members in enumerate(self._classes):
            for k in range(2, self._output(c) + 1):
                fill, decode = self._work(c, k, slope)
                parts.append((fill - decode, len(members) if self._refillable(c, k) else 0))
        least = constant + costs.scale * base * fewest
        return scale, constant, Values(least, scale, tuple((part // divisor, most) for part, most in parts))

    # Schedules in and out -------------------------------------------------------------------------------------

    def flows_of(self, schedule: Schedule) -> list[int] | None:
        """Return values of all variables that say what the schedule does; None if the model has no such flows.

        Evictions move to right after the token before them.
        """
        values = [0] * len(self.program.lower)
        owner = {r: c for c, members in enumerate(self._classes) for r in members}
        last: dict[int, tuple[int, int]] = {}  # request -> token that it generated last, and its batch
        dropped: set[int] = set()
        passed: list[tuple[dict[Place, int], Place]] = []
        if schedule.length > len(self._batches):
            return None
        for j, batch in enumerate(schedule.assignments(), start=1):
            dropped.update(batch.evict)
            values[self._used[j]] = 1
            for r, _ in batch.run:
                c = owner[r]
                k, before = last.get(r, (0, 0))
                between = range(before + 1, j) if k else range(0)
                if r in dropped:
                    passed += [(self._evict if i == before + 1 else self._wait, (c, k, i)) for i in between]
                else:
                    passed += [(self._keep, (c, k, i)) for i in between]
                passed.append((self._decode if k and r not in dropped else self._fill, (c, k + 1, j)))
                dropped.discard(r)
                last[r] = k + 1, j
                if k == 0:
                    for i in range(j, self._batches[-1] + 1):
                        if (r, i) in self._started:
                            values[self._started[r, i]] = 1
        for flows, place in passed:
            if place not in flows:
                return None
            values[flows[place]] += 1
        # Equal requests are named in the order of first runs, whichever the schedule takes first.
        for members in self._classes:
            for j in self._batches:
                begun = sorted((values[self._started[r, j]] for r in members if (r, j) in self._started), reverse=True)
                for r, value in zip(members, begun, strict=False):
                    values[self._started[r, j]] = value
        for j in self._phase:
            values[self._phase[j]] = int(any(values[variable] for _, variable in self._prefill_tokens[j]))
        for j in self._time:
            tokens = sum(coefficient * values[variable] for coefficient, variable in self._tokens[j])
            values[self._time[j]] = values[self._used[j]] * max(
                base + slope * tokens for base, slope in self._costs.pieces
            )
        return values

    def schedule(self, value_of: Callable[[int], int]) -> Schedule:
        """Read a solution and name the requests in it, first come, first served."""
        resident: dict[tuple[int, int], deque[int]] = {}
        pool: dict[tuple[int, int], deque[int]] = {}
        for c, members in enumerate(self._classes):
            pool[c, 0] = deque(members)
            for k in range(1, self._output(c) + 1):
                resident[c, k], pool[c, k] = deque(), deque()
        assignments = []
        for j in self._batches:
            # Tokens from the last down, so that none that runs in this batch is counted as resident before it.
            run: list[tuple[int, int]] = []
            evicted: list[tuple[tuple[int, int], int]] = []
            for c in range(len(self._classes)):
                for k in range(self._output(c), 0, -1):
                    for flows, source, tokens in (
                        (self._decode, resident.get((c, k - 1)), 1),
                        (self._fill, pool[c, k - 1], self._size(c, k)),
                    ):
                        count = value_of(flows[c, k, j]) if (c, k, j) in flows else 0
                        for _ in range(count):
                            assert source is not None, "only first tokens have no resident requests before them"
                            r = source.popleft()
                            run.append((r, tokens))
                            resident[c, k].append(r)
                    count = value_of(self._evict[c, k - 1, j]) if (c, k - 1, j) in self._evict else 0
                    evicted += [((c, k - 1), resident[c, k - 1].popleft()) for _ in range(count)]
            for where, r in evicted:
                pool[where].append(r)
            if run:
                assignments.append(Assignment(sorted(run), sorted(r for _, r in evicted)))
        return timed(self._instance, assignments)


def _terms(coefficient: int, place: Place, *flows: dict[Place, int]) -> Terms:
    return [(coefficient, flow[place]) for flow in flows if place in flow]
