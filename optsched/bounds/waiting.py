r"""Waiting: the sum of e2e latencies, of which requests pay for themselves until their first token, and batches after.

`congestion` splits the latency of every request: a share is charged to the request, the rest to the batches. Of the
rest only requests that run are counted, for no others are known to be alive. But before its first token a request runs
nothing besides its prompt. So all of this time can be charged to the request itself, and none of it is lost. Where
prompts queue, a schedule suffers twice from decodes: all that queue wait for the base of short batches, and requests
that decode wait for long ones. Where requests queue for memory, a batch that does not fill it wastes machine time: so a
token that a decode holds has a price as well.

Theorem
-------
Cut time into windows of length W, from the first arrival on; give window i prices :math:`θ_i ≥ 0` of machine time and
:math:`μ_i ≥ 0` of memory, and 0 to the last, which does not end. Take a share :math:`0 ≤ ε ≤ 1` and a duration δ. Let
f(x) be the batch time of x tokens without attention, φ = prefill_req, :math:`0 ≤ β ≤ \min_{1≤x≤C} (f(x) + φ)/x`, and H
the most tokens that a request holds, I + O - 1. A batch with y decodes has x = y tokens and t = f(y), or any x > y
tokens and t = f(x) + φ. In either case let

.. math::
   S &= y + θ_i, & s &= \min_x \bigl( S t - θ_i β (x - y) - μ_i \min(M, y H) \bigr) / y, \\
   L &= (1-ε) y + θ_i, & l &= \min_x \bigl( L t - θ_i β (x - y) - μ_i \min(M, y H) \bigr) / y + δ.

A decode that reads m tokens and takes attention time A(m) is worth

.. math:: u_i(m) = \min \bigl( (1 - ε + θ_i) β (m+1),\; μ_i (m+1) + \min \{ s + S A(m),\; l + L A(m) \} \bigr)

over all y ≥ 1 and both cases, without the first term where eviction is forbidden. The prompt of r needs
:math:`p_r = β I + \mathrm{prefill\_sq}\, I^2`. Let P(F) be the least integral of θ over a part of [T, F] of measure
:math:`p_r`, and let D(F) be, over Z ≥ 0, the least of

.. math:: Z + \sum_{k=1}^{O-1} \min_i u_i(I+k-1)

with i over windows that end after F + (k-1) f(1) and begin at F + (Z + kδ)/ε or before. Then in every schedule the sum
of e2e latencies is at least

.. math:: \sum_r \min_{F ≥ T + p_r} \bigl[ F - T + P(F) + D(F) \bigr] - \sum_i θ_i |W_i| .

Proof
-----
Let :math:`F_r` be the end of the batch with the first token of r. Its e2e latency is F - T and the time after F. Of a
batch of duration d take θd into a pool, and of each request that decodes in it :math:`\min(d, (1-ε)d + δ)`; and of each
that refills in it after its first token :math:`(1-ε)d`. As θ is taken for at most all of the time, the sum of e2e
latencies is at least the pool, what requests keep, and all F - T, less :math:`\sum θ|W|`.

*The pool pays for the runs.* Take a batch as if all of it were in window i. With y ≥ 1 decodes, θd and what is taken of
decodes are at least the lesser of :math:`S d` and :math:`L d + δy`, and d is at least t and the attention of all steps
but φ of one prefill step. S and L are at least θ, which pays for the squares of prefills, and pay for the attention of
decodes. What is left, S t or L t + δy, pays θβ for each of x - y tokens of prompts and refills, and y decodes by the
choice of s and l, which leave out μ min(M, yH). For what they hold decodes are paid no more than that: a decode that
reads m tokens holds m + 1 after the batch, at most H, and those of a batch hold at most M. Where y = 0 the same
follows from d ≥ βx and the squares. So a prompt is paid θ for the time that its tokens need, and a refill of m + 1
tokens θβ(m + 1); this has (1-ε)β(m + 1) more from the request that it is of, for no batch with c of its tokens is
shorter than βc. Over a batch that crosses windows take each for its part.

*Prompts.* A batch with c tokens of r, of which m were there before, takes βc and prefill_sq (c² + 2 m c) at least. Let
these be served evenly while it lasts: at a rate of at most 1, all of it between T and F, in all at least p. So F ≥ T +
p, and what the prompt is paid is the integral of θ times this rate, at least P(F): a rate between 0 and 1 is a mean of
parts of [T, F].

*Later tokens.* Up to the end e of the batch of decode k the request has kept at least ε (e - F) - kδ after F, and in
all, Z, no less. Every window that the batch lies in begins before e, so at F + (Z + kδ)/ε or before. The batch begins
when k - 1 others with a decode, each of at least f(1), have passed since F, or, with a refill among them, has more than
one prefill batch behind it, which takes f(1) or more too. What a decode is paid, an average over windows of its batch,
is at least the least of them. Add up requests. ∎

Roundings, all down: F in a window counts as its begin for the earliest window of a decode. For the latest it is the
first moment in the window that it may be, and p more, from where P falls no further in this window: a later F costs
more than as much of Z. Z counts in parts of εW. Decodes go by a number of blocks of equal size, in which all may go
wherever the first or the last may. u is concave in m, so that it lies above its chords between 17 points, and so is its
least over windows: those of a block are worth at least the mean of the least for the first and for the last one each.

*Tight* where prompts queue (code completion), and where requests arrive as fast as they can be served for long (78 % of
the planner on Azure's hour at full load, where `machine` has 72 %); *loose* where requests spend their time in decodes,
for which `congestion` also counts what is surely alive. Prices are those of mean busy times (`queued.prices`): θ falls
by one for each request that ends its prompt, and rises again with arrivals that overtake. Where more than 4,000
requests keep the machine busy, μ is what θ times a base leaves after all that decodes lose by a full batch
(`queued.long_queues`).

Conditions
----------
None on rules or costs: the inequality concerns one batch, whatever is evicted, paused or moved to the host between two.
The checker (`optsched.check.certificates.waiting`) tests that no batch pays less than β a token (`waiting_bound`) and
the ranges of W, ε, δ, θ and μ (`_read`), and computes in 64 bits only if no number can be too large (`_require_small`,
`_require_small_worths`).

Source: mean busy times are a relaxation of preemptive scheduling by Goemans et al. 2002 (SIAM Journal on Discrete
Mathematics 15); here its dual prices also pay for batches.
"""

