"""Prices of what batches take, layer by layer, for kinds ``ramp`` and ``worth``; `ramp` says what they prove."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.check.certificates.shared.work import most_decodes, turns
from optsched.check.problem import Problem, pieces_of
from optsched.check.reading import UnprovedError, shown

MOST_STEPS = 100_000_000
"""Tokens in layers beyond which nothing is computed."""
MOST_LAYERS = 100_000
"""Layers of all entries of prices beyond which nothing is listed."""
ROWS = ("memory", "tokens", "prefill_tokens", "runs")
"""What has a price besides time."""
NEVER = 1 << 80
"""No request is taken to pay more, which proves less, if anything."""
_FAR = 1 << 61
"""The same in 64 bits."""
_MOST_NUMBERS = 1 << 18
"""In rows that are computed together."""
Rows = npt.NDArray[Any]
"""Integers of 64 bits, or Python's, by group."""


def _decode(problem: Problem, tokens: int) -> int:
    """Return the attention time of a decode after which there is KV for ``tokens`` tokens."""
    return problem.cost.decode_kv * (tokens - 1) + problem.cost.decode_req


def attention_ps(problem: Problem, prompt: int, output: int, step: int) -> int:
    """Return the attention time of a fill of the prompt, at ``step`` for each of its steps, and of decodes."""
    decodes, cost = output - 1, problem.cost
    fill = cost.prefill_sq * prompt**2 + step * problem.fewest_steps(prompt)
    return fill + cost.decode_kv * (decodes * (2 * prompt + decodes - 1) // 2) + cost.decode_req * decodes


class Prices(NamedTuple):
    """Of a ps, of a block held, a token run, a token run by a prefill (on top), and a run."""

    time: int
    memory: int
    tokens: int
    prefill_tokens: int
    runs: int


def left_of(problem: Problem, step: int, prices: Prices) -> int:
    """Return the least that prices leave of a batch: G of kind ``ramp``, × the price of time."""
    limits, pieces = problem.limits, pieces_of(problem.cost)
    runs = len(problem.requests) if problem.runs is None else problem.runs

    def left(x: int, more: int) -> int:
        return prices.time * (max(base + slope * x for base, slope in pieces) + more) - prices.tokens * x

    least = min(left(x, 0) for x in turns(problem, most_decodes(problem)))
    beside = problem.cost.prefill_req - step
    ends = {*turns(problem, limits.batch_tokens), limits.prefill_tokens}
    with_prefill = min(left(x, beside) - prices.prefill_tokens * min(limits.prefill_tokens, x) for x in ends)
    return min(least, with_prefill) - prices.memory * problem.blocks - prices.runs * runs


# Groups ----------------------------------------------------------------------------------------------------


class Group:
    """Requests that count as having one prompt.

    ``numbers`` has at k how many of them have O = k + 1; ``below`` is the next prompt of the list that is smaller, if
    some request lies between the two, else the prompt.
    """

    def __init__(self, prompt: int, below: int, numbers: Mapping[int, Fraction]) -> None:
        self.prompt, self.below = prompt, below
        self.numbers = [numbers.get(output, Fraction(0)) for output in range(1, max(numbers) + 1)]


def groups_of(problem: Problem, shapes: Mapping[tuple[int, int], int], stated: object) -> list[Group]:
    """Return what requests of some (I, O) count as if ``stated`` lists prompts; else each as its own."""
    prompts = sorted({prompt for prompt, _ in shapes})
    if stated is not None:
        prompts = integers("prompts", stated, 1, None)
        if prompts != sorted(set(prompts)):
            raise UnprovedError(f"prompts is {shown(stated)}, expected them in ascending order")
    numbers: defaultdict[int, defaultdict[int, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    below = {prompt: prompt for prompt in prompts}
    for (prompt, output), number in shapes.items():
        place = bisect_left(prompts, prompt)
        if place < len(prompts) and prompts[place] == prompt:
            numbers[prompt][output] += number
            continue
        if not 0 < place < len(prompts) or problem.limits.kv_block != 1:
            expected = (
                "some on both sides of" if problem.limits.kv_block == 1 else "with blocks of many tokens all, also"
            )
            raise UnprovedError(f"prompts is {shown(stated)}, expected {expected} {prompt}")
        low, high = prompts[place - 1], prompts[place]
        below[high] = low
        numbers[low][output] += Fraction(number * (high - prompt), high - low)
        numbers[high][output] += Fraction(number * (prompt - low), high - low)
    return [Group(prompt, below[prompt], of_prompt) for prompt, of_prompt in sorted(numbers.items())]


# Prices ----------------------------------------------------------------------------------------------------


class Layers:
    """One entry of prices: what every layer takes, and leaves."""

    def __init__(self, problem: Problem, stated: Mapping[str, Any], step: int) -> None:
        self._problem, self._step = problem, step
        self._widths = integers("widths", stated.get("widths"), 1, None)
        self.count = sum(self._widths)
        [self.scale] = integers("scale", [stated.get("scale")], 1, 1)
        count = len(self._widths)
        self._rows = {name: integers(name, stated.get(name, [0] * count), 0, count) for name in ROWS}
        self.repeated = stated.get("repeated")
        if self.repeated is not None and not (
            type(self.repeated) is int and 0 <= self.repeated < count and self._widths[self.repeated] == 1
        ):
            raise UnprovedError(f"repeated is {shown(self.repeated)}, expected null or a stretch of one layer")

    def endless(self) -> bool:
        """Return whether a layer stands for any number of batches in a row, so that any number is covered."""
        return self.repeated is not None and self.of_repeated() >= 0

    def of_repeated(self) -> int:
        """Return G of the repeated layer, × scale; 0 if there is none."""
        return 0 if self.repeated is None else self._room(self.repeated)

    def rooms(self) -> list[int]:
        """Return G of every layer, × scale."""
        return [self._room(stretch) for stretch, width in enumerate(self._widths) for _ in range(width)]

    def first(self, output: int) -> int:
        """Return the first layer by which a request may have all its tokens: one in each, more in a repeated one."""
        return output if self.repeated is None else min(output, sum(self._widths[: self.repeated]) + 1)

    def _room(self, stretch: int) -> int:
        """Return G in the layers of a stretch."""
        prices = (self._rows[name][stretch] for name in ROWS)
        return left_of(self._problem, self._step, Prices(self.scale, *prices))

    def _beyond(self, group: Group, counts: int) -> list[int]:
        """Return by how much a refill of all tokens takes more attention than a decode, by the tokens generated."""
        found = [0]
        for k in range(1, counts):
            size, least = group.prompt + k, group.below + k
            refill = self._problem.cost.prefill_sq * (size**2 - (size - least) ** 2)
            refill += self._step * self._problem.fewest_steps(least)
            more = self.scale * (refill - _decode(self._problem, size))
            found.append(more if self._problem.may_refill(least) else NEVER)
        return found

    def paid(self, groups: Sequence[Group]) -> Iterator[Rows]:
        """Yield after every layer the least that requests of each group pay that have ended, by O - 1.

        Rows are by the number of tokens generated, from 0: the least that is paid by requests that have the KV of that
        many (``kept``), that may have lost it (``lost``), and that have run all tokens of a fill (``filled``). They are
        as long as the longest group's. Where all numbers are small they have 64 bits, and `_FAR` is more than any
        request pays: twice that and what is added to it stay below 2^63. Else their numbers are Python's.
        """
        chunked, counts = self._problem.chunked, max(len(group.numbers) for group in groups)
        sizes = [[group.prompt + k for k in range(counts)] for group in groups]
        blocks = [[self._problem.blocks_of(size) for size in of_group] for of_group in sizes]
        beyond = [self._beyond(group, counts) for group in groups]
        largest = max(of_group[-1] for of_group in sizes), max(of_group[-1] for of_group in blocks)
        more = max(abs(each) for of_group in beyond for each in of_group if each != NEVER)
        small = self._most_paid(counts, *largest, more) < _FAR // 2
        never, kind = (_FAR, np.int64) if small else (NEVER, object)
        every = np.array(sizes, dtype=kind)
        of_blocks = np.array(blocks, dtype=kind)
        refills = np.array([[min(each, never) for each in of_group] for of_group in beyond], dtype=kind)

        kept, lost, filled, ended = (np.full(every.shape, never, dtype=kind) for _ in range(4))
        lost[:, 0] = 0
        for stretch, width in enumerate(self._widths):
            memory, token, prefill, run = (self._rows[name][stretch] for name in ROWS)
            decode, fills, after, held = token + run, (token + prefill) * every, run + refills, memory * of_blocks
            for _ in range(width):
                if stretch == self.repeated:
                    # A request may generate any number of tokens here.
                    made = kept.copy()
                    for k in range(counts):
                        if k:
                            kept[:, k] = np.minimum(kept[:, k], made[:, k - 1])
                            lost[:, k] = np.minimum(lost[:, k], made[:, k - 1])
                        anew = lost[:, k] + fills[:, k]
                        filled[:, k] = np.minimum(filled[:, k], anew) if chunked else anew
                        made[:, k] = np.minimum(kept[:, k] + decode, filled[:, k] + after[:, k]) + held[:, k]
                else:
                    filled = np.minimum(filled, lost + fills) if chunked else lost + fills
                    made = np.minimum(kept + decode, filled + after) + held
                # The KV of k tokens is that of sizes[k - 1].
                kept[:, 1:] = np.minimum(kept[:, 1:] + held[:, :-1], made[:, :-1])
                lost[:, 1:] = np.minimum(lost[:, 1:], made[:, :-1])
                ended = np.minimum(ended, made)
                yield ended

    def _most_paid(self, counts: int, size: int, blocks: int, more: int) -> int:
        """Return what no request pays more than in all layers, with at most such a count of tokens, size and blocks."""
        total = 0
        for stretch, width in enumerate(self._widths):
            memory, token, prefill, run = (abs(self._rows[name][stretch]) for name in ROWS)
            times = counts if stretch == self.repeated else 1
            total += width * times * (memory * blocks + (token + prefill) * size + token + 2 * run + more)
        return total


def computed_together(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Yield groups whose rows are much the same length, together."""
    part: list[Group] = []
    for group in sorted(groups, key=lambda group: len(group.numbers)):
        if part and (len(group.numbers) > 2 * len(part[0].numbers) or len(part) * len(group.numbers) > _MOST_NUMBERS):
            yield part
            part = []
        part.append(group)
    yield part


def integers(name: str, stated: object, least: int, count: int | None) -> list[int]:
    """Return what is a list of ``count`` integers, none below ``least``; at least one of them if no number is given."""
    if (
        isinstance(stated, list)
        and (len(stated) == count if count is not None else stated)
        and all(type(number) is int and number >= least for number in stated)
    ):
        return stated
    expected = "a list of" if count is None else str(count)
    raise UnprovedError(f"{name} is {shown(stated)}, expected {expected} integers ≥ {least}")
