r"""The volume bound on the makespan: a number of batches that no schedule undercuts, and the work in them.

Theorem
-------
Take the requests S that arrive at :math:`t_0` or later and one affine piece (base, token) of the batch time.
Every schedule ends no earlier than

.. math:: t_0 + \mathrm{base} \cdot J + \sum_{r \in S} \sum_{k=1}^{O_r} w_{rk}

where :math:`w_{rk}` is the least own time (`own`) of producing output token k of r, and

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
cost under this piece. Charge every step to the token that it produces or prepares; `own` says what these then cost at
least. No run of a request in S starts before :math:`t_0`. ∎

Reference: InferMax (Kim et al., section 3.2) for the batch time; the argument is the energy bound of
cumulative scheduling.

Conditions
----------
None on rules or costs: requests are counted, never moved, so that pauses, chunks, blocks, cheap refills and KV on the
host change nothing. The checker (`optsched.check.certificates.volume.volume_bound`) tests that :math:`t_0` is an
arrival, that the weights of the pieces are integers ≥ 0 and not all 0 (`work.rate_of`), and that there is a block
(`work.require_blocks`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optsched.bounds.bound import Bound
from optsched.bounds.own import OwnTimes, fewest_steps, held_blocks, plain_rate, single_pieces
from optsched.model.instance import Instance, Request
from optsched.model.objectives import Objective


@dataclass(frozen=True)
class VolumeBound:
    """The best volume bound of an instance.

    Parameters
    ----------
    value
        Lower bound on the makespan in ps.
    batches
        J of the requests that give it.
    weights, release_ps
        Weights of the pieces, 1 for the one that gives it, and t₀.
    """

    value: int
    batches: int
    weights: tuple[int, ...]
    release_ps: int

    @property
    def certificate(self) -> dict[str, Any]:
        """What `optsched.check` needs to recompute the bound."""
        return {"kind": "volume", "piece_weights": list(self.weights), "release_ps": self.release_ps}


class Totals:
    """Sums over a growing set of requests.

    Attributes
    ----------
    volume, tokens, outputs, longest
        Blocks held, tokens run, tokens generated, and the most batches that a request takes.
    work
        Own times, for every piece of the batch time.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._own = [OwnTimes(instance, plain_rate(instance, weights)) for weights in single_pieces(instance)]
        self.volume = self.tokens = self.outputs = self.longest = 0
        self.work = [0] * len(self._own)

    def add(self, request: Request) -> None:
        """Add a request."""
        instance, prompt, output = self._instance, request.input, request.output
        self.volume += held_blocks(instance, prompt, output)
        self.tokens += request.peak_tokens
        self.outputs += output
        self.longest = max(self.longest, fewest_steps(instance, prompt) + output - 1)
        for piece, own in enumerate(self._own):
            self.work[piece] += own.of(prompt, output)

    def busy_ps(self, batches: int) -> list[int]:
        """Return how long a number of batches lasts at least, for every piece."""
        pieces = zip(self._instance.cost.affine, self.work, strict=True)
        return [base * batches + work for (base, _), work in pieces]

    def batches(self) -> int:
        """Return J."""
        limits = self._instance.limits
        counts = [
            -(-self.volume // limits.kv_blocks),
            -(-self.tokens // limits.batch_tokens),
            self.longest,
        ]
        if limits.batch_requests is not None:
            counts.append(-(-self.outputs // limits.batch_requests))
        return max(counts)


def busy_ps(instance: Instance) -> int:
    """Return how long the machine is busy with all requests at least: the volume bound if they arrived together."""
    totals = Totals(instance)
    for request in instance.requests:
        totals.add(request)
    return max(totals.busy_ps(totals.batches()))


def volume_bound(instance: Instance) -> VolumeBound:
    """Return the best volume bound over all pieces and all releases t₀ (see the module's theorem)."""
    totals = Totals(instance)
    start = instance.start_ps
    best: VolumeBound | None = None
    singles = single_pieces(instance)
    arrivals = sorted(instance.requests, key=lambda request: -request.arrival_ps)
    for position, request in enumerate(arrivals):
        totals.add(request)
        release = request.arrival_ps
        if position + 1 < len(arrivals) and arrivals[position + 1].arrival_ps == release:
            continue
        batches = totals.batches()
        for weights, busy in zip(singles, totals.busy_ps(batches), strict=True):
            value = release - start + busy
            if best is None or value > best.value:
                best = VolumeBound(value, batches, weights, release)
    assert best is not None, "an instance has at least one request"
    return best


def makespan_bound(instance: Instance, objective: Objective) -> Bound | None:
    """Bound the makespan by volume, as `optsched.bounds.bound.BoundMethod`."""
    if objective != Objective.MAKESPAN:
        return None
    found = volume_bound(instance)
    return Bound(found.value, found.certificate)
