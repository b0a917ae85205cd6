r"""Congestion: the sum of e2e latencies by a price of machine time that follows the load.

A request waits for its own tokens and for what its batches run for others; `alone` sees the first, `machine` queues. In
between, at loads that can be sustained, every request runs in nearly every batch, and the more requests are alive, the
longer the batches. This bound counts that: a batch that runs q requests has at least q alive that wait for it.

Theorem
-------
Cut time into windows, from the first arrival on; give window i a price :math:`θ_i ≥ 0` of machine time, 0 in the last,
which does not end, a share :math:`0 ≤ ε_i ≤ 1`, and let :math:`a_i` requests be *surely alive* (below) at any time in
it. In window i a prompt counts on :math:`N = \max(1, a_i)` alive; but one whose request arrives in it on those that are
surely alive at any time from then to its end, if they are more. Let :math:`N_i^+` be the most that one counts on. Let
f(x) be the batch time of x tokens without attention, and φ = prefill_req. Take a duration δ, and for each window a
slope :math:`0 ≤ β_i ≤ \min_{1≤x≤C} (f(x) + φ)/x`, and let

.. math:: n_i(N) = (1-ε_i) N + θ_i, \qquad B_i(N) = β_i n_i(N).

For y decodes in a batch and no prefill step let :math:`n' = \max(a_i, y)`, x = y, t = f(y), and with prefill steps
:math:`n' = \max(a_i, y+1)`, x be any number of tokens from y + 1 on, t = f(x) + φ, and B be :math:`B_i(N)` for the N
from :math:`\max(1, a_i)` to :math:`N_i^+` that is nearest to y + 1. In either case let

.. math::
   S &= y + (1-ε_i) (n' - y) + θ_i, & s &= \min_x \bigl( S t - B (x - y) \bigr) / y, \\
   L &= (1-ε_i) n' + θ_i, & l &= \min_x \bigl( L t - B (x - y) \bigr) / y + δ.

A decode that reads m tokens and takes attention time A(m) is worth

.. math:: u_i(m) = \min \bigl( B_i(\max(1, a_i)) (m+1),\; \min \{ s + S A(m),\; l + L A(m) \} \bigr)

over all y ≥ 1 and both cases, without the first term where eviction is forbidden, and the x-th token of a prompt that
counts on N is worth :math:`F_i(x) = B_i(N) + n_i(N)\, \mathrm{prefill\_sq}\, (2x-1)`. Let κ(t) be the integral of ε up
to t, and :math:`b_i` the begin of window i. Then in every schedule the sum of e2e latencies is at least

.. math:: \sum_r \min_{Z ≥ 0} \Bigl[ Z + \sum_{x=1}^{I} \min_i F_i(x) + \sum_{k=1}^{O-1} \min_i u_i(I+k-1) \Bigr]
          - \sum_i θ_i |W_i|

with i over windows that end after T for the prompt, and after T and the least TTFT and (k-1) f(1) for decode k, and
have :math:`κ(b_i) ≤ κ(T) + kδ + Z`, with k = 0 for the prompt. If there is no such window for a run, Z is larger.

Proof
-----
The sum is the integral of the number n(t) alive. Consider a batch of duration d with y decodes, as if all of it were in
window i. All requests alive at its begin are alive to its end, those that run among them, so at least n' of them at any
time; and with prefill steps also as many as any of its prompts counts on, as its request has arrived. Let N be the most
that one does, and n' at least N. Of each that decodes take :math:`\min(d, (1-ε_i)d + δ)` into a pool, of others
:math:`(1-ε_i)d`; and add θd.

*The pool pays for the runs.* It is at least the lesser of :math:`S d` and :math:`L d + δy`, where d is at least t and
the attention of all steps but φ of one prefill step. Both factors are at least n(N), which pays for the squares of
prefill steps in F, and S and L for the attention of decodes. What is left, S t or L t + δy, pays for the x - y tokens
of prompts, B(N) each at most, and for y decodes by the choice of s and l, and where y = 0 because t ≥ βx. For from
N = y + 1 on a larger N adds (1-ε)(t - β(x - y)) ≥ 0 to what is left for decodes, and up to there it only takes from it:
so the nearest to y + 1 leaves least. A token by refill takes prefill steps over m + 1 tokens, paid as those of a prompt
that counts on :math:`\max(1, a_i)`. Over a batch that crosses windows take each for its part of the duration: what
runs are worth there, and what is taken of requests, are averages over windows.

*Requests.* What a request keeps of a batch in which it decodes is then at least the integral of ε over it less δ, and 0
at least; of all other time it is the integral of ε. So up to the end e of the batch of decode k it has kept
:math:`κ(e) - κ(T) - kδ` at least, and :math:`κ(e) - κ(T)` up to a prefill. Let Z be what it keeps in all, which is no
less. Every window that the batch lies in begins before e. So Z opens it, and what the run is worth, an average over
these windows, is at least its least over windows that Z opens. No token comes in a batch that begins before T, T and
the least TTFT, and so on. Add up requests, and subtract θ over all batches, at most :math:`\sum θ|W|`. ∎

Roundings, all down: Z counts in grains of a 256th of a window; u is concave in m, so that it lies above its chords
between 65 points; and F_i is affine in x, so that the minimum over i is concave, and its sum at least I times the mean
at 1 and I. Of y that give a decode c/y, a constant and a multiple of y the least is beside a root.

Surely alive
------------
At a time t those are alive that have arrived and could not have ended even alone (`alone`). Of the others, which arrive
at T, have their first tokens at P and their last ones at E or later, :math:`E ≤ t`, some must be left out, too:
together they may take more of the machine than there was. Take an affine piece b + cx ≤ f(x), and let no refill take
less than a decode by it. Let w be what all tokens of a request take, c each, attention and prompts' squares and steps;
or, if all requests take more so, instead of steps c' ≥ c for each token of a prompt, where a batch of x tokens, any z
of them by prefill steps, has f(x) + φ ≥ b + c (x - z) + c' z. And let
:math:`m_{qr} = O_q - 1 - ⌈\max(0, T_r - P_q) / f(1)⌉`, one less with evictions, if positive, be tokens of a request q
that arrives before r with :math:`E_q > T_r`, and :math:`w_{qr}` what its last :math:`m_{qr}` decodes take. Go through
the requests by arrival, with :math:`g_0 = ∞` and :math:`g_e = -∞` for e > 0; at r let :math:`g_e` be the larger of
:math:`g_{e-1}`, and, if it is not negative,

.. math:: \min \bigl( g_e,\; t - T_r - b \max(O_r, m^{(e+1)}) - w^{(e)} \bigr) - w_r,

with :math:`w^{(e)}` the sum of :math:`w_{qr}` without the e largest, and :math:`m^{(e+1)}` the (e+1)-th largest
:math:`m_{qr}`. In the end the least e with :math:`g_e ≥ 0` more are alive at t.

*Proof.* Let S have ended by t, all but e of those that could have. Batches that run r in S lie between :math:`T_r` and
t, O of them at least. So do all that run requests of S that arrive later; and of earlier ones those of their last m
tokens, as the others come with the first one or in batches that begin between P and T, no two at once, each of f(1) or
more, and one of them perhaps by a refill that begins before T. These batches take b each and what their tokens take: so
later requests of S take at most what the formula says of them in all, if e earlier ones are left out, the largest at
most, and at most what was left for them and r, less :math:`w_r`. By induction they take :math:`g_e` at most, which is
not negative then. ∎

From one arrival to the next the number never rises, so that the least in a window is just before one of them or its
end. The last 64 that have arrived by t are looked at, the others taken to have ended, and the most of all pieces is
taken. In 3,700 of 3,800 cases with two or three requests that is the least number of any schedule; it adds 22 % to
those that could not have ended alone, and 1.8 % to the bound, at half the sustainable rate.

The share ε says which part of the time is charged to the batch, and which to a request by itself. With ε = 0 waiting
costs nothing, and runs fill quiet windows; with ε = 1 a request that does not run is no burden on a batch. In between a
request that decodes in all batches of the duration δ/ε keeps nothing. So δ is one number and ε falls where batches are
long. Prices near :math:`n^2 A / \mathrm{base}`, with n the number alive, balance both sides of the batch inequality;
where requests queue they are nearer to the number that a loss of time in the window would delay. They are found by
ascent (`congested.prices`). What is lost most is that a prompt may run where few are *surely* alive: prices cannot
distinguish a window in which every request decodes from one that is empty for half of its time. A prompt that counts
on those alive from its arrival on, itself among them, counts on one more in the mean at half the sustainable rate.

Several machines
----------------
On R equal machines take :math:`a_i = 0` and N = 1, as no request is surely on a machine, and subtract
:math:`R \sum_i θ_i |W_i|`: the sum of e2e latencies is at least that much, too.

*Proof.* Take one machine with the requests that it serves, and windows from the first arrival of all on. Nothing above
needs to know which other requests there are, once no more are taken for alive than those that run: a request's least
cost depends on prices and on itself, and Q, taken for all requests, is no less than for some. So the latencies on this
machine add up to at least the costs of its requests less :math:`\sum θ|W|`. Add up machines: every request is on one
of them. ∎

Little is lost with :math:`a_i`: 0.7 % of what is proved of 400 conversations on one machine. Prices differ with the
machine in general, so that unequal machines are refused.

Conditions
----------
None on rules or costs: the batch inequality concerns one batch, whatever is evicted, paused or moved to the host
between two. The checker tests, in `optsched.check.certificates.congestion`, the ranges of δ, ε and the windows, of
which the last has price 0 (`_read`), and that slopes are at most (f(x) + φ)/x for all x (`_require_prompts_paid`). It
counts itself how many requests are surely alive (`shared.alive_together`, from the last request to the first, whether
just e may be left out), and computes in 64 bits only if no number can be too large (`_require_small_times`,
`_require_small_prices`, `guard.require_64_bits`).

Source: this is Little's law with two clocks, time and batches, made a Lagrangian; cf. the processor-sharing bounds of
queueing theory (Kleinrock, Queueing Systems II, 1976, chapter 4).
"""

