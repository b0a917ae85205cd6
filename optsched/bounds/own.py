r"""What a batch takes at least for being one, and for every token: its base, and own times.

*Rates.* Take one affine piece (β, τ) of the batch time f, or one convex combination of pieces, and a price φ of a
prefill step, 0 ≤ φ ≤ prefill_req. With at most Q decodes in a batch, let

.. math:: \mathrm{base} = β + \mathrm{prefill\_req} - φ, \qquad
          \mathrm{decode} = \min \Bigl( τ, \min_{1 ≤ x ≤ Q} \frac{f(x) - \mathrm{base}}{x} \Bigr).

Then a batch of x tokens, q of them by decodes, and l prefill steps lasts, attention of decodes and the quadratic one of
prefills aside, at least base + decode q + τ (x - q) + φ l. For without prefill steps x = q, and f(q) is that much by
the choice of decode; and with them f(x) is at least β + τ x, and prefill_req l at least prefill_req - φ + φ l. With φ =
prefill_req that is β + τ x and every step's own cost. With φ = 0 each batch has the cost of a step in its base: prompts
are cut into as many chunks as there are batches, or else batches are uneven.

*Own times.* However a token is produced, by a decode, a refill, or a prefill in chunks, what its steps take besides
shares of bases adds up to at least

.. math:: w_1 = τ I + \mathrm{prefill\_sq}\, I^2 + φ \lceil I / P \rceil, \qquad
          w_k = \min(\mathrm{decode}_k, \mathrm{refill}_k) \quad (k ≥ 2),

with :math:`\mathrm{decode}_k = \mathrm{decode} + \mathrm{decode\_kv} (I + k - 2) + \mathrm{decode\_req}` and
:math:`\mathrm{refill}_k = w_1` of a prompt of I + k − 1 tokens, where eviction and P allow it: the quadratic terms of
chunks telescope, and a prompt needs at least ⌈I/P⌉ of them (one if prefills are whole). Where more than 131,072 tokens
of a request may be refilled, they are compared in about that number of blocks, whose tokens all count as the first
unless all are decoded: both times never fall with k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

from optsched.model.instance import Instance


@dataclass(frozen=True)
class Rate:
    """What a batch takes at least, all times in ps × ``scale`` but the last.

    Parameters
    ----------
    weights
        Of the pieces in the combination, integers ≥ 0, not all 0.
    base
        Of every batch.
    decode, prompt
        Of a token by a decode, and by a prefill step.
    step_ps
        φ, of a prefill step, ps.
    decode_weights
        Of the pieces in another combination, for batches without prefill steps (`machine`); empty without one.
    """

    weights: tuple[int, ...]
    base: int
    decode: int
    prompt: int
    step_ps: int
    decode_weights: tuple[int, ...] = ()

    @property
    def scale(self) -> int:
        """Sum of the weights."""
        return sum(self.weights)


MOST_COMPARED = 1 << 17
"""Sizes for which decodes and refills are compared one by one."""


def plain_rate(instance: Instance, weights: tuple[int, ...]) -> Rate:
    """Combine the pieces of an instance's batch time; prefill steps have their whole cost."""
    cost = instance.cost
    base = sum(weight * base for weight, (base, _) in zip(weights, cost.affine, strict=True))
    token = sum(weight * token for weight, (_, token) in zip(weights, cost.affine, strict=True))
    return Rate(weights, base, token, token, cost.prefill_req)


