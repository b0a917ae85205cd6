r"""KVC pipelining (EconoServe, section 3.2): guests in the part of an allocation that its owner reaches last.

A *region* of l tokens, which its owner fills one a batch, lends its second half to a guest that has ended when the
owner gets there: its length, and a buffer, is at most l/2. Then the first half of the owner and the half of the guest
are two regions of l/2, filled at the same pace, and so on: :math:`2^{i-1}` guests of at most :math:`l / 2^i`. After t
batches all :math:`2^i` of a region hold at most :math:`2^i t ≤ l` tokens together for :math:`t ≤ l / 2^i`. So a guest
may use its region for all these batches, the buffer included, whatever was predicted of it.

With blocks of b tokens a guest takes up to b − 1 more than it holds, and so does the host: every region is returned
b − 1 batches earlier.

Where the paper is *silent*:

- What blocks do to regions, which is the paragraph above.

It *differs*:

- There are :math:`2^{i-1}` guests of :math:`l / 2^i`, because that is its figure 7, one of l/2 and two of l/4; its text
  has twice as many, which would share tokens.
- A host gets all its guests before the next host, each the longest that fits; the paper fills the largest regions of
  all hosts of a group first, and maps guests to them at random. This is so because a run has to be repeatable; hosts of
  a group differ in it only where guests are scarce.
"""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from operator import itemgetter
from typing import NamedTuple

_size = itemgetter(0)


class Guest(NamedTuple):
    """The index of a request that is lent memory, and the batches until the host needs it: its tokens, too."""

    request: int
    batches: int


Sizes = list[tuple[int, int]]
"""``(tokens, index)`` of requests, in ascending order."""


def lend(length: int, left: Sizes, buffer: Fraction, margin: int, prompts: Sizes | None = None) -> list[Guest]:
    """Choose guests, for each region the longest that fits.

    Parameters
    ----------
    length
        How many tokens the host will generate.
    left
        What each GT that could be a guest has to generate; guests are removed.
    buffer
        Share of its length by which a guest is to end earlier.
    margin
        By how many batches every region is returned earlier, because of blocks.
    prompts
        What each request that has not started will hold at its end; guests are removed. Where no GT fits such a request
        may be a guest. Its prompt fills the region at once, so that no other shares it. None for no such guests.

    Returns
    -------
    list
        The guests, those of the largest regions first.
    """
    found: list[Guest] = []
    region, owners = length // 2, 1
    while region > margin:
        most = int((region - margin) / (1 + buffer))
        halves = 0
        for _ in range(owners):
            if (place := bisect_right(left, most, key=_size)) > 0:
                found.append(Guest(left.pop(place - 1)[1], region - margin))
                halves += 2
            elif prompts and (place := bisect_right(prompts, most, key=_size)) > 0:
                found.append(Guest(prompts.pop(place - 1)[1], region - margin))
                halves += 1
            else:
                return found
        region, owners = region // 2, halves
    return found
