r"""The cheapest paths of requests through batches at given prices: exact, in 64-bit integers.

A *path* says which batches generate the tokens of a request, and whether its KV is kept between two of them, or is
evicted and filled again. Let :math:`R_{kj}` be the least cost of a path up to token k in batch j. For token k + 1 let a
decode in batch j cost :math:`d_j`, and holding the KV through batch l without a run :math:`h_l`; let a fill cost
:math:`g_l` in the batch in which all its tokens are taken to run, and :math:`f_j` besides in the one that ends it,
l ≤ j (l = j where prefills are whole). An eviction may take a pause of p batches. Then

.. math:: R_{k+1,j} = \min\Bigl( d_j + \min_{i<j} \bigl(R_{ki} + \textstyle\sum_{i<l<j} h_l\bigr),\;
          f_j + \min_{l≤j} \bigl(g_l + \min_{i<l-p} R_{ki}\bigr) \Bigr),

running minima with prefix sums, for all j at once. A *layer* takes the place of a batch where it represents several in
a row: where it may be repeated, i = j and i = l - p are possible, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.model.ints import Ints

Bools = npt.NDArray[np.bool_]

NEVER = 1 << 61
"""The cost of what is not possible; dearer paths than this are taken to cost no more."""


@dataclass(frozen=True)
class TokenCosts:
    """What the ways to generate one more token cost, by batch.

    Parameters
    ----------
    held
        Sums of h up to each batch.
    decode, fill, filled
        d, g and f; ``fill`` is None if no fill is possible.
    """

    held: Ints
    decode: Ints
    fill: Ints | None
    filled: Ints | int = 0


class PathStep(NamedTuple):
    """How some paths get from token k to token k + 1, an entry for each path.

    ``before`` and ``here`` are the batches of both; where it is ``refilled``, the tokens of the fill run in ``ran``.
    """

    k: int
    before: Ints
    here: Ints
    refilled: Bools
    ran: Ints


class CheapestPaths:
    """The cheapest paths of a request, by the batch of the last token.

    Parameters
    ----------
    first
        What the first token costs in each batch.
    tokens
        Costs of all further tokens, in order.
    outputs
        All O that are asked for.
    pause
        p.
    chunked
        Whether l < j is possible.
    repeated
        The layer that may be repeated; None if there is none.

    Attributes
    ----------
    costs
        For every O that is asked for the least cost of a path that ends in each batch.
    """

    def __init__(
        self,
        first: Ints,
        tokens: Iterable[TokenCosts],
        outputs: Collection[int],
        *,
        pause: int = 0,
        chunked: bool = False,
        repeated: int | None = None,
    ) -> None:
        self._repeated = repeated
        self._came: list[Ints] = []
        self._refills: dict[int, tuple[Bools, Ints]] = {}
        self.costs = {1: first} if 1 in outputs else {}
        cost, every = first, np.arange(len(first))
        for k, token in enumerate(tokens, start=1):
            least, came = self._after(cost - token.held, 1)
            least[1:] += token.held[:-1]
            self._repeat(least, came, cost)
            decoded = least + token.decode
            if token.fill is not None:
                least, since = self._after(cost, 1 + pause)
                self._repeat(least, since, cost)
                paid, ran = least + token.fill, every
                if chunked:
                    paid, ran = _running_minimum(paid)
                    since = since[ran]
                paid += token.filled
                refilled = paid < decoded
                if refilled.any():
                    decoded, came = np.where(refilled, paid, decoded), np.where(refilled, since, came)
                    self._refills[k] = refilled, ran
            self._came.append(came)
            cost = np.minimum(decoded, NEVER)
            if k + 1 in outputs:
                self.costs[k + 1] = cost

    def _after(self, costs: Ints, later: int) -> tuple[Ints, Ints]:
        """Return the least cost in a batch at a distance before each one, or earlier, and the last such batch."""
        least, where = np.full(len(costs), NEVER), np.zeros(len(costs), dtype=np.int64)
        found, place = _running_minimum(costs)
        least[later:], where[later:] = found[:-later], place[:-later]
        return least, where

    def _repeat(self, least: Ints, where: Ints, cost: Ints) -> None:
        """Let the repeated layer come after itself."""
        layer = self._repeated
        if layer is not None and cost[layer] <= least[layer]:
            least[layer], where[layer] = cost[layer], layer

    def back(self, output: int, ends: Ints) -> Iterator[PathStep]:
        """Yield the steps of the cheapest paths with given last batches, from the last token back to the second."""
        here = ends
        for k in range(output - 1, 0, -1):
            before, ran = self._came[k - 1][here], here
            refilled: Bools = np.zeros(len(ends), dtype=np.bool_)
            if k in self._refills:
                refills, where = self._refills[k]
                refilled, ran = refills[here], where[here]
            yield PathStep(k, before, here, refilled, ran)
            here = before


def _running_minimum(values: Ints) -> tuple[Ints, Ints]:
    """Return the least value up to each position, and the last position that has it."""
    least = np.minimum.accumulate(values)
    return least, np.maximum.accumulate(np.where(values == least, np.arange(len(values)), 0))
