r"""Ramp-up and ramp-down: the makespan by prices of what every batch can take.

`volume` lets every batch hold all blocks and run as many tokens as pay. No schedule can: at first all requests are
young, towards the end few are left, and where a batch is not full it costs more for each token.

Theorem
-------
Take the requests S that arrive at :math:`t_0` or later, and the batches from their first run to their last end,
J of them. Give the batches *layers* φ(1) ≤ … ≤ φ(J) from 1, …, H: either J ≤ H and φ(i) = i, or J ≥ H, and a layer p
stands for J − H + 1 batches in a row and all others for one each. In layer j let a block that is held cost
:math:`λ_j`, a token that is run :math:`μ_j`, a token of a prefill :math:`ν_j` more, and a run :math:`ρ_j`, all ≥ 0. Let
f(x) be the batch time of x tokens without attention, and

.. math:: G_j = \min_{1≤x≤C} (f(x) - μ_j x) - M λ_j - P ν_j - N ρ_j, \qquad G_p ≥ 0.

Let A be the attention times of a fill of every prompt and a decode of every later token, and :math:`D_r(J)` the least
price of a life of r (`priced.lives`) that ends by layer min(J, H). Then every schedule ends no earlier than

.. math:: t_0 + A + \sum_{j ≤ \min(J, H)} G_j + \sum_{r ∈ S} D_r(J).

Proof
-----
Batch i lasts f(x) and its attention, where x ≥ 1 counts all its tokens; f(x) is at least
:math:`\min (f(x) - μ x) + μ x`, and S runs x at most. What S holds and runs in it costs at most
:math:`M λ + P ν + N ρ` besides μ times its tokens. So the batch lasts at least G, what S pays for it, and the attention
of S; over batches the G add up to at least :math:`\sum_{j ≤ \min(J, H)} G_j`, as :math:`G_p ≥ 0` for all repetitions.

What r pays is at least the price of its life: tokens 1, …, O are generated in different batches, in layers that
increase, or repeat p. Either its KV is kept between two of them, then the batches between hold it, among them one for
each layer between; and the next token is a decode, or it has been evicted since. Then a fill runs all tokens there are,
in batches after the former token, each at the price of one of these, and in the last of them all are held. Attention
times of a fill are those of `own`, at least. ∎

J is at least the number that `volume` counts, and J batches take at least what it says of J. The bound is the least
over these J of the largest of what is known of J. Several price vectors may be used: with p one holds for all J ≥ H,
and without for J ≤ H.

Rounding prices keeps the theorem true; so they are found in floating point (`priced.search`) and counted in integers.
"""

from __future__ import annotations

from typing import Any

from optsched.bounds.bound import Bound
from optsched.bounds.priced.lives import Prices
from optsched.bounds.priced.proof import Part, Proof, bound_of
from optsched.bounds.priced.search import Range, best_proof
from optsched.bounds.volume import volume_bound
from optsched.model.instance import Instance
from optsched.model.objectives import Objective

_FEWEST_TOKENS = 2_000
"""With fewer output tokens exact models say more."""
_MOST_STEPS = 40_000_000
"""Tokens in layers of all prompts beyond which lives take too long."""
_STRETCHES = 96
_LONGEST = 4
"""Layers of a proof for all numbers of batches, in largest outputs."""
_SHORT = 2.5
"""With fewer batches, in largest outputs, two ranges are looked at apart."""
_HALVINGS = 4


def ramp_bound(instance: Instance, objective: Objective) -> Bound | None:
    """Bound the makespan by prices; None for other objectives, and where it would be of no use or take too long."""
    if objective != Objective.MAKESPAN or sum(request.output for request in instance.requests) < _FEWEST_TOKENS:
        return None
    return priced_bound(Part(instance, volume_bound(instance).release_ps))


def priced_bound(part: Part) -> Bound | None:
    """Return the best bound of a part that prices are found for."""
    layers = min(part.fewest, _LONGEST * part.longest)
    if layers * sum(max(outputs) for outputs in part.outputs.values()) > _MOST_STEPS:
        return None
    proofs: list[Proof] = []

    def look(range_: Range) -> int:
        found = best_proof(part, range_, _STRETCHES)
        if found is None:
            return 0
        proofs.append(found)
        return int(found.curve[(range_.fewest or range_.layers) - 1 :].min())

    look(Range(layers, None))
    if part.fewest < _SHORT * part.longest:
        # With fewer batches than H the first proof says more the smaller H is, from H on the second the larger it is.
        low, high = part.fewest, part.fewest + part.longest
        for _ in range(_HALVINGS):
            middle = (low + high + 1) // 2
            if middle == low:
                break
            fewer = look(Range(middle - 1, part.fewest))
            # Where so few batches are out of the question, good prices may not be found in time.
            if not part.plain(part.fewest) <= fewer <= look(Range(middle, None)):
                low = middle
            else:
                high = middle
    bound = bound_of(part, proofs)
    for proof in list(proofs):
        others = [other for other in proofs if other is not proof]
        if bound_of(part, others) == bound:
            proofs = others
    value = part.release_ps - part.instance.start_ps + bound
    return Bound(value, {"kind": "ramp", "release_ps": part.release_ps, "prices": [_stated(p.prices) for p in proofs]})


def _stated(prices: Prices) -> dict[str, Any]:
    """Return prices as certificates have them: rows that are free are left out."""
    rows = {
        "memory": prices.memory,
        "tokens": prices.tokens,
        "prefill_tokens": prices.prefill_tokens,
        "runs": prices.runs,
    }
    return {
        "scale": prices.scale,
        "widths": list(prices.widths),
        "repeated": prices.repeated,
        **{name: list(row) for name, row in rows.items() if any(row)},
    }