from __future__ import annotations

from optsched.bounds.alone import alone_bound
from optsched.bounds.bound import Bound
from optsched.bounds.machine import Needs, machine_bound, most_needs
from optsched.bounds.volume import busy_ps
from optsched.model.instance import Instance
from optsched.model.objectives import Objective

_FEWEST = 64
"""With fewer requests exact models, or `alone`, say more."""
_MANY, _BUSY = 4000, 0.9
"""With more requests queues last throughout, where a machine is busy for more of the time in which they arrive."""
_MOSTLY = 2, 3
"""Where prompts need less than this share of what requests need of the machine, `congestion` says more, however long
queues are."""


def queues_throughout(instance: Instance, machines: int = 1) -> bool:
    """Return whether many requests arrive about as fast as some machines like the instance's serve them, or faster."""
    requests = instance.requests
    span = max(request.arrival_ps for request in requests) - instance.start_ps
    return len(requests) > _MANY and busy_ps(instance) > _BUSY * machines * span


def prompts_lead(instance: Instance) -> bool:
    """Return whether prompts take most of the machine's time."""
    requests = instance.requests
    first = Needs(instance, [1] * len(requests))
    whole = Needs(instance, [request.output for request in requests])
    rate, split, needed = max(whole.shares(), key=lambda share: sum(share[2]))
    part, of = _MOSTLY
    return of * sum(first.of(rate, split)) >= part * sum(needed)


def queueing(instance: Instance) -> float:
    """Return how long requests queue for their first tokens at least, in mean times that one takes alone."""
    first, least = machine_bound(instance, Objective.MEAN_TTFT), alone_bound(instance, Objective.MEAN_E2E)
    assert first is not None, "means are bounded"
    assert least is not None, "means are bounded"
    return first.value / max(least.value, 1)


def waiting_bound(instance: Instance, objective: Objective) -> Bound | None:
    """Bound the sum of e2e latencies; None for other objectives, few requests, or where numbers are too large.

    None also where requests queue for less than one takes alone, and where most of the machine's time goes to decodes,
    but where many queue throughout.
    """
    if objective != Objective.MEAN_E2E or len(instance.requests) < _FEWEST:
        return None
    if queues_throughout(instance):
        from optsched.bounds.queued.long_queues import long_queue_bound  # noqa: PLC0415  # compiled code takes a while to load

        return long_queue_bound(instance)
    if queueing(instance) < 1 or not prompts_lead(instance):
        return None
    from optsched.bounds.queued.prices import priced_bound  # noqa: PLC0415  # as above

    return priced_bound(instance, most_needs(instance))
