r"""Inflow: the makespan of requests that arrive, by prices of time and rents of the requests that are there.

`volume` and `machine` let batches be full from the first arrival on. They cannot be: of few requests that have arrived
a batch is small, however it is filled, and what has been served early is missing later. So time is worth less while
requests come in; how much less depends on how many are there, which this bound counts.

Theorem
-------
Cut time into *windows* 0, …, K, from the earliest arrival on, the last of which does not end. Take 0 ≤ φ ≤
prefill_req. In window k let a ps of the machine's time cost :math:`θ_k`, a token held after a run :math:`λ_k`, a token
run :math:`μ_k`, a token of a prefill :math:`ν_k` more, and a run :math:`ρ_k`, all ≥ 0, with :math:`θ_K > 0`. Put
requests into *groups*; group g has :math:`n_g` of them, the earliest of which arrives in window :math:`a_g`, and pays a
*rent* :math:`α_{gk} ≥ 0` for a run in window :math:`k ≥ a_g`. With f(x) the batch time of x tokens without attention, Q
the most decodes in a batch, B tokens in the KV cache and N runs in a batch, let

.. math::
   G_k = \min \bigl\{ \min_{1≤x≤Q} (θ_k f(x) - μ_k x),\; \min_{1≤x≤C} (θ_k (f(x) + \mathrm{prefill\_req} - φ) - μ_k x
   - ν_k \min(P, x)) \bigr\} - B λ_k - N ρ_k,

and let rents leave nothing of it: :math:`\sum_{g:\, a_g ≤ k} n_g α_{gk} ≤ G_k` for all k. A decode after which m tokens
are held takes at least

.. math:: u_g(m) = \min_{k ≥ a_g} \bigl( μ_k + ρ_k + α_{gk} + λ_k m + θ_k (\mathrm{decode\_kv} (m - 1)
          + \mathrm{decode\_req}) \bigr),

and a fill of m tokens, with q = min(P, m), or m where prefills are whole,

.. math:: F_g(m) = \min_{k ≥ a_g} \Bigl( (μ_k + ν_k + λ_k)\, m + (θ_k φ + ρ_k + α_{gk}) \frac{m}{q} \Bigr)
          + \min_{k ≥ a_g} θ_k\, \mathrm{prefill\_sq}\, m^2 .

Let W be the sum over requests of :math:`F_g(I) + \sum_{m=I+1}^{I+O-1} \min(u_g(m), F_g(m))`, the second term only where
m tokens may be refilled. Every schedule lasts at least until the integral of θ over time, from the earliest arrival on,
has reached W.

Proof
-----
Take a batch as if all of it were in window k. It lasts f(x) and the attention of its steps; with l ≥ 1 prefill steps,
of which prefill_req l is at least φ l and prefill_req - φ, it runs min(P, x) tokens by these at most, and without x ≤
Q. Its runs hold at most B tokens after their steps, are N at most, and at most one of each request, which has arrived,
so that :math:`a_g ≤ k`. So θ times its duration is no less than what its runs cost: each its attention times θ, with φ
for a prefill step, its tokens, what it holds, ρ and its rent. A batch that crosses windows pays in each of them for its
part of the duration; what a run costs is an average over these windows, all from :math:`a_g` on, as it began after the
arrival.

The tokens of a request take runs that are not counted twice: the first a fill of I, each later one a decode, or, after
an eviction, a fill of all m = I + k - 1 tokens in prefill steps. Such a step of c ≤ q tokens holds c or more
afterwards, and its φ, ρ and rent are at least c / q of them; so tokens of a fill take no less than the first minimum,
and squares, which add up to m², no less than the second. All this is W at least, and batches do not overlap. ∎

Prices are the dual of a linear programme (`rented.programme`) for groups that are alike in their window and output:
rents decide which requests may be served at once, and these are of the same use if they have to be there for as long.
Requests up to 64 are groups of their own, and windows begin with every arrival if there are no more. What groups take
is counted token by token.

*Tight* at loads near the sustainable one, for some hundreds of requests: of 400 conversations at load 3/2 `machine`
proves 75.1 s and this bound 77.2 s of 79.0 s; of 100 that arrive four times as fast, one machine's share of four, 26.2
s of 27.0 s, where 23.6 s were known. *Loose* at the end, where fractions of requests may be left to the last, and where
the queue is long, so that batches are full: what thousands of requests lose while they come in is a small part of the
time. So it is left out where the programme would have more than 20,000 numbers.

Conditions
----------
None on rules or costs: tokens are looked at one by one, and what they need of a batch is the same if KV waits on the
host between two. The checker (`optsched.check.certificates.inflow`) tests that windows ascend from the earliest
arrival, that prices and rents are integers ≥ 0 and the last price of time is not 0, φ, and that rents leave nothing of
:math:`G_k` or less (`_require_paid`).

Source: rents are the dual prices of "no request runs twice at once" in time-indexed programmes (Dyer and Wolsey 1990,
Discrete Applied Mathematics 26), with batches for time.
"""

from __future__ import annotations

from optsched.bounds.bound import Bound
from optsched.model.instance import Instance
from optsched.model.objectives import Objective

_FEWEST_TOKENS = 150
"""With fewer output tokens exact models say more."""


def inflow_bound(instance: Instance, objective: Objective) -> Bound | None:
    """Bound the makespan by rents; None for other objectives, and where nothing arrives, or too little or much does."""
    if objective != Objective.MAKESPAN or instance.offline:
        return None
    if sum(request.output for request in instance.requests) < _FEWEST_TOKENS:
        return None
    from optsched.bounds.rented.windows import leased_bound  # noqa: PLC0415  # the solver takes a while to load

    return leased_bound(instance)
