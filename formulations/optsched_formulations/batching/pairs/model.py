r"""Sums of e2e latencies as one integer programme: flows of requests, and for each pair which comes first.

It covers what `memory_only` says, offline. Batch j takes the base and the own times of its steps, and all requests that
are unfinished when it begins wait for it. So with :math:`J_s` the batch that generates the last token of s, and
:math:`τ_e` the batch of step e, of own time :math:`w_e`,

.. math:: \sum_s v_s C_s = \mathrm{base} \sum_s v_s J_s + \sum_s \sum_e v_s w_e \, [τ_e ≤ J_s].

*Variables*, whole. For every class and token, as in `flow.model` without idle arcs: fills, decodes, evictions and waits
in each of H batches. For the step e that is the m-th of its class to generate token k, :math:`g_e(t)` says whether
it is done by batch t; the counts of a token are

.. math:: \sum_m g_{ckm}(t) = \sum_{j ≤ t} (\text{fills and decodes of } (c, k) \text{ in batch } j),

where :math:`g_{ckm}(t)` does not rise with m and does not fall with t. The m-th completion of a class is its
m-th last token, so that :math:`J_s = 1 + \sum_{t ≥ 1} (1 - g_s(t))`, within H batches.

*Pairs.* For a step e and a completion s let :math:`q_{es} ≥ 0` be at least

.. math:: g_e(t) - g_s(t - 1), \qquad t = 1, …, H.

If e is not after s, the row of :math:`t = τ_e` says 1; otherwise each says 0 at most, for s is done by the batch
before e. So the least q is :math:`[τ_e ≤ J_s]`, exactly, and the linear relaxation of these rows is the transport
problem between the distributions of :math:`τ_e` and :math:`J_s`: it is strong. Of one class, the m-th to generate a
token does so no later than the m'-th completes, m ≤ m'; such pairs are constants. What a refill takes beyond the decode
has a row for all refills of a token together, of which there are :math:`n_c` at most:

.. math:: q_{cks} ≥ \sum_{j ≤ t} \mathrm{fill}_{ckj} - n_c\, g_s(t - 1),

and all refills of a class are there before its last completion.

*Theorem.* For every H no schedule has a lower sum than the optimum of the programme, and a solution in which every
request completes within H batches is a schedule of just that sum.

*Proof.* Some best schedule has no pauses (`request_space`). What a request does is a flow. A request that has generated
k < O tokens by batch H is *late*: it completes in batch H + O − k or later, and counts as much. The programme leaves
out what it does behind H, by which others only wait less. What is left is the formula above, in which only the order of
steps in time matters, not which of equal requests does them. Conversely flows without late requests say what each batch
does. ∎
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise

from optsched.model.instance import Instance
from optsched.model.schedule import Schedule
from optsched.solvers.deadline import Deadline
from optsched_formulations.batching.flow.model import Terms
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.pairs.flows import Flows, some_terms
from optsched_formulations.batching.search.naming import schedule_of_steps
from optsched_formulations.batching.search.state_steps import EVICT, FILL, RUN

Step = tuple[int, int]
"""``(item, m)``: the m-th of a class, from 0, to generate the item."""


class PairModel(Flows):
    """The programme of an instance for some number of batches.

    Parameters
    ----------
    classes
        The requests by class, with weights.
    horizon
        H, at least the longest output.
    deadline
        When the programme has to be built.

    Attributes
    ----------
    program
        Variables, rows and objective.
    constant
        What the objective leaves out of the weighted sum of completions, in ps after the arrival of all.
    pairs
        The rows of every pair.
    """

    def __init__(self, classes: Classes, horizon: int, deadline: Deadline) -> None:
        super().__init__(classes, horizon)
        self._deadline = deadline
        self.constant = 0
        self.pairs: list[range] = []
        self._done: dict[Step, list[int | None]] = {}
        for item in range(len(classes.owner)):
            self._add_done(item)
        self.add_capacity(classes.size, classes.capacity)
        self._add_pairs()

    @staticmethod
    def size_of(classes: Classes, horizon: int) -> int:
        """Return about how many coefficients a programme has."""
        steps = sum(len(classes.members[owner]) for owner in classes.owner)
        return 3 * horizon * steps * sum(map(len, classes.members))

    # What is done ----------------------------------------------------------------------------------------------

    def _add_done(self, item: int) -> None:
        """Say of the m-th step of an item by which batch it is done."""
        self._deadline.require()
        members, row = range(self._number[self._classes.owner[item]]), self.program.row
        for m in members:
            self._done[item, m] = [None]
        for batch in self._batches:
            runs = self.runs(item, batch)
            for m in members:
                known = self._done[item, m]
                known.append(self.program.variable(0, 1) if runs or known[-1] is not None else None)
            now = [self._done[item, m][batch] for m in members]
            if now[0] is None:
                continue
            past = [self._done[item, m][batch - 1] for m in members]
            row(_some(1, now) + _some(-1, past) + [(-1, run) for run in runs], 0, 0)
            for one, other in pairwise(now):
                row(_some(1, [one]) + _some(-1, [other]), 0, None)
            for later, earlier in zip(now, past, strict=True):
                if earlier is not None:
                    row(_some(1, [later]) + _some(-1, [earlier]), 0, None)

    # Objective ------------------------------------------------------------------------------------------------

    def _completions(self) -> Iterable[tuple[int, int, int, list[int | None]]]:
        """Yield class, number, weight and variables of every completion that counts."""
        classes = self._classes
        for c, (first, (_, output, weight)) in enumerate(zip(classes.first, classes.kinds, strict=True)):
            for m in range(self._number[c] if weight else 0):
                yield c, m, weight, self._done[first + output - 1, m]

    def _add_pairs(self) -> None:
        classes, objective = self._classes, self.program.objective
        for c, place, weight, completed in self._completions():
            self.constant += weight * classes.base_ps * (len(self._batches) + 1)
            objective += [(-weight * classes.base_ps, known) for _, known in _some(1, completed)]
            # Each token that is not generated within the horizon takes a batch behind it.
            tokens = range(classes.first[c], classes.first[c] + classes.kinds[c][1] - 1)
            self.constant += weight * classes.base_ps * len(tokens)
            late = [self._done[item, place][-1] for item in tokens]
            objective += [(-weight * classes.base_ps, known) for _, known in _some(1, late)]
            for item, owner in enumerate(classes.owner):
                own = classes.fill_ps[item] if classes.token[item] == 1 else classes.decode_ps[item]
                extra = weight * classes.extra_ps(item)
                for m in range(self._number[owner]):
                    if owner == c and m <= place:
                        self.constant += weight * own
                    elif own:
                        steps = [_some(-1, [known]) for known in self._done[item, m][1:]]
                        self._add_pair(steps, 1, completed, weight * own)
                fills = [some_terms(-1, (item, batch), self._fill) for batch in self._batches]
                if extra and owner == c and place == self._number[c] - 1:
                    objective += [(extra, fill) for terms in fills for _, fill in terms]
                elif extra:
                    self._add_pair(list(accumulate(fills)), self._number[owner], completed, extra)

    def _add_pair(self, done: list[Terms], most: int, completed: list[int | None], cost: int) -> None:
        """Add what steps cost that are done while a request is not complete; ``done`` are their negative counts."""
        if not any(done):
            return
        self._deadline.require()
        pair = self.program.variable(0, most)
        self.program.objective.append((cost, pair))
        before = len(self.program.rows)
        for batch, steps in zip(self._batches, done, strict=True):
            if steps:
                self.program.row([(1, pair), *steps, *_some(most, [completed[batch - 1]])], 0, None)
        self.pairs.append(range(before, len(self.program.rows)))

    # Solutions ------------------------------------------------------------------------------------------------

    def schedule(self, instance: Instance, value_of: Callable[[int], int]) -> Schedule | None:
        """Read a whole solution; None if a request is late."""
        if any(completed[-1] is None or not value_of(completed[-1]) for completed in self._last_tokens()):
            return None
        steps: list[tuple[int, int]] = []
        for batch in self._batches:
            for kind, flows in ((EVICT, self._evict), (FILL, self._fill)):
                for item in range(len(self._classes.owner)):
                    steps += [(kind, item)] * (value_of(flows[item, batch]) if (item, batch) in flows else 0)
            if any(value_of(run) for item in range(len(self._classes.owner)) for run in self.runs(item, batch)):
                steps.append((RUN, -1))
        return schedule_of_steps(instance, self._classes, steps)

    def _last_tokens(self) -> Iterable[list[int | None]]:
        classes = self._classes
        return (
            self._done[item, m]
            for item, owner in enumerate(classes.owner)
            if classes.following[item] < 0
            for m in range(self._number[owner])
        )


def _some(coefficient: int, variables: list[int | None]) -> Terms:
    """Return terms of the variables that exist: the others are 0."""
    return [(coefficient, variable) for variable in variables if variable is not None]
