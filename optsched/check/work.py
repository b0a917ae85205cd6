"""What requests take at least of batches: what certificates of several kinds count with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from optsched.check.problem import Problem, pieces_of
from optsched.check.reading import UnprovedError, shown


class Rate(NamedTuple):
    """A combination of the affine pieces of the batch time: (base + token Σ c) / scale."""

    base: int
    token: int
    scale: int


def rate_of(problem: Problem, stated: object) -> Rate:
    """Return the combination that ``piece_weights`` states: an integer ≥ 0 for each piece, not all 0."""
    pieces = pieces_of(problem.cost)
    if not are_weights(stated, len(pieces)):
        raise UnprovedError(
            f"piece_weights is {shown(stated)}, expected {len(pieces)} integers ≥ 0, one for each piece, not all 0"
        )
    assert isinstance(stated, list)
    base = sum(weight * piece[0] for weight, piece in zip(stated, pieces, strict=True))
    token = sum(weight * piece[1] for weight, piece in zip(stated, pieces, strict=True))
    return Rate(base, token, sum(stated))


def are_weights(stated: object, count: int) -> bool:
    """Whether something is a list of so many integers ≥ 0, not all 0."""
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
        return rate.token * tokens + rate.scale * (cost.prefill_sq * tokens**2 + cost.prefill_req * steps)

    def decode(tokens: int) -> int:
        return rate.token + rate.scale * (cost.decode_kv * (tokens - 1) + cost.decode_req)

    return fill(prompt) + least_sum(problem, prompt, output, fill, decode)


def least_sum(
    problem: Problem, prompt: int, output: int, fill: Callable[[int], int], decode: Callable[[int], int]
) -> int:
    """Return the sum over output tokens 2 to O of what a fill or a decode of all I + k - 1 tokens takes, the lesser.

    Both rise with the tokens, a decode by the same for every token.
    """
    count, low, high = output - 1, prompt + 1, prompt + output - 1
    if count and (not problem.eviction or fill(low) >= decode(high)):
        return count * (decode(low) + decode(high)) // 2
    return sum(
        min(decode(tokens), fill(tokens)) if problem.may_refill(tokens) else decode(tokens)
        for tokens in range(low, high + 1)
    )


def blocks_held(problem: Problem, prompt: int, output: int) -> int:
    """Return the blocks that a request holds in the batches that generate its tokens, summed: I + k − 1 tokens each."""
    block = problem.limits.kv_block
    return sum((tokens - 1) // block + 1 for tokens in range(prompt, prompt + output))
