r"""Ramp-up and ramp-down: the makespan by prices of what every batch can take.

`volume` lets every batch hold all blocks and run as many tokens as pay. No schedule can: at first all requests are
young, towards the end few are left, and where a batch is not full it costs more for each token.

Theorem
-------
Take the requests S that arrive at :math:`t_0` or later, and the batches from their first run to their last end,
J of them. Give the batches *layers* φ(1) ≤ … ≤ φ(J) from 1, …, H: either J ≤ H and φ(i) = i, or J ≥ H, and a layer p
represents J − H + 1 batches in a row and each other one batch. In layer j let a block that is held cost
:math:`λ_j`, a token that is run :math:`μ_j`, a token of a prefill :math:`ν_j` more, and a run :math:`ρ_j`, all ≥ 0. Let
f(x) be the batch time of x tokens without attention, Q the most decodes in a batch, 0 ≤ φ ≤ prefill_req, and

.. math:: G_j &= \min \bigl\{ \min_{1≤x≤Q} (f(x) - μ_j x),\; \min_{1≤x≤C} (f(x) + \mathrm{prefill\_req} - φ - μ_j x
          - ν_j \min(P, x)) \bigr\} - M λ_j - N ρ_j, \\
          G_p &≥ 0.

Let A be the attention times of a fill of every prompt and a decode of every later token, with φ for prefill_req, and
:math:`D_r(J)` the least price of a path of r (`priced.prompt_paths`) that ends by layer min(J, H), with φ, too. Then
every schedule ends no earlier than

.. math:: t_0 + A + \sum_{j ≤ \min(J, H)} G_j + \sum_{r ∈ S} D_r(J).

Proof
-----
Batch i lasts f(x) and its attention, where x ≥ 1 counts all its tokens. Without a prefill step x ≤ Q, and S pays μ x at
most for tokens. With l ≥ 1 of them S pays :math:`μ x + ν \min(P, x)` at most, and prefill_req l is at least φ l and
prefill_req - φ. Blocks and runs cost :math:`M λ + N ρ` at most. So the batch lasts at least G, what S pays for it, and
the attention of S; over batches the G add up to at least :math:`\sum_{j ≤ \min(J, H)} G_j`, as :math:`G_p ≥ 0` for all
repetitions.

What r pays is at least the price of its path: tokens 1, …, O are generated in different batches, in layers that
increase, or repeat p. Either its KV is kept between two of them, then the batches between hold it, among them one for
each layer between; and the next token is a decode, or it has been evicted since. Then a fill runs all tokens there are,
in batches after the former token, each at the price of one of these, and in the last of them all are held. Attention
times of a fill are those of `own`, at least. ∎

J is at least the number that `volume` counts, and J batches take at least what it says of J. The bound is the least
over these J of the largest of what is known of J. Several price vectors may be used: with p one holds for all J ≥ H,
and without for J ≤ H.

Conditions
----------
KV never waits on the host: a request either holds it, or fills it again (`optsched.check.certificates.proofs` refuses
instances that may swap). Nothing else: that a refill may follow an eviction at once, without a pause, only lowers what
a path costs, and so does a refill that is cheaper than a decode. The checker, in `optsched.check.certificates.ramp`,
tests that :math:`t_0` is an arrival, prices are integers ≥ 0 in stretches of equal length, the repeated stretch has one
layer (`_Proof.__init__`) and :math:`G_p ≥ 0` (`_Proof.of`), φ (`work.step_of`), and that listed prompts enclose all
others (`_groups`).

Rounding prices keeps the theorem true; so they are found in floating point (`priced.search`) and counted in integers.
The best prices are those of a linear programme in which fractions of requests are served, which is where the bound
ends. It is far above `volume` where many requests have the same lengths and a batch's base counts for much; lengths
that differ at random leave little to waste, and then nothing is proved.
"""

from __future__ import annotations

from optsched.bounds.bound import Bound
from optsched.model.instance import Instance
from optsched.model.objectives import Objective

_FEWEST_TOKENS = 1_000
"""With fewer output tokens exact models say more."""


def ramp_bound(instance: Instance, objective: Objective) -> Bound | None:
    """Bound the makespan by prices; None for other objectives, and where that would say nothing or take too long.

    Nor does it cover KV that waits on the host, which is neither held nor filled again.
    """
    if objective != Objective.MAKESPAN or instance.rules.swap:
        return None
    if sum(request.output for request in instance.requests) < _FEWEST_TOKENS:
        return None
    from optsched.bounds.priced.ranges import worthwhile_bound  # noqa: PLC0415  # compiled code takes a while to load

    return worthwhile_bound(instance)
