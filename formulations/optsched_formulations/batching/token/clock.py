r"""When batches end, in units after the earliest arrival: two clocks for the model with whole prefills.

Both give, for a first or last token, a variable that is at least the end of its batch. That is exact: objectives only
rise with it, so in an optimum it can be taken as the end itself.
"""

from __future__ import annotations

from itertools import pairwise

from ortools.sat.python import cp_model

from optsched_formulations.batching.costs import Horizon, Token
from optsched_formulations.batching.token.variables import Linear, TokenVariables


def new_end(variables: TokenVariables, horizon: Horizon, token: Token) -> cp_model.IntVar:
    """Return a variable for the end of a token's batch, no earlier than the request alone would have it."""
    r, k = token
    least = variables.costs.arrivals[r] + variables.costs.shortest[r][k - 1]
    return variables.cp.new_int_var(least, horizon.end, f"F[{r},{k}]")


class PairClock:
    r"""One affine piece: the work of all tokens generated no later, and the idle time before.

    *Work* is what busy time would be without idle time between batches. Up to token :math:`q\ell`, with the attention
    and the ``token`` cost of every step in decode and refill,

    .. math:: W_{q\ell} = \mathrm{base} \cdot t_{q\ell} + \sum_{rk} y_{rk,q\ell} (\mathrm{decode}_{rk} +
              (\mathrm{refill}_{rk} - \mathrm{decode}_{rk}) (1 - \mathit{keep}_{r,k-1})),

    and before the batch that runs r first it is :math:`W'_r`: base :math:`(t_{r1} - 1)` and the same sum over the
    tokens with :math:`¬ y_{r1,q\ell}`.

    *Idle time* before that batch is at least :math:`\mathit{idle}_r ≥ T_r - W'_r`, since the batch starts no earlier
    than r arrives, and idle time never shrinks: :math:`F_{q\ell} ≥ W_{q\ell} + \mathit{idle}_r` if
    :math:`y_{r1,q\ell}`. Nothing else delays a batch, so the largest of these is the end exactly.

    With several pieces each is a lower bound on the work up to a token: `BatchClock` takes the first part as a
    redundant bound.

    Parameters
    ----------
    variables, horizon
        What it reads.
    """

    def __init__(self, variables: TokenVariables, horizon: Horizon) -> None:
        self._variables = variables
        self._horizon = horizon
        self._both: dict[tuple[Token, tuple[Token, Token]], cp_model.IntVar] = {}
        self._idle: dict[int, cp_model.IntVar] = {}

    def end_of(self, token: Token) -> cp_model.IntVar:
        """Return a variable that is at least the end of the token's batch."""
        variables, costs = self._variables, self._variables.costs
        end = new_end(variables, self._horizon, token)
        piece = costs.pieces[0]
        work = self._work_until(token, piece)
        variables.cp.add(end >= work)
        for r, arrival in enumerate(costs.arrivals):
            if arrival:
                started = variables.no_later((r, 1), token)
                later = variables.cp.add(end >= work + self._idle_before(r, piece))
                if not isinstance(started, int):
                    later.only_enforce_if(started)
        return end

    def bound(self, token: Token, end: cp_model.IntVar) -> None:
        """Bound the end of the token's batch from below by the work up to it, once for every piece."""
        for piece in self._variables.costs.pieces:
            self._variables.cp.add(end >= self._work_until(token, piece))

    def _work_until(self, token: Token, piece: tuple[int, int]) -> cp_model.LinearExpr:
        """Return W."""
        variables = self._variables
        terms: list[Linear] = [piece[0] * variables.time[token]]
        for other in variables.costs.tokens:
            counted = variables.no_later(other, token)
            if not isinstance(counted, int):
                refilled = self._and_dropped(other, (other, token), counted, ~counted)
                terms.append(self._work(other, piece, counted, refilled))
            elif counted:
                terms.append(self._work(other, piece, 1, variables.dropped(other)))
        return cp_model.LinearExpr.sum(terms)

    def _idle_before(self, r: int, piece: tuple[int, int]) -> cp_model.IntVar:
        """Return the variable idle of request r."""
        if r not in self._idle:
            variables, base, first = self._variables, piece[0], (r, 1)
            arrival = variables.costs.arrivals[r]
            terms: list[Linear] = [base * variables.time[first] - base]
            for other in variables.costs.tokens:
                started = variables.no_later(first, other)
                if not isinstance(started, int):
                    refilled = self._and_dropped(other, (first, other), ~started, started)
                    terms.append(self._work(other, piece, 1 - started, refilled))
                elif not started:
                    terms.append(self._work(other, piece, 1, variables.dropped(other)))
            idle = variables.cp.new_int_var(0, arrival, f"idle[{r}]")
            variables.cp.add(idle >= arrival - cp_model.LinearExpr.sum(terms))
            self._idle[r] = idle
        return self._idle[r]

    def _work(
        self,
        token: Token,
        piece: tuple[int, int],
        counted: Linear,
        refilled: Linear,
    ) -> Linear:
        """Return the work of a token if it is counted, as a refill if ``refilled``."""
        costs, slope = self._variables.costs, piece[1]
        fill = slope * costs.size(token) + costs.fill(token)
        if token[1] == 1:
            return fill * counted
        decode = slope + costs.decode(token)
        return decode * counted + (fill - decode) * refilled

    def _and_dropped(
        self, token: Token, pair: tuple[Token, Token], counted: cp_model.LiteralT, not_counted: cp_model.LiteralT
    ) -> Linear:
        """Return whether a refill generates the token and counts; ``pair`` is what y compares."""
        if not self._variables.costs.can_refill(token) or token[1] == 1:
            return 0
        key = token, pair
        if key not in self._both:
            cp, keep = self._variables.cp, self._variables.keep[token[0], token[1] - 1]
            literal = cp.new_bool_var("")
            cp.add_bool_and(counted, ~keep).only_enforce_if(literal)
            cp.add_bool_or(keep, literal, not_counted)
            self._both[key] = literal
        return self._both[key]


