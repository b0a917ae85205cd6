r"""The volume bound on the makespan: a number of batches that no schedule undercuts, and the work in them.

Theorem
-------
Take the requests S that arrive at :math:`t_0` or later and one affine piece (base, token) of the batch time.
Every schedule ends no earlier than

.. math:: t_0 + \mathrm{base} \cdot J + \sum_{r \in S} \sum_{k=1}^{O_r} w_{rk}

where :math:`w_{rk}` is the least own time (token cost and attention) of producing output token k of r, and

.. math:: J = \max\Bigl(\bigl\lceil \textstyle\sum_r V_r / M \bigr\rceil, \bigl\lceil \sum_r (I_r+O_r-1)/C \bigr\rceil,
          \lceil \sum_r O_r / N \rceil, \max_r (\lceil I_r/P \rceil + O_r - 1)\Bigr)

with :math:`V_r = \sum_k (I_r+k-1)`, in whole blocks, and M the capacity in whole blocks.

Proof
-----
*Batches.* When r generates token k, the batch holds I + k − 1 of its tokens, evictions or not, and no two
tokens of r share a batch; summed over batches the resident KV is at least Σ V, and each holds at most M. Every
one of the I + O − 1 tokens before the last must be run at least once, at most C a batch. Every generated token
is a run, at most N a batch. A prompt takes ⌈I/P⌉ prefill steps (one if prefills are whole) in different batches,
the last of which generates the first token, and each later token needs a batch of its own.
*Work.* A batch lasts at least base + token · Σc + its steps' attention, and so at least base plus what its steps
cost under this piece. Charge every step to the token that it produces or prepares. Token 1 needs a prefill of I
tokens: the quadratic term telescopes over chunks to I², every chunk adds to the rest. A later token is a decode
of one token on I + k − 2 cached ones, or ends a refill of I + k − 1 tokens (whole or in chunks, which telescopes
too). No run of a request in S starts before :math:`t_0`. ∎

Reference: InferMax (Kim et al., section 3.2) for the batch time; the argument is the energy bound of
cumulative scheduling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optsched.model.instance import Instance, Request


@dataclass(frozen=True)
class VolumeBound:
    """The best volume bound of an instance.

    Parameters
    ----------
    value
        Lower bound on the makespan in ps.
    batches
        J of the requests that give it.
    piece, release_ps
        Index of the affine piece and t₀.
    pieces
        Number of pieces of the cost model.
    """

    value: int
    batches: int
    piece: int
    release_ps: int
    pieces: int

    @property
    def certificate(self) -> dict[str, Any]:
        """What `optsched.check` needs to recompute the bound."""
        weights = [int(index == self.piece) for index in range(self.pieces)]
        return {"kind": "volume", "piece_weights": weights, "release_ps": self.release_ps}


def least_token_ps(instance: Instance, request: Request, k: int, token: int) -> int:
    """Return the least own time in ps of producing output token ``k`` ≥ 1, at ``token`` ps per token run."""
    cost, size = instance.cost, request.input + k - 1
    fill = token * size + cost.prefill_ps(size, 0)
    if k == 1:
        return fill
    decode = token + cost.decode_ps(size - 1)
    refill_allowed = instance.rules.eviction and (
        instance.rules.chunked_prefill or size <= instance.limits.prefill_tokens
    )
    return min(decode, fill) if refill_allowed else decode


class _Totals:
    """Sums over a growing set of requests."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._pieces = instance.cost.affine
        self._work: dict[tuple[int, int], tuple[int, ...]] = {}
        self._volume: dict[tuple[int, int], int] = {}
        self.volume = self.tokens = self.outputs = self.longest = 0
        self.work = [0] * len(self._pieces)

    def add(self, request: Request) -> None:
        limits, key = self._instance.limits, (request.input, request.output)
        if key not in self._work:
            self._work[key] = tuple(
                sum(least_token_ps(self._instance, request, k, token) for k in range(1, request.output + 1))
                for _, token in self._pieces
            )
            self._volume[key] = sum(limits.occupied(request.input + k) for k in range(request.output))
        self.volume += self._volume[key]
        self.tokens += request.peak_tokens
        self.outputs += request.output
        chunked = self._instance.rules.chunked_prefill
        steps = -(-request.input // limits.prefill_tokens) if chunked else 1
        self.longest = max(self.longest, steps + request.output - 1)
        for piece, work in enumerate(self._work[key]):
            self.work[piece] += work

    def batches(self) -> int:
        limits = self._instance.limits
        counts = [
            -(-self.volume // limits.kv_capacity),
            -(-self.tokens // limits.batch_tokens),
            self.longest,
        ]
        if limits.batch_requests is not None:
            counts.append(-(-self.outputs // limits.batch_requests))
        return max(counts)


def volume_bound(instance: Instance) -> VolumeBound:
    """Return the best volume bound over all pieces and all releases t₀ (see the module's theorem)."""
    totals = _Totals(instance)
    start = instance.start_ps
    best: VolumeBound | None = None
    arrivals = sorted(instance.requests, key=lambda request: -request.arrival_ps)
    for position, request in enumerate(arrivals):
        totals.add(request)
        release = request.arrival_ps
        if position + 1 < len(arrivals) and arrivals[position + 1].arrival_ps == release:
            continue
        batches = totals.batches()
        for piece, (base, _) in enumerate(instance.cost.affine):
            value = release - start + base * batches + totals.work[piece]
            if best is None or value > best.value:
                best = VolumeBound(value, batches, piece, release, len(instance.cost.affine))
    assert best is not None, "an instance has at least one request"
    return best
