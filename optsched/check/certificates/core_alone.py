r"""Certificates of kind ``core_alone``: some requests alone, and what the others take at least.

The certificate has ``requests``, the numbers of the requests of a *core* S, and ``certificate``, one of another kind
that proves a bound z for the core alone with earlier arrivals, any order of first runs left out. Let s be the least
slope of the pieces of f, the time of a batch less attention, so that s x ≤ f(x) for x tokens. The *least work* of a
token is s and its attention if it is decoded, or if it can be refilled and that is less, s and attention of the refill;
of a first token that of the prompt's fill. Let w(q, k) be the least work of the first k tokens of request q, W that of
all tokens of all requests that are not in S. A core request r arrives at::

    T'_r = max(t0, T_r - Σ_{q not in S, T_q < T_r} w(q, min(O_q, ceil((T_r - T_q) / f(1))))),  t0 = min T,

that is as much earlier as others can work before it arrives. Then::

    makespan ≥ W + min_{r in S} T'_r - t0 + z.

*What the proof needs.* Prefills run whole, and nothing waits on the host. If requests may be evicted, refills of S are
dear (`require_dear_refills`), as for ``last_arrivals``. What a batch takes does not depend on how many requests wait
(``cpu_request`` is 0): in the core's schedule they wait earlier.

*Proof.* Take a schedule. Batch j, which begins at s_j and takes d_j, does the least work g_j of others at least: every
token is generated once, by a decode, a fill or a refill. Let G_j = g_1 + … + g_{j-1}. Leave the others out of all
batches, and let batch j begin at s_j - G_j. Without others it takes d_j - g_j at most: with x_S and x tokens, f(x_S +
x) ≥ f(x_S) + s x, since f is convex with slopes of s or more. So it ends by s_j + d_j - G_{j+1} ≤ s_{j+1} - G_{j+1},
when the next one begins; beginnings are in order, the first at s_1 ≥ t0. Batches in which none of S runs are left out,
but for those that ``last_arrivals`` keeps as pauses of evictions, in which requests decode that would be refilled in
the next one. With h(x) = f(x) - s x, convex and nondecreasing, such a batch of others took h(1) or more beyond their
least work; the argument there holds with h in place of f and s added to the attention of every token: a refill is dear
if h(n) - h(1) + s n - s + attention of the refill ≥ attention of the decode. What is legal does not depend on times
but for arrivals.

*Arrivals.* Let j be the first batch with s_j ≥ T_r; r runs in none before. The batches before j begin before T_r, those
in which q can run no earlier than T_q, and each takes f(1) or more, so that at most ceil((T_r - T_q) / f(1)) of them
begin in between, none if T_q ≥ T_r. So G_j is no more than the sum above, batch j begins at T_r - G_j or later, and at
t0 or later, as all after it do.

So the core's batches are a schedule for T', which ends at min T' + z or later, counted from the same origin; and all G
together is W or more. The last batch ends W after its place in the core's schedule, or later. If none of S runs in the
last batches, the core has ended before they begin, less G. ∎

With S = {T_r ≥ t} this proves no less than ``last_arrivals``, if the core can be solved with earlier arrivals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from optsched.check.certificates.last_arrivals import Proof
from optsched.check.certificates.shared.refills import require_dear_refills
from optsched.check.problem import Problem
from optsched.check.reading import UnprovedError, shown
from optsched.model.instance import Request
from optsched.model.objectives import Objective

_KIND = "core_alone"
_MOST_PAIRS = 4_000_000
"""Core requests times others that the checker is ready to look at."""


def core_alone_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any], prove: Proof) -> int:
    """Return the makespan bound of a ``core_alone`` certificate; the module says why it holds."""
    if objective is not Objective.MAKESPAN:
        raise UnprovedError(f"kind {_KIND} bounds the makespan, the objective is {objective.value}")
    core, inner = _core(problem, certificate), certificate.get("certificate")
    if not isinstance(inner, Mapping) or inner.get("kind") == _KIND:
        raise UnprovedError(f"certificate is {shown(inner)}, expected one of another kind")
    if problem.chunked:
        raise UnprovedError(f"kind {_KIND} needs whole prefills, but chunked is allowed")
    if problem.cost.cpu_request:
        raise UnprovedError(f"kind {_KIND} needs batches that take as long however many wait, but cpu_request is not 0")
    first = min(request.arrival_ps for request in problem.requests)
    kept = set(core)
    others = [request for number, request in enumerate(problem.requests) if number not in kept]
    works = [_least_works(problem, other) for other in others]
    batch = max(base + token for base, token in problem.pieces)

    def earlier(request: Request) -> int:
        arrival, before = request.arrival_ps, 0
        for other, work in zip(others, works, strict=True):
            if other.arrival_ps < arrival:
                batches = -((other.arrival_ps - arrival) // batch) if batch else other.output
                before += work[min(other.output, batches)]
        return max(first, arrival - before)

    requests = tuple(
        replace(request, arrival_ps=earlier(request)) for request in map(problem.requests.__getitem__, core)
    )
    part = replace(problem, requests=requests, queue=())
    require_dear_refills(_KIND, part)
    begins = min(request.arrival_ps for request in requests)
    return sum(work[-1] for work in works) + begins - first + prove(part, objective, inner)


def _core(problem: Problem, certificate: Mapping[str, Any]) -> list[int]:
    """Return the numbers of the core's requests."""
    core, number = certificate.get("requests"), len(problem.requests)
    if not (isinstance(core, list) and core and set(map(type, core)) == {int} and core[0] >= 0 and core[-1] < number):
        raise UnprovedError(f"requests is {shown(core)}, expected numbers of requests from 0 to {number - 1}")
    if any(one >= other for one, other in pairwise(core)):
        raise UnprovedError(f"requests is {shown(core)}, expected ascending numbers")
    if len(core) * (number - len(core)) > _MOST_PAIRS:
        raise UnprovedError(
            f"requests is {shown(core)}: {_KIND} is computed for at most {_MOST_PAIRS} pairs with others"
        )
    return core


def _least_works(problem: Problem, request: Request) -> list[int]:
    """Return the least work of the first k tokens of a request, for k = 0, …, O."""
    cost, slope = problem.cost, min(token for _, token in problem.pieces)

    def filled(tokens: int) -> int:
        return slope * tokens + cost.prefill_sq * tokens**2 + cost.prefill_req

    def generated(tokens: int) -> int:
        decoded = slope + cost.decode_kv * (tokens - 1) + cost.decode_req
        return min(decoded, filled(tokens)) if problem.may_refill(tokens) else decoded

    sizes = range(request.input + 1, request.input + request.output)
    return list(accumulate([filled(request.input), *map(generated, sizes)], initial=0))