def with_steps_in_base(instance: Instance, plain: Rate) -> Rate | None:
    """Return a plain rate's combination with φ = 0; None if then a decode would have a negative cost."""
    base = plain.base + plain.scale * plain.step_ps
    places = turns(instance, most_decodes(instance))
    decode = min(plain.prompt, *((plain.scale * instance.cost.linear_ps(x) - base) // x for x in places))
    return None if decode < 0 else Rate(plain.weights, base, decode, plain.prompt, 0)


def with_steps_in_prompts(instance: Instance, plain: Rate) -> Rate:
    """Return a plain rate whose prompts pay by the token, instead, for one prefill step of each batch that has some.

    A batch of x tokens, c of them by prefill steps, is to last β + τ (x - c) and c times ``prompt`` at least, of its
    f(x) + prefill_req. Take the x for which that leaves least. Then what is left for c tokens is convex in c, and
    affine between turns of f, so that by the token it is least at one of them.
    """
    limits, cost, scale = instance.limits, instance.cost, plain.scale
    places, most = turns(instance, limits.batch_tokens), min(limits.prefill_tokens, limits.batch_tokens)
    prompts = {*(place for place in places if place < most), most}

    def beyond(prompt: int) -> int:
        """Return the least time beyond the base of a batch with some tokens of prompts, decodes left out."""
        least = min(scale * cost.linear_ps(x) - plain.decode * (x - prompt) for x in {prompt, *places} if x >= prompt)
        return least + scale * cost.prefill_req - plain.base

    return replace(plain, prompt=min(beyond(prompt) // prompt for prompt in prompts), step_ps=0)


class OwnTimes:
    """Least own times of requests under a rate, ps × its scale.

    Parameters
    ----------
    instance
        The problem.
    rate
        The combination of pieces.
    """

    def __init__(self, instance: Instance, rate: Rate) -> None:
        self._instance = instance
        self._rate = rate
        self._known: dict[tuple[int, int], int] = {}

    def of(self, prompt: int, output: int) -> int:
        """Return the sum of :math:`w_k` up to the last token."""
        known = self._known.get((prompt, output))
        if known is None:
            known = self._known[prompt, output] = self._fill(prompt) + self._later(prompt, output)
        return known

    def _fill(self, tokens: int) -> int:
        cost, scale = self._instance.cost, self._rate.scale
        steps = fewest_steps(self._instance, tokens)
        return self._rate.prompt * tokens + scale * (cost.prefill_sq * tokens**2 + self._rate.step_ps * steps)

    def _later(self, prompt: int, output: int) -> int:
        cost, scale, count = self._instance.cost, self._rate.scale, output - 1
        if count <= MOST_COMPARED and self.decodes_are_cheapest(prompt, output):
            cached = count * prompt + count * (count - 1) // 2
            return count * (self._rate.decode + scale * cost.decode_req) + scale * cost.decode_kv * cached
        return least_later(self._instance, prompt, output, self._fill, self._decode)

    def _decode(self, size: int) -> int:
        """Return the own time of a decode that holds that number of tokens, its own included."""
        return self._rate.decode + self._rate.scale * self._instance.cost.decode_ps(size - 1)

    def decodes_are_cheapest(self, prompt: int, output: int) -> bool:
        """Whether no refill of tokens 2 to O undercuts its decode; perhaps False although none does."""
        if not self._instance.rules.eviction:
            return True
        # With one step for all of a refill the difference is convex in the size; so look beside its minimum, too.
        lowest, highest = prompt + 1, prompt + output - 1
        places = {min(max(place, lowest), highest) for place in (lowest, *self._flattest, highest)}
        return all(self._one_step_fill(size) >= self._decode(size) for size in places)

    def _one_step_fill(self, tokens: int) -> int:
        cost, scale = self._instance.cost, self._rate.scale
        return self._rate.prompt * tokens + scale * (cost.prefill_sq * tokens**2 + self._rate.step_ps)

    @cached_property
    def _flattest(self) -> tuple[int, ...]:
        """The sizes around that at which a refill in one step costs least beyond a decode."""
        cost, scale = self._instance.cost, self._rate.scale
        if cost.prefill_sq == 0:
            return ()
        place = (scale * cost.decode_kv - self._rate.prompt) // (2 * scale * cost.prefill_sq)
        return place, place + 1


def least_later(
    instance: Instance, prompt: int, output: int, fill: Callable[[int], int], decode: Callable[[int], int]
) -> int:
    """Return the sum over tokens 2 to O of the lesser of a refill and a decode, by the size I + k - 1.

    Of more sizes than `MOST_COMPARED`, stretches of equal length count as their first one, which takes least: both
    times do not fall with the size, and decodes rise evenly.
    """
    last, most = prompt + output - 1, prompt
    if instance.rules.eviction:
        most = last if instance.rules.chunked_prefill else max(prompt, min(last, instance.limits.prefill_tokens))

    def decoded(begin: int, end: int) -> int:
        """Return the sum of decodes of the sizes from ``begin`` up to, not with, ``end``."""
        return (end - begin) * (decode(begin) + decode(end - 1)) // 2

    total, many = decoded(most + 1, last + 1), -(-(most - prompt) // MOST_COMPARED) or 1
    for begin in range(prompt + 1, most + 1, many):
        end = min(begin + many, most + 1)
        refill = fill(begin)
        total += decoded(begin, end) if refill >= decode(end - 1) else (end - begin) * min(refill, decode(begin))
    return total


def single_pieces(instance: Instance) -> list[tuple[int, ...]]:
    """Return the weights that take one affine piece alone, for each of them."""
    pieces = range(len(instance.cost.affine))
    return [tuple(int(other == piece) for other in pieces) for piece in pieces]


def most_decodes(instance: Instance) -> int:
    """Return how many decodes a batch may hold, of however many requests."""
    limits = instance.limits
    most = min(limits.batch_tokens, limits.kv_blocks)
    return most if limits.batch_requests is None else min(most, limits.batch_requests)


def turns(instance: Instance, most: int) -> list[int]:
    """Return numbers of tokens up to some, ascending, at one of which f(x) less a multiple of x is least, for any."""
    places = {1, most}
    for (base, token), (other_base, other_token) in combinations(instance.cost.affine, 2):
        if token != other_token:
            place = (other_base - base) // (token - other_token)
            places |= {min(max(tokens, 1), most) for tokens in (place, place + 1)}
    return sorted(places)


class BatchTurn(NamedTuple):
    """A batch of some tokens, at most ``prompts`` of them by prefill steps, and the least that it takes."""

    tokens: int
    prompts: int
    time_ps: int


def batch_turns(instance: Instance, step_ps: int) -> tuple[list[BatchTurn], list[BatchTurn]]:
    """Return batches without prefill steps, and with one that takes prefill_req - φ beside its φ, attention left out.

    From each of these to the next the time of a batch is affine, less any prices of tokens.
    """
    limits, time_ps = instance.limits, instance.cost.linear_ps
    more, prompts = instance.cost.prefill_req - step_ps, limits.prefill_tokens
    places = sorted({*turns(instance, limits.batch_tokens), prompts})
    return (
        [BatchTurn(tokens, 0, time_ps(tokens)) for tokens in turns(instance, most_decodes(instance))],
        [BatchTurn(tokens, min(tokens, prompts), time_ps(tokens) + more) for tokens in places],
    )


def least_left(batches: Iterable[BatchTurn], time: int, token: int, prefill_token: int) -> int:
    """Return the least that is left of a batch's time, at a price of it, by prices of its tokens."""
    return min(time * batch.time_ps - token * batch.tokens - prefill_token * batch.prompts for batch in batches)


def fewest_steps(instance: Instance, tokens: int) -> int:
    """Return the fewest prefill steps of a number of tokens: ⌈tokens/P⌉, or 1 if prefills are whole."""
    return -(-tokens // instance.limits.prefill_tokens) if instance.rules.chunked_prefill else 1


def may_refill(instance: Instance, tokens: int) -> bool:
    """Whether a request may be evicted and then refilled with that number of tokens."""
    return instance.rules.eviction and (instance.rules.chunked_prefill or tokens <= instance.limits.prefill_tokens)


def held_blocks(instance: Instance, prompt: int, output: int) -> int:
    """Return the KV blocks that a request holds in the batches that generate its tokens, summed."""
    return _blocks_up_to(instance, prompt + output - 1) - _blocks_up_to(instance, prompt - 1)


def _blocks_up_to(instance: Instance, tokens: int) -> int:
    """Return the blocks of 1, 2, … tokens, summed."""
    full, rest = divmod(tokens, instance.limits.kv_block)
    return instance.limits.kv_block * full * (full + 1) // 2 + rest * (full + 1)
