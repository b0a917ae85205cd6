r"""What requests of equal prompts may do together in a schedule that is better, as flows, and a MIP over them.

With J batches, consider every prompt length p and its requests, whatever their outputs. Whole numbers say how many of
them, in batch b, *run* the token k for which they are due, their KV in the cache; are *filled* for it; are *evicted*
when they are due for it; and *exit* after it, their output being k. With :math:`r, f, e, x` for these numbers and
:math:`w` for those that wait after batch b, and with :math:`s_{pk}` blocks held and refills of extra cost
:math:`c_{pk}`, 0 for k = 1,

.. math::
    r_{pk,b+1} + e_{pk,b+1} + x_{p,k-1,b} = r_{p,k-1,b} + f_{p,k-1,b}, \qquad
    w_{pkb} = w_{pk,b-1} + e_{pkb} - f_{pkb}, \qquad
    \sum_b x_{pkb} = n_{pk}, \qquad \sum_{pk} s_{pk} (r_{pkb} + f_{pkb}) ≤ M,

where :math:`n_{pk}` requests have the prompt p and the output k; all wait for k = 1 before the first batch, and
nothing is due and nothing waits after the last.

*Theorem 1.* Every schedule of J batches without pauses, of which some optimal one is (`resident_graph`), gives such
numbers, and costs :math:`\mathrm{base} J + \sum c_{pk} f_{pkb}` without the constant work. From any such numbers
follows a schedule of at most J batches that costs no more than that.

*Proof.* The first is what the numbers count. For the second, let as many as are evicted and filled for the same token
in a batch keep their KV instead, which costs no more since :math:`c ≥ 0`; then all that are filled have waited. Follow
the requests from batch to batch. Which of several in the same place runs, is evicted or exits makes no difference to
the others: up to token k they have the same sizes and costs. So a request needs its output only when it exits, and
:math:`n_{pk}` of them exit after token k. Batches in which nothing runs are left out, at a base less. ∎

*Theorem 2.* Let prices :math:`π ≥ 0` of blocks prove the bound L on schedules of J batches (`pattern_layers`). For a
class c of requests of equal prompt and output, let :math:`ρ_c(a)` be the least of what a request of it costs, refills
and its blocks at their prices, if it does the step a (to be run, filled or evicted at a token in a batch), less the
least that it costs at all. A schedule of J batches that costs less than :math:`L + δ` does a step a of a prompt
:math:`x_a` times only if :math:`x_a \min_c ρ_c(a) < δ`, with the least over the classes of that prompt.

*Proof.* It costs at least :math:`\mathrm{base} J` and what its requests cost at these prices, less :math:`M \sum π`:
that is L and, for each request, what it costs beyond the least of its class, which is at least :math:`ρ_c(a)` for each
step a that it does, and 0 at least. A request does a step once at most. ∎

So steps of :math:`\min_c ρ_c ≥ δ` are left out, which leaves a tenth to a third of them where the bound is good, and
the others have bounds. HiGHS solves what is left. Its linear relaxation has the dual prices that prove most; they are
rounded, and what they prove is computed again in integers. The bound of whole numbers is the solver's claim, what it
finds is followed from batch to batch in integers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import highspy
import numpy as np
from scipy.sparse import csc_array

from optsched.model.ints import Ints
from optsched.solvers.highs import HIGHS_TOLERANCE, programme_of, quiet_solver, run_interruptibly
from optsched_formulations.batching.layers.bundle import Floats
from optsched_formulations.batching.layers.pattern_kernel import NO_WAY
from optsched_formulations.batching.layers.pattern_layers import PatternPriced
from optsched_formulations.batching.search.state_steps import EVICT, FILL, RUN

_CLAIM = 1e-6
"""Batches by which HiGHS may be wrong."""

_Terms = list[tuple[float, int]]


class Step(NamedTuple):
    """What requests of a prompt may do at a token in a batch, from 1: `RUNS`, `FILLED`, `EVICTED`, `EXITS` or `WAITS`.

    Those that exit do so after the token and the batch; those that wait do so after the batch.
    """

    kind: int
    prompt: int
    token: int
    batch: int


RUNS, FILLED, EVICTED, EXITS, WAITS = range(5)


@dataclass
class Packed:
    """What a programme proves and finds.

    Parameters
    ----------
    bound
        No schedule of this number of batches costs less than this, without the constant work.
    steps
        Kind and item of the steps of a schedule that costs less than the budget; none if none is found.
    """

    bound: int
    steps: list[tuple[int, int]] = field(default_factory=list)


def beyond_least(priced: PatternPriced) -> Ints:
    """Return what each step costs more than the least of its class, shape (3, batches + 1, items).

    The first index is `RUNS`, `FILLED` or `EVICTED`; row 0 is no batch. A step that cannot be costs about `NO_WAY`.
    """
    facts, last, price = priced.relaxation.facts, priced.batches, priced.price
    classes = priced.relaxation.classes
    fill, items = facts.extra.astype(np.int64), len(facts.size)
    goes_on, evictable = facts.following >= 0, facts.evictable > 0
    # Least costs of what comes before: of being due for an item in a batch, and of waiting for it when it begins.
    due: Ints = np.full(items, NO_WAY, dtype=np.int64)
    waits = due.copy()
    waits[classes.first] = 0
    least = np.array([priced.waits[last, classes.first[owner]] for owner in classes.owner])
    beyond: Ints = np.full((3, last + 1, items), NO_WAY, dtype=np.int64)
    for batch in range(1, last + 1):
        left = last - batch
        own = facts.size * price[left + 1]
        after = np.where(goes_on, priced.due[left, facts.following], 0) + own - least
        beyond[RUNS, batch] = due + after
        beyond[FILLED, batch] = waits + fill + after
        beyond[EVICTED, batch] = np.where(evictable, due + priced.waits[left] - least, NO_WAY)
        ran = np.minimum(due, waits + fill) + own
        waits = np.where(evictable, np.minimum(waits, due), waits)
        due = np.full(items, NO_WAY, dtype=np.int64)
        due[1:] = np.where(goes_on[:-1], np.minimum(ran[:-1], NO_WAY), NO_WAY)
    return np.minimum(beyond, NO_WAY)


class ArcProgramme:
    """The programme of this module for one number of batches and a budget.

    Parameters
    ----------
    priced
        The prices of the number of batches; what they prove is below the budget.
    budget
        Cost from which on a schedule is of no use, without the constant work.
    """

    def __init__(self, priced: PatternPriced, budget: int) -> None:
        self._priced, self._budget = priced, budget
        self._classes = classes = priced.relaxation.classes
        self._outputs: dict[int, dict[int, int]] = defaultdict(dict)
        """Number of requests of every prompt by output."""
        for (prompt, output, _), members in zip(classes.kinds, classes.members, strict=True):
            self._outputs[prompt][output] = len(members)
        self._item: dict[tuple[int, int], int] = {}
        """An item of every prompt and token; all have the same size and costs."""
        for item, (owner, token) in enumerate(zip(classes.owner, classes.token, strict=True)):
            self._item[classes.kinds[owner][0], token] = item
        self._most: list[int] = []
        self._column: dict[Step, int] = {}
        self._terms: list[_Terms] = []
        self._sides: list[tuple[float, float]] = []
        self._add_steps()
        self._add_rows()

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self._most)

    def _add_steps(self) -> None:
        """Add a column for every step of Theorem 2."""
        slack = self._budget - self._priced.bound
        least: dict[Step, int] = {}
        beyond = beyond_least(self._priced)
        for kind, batch, item in np.argwhere(beyond < slack).tolist():
            step = Step(kind, self._classes.kinds[self._classes.owner[item]][0], self._classes.token[item], batch)
            least[step] = min(least.get(step, NO_WAY), int(beyond[kind, batch, item]))
        for step, cost in least.items():
            requests = self._of_output(step.prompt, step.token)
            self._add(step, min(requests, (slack - 1) // cost) if cost > 0 else requests)

    def _of_output(self, prompt: int, least: int) -> int:
        """Return how many requests have a prompt and an output of at least a number of tokens."""
        return sum(number for output, number in self._outputs[prompt].items() if output >= least)

    def _add(self, step: Step, most: int) -> int:
        self._column[step] = len(self._most)
        self._most.append(most)
        return len(self._most) - 1

    def _row(self, terms: _Terms, lower: float, upper: float) -> None:
        self._terms.append(terms)
        self._sides.append((lower, upper))

    def _found(self, prompt: int, token: int, batch: int, *kinds: int) -> list[int]:
        """Return the columns of some kinds of steps that there are."""
        steps = (Step(kind, prompt, token, batch) for kind in kinds)
        return [self._column[step] for step in steps if step in self._column]

    def _add_rows(self) -> None:
        relaxation, batches, infinity = self._priced.relaxation, self._priced.batches, highspy.kHighsInf
        exits: dict[tuple[int, int], _Terms] = defaultdict(list)
        for prompt, outputs in self._outputs.items():
            for token in range(1, max(outputs) + 1):
                self._add_waiting(prompt, token)
                if token == max(outputs):
                    continue
                for batch in range(1, batches + 1):
                    ran = self._found(prompt, token, batch, RUNS, FILLED)
                    due = self._found(prompt, token + 1, batch + 1, RUNS, EVICTED)
                    if ran and token in outputs:
                        column = self._add(Step(EXITS, prompt, token, batch), outputs[token])
                        exits[prompt, token].append((1.0, column))
                        due.append(column)
                    if ran or due:
                        self._row([*((1.0, column) for column in due), *((-1.0, column) for column in ran)], 0, 0)
        for (prompt, token), terms in exits.items():
            self._row(terms, self._outputs[prompt][token], self._outputs[prompt][token])
        self._cost = np.zeros(len(self._most))
        held: dict[int, _Terms] = {batch: [] for batch in range(1, batches + 1)}
        for step, column in self._column.items():
            if step.kind in {RUNS, FILLED}:
                item = self._item[step.prompt, step.token]
                held[step.batch].append((float(relaxation.facts.size[item]), column))
                if step.kind == FILLED:
                    self._cost[column] = relaxation.facts.extra[item] / relaxation.base
        self._room = self._budget / relaxation.base - batches + _CLAIM
        self._row([(self._cost[column], column) for column in np.flatnonzero(self._cost).tolist()], 0, self._room)
        # Memory comes last: `_prices` takes the duals of these rows.
        for terms in held.values():
            self._row(terms, -infinity, float(relaxation.capacity))

    def _add_waiting(self, prompt: int, token: int) -> None:
        """Add those that wait for a token after every batch in which their number changes."""
        before, start = -1, float(self._of_output(prompt, 1)) if token == 1 else 0.0
        for batch in range(1, self._priced.batches + 1):
            filled = self._found(prompt, token, batch, FILLED)
            evicted = self._found(prompt, token, batch, EVICTED)
            if not filled and not evicted:
                continue
            column = self._add(Step(WAITS, prompt, token, batch), self._of_output(prompt, token))
            terms = [(1.0, column), *((1.0, other) for other in filled), *((-1.0, other) for other in evicted)]
            if before >= 0:
                terms.append((-1.0, before))
            self._row(terms, start, start)
            before, start = column, 0.0
        if before >= 0:
            self._most[before] = 0

    def _programme(self) -> highspy.HighsLp:
        values = np.array([value for terms in self._terms for value, _ in terms])
        columns = [column for terms in self._terms for _, column in terms]
        rows = np.repeat(np.arange(len(self._terms)), [len(terms) for terms in self._terms])
        matrix = csc_array((values, (rows, columns)), shape=(len(self._terms), len(self._most)))
        lower, upper = np.array(self._sides, dtype=np.float64).T
        bounds = np.zeros(len(self._most)), np.array(self._most, dtype=np.float64)
        return programme_of(self._cost, bounds, matrix, (lower, upper))

    def prices(self, seconds: float, seed: int) -> Floats | None:
        """Return dual prices of blocks by the batches left, None if there is no optimum or no time."""
        solver = quiet_solver(seconds, 1, seed)
        solver.passModel(self._programme())
        if run_interruptibly(solver):
            raise KeyboardInterrupt
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        duals = np.asarray(solver.getSolution().row_dual, dtype=np.float64)[-self._priced.batches :]
        return np.concatenate([[0.0], np.maximum(0.0, -duals[::-1])])

    def pack(self, seconds: float, seed: int) -> Packed:
        """Look for the best schedule that costs less than the budget."""
        relaxation, batches = self._priced.relaxation, self._priced.batches
        solver = quiet_solver(seconds, 1, seed)
        for option, value in (
            ("mip_rel_gap", 0.0),
            ("mip_abs_gap", 0.0),
            ("mip_feasibility_tolerance", HIGHS_TOLERANCE.feasibility),
            ("objective_bound", self._room),
        ):
            solver.setOptionValue(option, value)
        programme = self._programme()
        programme.integrality_ = [highspy.HighsVarType.kInteger] * len(self._most)
        solver.passModel(programme)
        stopped = run_interruptibly(solver)
        status, info, statuses = solver.getModelStatus(), solver.getInfo(), highspy.HighsModelStatus
        found: _Followed | None = None
        if info.primal_solution_status == highspy.kSolutionStatusFeasible:
            found = self._followed(np.rint(np.asarray(solver.getSolution().col_value)).astype(np.int64))
        packed = Packed(self._priced.bound)
        if found is not None and found.cost < self._budget:
            packed.steps = found.steps
        if stopped:
            if packed.steps:
                return packed
            raise KeyboardInterrupt
        if status == statuses.kInfeasible:
            proved = self._budget
        elif status == statuses.kOptimal and found is not None:
            proved = found.of_batches
        elif abs(info.mip_dual_bound) < highspy.kHighsInf:
            proved = int((batches + info.mip_dual_bound - _CLAIM) * relaxation.base)
        else:
            proved = 0
        packed.bound = max(packed.bound, min(proved, self._budget))
        return packed

    def _followed(self, values: Ints) -> _Followed | None:
        """Follow requests from batch to batch; None if rounded values are no schedule."""
        done: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
        held: Ints = np.zeros(self._priced.batches + 1, dtype=np.int64)
        for prompt, outputs in self._outputs.items():
            if not self._follow(prompt, values, done, held):
                return None
            if any(len(done[prompt, output]) != number for output, number in outputs.items()):
                return None
        if held.max() > self._priced.relaxation.capacity:
            return None
        return self._schedule(done)

    def _follow(self, prompt: int, values: Ints, done: dict[tuple[int, int], list[list[int]]], held: Ints) -> bool:
        """Note the batches of the tokens of every request of a prompt, and what they hold; whether numbers agree."""
        outputs = self._outputs[prompt]
        waiting: dict[int, list[list[int]]] = defaultdict(list)
        waiting[1] = [[] for _ in range(self._of_output(prompt, 1))]
        due: dict[int, list[list[int]]] = {}

        def number(kind: int, token: int, batch: int) -> int:
            return sum(int(values[column]) for column in self._found(prompt, token, batch, kind))

        for batch in range(1, self._priced.batches + 1):
            ahead: dict[int, list[list[int]]] = defaultdict(list)
            for token in range(1, max(outputs) + 1):
                size = int(self._priced.relaxation.facts.size[self._item[prompt, token]])
                runs, filled, evicted = (number(kind, token, batch) for kind in (RUNS, FILLED, EVICTED))
                # Those that are both evicted and filled keep their KV.
                runs, filled = runs + min(filled, evicted), filled - min(filled, evicted)
                here, waits = due.get(token, []), waiting[token]
                if filled > len(waits) or runs > len(here):
                    return False
                ran = here[:runs] + waits[:filled]
                waiting[token] = waits[filled:] + here[runs:]
                for batches in ran:
                    batches.append(batch)
                held[batch] += size * len(ran)
                exits = len(ran) if token == max(outputs) else number(EXITS, token, batch)
                done[prompt, token] += ran[:exits]
                ahead[token + 1] = ran[exits:]
            due = ahead
        return True

    def _schedule(self, done: dict[tuple[int, int], list[list[int]]]) -> _Followed:
        """Return the schedule of requests of every prompt and output in the batches noted, without empty ones."""
        classes, relaxation = self._classes, self._priced.relaxation
        used = sorted({batch for requests in done.values() for batches in requests for batch in batches})
        place = {batch: number for number, batch in enumerate(used)}
        acts: list[list[tuple[int, int]]] = [[] for _ in used]
        costs = [0, 0]
        for first, (prompt, output, _) in zip(classes.first, classes.kinds, strict=True):
            for batches in done[prompt, output]:
                for item, batch in enumerate(batches, start=first):
                    before = batches[item - first - 1] if item > first else -1
                    if item > first:
                        costs[0] += int(relaxation.facts.extra[item]) * (batch > before + 1)
                    if item == first or place[batch] > place[before] + 1:
                        acts[place[batch]].append((FILL, item))
                    if item > first and place[batch] > place[before] + 1:
                        acts[place[before] + 1].append((EVICT, item))
                        costs[1] += int(relaxation.facts.extra[item])
        steps = [step for act in acts for step in (*sorted(act), (RUN, -1))]
        base = relaxation.base
        return _Followed(self._priced.batches * base + costs[0], len(used) * base + costs[1], steps)


@dataclass(frozen=True)
class _Followed:
    """A schedule that HiGHS has found.

    Parameters
    ----------
    of_batches
        Its cost if all batches took a base, without the constant work.
    cost
        Its cost without empty batches.
    steps
        Kind and item of its steps.
    """

    of_batches: int
    cost: int
    steps: list[tuple[int, int]]


def tightened(priced: PatternPriced, budget: int, seconds: float, seed: int) -> PatternPriced:
    """Return what the dual prices of the linear relaxation prove, where that is more."""
    if priced.bound >= budget:
        return priced
    price = ArcProgramme(priced, budget).prices(seconds, seed)
    if price is None:
        return priced
    other = priced.relaxation.priced(price, priced.batches)
    return max(priced, other, key=lambda either: either.bound)
