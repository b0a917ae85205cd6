"""What prices prove of the makespan, exactly; the theorem is in `optsched.bounds.ramp`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optsched.bounds.own import batch_turns, fewest_steps, least_left
from optsched.bounds.priced.demand import Demand, Kinds
from optsched.bounds.priced.paths import NEVER
from optsched.bounds.priced.prompt_paths import Prices, Prompt, PromptPaths, fill_ps
from optsched.bounds.volume import Totals
from optsched.model.instance import Instance
from optsched.model.ints import Ints

_MOST = 1 << 60
"""Sums of costs stay below."""


class Part:
    """The requests that arrive at some time or later, as if all had arrived at that time.

    Parameters
    ----------
    instance
        The problem.
    release_ps
        That time, t₀.
    step_ps
        φ, what a prefill step takes.

    Attributes
    ----------
    kinds
        (I, O) → number of requests.
    fewest
        The number of batches that `volume` proves.
    tokens
        Tokens that every schedule runs.
    attention
        Attention times of a fill of every prompt and of decodes of all later tokens, in ps.
    turns
        Batches without a prefill step, and with one (`batch_turns`).
    """

    def __init__(self, instance: Instance, release_ps: int, step_ps: int) -> None:
        self.instance, self.release_ps, self.step_ps = instance, release_ps, step_ps
        totals, counts = Totals(instance), Counter[tuple[int, int]]()
        for request in instance.requests:
            if request.arrival_ps >= release_ps:
                totals.add(request)
                counts[request.input, request.output] += 1
        self.kinds: Kinds = dict(sorted(counts.items()))
        self.fewest, self.tokens, self._totals = totals.batches(), totals.tokens, totals
        self.attention = sum(count * self.attention_ps(*kind) for kind, count in self.kinds.items())
        decodes, prefills = batch_turns(instance, step_ps)
        self.turns = [*decodes, *prefills]

    def attention_ps(self, prompt: int, output: int) -> int:
        """Return the attention time of a fill of a prompt and of decodes of all later tokens."""
        cost, decodes = self.instance.cost, output - 1
        read = decodes * prompt + decodes * (decodes - 1) // 2
        fill = fill_ps(self.instance, prompt, self.step_ps)
        return fill + decodes * cost.decode_req + cost.decode_kv * read

    @property
    def more_batches_than_steps(self) -> int:
        """How many more batches there are than prefill steps, at least; 0 if there may be none."""
        steps = sum(count * fewest_steps(self.instance, prompt) for (prompt, _), count in self.kinds.items())
        return max(0, self.fewest - steps)

    def plain(self, batches: int) -> int:
        """Return what a number of batches takes by `volume`, in ps."""
        return max(self._totals.busy_ps(batches))

    def paths(self, demand: Demand, prices: Prices) -> dict[Prompt, PromptPaths]:
        """Return the cheapest paths for every prompt of the demand."""
        return {
            prompt: PromptPaths(self.instance, prompt, list(outputs), prices, self.step_ps)
            for prompt, outputs in demand.numbers.items()
        }

    def rooms(self, prices: Prices) -> list[int]:
        """Return the least time of a batch less the prices of all it can take, for every stretch, ps × scale."""
        limits = self.instance.limits
        return [
            least_left(self.turns, prices.scale, token, prefill)
            - limits.kv_blocks * memory
            - (limits.batch_requests or 0) * run
            for memory, token, prefill, run in zip(
                prices.memory, prices.tokens, prices.prefill_tokens, prices.runs, strict=True
            )
        ]

    def fits(self, prices: Prices) -> bool:
        """Whether what one token of a path costs fits 64 bits besides `NEVER`, and what batches have left."""
        limits, largest = self.instance.limits, 2 * max(prompt + output for prompt, output in self.kinds)
        dearest = max(prices.tokens) + max(prices.prefill_tokens)
        fill = prices.scale * (fill_ps(self.instance, largest, self.step_ps) + self.instance.cost.decode_ps(largest))
        step = largest * dearest + max(prices.runs) + fill
        held = sum(width * memory for width, memory in zip(prices.widths, prices.memory, strict=True))
        room = sum(width * abs(room) for width, room in zip(prices.widths, self.rooms(prices), strict=True))
        return max(step + max(limits.kv_blocks, largest) * held, room) < _MOST


@dataclass(frozen=True)
class PricedProof:
    """What prices prove of the time from t₀ to the last end, in ps.

    Parameters
    ----------
    prices
        The prices.
    curve
        At position J − 1 a lower bound for schedules of J batches, up to H; `NEVER` if there are none.
    beyond
        A lower bound for schedules of H batches or more; None without a repeated layer.
    """

    prices: Prices
    curve: Ints
    beyond: int | None

    def of(self, batches: int) -> int | None:
        """Return the lower bound for schedules of that number of batches."""
        return int(self.curve[batches - 1]) if batches <= len(self.curve) else self.beyond


def prove(part: Part, demand: Demand, prices: Prices, paths: Mapping[Prompt, PromptPaths]) -> PricedProof | None:
    """Return what prices prove of a part with the cheapest paths of its demand; None if sums could exceed 64 bits."""
    rooms = part.rooms(prices)
    paid = np.cumsum(np.repeat(np.array(rooms, dtype=np.int64), prices.widths))
    most, first, repeated = 0, demand.longest, prices.repeated_layer
    # A path may have all its tokens in the repeated layer, otherwise it takes a layer for each.
    possible = np.arange(prices.layers) >= (first - 1 if repeated is None else min(first - 1, repeated))
    for prompt, numbers in demand.numbers.items():
        for output, number in numbers.items():
            least = np.where(possible, np.minimum.accumulate(paths[prompt].ends[output]) // demand.gap, 0)
            most += number * int(np.abs(least).max())
            if most >= _MOST:
                return None
            paid += number * least
    curve = np.where(possible, part.attention - paid // -prices.scale, NEVER)
    covers = prices.repeated is not None and rooms[prices.repeated] >= 0 and bool(possible[-1])
    return PricedProof(prices, curve, int(curve[-1]) if covers else None)


def bound_of(part: Part, proofs: Sequence[PricedProof]) -> int:
    """Return the bound on the time from t₀ to the last end by `volume` and some proofs together, in ps."""
    return weakest(part, proofs)[1]


def weakest(
    part: Part, proofs: Sequence[PricedProof], fewest: int | None = None, most: int | None = None
) -> tuple[int, int]:
    """Return the number of batches, perhaps from some to some, of which the least is known, and that, in ps from t₀."""
    last = max([part.fewest, *(len(proof.curve) + 1 for proof in proofs)])
    found: tuple[int, int] | None = None
    # What comes later than the last is no less.
    for batches in range(fewest or part.fewest, (most or last) + 1):
        value = max([part.plain(batches), *(known for proof in proofs if (known := proof.of(batches)) is not None)])
        if found is None or value < found[1]:
            found = batches, value
    assert found is not None, "there is a number of batches"
    return found
