"""The calibrated cost model: how long a batch takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Protocol, runtime_checkable

from pydantic import BeforeValidator, FailFast

from optsched.model.domain import Percent, Picoseconds, domain
from optsched.model.units import in_ps


class BatchCost(Protocol):
    """What a batch costs; the simulator needs nothing else of a cost model."""

    def batch_ps(self, tokens: int, decodes: int, decode_kv_tokens: int, prefills: Iterable[tuple[int, int]]) -> int:
        """Return the duration of a batch in ps.

        Parameters
        ----------
        tokens
            Tokens run by all steps of the batch.
        decodes
            Number of decode steps.
        decode_kv_tokens
            KV tokens that the decode steps read: the sum of their ``m`` before the step.
        prefills
            ``(c, m)`` of every prefill step: tokens run and tokens cached before.
        """
        ...


@runtime_checkable
class RepeatedCost(Protocol):
    """What many batches of the same decode steps cost, if there is a closed form."""

    def repeated_ps(self, decodes: int, decode_kv_tokens: int, times: int) -> int:
        """Return the duration of ``times`` batches in a row in ps.

        Parameters
        ----------
        decodes
            Number of decode steps of each; a batch runs nothing else.
        decode_kv_tokens
            KV tokens that the steps of the first batch read; those of each later one read ``decodes`` more.
        times
            Number of batches.
        """
        ...


Coefficient = Annotated[Picoseconds, BeforeValidator(in_ps)]
"""A time in ps, of whatever a coefficient multiplies; also written with a unit, as ``8.7 ms``."""


@domain
class CostModel:
    """Piecewise-linear batch time with integer coefficients.

    The batch time is::

        max_k (base_k + token_k Σ c)                                    non-attention
          + Σ over decode steps  (decode_kv m + decode_req)             decode attention
          + Σ over prefill steps (prefill_sq (c² + 2 m c) + prefill_kv m + prefill_req)
          + cpu_batch

    with c the tokens that a step runs and m the tokens cached before it. One piece is InferMax's linear
    model (Kim et al., section 3.2). All coefficients are integers ≥ 0. Swapping KV over a link, and a scheduler that
    considers queued requests, add to it (`overhead_ps`).

    Parameters
    ----------
    base, token
        First affine piece of the non-attention time: ps, and ps per token.
    pieces
        Further ``(base, token)`` pairs; the maximum over all pieces counts.
    decode_kv, decode_req
        Decode attention: ps per KV token read, ps per decode step.
    prefill_sq, prefill_kv, prefill_req
        Prefill attention: ps per token², ps per cached token, ps per prefill step.
    swap_out_kv, swap_in_kv
        The link to the host: ps per KV token that leaves the GPU, and that comes back.
    swap_overlap
        Percent of a batch's other time in which the link works beside it.
    cpu_batch, cpu_request
        The scheduler on the CPU: ps per batch, and ps per queued request that it considers.
    """

    base: Coefficient
    token: Coefficient
    pieces: Annotated[tuple[tuple[Coefficient, Coefficient], ...], FailFast()] = ()
    decode_kv: Coefficient = 0
    decode_req: Coefficient = 0
    prefill_sq: Coefficient = 0
    prefill_kv: Coefficient = 0
    prefill_req: Coefficient = 0
    swap_out_kv: Coefficient = 0
    swap_in_kv: Coefficient = 0
    swap_overlap: Percent = 0
    cpu_batch: Coefficient = 0
    cpu_request: Coefficient = 0

    @property
    def affine(self) -> tuple[tuple[int, int], ...]:
        """All ``(base, token)`` pieces of the non-attention time, the first one and ``cpu_batch`` included."""
        return tuple((base + self.cpu_batch, token) for base, token in ((self.base, self.token), *self.pieces))

    def linear_ps(self, tokens: int) -> int:
        """Return the non-attention time in ps of a batch that runs ``tokens`` tokens."""
        longest = self.base + self.token * tokens
        for base, token in self.pieces:
            longest = max(longest, base + token * tokens)
        return longest + self.cpu_batch

    def decode_ps(self, cached: int) -> int:
        """Return the attention time in ps of one decode step on ``cached`` tokens."""
        return self.decode_kv * cached + self.decode_req

    def prefill_ps(self, run: int, cached: int) -> int:
        """Return the attention time in ps of one prefill step of ``run`` tokens on ``cached`` ones."""
        return self.prefill_sq * run * (run + 2 * cached) + self.prefill_kv * cached + self.prefill_req

    def batch_ps(self, tokens: int, decodes: int, decode_kv_tokens: int, prefills: Iterable[tuple[int, int]]) -> int:
        """Return the duration of a batch in ps (see `BatchCost`)."""
        return (
            self.linear_ps(tokens)
            + self.decode_kv * decode_kv_tokens
            + self.decode_req * decodes
            + sum(self.prefill_ps(run, cached) for run, cached in prefills)
        )

    def overhead_ps(self, batch_ps: int, swapped_out: int, swapped_in: int, considered: int) -> int:
        r"""Return what a batch takes beyond its steps, in ps.

        KV moves while the steps run, but only so long: with x the time on the link, t that of the steps, and o the
        overlap in percent, the link adds :math:`\max(0, x - \lfloor t\, o / 100 \rfloor)`, from the sum of both (o = 0)
        to the longer of the two (o = 100).

        Parameters
        ----------
        batch_ps
            t, the time of the steps (`batch_ps`).
        swapped_out, swapped_in
            KV tokens that leave the GPU, and that come back.
        considered
            Number of times that the scheduler has considered a queued request.
        """
        link = self.swap_out_kv * swapped_out + self.swap_in_kv * swapped_in
        return max(0, link - batch_ps * self.swap_overlap // 100) + self.cpu_request * considered

    def repeated_ps(self, decodes: int, decode_kv_tokens: int, times: int) -> int:
        """Return the duration in ps of ``times`` batches of the same decode steps (see `RepeatedCost`)."""
        first = self.batch_ps(decodes, decodes, decode_kv_tokens, ())
        return times * first + self.decode_kv * decodes * (times * (times - 1) // 2)
