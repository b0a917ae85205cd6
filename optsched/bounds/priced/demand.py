r"""Many kinds of requests, and fewer that represent them.

*Between prompts.* With blocks of one token a request of I between two prompts a < b pays, for any way through the
layers (`prompt_paths`), what is affine in I, but for the attention time of refills, in which :math:`n^2` for n = I + k
is at least the tangent at a, :math:`n^2 - (I - a)^2`, and the number of steps that of a + k. With these for I = b
payments for I lie between those for a and b, so that

.. math:: D_I ≥ \frac{b - I}{b - a} D_a + \frac{I - a}{b - a} D_b :

the least of affine functions is concave. Any number of prompts is counted by a few. For all outputs of a prompt one
computation does anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt

from optsched.bounds.priced.prompt_paths import Prompt

Kinds = Mapping[tuple[int, int], int]
"""(I, O) → number of requests, in ascending order."""


@dataclass(frozen=True)
class Demand:
    """Numbers of requests.

    Parameters
    ----------
    numbers
        For prompts and outputs, in 1 / ``gap`` of a request.
    gap
        Tokens from a prompt to the next one; 1 if every prompt represents itself only.
    """

    numbers: Mapping[Prompt, Mapping[int, int]]
    gap: int = 1

    @property
    def steps(self) -> int:
        """Tokens of one request of every prompt, with the largest output."""
        return sum(max(outputs) for outputs in self.numbers.values())

    @property
    def longest(self) -> int:
        """The largest O."""
        return max(max(outputs) for outputs in self.numbers.values())


def each(kinds: Kinds) -> Demand:
    """Return all kinds as they are."""
    numbers: defaultdict[Prompt, dict[int, int]] = defaultdict(dict)
    for (prompt, output), count in kinds.items():
        numbers[Prompt(prompt, prompt)][output] = count
    return Demand(numbers)


def between(kinds: Kinds, prompts: int) -> Demand:
    """Return evenly spaced prompt lengths, ``prompts`` ≥ 2 of them at most, that represent all kinds."""
    least, largest = min(prompt for prompt, _ in kinds), max(prompt for prompt, _ in kinds)
    gap = max(1, -(-(largest - least) // (prompts - 1)))
    numbers: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    inside = set()
    for (prompt, output), count in kinds.items():
        low = prompt - (prompt - least) % gap
        numbers[low][output] += count * (gap - prompt + low)
        if prompt != low:
            inside.add(low)
            numbers[low + gap][output] += count * (prompt - low)
    return Demand(
        {Prompt(at, at - gap if at - gap in inside else at): of_prompt for at, of_prompt in sorted(numbers.items())},
        gap,
    )


def sketch(kinds: Kinds, most: int) -> Demand:
    """Return a similar demand of about ``most`` kinds at most, with the same volume, to find prices with."""
    if len(kinds) <= most:
        return each(kinds)
    side = max(1, round(most**0.5))
    found: defaultdict[tuple[int, int], int] = defaultdict(int)
    for similar in _cut(sorted(kinds.items(), key=lambda kind: (kind[0][1], kind[0][0])), side):
        for few in _cut(sorted(similar), side):
            count = sum(number for _, number in few)
            prompt = sum(prompt * number for (prompt, _), number in few) // count
            # The output with O (2 I + O) = twice the mean volume.
            twice = sum(output * (2 * i + output) * number for (i, output), number in few) // count
            found[prompt, max(1, isqrt(prompt**2 + twice) - prompt)] += count
    return each(found)


_Counted = list[tuple[tuple[int, int], int]]


def _cut(kinds: _Counted, parts: int) -> list[_Counted]:
    """Cut a list of kinds into parts of about as many requests each."""
    total, done = sum(count for _, count in kinds), 0
    found: list[_Counted] = [[] for _ in range(parts)]
    for kind, count in kinds:
        found[done * parts // total].append((kind, count))
        done += count
    return [part for part in found if part]
