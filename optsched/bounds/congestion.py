r"""Congestion: the sum of e2e latencies by a price of machine time that follows the load.

A request waits for its own tokens and for what its batches run for others; `alone` sees the first, `machine` queues. In
between, at loads that can be sustained, every request runs in nearly every batch, and the more requests are alive, the
longer the batches. This bound counts that: a batch that runs q requests has at least q alive that wait for it.

Theorem
-------
Cut time into windows, from the first arrival on; give window i a price :math:`θ_i ≥ 0` of machine time, 0 in the last,
which does not end, and let :math:`a_i` be the least number of requests that are alive at any time in it because not
even alone could they have ended (`alone`). Let f(x) be the batch time of x tokens without attention. Take
:math:`0 ≤ ε < 1`, a duration D, and for each window a slope :math:`0 ≤ β_i ≤ \min_{1≤x≤C} f(x)/x`, and let

.. math:: n_i = (1-ε) \max(1, a_i) + θ_i, \qquad B_i = β_i n_i.

For y decodes in a batch and no prefill step let :math:`n' = \max(a_i, y)` and x = y, and with prefill steps
:math:`n' = \max(a_i, y+1)` and x be any number of tokens from y + 1 on. In either case let

.. math::
   S &= y + (1-ε) (n' - y) + θ_i, & s &= \min_x \bigl( S f(x) - B_i (x - y) \bigr) / y, \\
   L &= (1-ε) n' + θ_i, & l &= \min_x \bigl( L f(x) - B_i (x - y) \bigr) / y + εD.

A decode that reads m tokens and takes attention time A(m) is worth

.. math:: u_i(m) = \min \bigl( B_i (m+1),\; \min \{ s + S A(m),\; l + L A(m) \} \bigr)

over all y ≥ 1 and both cases, without the first term where eviction is forbidden, and the prompt's x-th token is worth

.. math:: F_i(x) = B_i + n_i (\mathrm{prefill\_sq} (2x-1) + \mathrm{prefill\_req}/I).

Then in every schedule the sum of e2e latencies is at least

.. math:: \sum_r \Bigl[ \sum_{x=1}^{I} \min_i \bigl( F_i(x) + \tfrac{g}{I} ε (b_i-T)^+ \bigr)
          + \sum_{k=1}^{O-1} \min_i \bigl( u_i(I+k-1) + \tfrac{1-g}{O-1} ε (b_i-T-kD)^+ \bigr) \Bigr]
          - \sum_i θ_i |W_i|

with :math:`b_i` the begin of window :math:`W_i`, any 0 ≤ g ≤ 1 (1 if O = 1), and i over windows that end after T for
the prompt, and after T and the least TTFT and (k-1) f(1) for decode k.

Proof
-----
The sum is the integral of the number n(t) alive. Consider a batch of duration d with y decodes. All requests alive at
its begin are alive to its end, those that run among them, so at least n' of them at any time. Of each that decodes take
:math:`\min(d, (1-ε)d + εD)` into a pool, of others :math:`(1-ε)d`; and add θd. What requests keep of a batch in which
they decode is at least ε(d - D), of all other time ε times it.

*The pool pays for the runs, at the prices of each window in turn.* It is at least the lesser of :math:`S d` and
:math:`L d + εDy`, where d is at least f(x) and the attention of all steps. Both factors are at least n, which pays for
the attention of prefill steps in F, and S and L for that of decodes. What is left, S f(x) or L f(x) + εDy, pays for the
x - y tokens of prompts and for y decodes by the choice of s and l, and where y = 0 because f(x) ≥ βx. A token by refill
takes prefill steps over m + 1 tokens. Over a batch that crosses windows take each for its part of the duration.

*Requests.* So the sum, and θ over all batches, which is at most :math:`\sum θ|W|`, is at least what runs are worth,
averages over windows, and what requests keep. Up to a time e in the batch of decode k the request has kept
:math:`ε(e - T - kD)` at least, as each of k decodes keeps all but D; up to a prefill, ε(e - T). Weigh these over the
tokens by g and 1 - g. No token comes in a batch that begins before T, T and the least TTFT, and so on. ∎

Two roundings, both down: u is concave in m, so that it lies above its chords between multiples of 64; and F_i with its
other term is affine in x, so that the minimum over i is concave, and its sum at least I times the mean at 1 and I.

Prices near :math:`n^2 A / \mathrm{base}`, with n the number alive, balance both sides of the batch inequality; where
requests queue, prices start at ε times the number that a loss of time in the window would delay, if that is more. They
are then adjusted by how much machine time the least of every request takes of each window. What is lost most is that
a prompt may run where few are *surely* alive: prices cannot distinguish a window in which every request decodes from
one that is empty for half of its time.

Conditions
----------
None on rules or costs: the batch inequality concerns one batch, whatever is evicted, paused or moved to the host
between two. The checker tests, in `optsched.check.certificates.congestion`, the ranges of ε, g, D and the windows, of
which the last has price 0 (`_read`), and that slopes are at most f(x)/x for all x (`_require_prompts_paid`). It counts
itself how many requests are surely alive (`_surely_alive`), and computes in 64 bits only if no number can be too large
(`_require_small_times`, `_require_small_prices`, `guard.require_64_bits`).

Source: this is Little's law with two clocks, time and batches, made a Lagrangian; cf. the processor-sharing bounds of
queueing theory (Kleinrock, Queueing Systems II, 1976, chapter 4).
"""

from __future__ import annotations

from optsched.bounds.bound import Bound
from optsched.bounds.machine import most_needs
from optsched.bounds.volume import busy_ps
from optsched.model.instance import Instance
from optsched.model.objectives import Objective

_FEWEST = 64
"""With fewer requests exact models, or `alone`, say more."""
_QUEUES, _MOST_LOAD, _MOST_QUEUED = 0.9, 1.5, 4000
"""Where the machine is busy for more of the time in which requests arrive, they queue. Above the second share, or with
more requests that queue, `machine` says more."""


def congestion_bound(instance: Instance, objective: Objective) -> Bound | None:
    """Bound the sum of e2e latencies; None for other objectives, few requests, or where numbers are too large."""
    requests = instance.requests
    if objective != Objective.MEAN_E2E or len(requests) < _FEWEST or instance.offline:
        return None
    load = busy_ps(instance) / (max(request.arrival_ps for request in requests) - instance.start_ps)
    queued = load > _QUEUES
    if load > _MOST_LOAD or (queued and len(requests) > _MOST_QUEUED):
        return None
    # Compiled code takes a while to load.
    from optsched.bounds.congested.prices import priced_bound  # noqa: PLC0415

    return priced_bound(instance, most_needs(instance))
