r"""KVC pipelining (EconoServe, section 3.2): guests in the part of an allocation that its owner reaches last.

A *region* of l tokens, which its owner fills one a batch, lends its second half to a guest that has ended when the
owner gets there: its length, and a buffer, is at most l/2. Then the first half of the owner and the half of the guest
are two regions of l/2, filled at the same pace, and so on: :math:`2^{i-1}` guests of at most :math:`l / 2^i`. After t
batches all :math:`2^i` of a region hold at most :math:`2^i t ≤ l` tokens together for :math:`t ≤ l / 2^i`.

With blocks of b tokens a guest takes up to b − 1 more than it holds, and so does the host: everybody has to end b − 1
batches earlier.
"""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction


def lend(length: int, sizes: list[tuple[int, int]], buffer: Fraction, margin: int) -> list[int]:
    """Choose guests, of each size the longest that fit.

    Parameters
    ----------
    length
        How many tokens the host will generate.
    sizes
        ``(tokens to generate, index)`` of all that could be guests.
    buffer
        Share of its length by which a guest has to end earlier.
    margin
        By how many batches everybody has to, because of blocks.

    Returns
    -------
    list
        Indices of the guests, the longest first.
    """
    left = sorted(sizes)
    found: list[int] = []
    region, count = length // 2, 1
    while region > margin:
        most = int((region - margin) / (1 + buffer))
        for _ in range(count):
            place = bisect_right(left, most, key=lambda entry: entry[0])
            if not place:
                return found
            found.append(left.pop(place - 1)[1])
        region, count = region // 2, 2 * count
    return found
