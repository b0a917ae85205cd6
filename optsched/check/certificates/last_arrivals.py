r"""Certificates of kind ``last_arrivals``: a bound on the makespan of the requests that arrive last.

The certificate has ``from_ps``, the arrival time t of some request, and ``certificate``, one of another kind that
proves a bound z for the problem of the requests S with T_r ≥ t alone, any order of first runs left out. Then::

    makespan ≥ t - earliest arrival + z.

*What the proof needs.* To take the other requests out of a schedule leaves batches in which none of S runs. They are
left out too; but one of them may have been the pause of an eviction, the batch in which the evicted request must not
run. Without it the request can only keep its KV and decode. So either nothing is evicted; or prefills run whole, and
refills of S are dear (`require_dear_refills`). Nothing waits on the host: what the link takes may lie in a batch that
is left out. `require_separable` tests the first two, `optsched.check.document` the last.

*Proof.* Without evictions, leave out all steps of the other requests, and batches that are then empty; let the others
begin when they began. No batch lasts longer than before or holds more, and no step or pause of S changes, so this is a
schedule of S. Its first batch begins at t or later, so it ends at t + z or later, and no later than the whole schedule.

With evictions prefills are whole: every run generates a token, and a request that is evicted was decoding. Call a
batch *empty* if none of S runs in it. Go through the *gaps*, the empty batches between two batches z and f, one after
another, and leave them out, but keep one of a gap where that is needed:

- A request that was evicted between its last run b and its refill, with a batch between b and the refill that is not
  empty, is evicted in such a batch: in the first one after its eviction, or if there is none in the last one before.
  In every batch that remains it holds no more than before.
- Let Y be the requests that run in z, are evicted in the gap and refilled in f. If there are any, keep the gap's last
  batch e, in which they now *decode* the tokens that they would generate in f; in f they do not run. Requests that
  were evicted in the gap or in f, and are not in Y, are evicted in e. If nothing is left of f, it is empty.

*This is legal.* In e the requests of Y hold what they held in f, and any other request of S that holds KV in e still
holds it in f; so e holds no more than f did, in blocks too. Its runs, at most N, and its tokens, at most C, are fewer
than those of f; there are only decodes in e, and f has lost only prefills, so a batch that may not mix phases does
not. Each request of Y ran in z, so it has arrived. Those that are evicted in e, not in f, have e as their pause.

*It ends no later.* Let n_1, …, n_y be the tokens of the refills, x those that S runs in f. Then e took f(1) or more,
and takes f(y) and the attention of y decodes; f took f(x) or more, and the attention of the refills. f is convex, so::

    f(Σ n) - f(y) ≥ Σ (f(n_i) - f(1)) ≥ Σ (attention of decode i - attention of refill i),

the latter because refills are dear. If f is left out, e takes no longer than f did alone. If not, x - Σ n ≥ 1 tokens
are left in it, and f(x) - f(x - Σ n) ≥ f(1 + Σ n) - f(1) ≥ f(Σ n) - f(1), so both together take no longer than before,
however many pieces f has. e begins when it began, f when it did or when e ends. All later batches are as they were. ∎

Where a refill is cheaper than the decode that it replaces the claim is false: two requests (I, O) = (1, 1) and (1, 2)
with a dear decode end earlier if the first runs while the second pauses. With chunked prefill f may hold only a part of
a refill, so that neither keeping the KV nor an earlier decode fits; and a batch's link time may lie in the gap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from optsched.check.certificates.shared.refills import require_dear_refills
from optsched.check.problem import Problem
from optsched.check.reading import UnprovedError, shown
from optsched.model.objectives import Objective

Proof = Callable[[Problem, Objective, Mapping[str, Any]], int]
"""Returns the bound that a certificate proves for a problem; raises `UnprovedError` if it proves none."""
_KIND = "last_arrivals"


def last_arrivals_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any], prove: Proof) -> int:
    """Return the makespan bound of a ``last_arrivals`` certificate; the module says why it holds."""
    if objective is not Objective.MAKESPAN:
        raise UnprovedError(f"kind {_KIND} bounds the makespan, the objective is {objective.value}")
    arrivals = [request.arrival_ps for request in problem.requests]
    moment, inner = certificate.get("from_ps"), certificate.get("certificate")
    if type(moment) is not int or moment not in arrivals:
        raise UnprovedError(f"from_ps is {shown(moment)}, expected the arrival time of a request")
    if not isinstance(inner, Mapping) or inner.get("kind") == _KIND:
        raise UnprovedError(f"certificate is {shown(inner)}, expected one of another kind")
    late = tuple(request for request in problem.requests if request.arrival_ps >= moment)
    part = replace(problem, requests=late, queue=())
    require_separable(part)
    return moment - min(arrivals) + prove(part, objective, inner)


def require_separable(part: Problem) -> None:
    """Refuse problems of which other requests cannot be taken out: with evictions that need a pause of theirs."""
    if part.eviction and part.chunked:
        raise UnprovedError(f"kind {_KIND} needs whole prefills where requests may be evicted, but chunked is allowed")
    require_dear_refills(_KIND, part)
