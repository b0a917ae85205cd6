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

from optsched.compiled import compiled
from optsched.model.ints import Ints

Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int32]
"""Positions of batches, of which there are many."""

NEVER = 1 << 61
"""The cost of what is not possible; dearer paths than this are taken to cost no more."""


@dataclass(frozen=True)
class TokenCosts:
    """What the ways to generate some more tokens, one after another, cost; shape (tokens, batches) but where noted.

    Parameters
    ----------
    held
        Sums of h up to each batch.
    decode, fill, filled
        d, g and f.
    refillable
        Whether a fill is possible, shape (tokens,).
    """

    held: Ints
    decode: Ints
    fill: Ints
    filled: Ints
    refillable: Bools


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
        Costs of all further tokens, in order, some at a time.
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
        self._came: list[Places] = []
        self._refills: dict[int, tuple[Bools, Places]] = {}
        self.costs = {1: first} if 1 in outputs else {}
        ways = pause, chunked, -1 if repeated is None else repeated
        cost = first
        for some in tokens:
            made, came, refilled, ran = _generate(
                cost, some.held, some.decode, some.fill, some.filled, some.refillable, ways
            )
            begin = len(self._came) + 1
            self._came += list(came)
            for place in np.flatnonzero(refilled.any(axis=1)).tolist():
                self._refills[begin + place] = refilled[place], ran[place]
            self.costs |= {k + 1: made[k - begin] for k in range(begin, begin + len(made)) if k + 1 in outputs}
            cost = made[-1]

    def back(self, output: int, ends: Ints) -> Iterator[PathStep]:
        """Yield the steps of the cheapest paths with given last batches, from the last token back to the second."""
        here = ends
        for k in range(output - 1, 0, -1):
            before, ran = self._came[k - 1][here].astype(np.int64), here
            refilled: Bools = np.zeros(len(ends), dtype=np.bool_)
            if k in self._refills:
                refills, where = self._refills[k]
                refilled, ran = refills[here], where[here].astype(np.int64)
            yield PathStep(k, before, here, refilled, ran)
            here = before


@compiled
def _generate(  # noqa: PLR0917 - compiled functions take positions
    first: Ints,
    held: Ints,
    decode: Ints,
    fill: Ints,
    filled: Ints,
    refillable: Bools,
    ways: tuple[int, bool, int],
) -> tuple[Ints, Places, Bools, Places]:
    """Return for tokens and batches what paths cost, the batch of the token before, and refills with where they run.

    ``ways`` has the pause, whether fills are chunked, and the repeated layer, -1 if there is none. Of batches that are
    equally good the last one counts.
    """
    pause, chunked, repeated = ways
    tokens, batches = decode.shape
    made, came = np.empty((tokens, batches), np.int64), np.zeros((tokens, batches), np.int32)
    refilled, ran = np.zeros((tokens, batches), np.bool_), np.zeros((tokens, batches), np.int32)
    cost = first
    for k in range(tokens):
        # The least cost of the token before less what is held so far, the least that is lost, and the least fill.
        kept = lost = best = NEVER
        kept_at = lost_at = best_since = best_at = 0
        for j in range(batches):
            least, where = kept + (held[k, j - 1] if j else 0), kept_at
            if j == repeated and cost[j] <= least:
                least, where = cost[j], j
            paid = least + decode[k, j]
            if refillable[k]:
                since, least = lost_at, lost
                if j == repeated and cost[j] <= least:
                    least, since = cost[j], j
                least += fill[k, j]
                if not chunked or least <= best:
                    best, best_since, best_at = least, since, j
                if best + filled[k, j] < paid:
                    paid, where = best + filled[k, j], best_since
                    refilled[k, j], ran[k, j] = True, best_at
            made[k, j], came[k, j] = min(paid, NEVER), where
            if cost[j] - held[k, j] <= kept:
                kept, kept_at = cost[j] - held[k, j], j
            if j >= pause and cost[j - pause] <= lost:
                lost, lost_at = cost[j - pause], j - pause
        cost = made[k]
    return made, came, refilled, ran
