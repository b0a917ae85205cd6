r"""The least own time of tokens, and the least time of a request that has the machine to itself.

The *own time* of a step is what it adds to its batch under one affine piece (base, token) of the batch time, or one
convex combination of pieces: token × c and the attention. However a token is produced, by a decode, a refill, or a
prefill in chunks, the own times of the steps that produce it add up to at least

.. math:: w_1 = \mathrm{token}\, I + \mathrm{prefill\_sq}\, I^2 + \mathrm{prefill\_req} \lceil I / P \rceil, \qquad
          w_k = \min(\mathrm{decode}_k, \mathrm{refill}_k) \quad (k ≥ 2),

with :math:`\mathrm{decode}_k = \mathrm{token} + \mathrm{decode\_kv} (I + k - 2) + \mathrm{decode\_req}` and
:math:`\mathrm{refill}_k = w_1` of a prompt of I + k − 1 tokens, where eviction and P allow it: the quadratic terms of
chunks telescope, and a prompt needs at least ⌈I/P⌉ of them (one if prefills are whole).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from optsched.model.instance import Instance


@dataclass(frozen=True)
class Rate:
    """A convex combination of the affine pieces of the batch time: base + token Σ c, divided by ``scale``.

    Parameters
    ----------
    weights
        Of the pieces, integers ≥ 0, not all 0.
    base, token
        Sums of the pieces' coefficients with these weights, ps × scale.
    """

    weights: tuple[int, ...]
    base: int
    token: int

    @property
    def scale(self) -> int:
        """Sum of the weights."""
        return sum(self.weights)


def rate_of(instance: Instance, weights: tuple[int, ...]) -> Rate:
    """Combine the pieces of an instance's batch time."""
    pieces = instance.cost.affine
    base = sum(weight * base for weight, (base, _) in zip(weights, pieces, strict=True))
    token = sum(weight * token for weight, (_, token) in zip(weights, pieces, strict=True))
    return Rate(weights, base, token)


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
        return self._rate.token * tokens + scale * (cost.prefill_sq * tokens**2 + cost.prefill_req * steps)

    def _later(self, prompt: int, output: int) -> int:
        cost, scale, count = self._instance.cost, self._rate.scale, output - 1
        if self._decodes_are_cheapest(prompt, output):
            cached = count * prompt + count * (count - 1) // 2
            return count * (self._rate.token + scale * cost.decode_req) + scale * cost.decode_kv * cached
        return sum(
            min(self._decode(prompt + k - 1), self._fill(prompt + k - 1))
            if may_refill(self._instance, prompt + k - 1)
            else self._decode(prompt + k - 1)
            for k in range(2, output + 1)
        )

    def _decode(self, size: int) -> int:
        """Return the own time of a decode that holds so many tokens, its own included."""
        return self._rate.token + self._rate.scale * self._instance.cost.decode_ps(size - 1)

    def _decodes_are_cheapest(self, prompt: int, output: int) -> bool:
        """Whether no refill of tokens 2 to O undercuts its decode; perhaps False although none does."""
        if not self._instance.rules.eviction:
            return True
        # With one step for all of a refill the difference is convex in the size; so look beside its minimum, too.
        lowest, highest = prompt + 1, prompt + output - 1
        places = {min(max(place, lowest), highest) for place in (lowest, *self._flattest, highest)}
        return all(self._one_step_fill(size) >= self._decode(size) for size in places)

    def _one_step_fill(self, tokens: int) -> int:
        cost, scale = self._instance.cost, self._rate.scale
        return self._rate.token * tokens + scale * (cost.prefill_sq * tokens**2 + cost.prefill_req)

    @cached_property
    def _flattest(self) -> tuple[int, ...]:
        """The sizes around that at which a refill in one step costs least beyond a decode."""
        cost, scale = self._instance.cost, self._rate.scale
        if cost.prefill_sq == 0:
            return ()
        place = (scale * cost.decode_kv - self._rate.token) // (2 * scale * cost.prefill_sq)
        return place, place + 1


def single_pieces(instance: Instance) -> list[tuple[int, ...]]:
    """Return the weights that take one affine piece alone, for each of them."""
    pieces = range(len(instance.cost.affine))
    return [tuple(int(other == piece) for other in pieces) for piece in pieces]


def fewest_steps(instance: Instance, tokens: int) -> int:
    """Return the fewest prefill steps of so many tokens: ⌈tokens/P⌉, or 1 if prefills are whole."""
    return -(-tokens // instance.limits.prefill_tokens) if instance.rules.chunked_prefill else 1


def may_refill(instance: Instance, tokens: int) -> bool:
    """Whether a request may be evicted and then refilled with so many tokens."""
    return instance.rules.eviction and (instance.rules.chunked_prefill or tokens <= instance.limits.prefill_tokens)


def held_blocks(instance: Instance, prompt: int, output: int) -> int:
    """Return the KV blocks that a request holds in the batches that generate its tokens, summed."""
    return _blocks_up_to(instance, prompt + output - 1) - _blocks_up_to(instance, prompt - 1)


def _blocks_up_to(instance: Instance, tokens: int) -> int:
    """Return the blocks of 1, 2, … tokens, summed."""
    full, rest = divmod(tokens, instance.limits.kv_block)
    return instance.limits.kv_block * full * (full + 1) // 2 + rest * (full + 1)
