r"""All that single requests may do in a schedule that is better, and a packing of it into the batches.

A *pattern* of a request is the batch of each of its tokens, :math:`b_1 < … < b_O ≤ J`: where two follow each other, the
second is decoded, else the request is evicted and refilled. Requests of a class c, alike in all that matters, are not
told apart: :math:`x_l` is how many of them follow the pattern l. A schedule of J batches without pauses, of which some
optimal one is (`resident_graph`), is a point of

.. math:: \sum_{l ∈ c} x_l = n_c, \qquad \sum_l s_{lb} x_l ≤ M, \qquad x ≥ 0 \text{ whole},

where l holds :math:`s_{lb}` blocks in batch b, and it costs :math:`\mathrm{base} J + \sum_l e_l x_l` without the
constant work, :math:`e_l` being the extra cost of the refills of l. Every such point is a schedule of at most J
batches.

*Theorem.* Let prices :math:`π ≥ 0` of blocks prove the bound L on schedules of J batches (`pattern_layers`), and let
:math:`r_l = e_l + \sum_b s_{lb} π_b - W_c ≥ 0`, with :math:`W_c` the least of these sums in the class of l. A schedule
of J batches that costs less than :math:`L + δ` follows patterns of :math:`r_l < δ` only.

*Proof.* It costs :math:`\mathrm{base} J + \sum e_l x_l ≥ \mathrm{base} J + \sum_l (e_l + \sum_b s_{lb} π_b) x_l -
M \sum_b π_b = L + \sum_l r_l x_l`, and no term is negative. ∎

So with the least cost v of the programme over patterns of :math:`r_l < δ` (∞ if there is none), no schedule of J
batches costs less than :math:`\min(v, L + δ)`. Of these patterns also none costs more by itself than the budget leaves:
:math:`e_l < B - \mathrm{base} J`. With a small δ the programme is small, and what it finds makes the next one smaller.

Its linear relaxation has the dual prices that prove most: HiGHS finds them, they are rounded, and what they prove is
computed again in integers. The bound of the programme of whole numbers is the solver's claim; what it finds is rounded
and checked in integers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import highspy
import numpy as np
from scipy.sparse import csc_array

from optsched.compiled import compiled
from optsched.model.ints import Ints
from optsched.solvers.highs import HIGHS_TOLERANCE, programme_of, quiet_solver, run_interruptibly
from optsched_formulations.batching.layers.bundle import Floats
from optsched_formulations.batching.layers.pattern_kernel import ItemFacts
from optsched_formulations.batching.layers.pattern_layers import PatternPriced
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.search.state_steps import EVICT, FILL, RUN

_CLAIM = 1e-6
"""Batches by which HiGHS may be wrong."""


@dataclass(frozen=True)
class Patterns:
    """Patterns of a class.

    Parameters
    ----------
    batch
        Of every token, from 1; shape (patterns, O).
    extra
        What refills cost.
    """

    batch: Ints
    extra: Ints


@dataclass
class Packed:
    """What a programme of patterns proves and finds.

    Parameters
    ----------
    bound
        No schedule of this number of batches costs less than this, without the constant work.
    steps
        Kind and item of the steps of a schedule that costs less than the budget; none if none is found.
    """

    bound: int
    steps: list[tuple[int, int]] = field(default_factory=list)


@compiled
def _list_patterns(  # noqa: PLR0917 - compiled functions take positions
    facts: ItemFacts,
    price: Ints,
    due: Ints,
    waits: Ints,
    first: int,
    slack: int,
    most_extra: int,
    batch: Ints,
    extra: Ints,
) -> int:
    """Write the patterns of the class with item ``first``; return how many there are, or one more than fit."""
    size, _, evictable, fill, _ = facts
    tokens, last, found = batch.shape[1], len(price) - 1, 0
    # Of the tokens decided: batches, the next one to try, costs with prices, and without.
    at, upcoming, paid, spent = np.zeros((4, tokens + 1), dtype=np.int64)
    least = waits[last, first]
    upcoming[0], k = 1, 0
    while k >= 0:
        b = upcoming[k]
        upcoming[k] += 1
        item, left = first + k, last - b + 1
        waited = k == 0 or b > at[k] + 1
        # Later fills cost no less, since more time to wait is never worse.
        if left < tokens - k or (
            waited and ((k > 0 and not evictable[item]) or paid[k] + waits[left, item] - least >= slack)
        ):
            k -= 1
            continue
        refill = fill[item] if waited and k > 0 else 0
        priced, own = paid[k] + refill + size[item] * price[left], spent[k] + refill
        ahead = due[left - 1, item + 1] if k + 1 < tokens else 0
        if own >= most_extra or priced + ahead - least >= slack:
            continue
        at[k + 1], paid[k + 1], spent[k + 1] = b, priced, own
        if k + 1 < tokens:
            upcoming[k + 1], k = b + 1, k + 1
            continue
        if found == len(extra):
            return found + 1
        batch[found], extra[found] = at[1:], own
        found += 1
    return found


def patterns_within(
    classes: Classes, priced: PatternPriced, slack: int, budget: int, most: int
) -> list[Patterns] | None:
    """Return the patterns of reduced cost below ``slack`` of each class, None if there are more than ``most``."""
    relaxation, found = priced.relaxation, []
    for first, (_, tokens, _) in zip(classes.first, classes.kinds, strict=True):
        batch: Ints = np.zeros((most, tokens), dtype=np.int64)
        extra: Ints = np.zeros(most, dtype=np.int64)
        most_extra = budget - priced.batches * relaxation.base
        tables = priced.price, priced.due, priced.waits
        count = _list_patterns(relaxation.facts, *tables, first, slack, most_extra, batch, extra)
        if count > most:
            return None
        found.append(Patterns(batch[:count].copy(), extra[:count].copy()))
        most -= count
    return found


class PatternProgramme:
    """The programme of this module for some patterns.

    Parameters
    ----------
    classes, priced
        The requests, and the prices of the number of batches.
    patterns
        Of each class, at least one.
    """

    def __init__(self, classes: Classes, priced: PatternPriced, patterns: list[Patterns]) -> None:
        self._classes, self._priced, self._patterns = classes, priced, patterns
        relaxation, batches = priced.relaxation, priced.batches
        requests = np.array([len(members) for members in classes.members], dtype=np.float64)
        index, value, starts = [], [], [np.zeros(1, dtype=np.int64)]
        for number, (first, of_class) in enumerate(zip(classes.first, patterns, strict=True)):
            count, tokens = of_class.batch.shape
            rows = np.full((count, tokens + 1), number)
            rows[:, 1:] = len(patterns) + of_class.batch - 1
            blocks = np.ones((count, tokens + 1))
            blocks[:, 1:] = relaxation.facts.size[first : first + tokens]
            index.append(rows.ravel())
            value.append(blocks.ravel())
            starts.append(np.full(count, tokens + 1))
        self._owner = np.repeat(np.arange(len(patterns)), [len(of_class.extra) for of_class in patterns])
        shape = len(patterns) + batches, len(self._owner)
        matrix = csc_array((np.concatenate(value), np.concatenate(index), np.cumsum(np.concatenate(starts))), shape)
        cost = np.concatenate([of_class.extra for of_class in patterns]) / relaxation.base
        free, full = np.full(batches, -highspy.kHighsInf), np.full(batches, float(relaxation.capacity))
        sides = np.concatenate([requests, free]), np.concatenate([requests, full])
        self._programme = programme_of(cost, (np.zeros(len(cost)), requests[self._owner]), matrix, sides)

    def prices(self, seconds: float, seed: int) -> Floats | None:
        """Return dual prices of blocks by the batches left, None if there is no optimum or no time."""
        solver = quiet_solver(seconds, 1, seed)
        solver.passModel(self._programme)
        if run_interruptibly(solver):
            raise KeyboardInterrupt
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        duals = np.asarray(solver.getSolution().row_dual, dtype=np.float64)[len(self._patterns) :]
        return np.concatenate([[0.0], np.maximum(0.0, -duals[::-1])])

    def pack(self, budget: int, beyond: int, seconds: float, seed: int) -> Packed:
        """Look for a schedule that costs less than the budget; those of other patterns cost ``beyond`` and more."""
        relaxation, batches = self._priced.relaxation, self._priced.batches
        solver = quiet_solver(seconds, 1, seed)
        room = budget / relaxation.base - batches
        for option, value in (
            ("mip_rel_gap", 0.0),
            ("mip_abs_gap", 0.0),
            ("mip_feasibility_tolerance", HIGHS_TOLERANCE.feasibility),
            ("objective_bound", room + _CLAIM),
        ):
            solver.setOptionValue(option, value)
        programme = self._programme
        programme.integrality_ = [highspy.HighsVarType.kInteger] * len(self._owner)
        solver.passModel(programme)
        stopped = run_interruptibly(solver)
        status, info, statuses = solver.getModelStatus(), solver.getInfo(), highspy.HighsModelStatus
        packed = Packed(self._priced.bound)
        cost, refused = budget, False
        if info.primal_solution_status == highspy.kSolutionStatusFeasible:
            cost, packed.steps = self._schedule(np.asarray(solver.getSolution().col_value), budget)
            # What is better than asked, but no schedule when rounded, or leaves batches empty, settles nothing.
            refused = not packed.steps and info.objective_function_value < room - _CLAIM
        if stopped:
            if packed.steps:
                return packed
            raise KeyboardInterrupt
        if status in {statuses.kInfeasible, statuses.kOptimal} and not refused:
            proved = cost
        elif abs(info.mip_dual_bound) < highspy.kHighsInf:
            proved = int((batches + info.mip_dual_bound - _CLAIM) * relaxation.base)
        else:
            proved = 0
        packed.bound = max(packed.bound, min(proved, cost, beyond))
        return packed

    def _schedule(self, values: Floats, budget: int) -> tuple[int, list[tuple[int, int]]]:
        """Return cost and steps of what HiGHS found, or the budget and none if it is not below that, or no schedule."""
        classes, relaxation, number = self._classes, self._priced.relaxation, 0
        held: Counter[int] = Counter()
        fills: dict[int, list[tuple[int, int]]] = {}
        cost = self._priced.batches * relaxation.base
        for first, members, of_class in zip(classes.first, classes.members, self._patterns, strict=True):
            counts = np.rint(values[number : number + len(of_class.extra)]).astype(np.int64)
            number += len(of_class.extra)
            if counts.sum() != len(members) or counts.min() < 0:
                return budget, []
            for pattern in np.flatnonzero(counts).tolist():
                several, last = int(counts[pattern]), 0
                cost += several * int(of_class.extra[pattern])
                for item, batch in enumerate(of_class.batch[pattern].tolist(), start=first):
                    held[batch] += several * int(relaxation.facts.size[item])
                    if batch > last + 1 or item == first:
                        fills.setdefault(batch, []).extend([(FILL, item)] * several)
                        if item > first:
                            fills.setdefault(last + 1, []).extend([(EVICT, item)] * several)
                    last = batch
        if max(held.values()) > relaxation.capacity or cost >= budget or len(held) < self._priced.batches:
            return budget, []
        steps: list[tuple[int, int]] = []
        for batch in range(1, self._priced.batches + 1):
            # Evictions first, and none of what is filled again at once: that is kept.
            here = Counter(fills.get(batch, []))
            for item in {item for _, item in here}:
                both = min(here[EVICT, item], here[FILL, item])
                here[EVICT, item] -= both
                here[FILL, item] -= both
            steps += sorted(here.elements())
            steps.append((RUN, -1))
        return cost, steps


def tightened(priced: PatternPriced, budget: int, most: int, seconds: float, seed: int) -> PatternPriced:
    """Return what the dual prices of the linear relaxation prove, where that is more."""
    classes = priced.relaxation.classes
    slack, patterns = budget - priced.bound, None
    # Any prices prove something: where there are too many patterns, those of fewer will do.
    while patterns is None and slack > 0:
        patterns = patterns_within(classes, priced, slack, budget, most)
        slack //= 2
    if patterns is None or not all(len(of_class.extra) for of_class in patterns):
        return priced
    price = PatternProgramme(classes, priced, patterns).prices(seconds, seed)
    if price is None:
        return priced
    other = priced.relaxation.priced(price, priced.batches)
    return max(priced, other, key=lambda either: either.bound)


def packed_patterns(  # noqa: PLR0917
    priced: PatternPriced, share: float, budget: int, most: int, seconds: float, seed: int
) -> Packed | None:
    """Pack the patterns within a share of what prices leave to the budget; None if there are more than ``most``."""
    classes = priced.relaxation.classes
    slack = int(share * (budget - priced.bound)) if share < 1 else budget - priced.bound
    patterns = patterns_within(classes, priced, slack, budget, most)
    if patterns is None:
        return None
    beyond = priced.bound + slack
    if not all(len(of_class.extra) for of_class in patterns):
        return Packed(beyond)
    return PatternProgramme(classes, priced, patterns).pack(budget, beyond, seconds, seed)
