"""What prices of patterns prove: extra times for every number of batches, the bound, and its certificate.

The theorem is in `pattern_cg`. Price vectors are kept as long as some number of batches needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optsched.model.ints import Ints
from optsched_formulations.batching.packing import Packing
from optsched_formulations.batching.pattern.network import Network, Shortest, least_extra

_MOST_SUMS = 20_000
"""Sums of extra times beyond which a bound is not lifted to the next of them."""


@dataclass(frozen=True)
class _Proof:
    """A price vector, as certificates have it, and the extra time in ps that it proves for some number of batches."""

    extra: int
    prices: dict[str, Any]


class PatternBound:
    """The best bound that price vectors prove together.

    Parameters
    ----------
    pieces, piece
        Number of affine pieces of the batch time, and the one that networks take.
    network
        Times and classes.
    """

    def __init__(self, pieces: int, piece: int, network: Network) -> None:
        self._piece_weights = [int(index == piece) for index in range(pieces)]
        self._base, self._work, self._extras = network.base, network.work, network.extras
        self._tokens = sum(kind.count * kind.output for kind in network.kinds)
        self._fewest = 0
        self._weights: list[list[int]] = []
        self._best: dict[int, _Proof] = {}
        self._lifts: dict[int, int | None] = {0: 0}

    def use(self, network: Network, packings: Sequence[Packing]) -> None:
        """Take a network's own bound on the number of batches, and the packing inequalities of its rows."""
        self._fewest = max(self._fewest, network.fewest)
        # Certificates name classes in the order of (I, O).
        named = sorted(range(len(network.kinds)), key=lambda c: network.kinds[c].shape)
        self._weights = [
            [packing.weights.get((c, k), 0) for c in named for k in range(1, network.kinds[c].output + 1)]
            for packing in packings
        ]

    @property
    def fewest(self) -> int:
        """No schedule has fewer batches, whatever prices say."""
        return self._fewest

    def add(self, network: Network, found: Sequence[Shortest], prices: Ints, scale: int) -> None:
        """Take a price vector, evaluated exactly; prices count in 1 / scale ps."""
        document: dict[str, Any] | None = None
        longest = max(kind.output for kind in network.kinds)
        for batches, scaled in enumerate(least_extra(network, found, prices), start=longest):
            extra = -(-scaled // scale)
            if extra > self._extra(batches):
                document = document or network.document(prices, scale)
                self._best[batches] = _Proof(extra, document)

    def _extra(self, batches: int) -> int:
        proof = self._best.get(batches)
        return 0 if proof is None else proof.extra

    def value(self, batches: int) -> int | None:
        """Return a lower bound on schedules of a number of batches in ps; None if there are none."""
        extra = self._lifted(self._extra(batches))
        return None if extra is None else self._base * batches + self._work + extra

    def least(self) -> tuple[int, int]:
        """Return the bound in ps, and the number of batches that it comes from."""
        best: tuple[int, int] | None = None
        # Every batch generates a token, and more batches than prices cover are only worse.
        for batches in range(self._fewest, self._tokens + 1):
            if best is not None and self._base * batches + self._work >= best[0]:
                break
            value = self.value(batches)
            if value is not None and (best is None or value < best[0]):
                best = value, batches
        assert best is not None, "one request after another is a schedule"
        return best

    def below(self, value: int, most: int) -> list[int]:
        """Return the numbers of batches, up to ``most``, for which prices leave room below a value, in ps."""
        return [
            batches
            for batches in range(self._fewest, most + 1)
            if self._base * batches + self._work + self._extra(batches) < value
            and (self._extras or not self._extra(batches))
        ]

    def _lifted(self, extra: int) -> int | None:
        """Return the least sum of extra times of steps that is not below a number; None if there is none."""
        if extra not in self._lifts:
            self._lifts[extra] = _least_sum(self._extras, extra)
        return self._lifts[extra]

    def certificate(self) -> dict[str, Any]:
        """Return what `optsched.check` needs to recompute the bound."""
        bound, _ = self.least()
        needed: list[dict[str, Any]] = []
        for batches, proof in sorted(self._best.items()):
            worse = self._base * batches + self._work >= bound
            if batches >= self._fewest and not worse and not any(proof.prices is other for other in needed):
                needed.append(proof.prices)
        return {
            "kind": "patterns",
            "piece_weights": self._piece_weights,
            "packings": self._weights,
            "prices": needed,
        }


def _least_sum(extras: Sequence[tuple[int, int]], least: int) -> int | None:
    """Return the least sum of some of the numbers, each no more often than it may occur, that is at least ``least``.

    None if there is none; ``least`` itself if there are too many sums to tell.
    """
    sums = {0}
    best: int | None = None
    for extra, count in sorted(extras):
        grown = set(sums)
        for _ in range(count):
            reached = {total + extra for total in grown}
            grown = {total for total in reached if total < least}
            beyond = min(reached - grown, default=None)
            if beyond is not None and (best is None or beyond < best):
                best = beyond
            if not grown:
                break
            sums |= grown
            if len(sums) > _MOST_SUMS:
                return least
    return best
