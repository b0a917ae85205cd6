"""Which numbers of batches prices are sought for, and when it is worth it; the theorem is in `optsched.bounds.ramp`."""

from __future__ import annotations

from bisect import bisect_left

from optsched.bounds.bound import Bound
from optsched.bounds.priced.demand import Demand, Kinds, between, each, sketch
from optsched.bounds.priced.proof import Part, PricedProof, bound_of, prove, weakest
from optsched.bounds.priced.search import Range, best_prices
from optsched.bounds.volume import volume_bound
from optsched.model.instance import Instance
from optsched.stopwatch import STOPWATCH

_LEAST_SHARE = 0.005
"""Where ramps take less than this of the time, little is to be gained: perhaps a fifth of it."""
_MOST_STEPS = 20_000_000
"""Tokens in layers, of all prompts, that a proof may concern."""
_MOST_SPLIT = 40_000_000
"""The same of all rounds of the search for prices, after which ranges are no longer split."""
_MOST_KINDS = 12
"""Kinds of requests for which prices are sought."""
_MOST_RANGES = 32
"""Ranges that are split."""
_MANY = 4
"""Batches from which one proof covers any number of them, in usual outputs."""
_CLOSE = 2e-4
"""Share of the bound that is not worth looking for another proof."""
_NEXT_TO_NOTHING = 1e-6
"""Share of the bound that is not worth a proof in the certificate."""


def worthwhile_bound(instance: Instance) -> Bound | None:
    """Bound requests from the release of `volume` on; None if ramps are short, or prices prove no more."""
    release, step = volume_bound(instance).release_ps, instance.cost.prefill_req
    part = Part(instance, release, step)
    waste = 2 * usual_output(part.kinds) * instance.cost.linear_ps(1)
    if waste + step * part.more_batches_than_steps < _LEAST_SHARE * part.plain(part.fewest):
        return None
    return priced_bound(part, *([Part(instance, release, 0)] if step else []))


def usual_output(kinds: Kinds) -> int:
    """Return the mean O of tokens held, not of requests: the mean over what is in the cache."""
    held = {kind: count * kind[1] * (2 * kind[0] + kind[1]) for kind, count in kinds.items()}
    return -(-sum(output * tokens for (_, output), tokens in held.items()) // sum(held.values()))


def priced_bound(*parts: Part) -> Bound | None:
    """Return the best bound of the part that promises most; None if prices prove no more than `volume`."""
    searches = [search for part in parts if (search := _search(part)) is not None]
    if not searches:
        return None
    for search in searches:
        search.begin()
    best = max(searches, key=lambda search: search.known)
    best.refine()
    return best.bound()


def _search(part: Part) -> _Search | None:
    """Return the search for proofs of a part; None if there are too many kinds of requests."""
    usual = usual_output(part.kinds)
    demand = _demand(part, min(part.fewest, _MANY * usual) + usual)
    return None if demand is None else _Search(part, demand, usual)


class _Search:
    """Proofs for ranges of numbers of batches; ``usual`` is a usual output."""

    def __init__(self, part: Part, demand: Demand, usual: int) -> None:
        self._part, self._demand, self._usual = part, demand, usual
        self._like = demand if len(part.kinds) <= _MOST_KINDS else sketch(part.kinds, _MOST_KINDS)
        self._proofs: list[PricedProof] = []
        self._steps = self._enough = 0
        self._splits = part.fewest < _MANY * usual
        self._beyond = part.fewest + max(1, 3 * usual // 4) if self._splits else _MANY * usual

    @property
    def _most(self) -> int:
        """More than prices prove where they are of use, in ps."""
        return 2 * self._part.plain(self._part.fewest)

    def _prove(self, range_: Range, enough_ps: int) -> int:
        """Add what prices prove that are found for a range; return how much, 0 if there are none."""
        prices, rounds = best_prices(self._part, self._like, range_, enough_ps)
        self._steps += rounds * self._like.steps * range_.layers
        proof = prices and prove(self._part, self._demand, prices, self._part.paths(self._demand, prices))
        if not proof:
            return 0
        self._proofs.append(proof)
        return int(proof.curve[range_.fewest - 1 :].min())

    @property
    def known(self) -> int:
        """What is proved of any number of batches, in ps."""
        return bound_of(self._part, self._proofs)

    def begin(self) -> None:
        """Prove what is known of many batches, which may be all there is, and of fewer."""
        self._enough = self._prove(Range(self._beyond, None), self._most)
        if self._splits:
            self._prove(Range(self._part.fewest, self._beyond - 1), self._enough)

    def refine(self) -> None:
        """Split ranges where least is known."""
        if not self._splits:
            return
        fewest, beyond, more, enough = self._part.fewest, self._beyond, max(1, self._usual // 4), self._enough
        ends = [fewest - 1, beyond - 1]
        ceiling = self._most  # What a single number allows to prove of all of them.
        for _ in range(_MOST_RANGES):
            batches, known = weakest(self._part, self._proofs)
            if known >= ceiling * (1 - _CLOSE) or self._steps >= _MOST_SPLIT or STOPWATCH.is_over():
                break
            if batches >= beyond:
                beyond += more
                enough = max(enough, self._prove(Range(beyond, None), self._most))
                self._prove(Range(beyond - more, beyond - 1), min(enough, ceiling))
                ends.append(beyond - 1)
                continue
            single = self._prove(Range(batches, batches), min(enough, ceiling))
            if single < enough * (1 - _CLOSE):
                ceiling = min(ceiling, max(single, known))
            place = bisect_left(ends, batches)
            before, last = ends[place - 1], ends[place]
            middle = (before + 1 + last) // 2
            for first, end in ((before + 1, middle), (middle + 1, last)):
                wanted = min(enough, ceiling)
                if first <= end and weakest(self._part, self._proofs, first, end)[1] < wanted * (1 - _CLOSE):
                    self._prove(Range(first, end), wanted)
            ends.insert(place, middle)

    def bound(self) -> Bound | None:
        """Return what is proved; None if that is no more than `volume` says."""
        proofs, part, demand = self._needed(), self._part, self._demand
        if not proofs:
            return None
        value = part.release_ps - part.instance.start_ps + bound_of(part, proofs)
        prompts = {} if demand.gap == 1 else {"prompts": [prompt.tokens for prompt in demand.numbers]}
        stated = [proof.prices.stated() for proof in proofs]
        terms = {"release_ps": part.release_ps, "prefill_step_ps": part.step_ps, **prompts}
        return Bound(value, {"kind": "ramp", **terms, "prices": stated})

    def _needed(self) -> list[PricedProof]:
        """Return proofs without those that add next to nothing."""
        needed = list(self._proofs)
        enough = weakest(self._part, needed)[1] * (1 - _NEXT_TO_NOTHING)
        for proof in self._proofs:
            others = [other for other in needed if other is not proof]
            if weakest(self._part, others)[1] >= enough:
                needed = others
        return needed


def _demand(part: Part, layers: int) -> Demand | None:
    """Return all kinds, or if they are too many prompts between which they lie; None if these are too many, too."""
    demand = each(part.kinds)
    if demand.steps * layers <= _MOST_STEPS:
        return demand
    prompts = _MOST_STEPS // (demand.longest * layers)
    return None if prompts < 2 or part.instance.limits.kv_block > 1 else between(part.kinds, prompts)