class BatchClock:
    r"""Start and end of every batch: with arrivals, or with several pieces.

    - No batch starts before the previous one has ended, or before what it runs has arrived:
      :math:`S_j ≥ E_{j-1}` and :math:`S_j ≥ T_r \mathit{by}_{r1j}` (a first token's batch is the first to run it, and
      starts rise with j);
    - it ends after its time: :math:`E_j ≥ S_j + L_j + A_j`, with the attention of its steps :math:`A_j` and the largest
      piece :math:`L_j ≥ \mathrm{base}_i \mathit{used}_j + \mathrm{token}_i \sum c`;
    - a token's end is no earlier than any batch up to its own: :math:`F_{rk} ≥ E_j` if :math:`t_{rk} ≥ j`.

    Parameters
    ----------
    variables, horizon
        What it reads.
    pairs
        Adds its bounds on ends; None for none.
    """

    def __init__(self, variables: TokenVariables, horizon: Horizon, pairs: PairClock | None) -> None:
        self._variables = variables
        self._horizon = horizon
        self._pairs = pairs
        self._ends: list[cp_model.IntVar] = []

    def end_of(self, token: Token) -> cp_model.IntVar:
        """Return a variable that is at least the end of the token's batch."""
        variables = self._variables
        if not self._ends:
            self._ends = self._add_batches()
        end = new_end(variables, self._horizon, token)
        by = variables.by(token)
        for j in range(1, variables.latest(token) + 1):
            later = variables.cp.add(end >= self._ends[j - 1])
            if j - 1 in by:
                later.only_enforce_if(~by[j - 1])
        if self._pairs is not None:
            self._pairs.bound(token, end)
        return end

    def _add_batches(self) -> list[cp_model.IntVar]:
        """Return the ends of all batches."""
        variables, costs = self._variables, self._variables.costs
        cp, latest = variables.cp, self._horizon.end
        starts, ends = [], []
        for j in range(1, variables.most_batches + 1):
            start, end = cp.new_int_var(0, latest, f"S[{j}]"), cp.new_int_var(0, latest, f"E[{j}]")
            for r, arrival in enumerate(costs.arrivals):
                by = variables.by((r, 1))
                # From its latest batch on the request runs for certain, if there is such a batch at all.
                arrived = by.get(j, variables.used[j - 1])
                cp.add(start >= arrival).only_enforce_if(arrived)
            cp.add(end >= start + self.linear(j) + self._attention(j))
            starts.append(start)
            ends.append(end)
        for before, start in zip(ends, starts[1:], strict=False):
            cp.add(start >= before)
        for one, other in pairwise(ends):
            cp.add(other >= one)
        return ends

    def linear(self, j: int) -> cp_model.IntVar:
        """Non-attention time of batch j: at least each piece, if the batch is used."""
        variables, costs = self._variables, self._variables.costs
        terms: list[Linear] = []
        for token, slot in variables.in_batch(j):
            size, refilled = costs.size(token), variables.refilled(token, j)
            terms.append(size * slot if refilled is None else slot + (size - 1) * refilled)
        tokens = cp_model.LinearExpr.sum(terms)
        longest = max(base + slope * costs.most_tokens for base, slope in costs.pieces)
        time = variables.cp.new_int_var(0, longest, f"time[{j}]")
        for base, slope in costs.pieces:
            variables.cp.add(time >= base * variables.used[j - 1] + slope * tokens)
        return time

    def _attention(self, j: int) -> Linear:
        """Attention time of batch j: each step of it is a decode, or a whole prefill."""
        variables, costs = self._variables, self._variables.costs
        terms: list[Linear] = []
        for token, slot in variables.in_batch(j):
            refilled, fill, decode = variables.refilled(token, j), costs.fill(token), costs.decode(token)
            terms.append(fill * slot if refilled is None else decode * slot + (fill - decode) * refilled)
        return cp_model.LinearExpr.sum(terms)