from __future__ import annotations

from optsched.bounds.alone import alone
from optsched.bounds.bound import Bound
from optsched.bounds.chains import has_equal_machines
from optsched.bounds.machine import most_needs
from optsched.bounds.volume import busy_ps
from optsched.bounds.waiting import prompts_lead, queueing, queues_throughout
from optsched.model.instance import Instance
from optsched.model.objectives import Objective

_FEWEST = 64
"""With fewer requests exact models, or `alone`, say more."""
_LONG = 100
"""Where machines are busy for longer than requests arrive by this multiple of the mean time that a request takes alone,
queues are so long that `machine` or `assignment` say more."""
_QUEUEING = 4
"""Where requests queue for their first tokens for longer by this multiple of the mean time that one takes alone, and
prompts take most of the machine's time, `waiting` says more."""


def congestion_bound(instance: Instance, objective: Objective) -> Bound | None:
    """Bound the sum of e2e latencies; None for other objectives, few requests, or where numbers are too large.

    Of several machines, which have to be equal, too.
    """
    requests, machines = instance.requests, len(instance.machines)
    if objective != Objective.MEAN_E2E or len(requests) < _FEWEST or not has_equal_machines(instance):
        return None
    one = instance.on(0) if instance.is_distributed else instance
    span = max(request.arrival_ps for request in requests) - instance.start_ps
    busy = busy_ps(one) / machines
    if busy - span > _LONG * sum(alone(one).e2e) / len(requests):
        return None
    if queues_throughout(one, machines):  # `waiting` says more of one machine; of several, prices are not found in time
        return None
    if not instance.is_distributed and queueing(instance) > _QUEUEING and prompts_lead(instance):
        return None
    from optsched.bounds.congested.prices import priced_bound  # noqa: PLC0415  # compiled code takes a while to load

    return priced_bound(one, most_needs(one), machines)
