r"""Variables of the token-indexed model with whole prefills.

Every output token k of request r has

- :math:`t_{rk} \in \{1, …, J\}`: the batch that generates it, strictly increasing in k;
- :math:`\mathit{keep}_{rk}`: whether its KV stays until token k + 1. If it does, token k + 1 is a decode step. If not,
  the request is evicted in batch :math:`t_{rk} + 1` and token k + 1 is a refill of I + k tokens.

Where needed, and made when first asked for:

- :math:`\mathit{by}_{rkj} ⇔ t_{rk} ≤ j` and :math:`x_{rkj} ⇔ t_{rk} = j`, with
  :math:`x_{rkj} = \mathit{by}_{rkj} - \mathit{by}_{rk,j-1}` and
  :math:`t_{rk} = 1 + \sum_{j ≥ 1} (1 - \mathit{by}_{rkj})`;
- :math:`\mathit{refilled}_{rkj} ⇔ x_{rkj} ∧ ¬\mathit{keep}_{r,k-1}`;
- :math:`\mathit{used}_j ⇔ j ≤ J`;
- :math:`y_{rk,q\ell} ⇔ t_{rk} ≤ t_{q\ell}`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ortools.sat.python import cp_model

from optsched.solvers.deadline import Deadline
from optsched_formulations.batching.costs import Costs, Token

Linear = cp_model.LinearExpr | int
"""A linear expression, or a number."""


class TokenVariables:
    """The variables of one task.

    Parameters
    ----------
    cp
        The model that they are added to.
    costs
        The instance.
    most_batches
        Largest J.
    deadline
        When the model has to be built.
    """

    def __init__(self, cp: cp_model.CpModel, costs: Costs, most_batches: int, deadline: Deadline) -> None:
        self.cp = cp
        self._deadline = deadline
        self.costs = costs
        self.most_batches = most_batches
        requests = costs.requests
        self.batches = cp.new_int_var(max(q.output for q in requests), most_batches, "J")
        self.time: dict[Token, cp_model.IntVar] = {}
        self.keep: dict[Token, cp_model.IntVar] = {}
        for r, k in costs.tokens:
            self.time[r, k] = cp.new_int_var(k, self.latest((r, k)), f"t[{r},{k}]")
            if k < requests[r].output:
                least = 0 if costs.can_refill((r, k + 1)) else 1
                self.keep[r, k] = cp.new_int_var(least, 1, f"keep[{r},{k}]")
        self._by: dict[Token, dict[int, cp_model.IntVar]] = {}
        self._slots: dict[Token, dict[int, cp_model.IntVar]] = {}
        self._refilled: dict[tuple[Token, int], cp_model.IntVar] = {}
        self._used: list[cp_model.IntVar] = []
        self._precedence: dict[tuple[Token, Token], cp_model.IntVar] = {}

    def latest(self, token: Token) -> int:
        """Latest batch of a token: those after it need batches, too."""
        r, k = token
        return self.most_batches - (self.costs.requests[r].output - k)

    def last(self, r: int) -> Token:
        """Return the last token of request r."""
        return r, self.costs.requests[r].output

    def dropped(self, token: Token) -> Linear:
        """Whether the KV is dropped before the token, so that a refill generates it."""
        r, k = token
        return 0 if k == 1 else 1 - self.keep[r, k - 1]

    def by(self, token: Token) -> dict[int, cp_model.IntVar]:
        """Return literals t ≤ j for the batches j in which that is open: from k to before the latest."""
        if token not in self._by:
            self._deadline.require()
            first, last = token[1], self.latest(token)
            found = {j: self.cp.new_bool_var(f"by[{token[0]},{token[1]},{j}]") for j in range(first, last)}
            self.cp.add(self.time[token] == last - cp_model.LinearExpr.sum(list(found.values())))
            for one, other in pairwise(found.values()):
                self.cp.add_implication(one, other)
            self._by[token] = found
        return self._by[token]

    def slots(self, token: Token) -> dict[int, cp_model.IntVar]:
        """Return literals t = j for the batches j in which the token may be generated."""
        if token not in self._slots:
            by, first, last = self.by(token), token[1], self.latest(token)
            found = {j: self.cp.new_bool_var(f"slot[{token[0]},{token[1]},{j}]") for j in range(first, last + 1)}
            for j, literal in found.items():
                before, now = by.get(j - 1, 0), by.get(j, 1)
                self.cp.add(literal == now - before)
            self.cp.add_exactly_one(found.values())
            self._slots[token] = found
        return self._slots[token]

    def in_batch(self, j: int) -> Iterator[tuple[Token, cp_model.IntVar]]:
        """Yield the tokens that batch j may generate, with their literals."""
        self._deadline.require()
        for token in self.costs.tokens:
            slots = self.slots(token)
            if j in slots:
                yield token, slots[j]

    def refilled(self, token: Token, j: int) -> cp_model.IntVar | None:
        """Return the literal that a refill generates the token in batch j; None for a first token."""
        r, k = token
        if k == 1:
            return None
        if (token, j) not in self._refilled:
            literal = self.cp.new_bool_var(f"refilled[{r},{k},{j}]")
            slot, keep = self.slots(token)[j], self.keep[r, k - 1]
            self.cp.add_bool_and([slot, ~keep]).only_enforce_if(literal)
            self.cp.add_bool_or([~slot, keep, literal])
            self._refilled[token, j] = literal
        return self._refilled[token, j]

    @property
    def used(self) -> list[cp_model.IntVar]:
        """Literals j ≤ J, that of batch 1 first."""
        if not self._used:
            self._used = [self.cp.new_bool_var(f"used[{j}]") for j in range(1, self.most_batches + 1)]
            self.cp.add(self.batches == cp_model.LinearExpr.sum(self._used))
            for one, other in pairwise(self._used):
                self.cp.add_implication(other, one)
        return self._used

    def no_later(self, token: Token, other: Token) -> cp_model.IntVar | int:
        """Return the literal y that a token is generated no later than another; 0 or 1 where that is known."""
        if token[0] == other[0]:
            return int(token[1] <= other[1])
        if token[1] > self.latest(other):
            return 0
        if (token, other) not in self._precedence:
            self._deadline.require()
            literal = self.cp.new_bool_var(f"y[{token[0]},{token[1]},{other[0]},{other[1]}]")
            self.cp.add(self.time[token] <= self.time[other]).only_enforce_if(literal)
            self.cp.add(self.time[token] > self.time[other]).only_enforce_if(~literal)
            self._precedence[token, other] = literal
        return self._precedence[token, other]
