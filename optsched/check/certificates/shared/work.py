"""What requests take at least of batches: what certificates of several kinds count with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import permutations
from math import ceil
from typing import NamedTuple

from optsched.check.problem import Problem, pieces_of, tokens_ps
from optsched.check.reading import UnprovedError, shown

MOST_COMPARED = 1 << 17
"""Output tokens of one request beyond which decodes and refills are compared for several tokens at once."""


class Rate(NamedTuple):
    """What a batch takes at least: base, and for each token by a decode or a prefill step, all divided by scale.

    ``step`` is what a prefill step takes at least besides, in ps.
    """

    base: int
    decode: int
    prompt: int
    step: int
    scale: int


def plain_rate(problem: Problem, base: int, token: int) -> Rate:
    """Return what an affine piece of the batch time says."""
    return Rate(base, token, token, problem.cost.prefill_req, 1)


def rate_of(problem: Problem, stated: object, step: object) -> Rate:
    """Return the rate that ``piece_weights`` and ``prefill_step_ps`` state.

    The first are integers ≥ 0 for each piece, not all 0: a convex combination of pieces. The second is φ, from 0 to
    prefill_req. A batch with a prefill step has prefill_req - φ left beside the combination, if each of its steps takes
    φ; this is added to the base. What this leaves of batches without one is what a decode may cost: at most the least
    of (f(x) - base) / x over the numbers of decodes x that fit a batch. f(x) - base is affine between crossings of
    pieces, so that this falls or rises from one to the next.
    """
    rate = prefill_rate_of(problem, stated, step)
    if rate.step == problem.cost.prefill_req:
        return rate
    places = turns(problem, most_decodes(problem))
    spare = [rate.scale * tokens_ps(problem.cost, x) - rate.base for x in places]
    decode = min(rate.prompt, *(left // x for left, x in zip(spare, places, strict=True)))
    if decode < 0:
        raise UnprovedError(f"prefill_step_ps is {rate.step}, which leaves less than nothing for decodes")
    return rate._replace(decode=decode)


def prefill_rate_of(problem: Problem, stated: object, step: object) -> Rate:
    """Return what `rate_of` says of batches with a prefill step alone: there a decode costs what any token does."""
    base, token, scale = combination_of(problem, stated, "piece_weights")
    least = step_of(problem, step)
    return Rate(base + scale * (problem.cost.prefill_req - least), token, token, least, scale)


def combination_of(problem: Problem, stated: object, name: str) -> tuple[int, int, int]:
    """Return base, slope and scale of a combination of pieces of the batch time, of stated weights with a name."""
    pieces = pieces_of(problem.cost)
    if not are_weights(stated, len(pieces)):
        raise UnprovedError(
            f"{name} is {shown(stated)}, expected {len(pieces)} integers ≥ 0, one for each piece, not all 0"
        )
    assert isinstance(stated, list)
    base = sum(weight * piece[0] for weight, piece in zip(stated, pieces, strict=True))
    token = sum(weight * piece[1] for weight, piece in zip(stated, pieces, strict=True))
    return base, token, sum(stated)


def step_of(problem: Problem, stated: object) -> int:
    """Return what ``prefill_step_ps`` states, an integer from 0 to prefill_req."""
    most = problem.cost.prefill_req
    if type(stated) is not int or not 0 <= stated <= most:
        raise UnprovedError(f"prefill_step_ps is {shown(stated)}, expected an integer from 0 to {most}")
    return stated


def most_decodes(problem: Problem) -> int:
    """Return how many decodes fit a batch."""
    tokens = problem.limits.batch_tokens
    return max(1, min(tokens, problem.blocks, problem.runs or tokens))


def turns(problem: Problem, most: int) -> list[int]:
    """Return numbers of tokens from 1 to ``most``: the ends, and both beside every crossing of two pieces.

    Between two that follow each other the non-attention time is affine.
    """
    places = {1, most}
    for (base, slope), (other, steeper) in permutations(pieces_of(problem.cost), 2):
        if steeper > slope:
            crossing = (base - other) // (steeper - slope)
            places |= {x for x in (crossing, crossing + 1) if 1 <= x <= most}
    return sorted(places)


def are_weights(stated: object, count: int) -> bool:
    """Whether something is a list of ``count`` integers ≥ 0, not all 0."""
    return (
        isinstance(stated, list)
        and len(stated) == count
        and all(type(weight) is int and weight >= 0 for weight in stated)
        and any(stated)
    )


def require_blocks(problem: Problem) -> None:
    """Refuse problems in which no request can be served at all."""
    if problem.blocks == 0:
        raise UnprovedError("the KV cache does not hold a single block, so no request can be served")


def own_ps(problem: Problem, prompt: int, output: int, rate: Rate) -> int:
    """Return the least token and attention time that a request takes, multiplied by the rate's scale.

    The first token takes a fill of the prompt, each later one a decode or, if the request may be evicted and refilled
    at once or in chunks, a fill of all I + k − 1 tokens. However a fill of n tokens is cut, its steps run n tokens,
    their quadratic terms c² + 2 m c add up to n², and there are at least `Problem.fewest_steps` of them.
    """
    cost = problem.cost

    def fill(tokens: int) -> int:
        steps = problem.fewest_steps(tokens)
        return rate.prompt * tokens + rate.scale * (cost.prefill_sq * tokens**2 + rate.step * steps)

    def decode(tokens: int) -> int:
        return rate.decode + rate.scale * (cost.decode_kv * (tokens - 1) + cost.decode_req)

    return fill(prompt) + least_sum(problem, prompt, output, fill, decode)


def least_sum(
    problem: Problem, prompt: int, output: int, fill: Callable[[int], int], decode: Callable[[int], int]
) -> int:
    """Return the sum over output tokens 2 to O of what a fill or a decode of all I + k - 1 tokens takes, the lesser.

    Both rise with the tokens, a decode by the same for every token. Where there are more than `MOST_COMPARED` that may
    be refilled, they are cut into about that many blocks, all tokens of which take at least what the first one does.
    """

    def decodes(first: int, last: int) -> int:
        return (last - first + 1) * (decode(first) + decode(last)) // 2

    low, end = prompt + 1, prompt + output - 1
    # Whole refills exceed P from some token on.
    high = end if problem.chunked else min(end, problem.limits.prefill_tokens)
    if not problem.eviction or high < low or fill(low) >= decode(high):
        return decodes(low, end)
    total, size = decodes(high + 1, end), -(-(high - prompt) // MOST_COMPARED)
    for first in range(low, high + 1, size):
        last = min(first + size - 1, high)
        refilled = fill(first)
        total += decodes(first, last) if refilled >= decode(last) else (last - first + 1) * min(refilled, decode(first))
    return total


def blocks_held(problem: Problem, prompt: int, output: int) -> int:
    """Return the blocks that a request holds in the batches that generate its tokens, summed: I + k − 1 tokens each."""

    def until(tokens: int) -> int:
        """Return ⌈1 / b⌉ + … + ⌈tokens / b⌉: full rounds of b equal terms, and the rest."""
        rounds, rest = divmod(tokens, problem.limits.kv_block)
        return problem.limits.kv_block * rounds * (rounds + 1) // 2 + rest * (rounds + 1)

    return until(prompt + output - 1) - until(prompt - 1)


def fewest_batches(problem: Problem, shapes: Mapping[tuple[int, int], int]) -> int:
    """Return a lower bound on the number of batches that run requests of the given shapes.

    ``shapes`` says how many requests there are of each (I, O). The largest of these counts:

    - memory: the batch in which a request generates its k-th token holds I + k − 1 of its tokens, in whole
      blocks, and no batch holds more than all blocks;
    - tokens: each request runs I + O − 1 tokens at least, and no batch more than C;
    - one request alone: ceil(I / P) batches until its first token, 1 if prompts run whole, and a batch for
      each later one;
    - runs: each of the Σ O tokens is generated by a run of its own, and no batch has more than N.
    """
    limits = problem.limits
    blocks = sum(number * blocks_held(problem, *shape) for shape, number in shapes.items())
    tokens = sum(number * (prompt + output - 1) for (prompt, output), number in shapes.items())
    counts = [ceil(Fraction(blocks, problem.blocks)), ceil(Fraction(tokens, limits.batch_tokens))]
    for prompt, output in shapes:
        counts.append(problem.fewest_steps(prompt) + output - 1)
    if problem.runs is not None:
        generated = sum(number * output for (_, output), number in shapes.items())
        counts.append(ceil(Fraction(generated, problem.runs)))
    return max(counts)
