r"""The makespan of R equal machines by worths of requests: how much of them one machine can serve in time.

`chains` counts all machines' time by one rate. But machines differ by what they serve: one with the longest outputs has
many batches, all small; one with short outputs has few, all large. Worths say which requests are short of which.

Theorem
-------
Take the requests that arrive at :math:`t_0` or later and R equal machines. Request r holds :math:`V_r` blocks, summed
over the batches that generate its tokens, takes at least :math:`c_r = ⌈I_r/P⌉ + O_r - 1` batches (1 prefill step if
prefills are whole), and besides the bases :math:`β^k` of batches at least :math:`p_r^k`, for rates k of `own`. Give
every request a *worth* :math:`u_r ≥ 0`, with sum U. Cut the numbers 1, 2, … into ranges, from :math:`a_j` to
:math:`b_j`, the last without an end, and choose for each of them weights :math:`w^k ≥ 0`, with sum W, and a price
:math:`g ≥ 0`, in the last one at most :math:`\sum_k w^k β^k`. Let

.. math:: q_r = \sum_k w^k p_r^k + ⌊g V_r / M⌋, \qquad
          Γ = \min_{a_j ≤ J ≤ b_j} J \Bigl(\sum_k w^k β^k - g\Bigr), \qquad
          N = \frac{U}{R} + Γ - \sum_{r:\, c_r ≤ b_j} \max(0, u_r - q_r) .

If N > 0 in every range with W = 0, every schedule ends no earlier than :math:`t_0 + \min ⌈N / W⌉` over the others.

Proof
-----
One of the machines serves requests S that are worth at least U/R together, in J batches from the first run of one of
them to the last end, so J is in a range, and :math:`c_r ≤ J ≤ b_j` for each of them. These take a time Z, at least
:math:`J β^k + \sum_S p_r^k` by every rate (`volume`), and hold :math:`\sum_S V_r ≤ J M`. So

.. math:: W Z ≥ \sum_k w^k \Bigl(J β^k + \sum_S p_r^k\Bigr) + g \Bigl(\sum_S V_r / M - J\Bigr) ≥ Γ + \sum_S q_r, \qquad
          \frac{U}{R} ≤ \sum_S u_r ≤ \sum_S q_r + \sum_S \max(0, u_r - q_r) ≤ W Z - Γ + \sum_{r:\, c_r ≤ b_j}
          \max(0, u_r - q_r) .

So :math:`N ≤ W Z`; if W = 0, there is no such machine. ∎

*Ramps.* By the theorem of `ramp` a machine that serves S in J batches takes

.. math:: Z ≥ \sum_{j ≤ H} G_j + (J - H)\, G_p + \sum_{r ∈ S} (A_r + D_r(J)), \qquad J ≥ H,

for any prices of layers of which p is the repeated one, where A is the attention of one request: in its proof the
:math:`J - H` more batches in layer p leave :math:`G_p` each, of any sign. Without p it takes

.. math:: Z ≥ \sum_{j ≤ J} G_j + \sum_{r ∈ S} (A_r + D_r(J)), \qquad J ≤ H,

which also knows that a request has at most one token in a batch, so that one with nearly J tokens starts at once. As D
does not increase in J it is no less than at the end of a range. So such *lines* take their part in W Z besides rates:
with a weight w they add what layers leave, times w, to what J batches take, and :math:`w (A_r + D_r)` to :math:`q_r`;
Γ is the least over the range of all this together.

Good worths and weights are the dual of a linear programme (`worths.programme`), whose duration is found in a few
steps: at one that is too short its dual proves a longer one. Ranges that decide are cut each time, and prices of layers
are sought for what its machines serve (`worths.ramps`), with a layer for each batch in narrow ranges; narrow ranges
nearby use the same prices, stretched to their own number of layers. So it is a method of cutting planes.

*Tight* as the single-machine bounds are that it combines: where it is worth while to group requests by output, 4 % more
than `chains` for 400 conversations on 4 machines at once; for 1,024 requests of 32 + 1,024 tokens 3 % more by ramps.
*Loose* in that machines of the programme share requests; and it says no more than `chains` where the last to arrive
decide.

Conditions
----------
Equal machines without roles, caches and moves; none on rules or costs, as for `volume`, but that ramps do not cover
swaps, as for `ramp`. The checker
(`optsched.check.certificates.worth.worth_bound`) tests that the machines are equal, that :math:`t_0` is an arrival,
that worths, weights and prices are integers ≥ 0, that ranges begin at 1 and leave no number out, the price in the last
one, the weights of pieces and the price of a prefill step (`work.rate_of`), and that a ramp of a range beyond its
layers has a repeated one (`_Ramp`).

Source: this is the dual of the set-partition programme of machine scheduling (configurations of one machine, as in
Dantzig-Wolfe decompositions of parallel machines), each configuration bounded instead of listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import count, islice, pairwise
from math import inf

import numpy as np

from optsched.bounds.bound import Bound
from optsched.bounds.chains import chains_bound, has_equal_machines, rates
from optsched.bounds.priced.proof import Part
from optsched.bounds.worths.places import Numbered, Place, Row, Tuned, most_of, value_of
from optsched.bounds.worths.programme import Dual, Floats, Offer, solve
from optsched.bounds.worths.ramps import Ramp, find_ramp, is_narrow, resized
from optsched.bounds.worths.rules import Demand, Range, Rule
from optsched.model.instance import Instance
from optsched.model.ints import Ints
from optsched.model.objectives import Objective
from optsched.stopwatch import STOPWATCH

_FEWEST_TOKENS = 1_000
"""With fewer output tokens joint optima say more."""
_KINDS = 50
"""Kinds of requests in the linear programme."""
_RANGES = 20
"""Ranges of numbers of batches to begin with."""
_PARTS = 4
"""Parts into which a range that decides is cut."""
ROUNDS = 8
"""Linear programmes where nothing runs beside them; each cuts the ranges that decide."""
_MOST_ROUNDS = 16
"""The same at most: further ones take ever longer, and prove little more."""
_PATIENCE = 6
"""Rounds without a better bound after which the search ends."""
_SHORT = 256
"""Ranges of this part of their first number are not cut."""
_NEARLY = 0.002
"""Share by which a range proves more than is wanted and still gets ramps from one nearby."""
_SIMILAR = 8
"""Prices are taken over where numbers of layers differ by this part."""
_STEP = 2e-4
"""Share by which a duration is longer than what is proved: less is not worth another programme."""
_FINE = 1 << 20
"""The largest sum of weights of a rule, about."""
_ALIKE = 1e-6
"""Shares that are as good as none."""
_FEW = 0.02
"""Machines of a range for which no prices of layers are sought."""
_MULTIPLES = 0.0, 1.0, 4.0
"""Prices of memory that are tried, as multiples of the base: the last is only for a range with an end."""
_MOST_RAMPED = 4_000
"""With more requests ramps are a small part of the time, and what each pays takes long to list."""
_MOST = 1 << 60
"""All times together stay below."""


def makespan_bound(instance: Instance, objective: Objective) -> Bound | None:
    """Bound the makespan of several equal machines; None for other objectives, few tokens, or if `chains` says more."""
    return _last(islice(makespan_bounds(instance, objective), ROUNDS))


def makespan_bounds(instance: Instance, objective: Objective) -> Iterator[Bound | None]:
    """Yield for every round a better bound, or None if it found none; nothing where `makespan_bound` says nothing."""
    if not says_something(instance, objective):
        return
    machine, machines = instance.on(0), len(instance.machines)
    known = chains_bound(machine, machines)
    if known is not None and machines * known.value < _MOST:
        search = _Search(machine, machines, known.certificate["release_ps"])
        yield from islice(search.bounds(known.value), _MOST_ROUNDS)


def says_something(instance: Instance, objective: Objective) -> bool:
    """Return whether worths are sought: for the makespan, equal machines, and tokens that are not few."""
    if objective is not Objective.MAKESPAN or not has_equal_machines(instance) or len(instance.machines) == 1:
        return False
    return sum(request.output for request in instance.requests) >= _FEWEST_TOKENS


def worth_bound(machine: Instance, machines: int, release_ps: int, known_ps: int) -> Bound | None:
    """Bound the makespan of ``machines`` machines; None if that is no more than ``known_ps``."""
    return _last(islice(_Search(machine, machines, release_ps).bounds(known_ps), ROUNDS))


def _last(found: Iterator[Bound | None]) -> Bound | None:
    """Return the last bound."""
    best = None
    for bound in found:
        best = bound or best
        if STOPWATCH.is_over():
            break
    return best


class _Search:
    """Worths, and rules for ranges of numbers of batches."""

    def __init__(self, machine: Instance, machines: int, release_ps: int) -> None:
        self._machine, self._machines, self._release_ps = machine, machines, release_ps
        self._chosen = [r for r, request in enumerate(machine.requests) if request.arrival_ps >= release_ps]
        requests = [machine.requests[r] for r in self._chosen]
        self._demand = Demand(machine, requests, tuple(rates(machine)))
        self._unit = 1.0
        longest = int(self._demand.batches.max())
        most = max(longest, int(np.ceil(self._demand.held.sum())))
        ends = {longest, *np.geomspace(max(1, longest // 30), 2 * most, _RANGES).astype(int).tolist()}
        ranges = [*(Range(a + 1, b) for a, b in pairwise([0, *sorted(ends)])), Range(max(ends) + 1, None)]
        self._requests, self._ramps = requests, list[Numbered]()
        self._places = [Place(range_, self._demand, ()) for range_ in ranges]

    @cached_property
    def _part(self) -> Part:
        return Part(self._machine, self._release_ps, 0)

    def bounds(self, known_ps: int) -> Iterator[Bound | None]:
        """Yield for every round what is proved, if it is more than what is known, or else None."""
        later = self._release_ps - self._machine.start_ps
        duration, since = known_ps - later, 0
        self._unit = max(1.0, float(duration))
        for round_ in count():
            kind_of, wanted = self._kinds(), duration * (1 + _STEP)
            dual = self._dual(kind_of, wanted)
            if dual is None:
                return
            proved, weak = None, list[Range]()
            rows = [self._row(place, found) for place, found in zip(self._places, dual.weights, strict=True)]
            worths = self._worths(dual, kind_of, rows)
            if dual.served < 1 and worths.any():
                tuned = self._tuned(dual, rows, worths)
                weak = [
                    place.range_
                    for place, each in zip(self._places, tuned, strict=True)
                    if each.value < wanted * (1 + _NEARLY)
                ]
                proved = self._proved(tuned, worths)
            if proved is not None and proved[0] > duration:
                duration, since = proved[0], round_
                yield self._stated(*proved)
            else:
                yield None
            if round_ - since >= _PATIENCE:
                return
            self._add_ramps(dual, kind_of, weak)
            self._cut(dual)

    def _stated(self, value: int, stated: Sequence[int], rules: Sequence[Rule]) -> Bound:
        """Return the bound of a duration, with worths and rules that prove it."""
        later = self._release_ps - self._machine.start_ps
        every = [0] * len(self._machine.requests)
        for request, worth in zip(self._chosen, stated, strict=True):
            every[request] = worth
        used = sorted({number for rule in rules for _, _, number in rule.ramps})
        ranges = [rule.stated(self._demand.rates, used) for rule in rules]
        ramps = {"ramps": [self._ramps[number][0].stated() for number in used]} if used else {}
        terms = {"release_ps": self._release_ps, "worths": every, **ramps, "ranges": ranges}
        return Bound(later + value, {"kind": "worth", **terms})

    def _kinds(self) -> Ints:
        """Return the kind of every request: alike in the ranges that can serve it, and in what it takes."""
        demand, count = self._demand, len(self._chosen)
        if count <= _KINDS:
            return np.arange(count)
        lasts = [place.range_.last for place in self._places if place.range_.last is not None]
        place = np.searchsorted(lasts, demand.batches)
        kind_of, kinds = np.zeros(count, dtype=np.int64), 0
        here, ratio = np.unique(place), demand.held / np.maximum(1, demand.own[-1])
        for each in here:
            members = np.flatnonzero(place == each)
            order = members[np.argsort(ratio[members], kind="stable")]
            for few in np.array_split(order, min(len(order), max(1, _KINDS // len(here)))):
                kind_of[few] = kinds
                kinds += 1
        return kind_of

    def _dual(self, kind_of: Ints, duration: float) -> Dual | None:
        """Solve the linear programme for a duration; its rows are lines, and memory or rates with memory."""
        demand, counts = self._demand, np.bincount(kind_of).astype(np.float64)
        bases = np.array(demand.bases, dtype=np.float64)

        def means(rows: Floats) -> Floats:
            found: Floats = np.array([np.bincount(kind_of, weights=row) / counts for row in rows]) / self._unit
            return found

        held, volume = means(demand.held[None] * most_of(bases)), means(demand.held[None])
        first_of = np.zeros(len(counts))
        np.maximum.at(first_of, kind_of, demand.batches)
        offers = []
        for place in self._places:
            first, last = place.range_
            rooms, own = (duration - first * place.bases - place.left) / self._unit, means(place.own)
            if last is None:
                left = np.full(len(bases), duration / self._unit)
                rows = np.vstack((own, own[: len(bases)] + volume * bases[:, None]))
                offers.append(Offer(np.append(rooms, left), rows, np.ones(len(counts), dtype=np.bool_)))
                continue
            memory = last * most_of(bases) / self._unit
            offers.append(Offer(np.append(rooms, memory), np.vstack((own, held)), first_of <= last))
        return solve(self._machines, counts, offers)

    def _tuned(self, dual: Dual, rows: Sequence[Row], worths: Floats) -> list[Tuned]:
        """Return what worths prove of every range."""
        serving = [at for at, number in enumerate(dual.machines.tolist()) if number > _ALIKE]
        found = []
        for place, row in zip(self._places, rows, strict=True):
            # Ranges without machines have prices that are as good as any: those of others may say more.
            tried = [*self._singles(place), *(place.like(rows[at], self._places[at]) for at in serving), row]
            each = (self._tune(place, one, worths) for one in tried if one.weights.any() or one.memory)
            found.append(max(each, key=value_of))
        return found

    def _proved(self, tuned: Sequence[Tuned], worths: Floats) -> tuple[int, list[int], list[Rule]] | None:
        """Return what is proved, with worths and rules in integers."""
        unit = _FINE * min(each.multiple for each in tuned)
        if unit == inf:
            return None
        whole = [int(worth * unit) for worth in worths.tolist()]
        rules = [each.rule(place, unit) for place, each in zip(self._places, tuned, strict=True)]
        values = [rule.bound(self._demand, whole, self._machines) for rule in rules]
        known = [value for value in values if value is not None]
        return (min(known), whole, rules) if len(known) == len(values) else None

    def _singles(self, place: Place) -> Iterator[Row]:
        """Yield every line by itself, with prices of memory that count for few batches."""
        rates, ends = len(self._demand.bases), place.range_.last is not None
        for at, weights in enumerate(np.eye(len(place.bases))):
            for multiple in _MULTIPLES if ends else _MULTIPLES[:2]:
                if at < rates or not multiple:
                    yield Row(weights, multiple * float(place.bases[at]))

    def _row(self, place: Place, found: Floats) -> Row:
        """Return weights of lines and the price of memory from what the linear programme found for a range."""
        bases = np.array(self._demand.bases, dtype=np.float64)
        weights, rest = found[: len(place.bases)], found[len(place.bases) :]
        if place.range_.last is None:
            weights = weights.copy()
            weights[: len(bases)] += rest
            return Row(weights, float(rest @ bases))
        return Row(weights, float(rest[0]) * most_of(bases))

    def _worths(self, dual: Dual, kind_of: Ints, rows: list[Row]) -> Floats:
        """Return worths of requests: of their kinds, but between the costs on which machines for them agree.

        A request is on the cheapest machines for it, of which there is one in all. If it were worth less than the last
        of these costs, it would not be there; if more than the next, it would be on others, too.
        """
        demand, machines, every = self._demand, dual.machines, np.arange(len(kind_of))
        costs = np.array([row.costs(place, demand) for place, row in zip(self._places, rows, strict=True)]) / self._unit
        reference = costs[int(np.argmax(machines))]
        mean = np.bincount(kind_of, weights=reference) / np.bincount(kind_of)
        worths = dual.worths[kind_of] * reference / np.where(mean > 0, mean, 1.0)[kind_of]
        ends = [place.range_.last for place in self._places]
        lasts = np.array([inf if last is None else last for last in ends])
        costs[demand.batches > lasts[:, None]] = inf
        order = np.argsort(costs, axis=0, kind="stable")
        there, ascending = np.cumsum(machines[order], axis=0), np.take_along_axis(costs, order, axis=0)
        # Ranges whose machines add up to one request, and those that are one range dearer.
        enough = [np.minimum((there < 1 + more).sum(axis=0), len(costs) - 1) for more in (-_ALIKE, _ALIKE)]
        least, most = (ascending[places, every] for places in enough)
        found: Floats = np.clip(worths, np.where(np.isfinite(least), least, 0.0), most)
        return found

    def _tune(self, place: Place, row: Row, worths: Floats) -> Tuned:
        """Return a row with the multiple of worths with which it proves most of a range, and what it proves."""
        total, range_ = float(row.weights.sum()), place.range_
        # Memory alone may say that so few batches are not enough.
        known = total > 0 or row.memory == 0
        scale = total if known else row.memory / most_of(place.bases)
        one = Row(row.weights / scale, row.memory / scale)
        fits = self._demand.batches <= (inf if range_.last is None else range_.last)
        cost, worth = one.costs(place, self._demand)[fits], worths[fits]
        mean = float(worths.sum()) / self._machines
        if worth.sum() < mean * (1 - _ALIKE):
            # Such a machine never earns the mean, whatever requests cost.
            return Tuned(Row(np.zeros_like(row.weights), 0.0), inf, inf)
        # The mean less what is left of worths rises up to where those whose worth exceeds their costs have it.
        ratio = np.full(len(cost), inf)
        np.divide(cost, worth, out=ratio, where=worth > 0)
        order = np.argsort(ratio, kind="stable")
        enough = min(int(np.searchsorted(np.cumsum(worth[order]), mean)), int((worth > 0).sum()) - 1)
        multiple = max(float(ratio[order[enough]]), 1.0)
        slope = float(one.weights @ place.bases) - one.memory
        spent = slope * (range_.first if slope >= 0 or range_.last is None else range_.last)
        spent += float(one.weights @ place.left)
        left = np.maximum(0.0, multiple * worth - cost).sum()
        value = spent + multiple * mean - float(left)
        return Tuned(one, multiple, value if known else (inf if value > _ALIKE * multiple * mean else -inf))

    def _add_ramps(self, dual: Dual, kind_of: Ints, weak: Sequence[Range]) -> None:
        """Look for prices of layers where there are machines, for what these serve; others get those of one nearby."""
        if self._machine.rules.swap or len(self._requests) > _MOST_RAMPED:
            return
        sought, found = set[Range](), list[Ramp]()
        for place, number, shares in zip(self._places, dual.machines.tolist(), dual.shares, strict=True):
            if number < _FEW or not place.wants_ramp():
                continue
            # Of every kind a machine serves a share; of requests in order as many as add up to it.
            upto = np.floor(np.cumsum(np.clip(shares / number, 0, 1)[kind_of]) + 0.5)
            mixture = [self._requests[r] for r in np.flatnonzero(np.diff(upto, prepend=0)).tolist()]
            ramp = find_ramp(self._part, mixture, place.range_)
            if ramp is not None:
                sought.add(place.range_)
                found.append(ramp)
        near = [ramp for ramp in found if not ramp.repeats]
        for first, last in weak:
            if last is None or Range(first, last) in sought or not near or not is_narrow(first, last):
                continue
            like = min(near, key=lambda ramp: abs(ramp.layers - last))
            ramp = resized(self._part, like.prices, last) if abs(like.layers - last) * _SIMILAR <= last else None
            found += [] if ramp is None else [ramp]
        self._ramps += zip(found, range(len(self._ramps), len(self._ramps) + len(found)), strict=True)

    def _cut(self, dual: Dual) -> None:
        """Cut the ranges that have machines."""
        found = list[Range]()
        for place, number in zip(self._places, dual.machines.tolist(), strict=True):
            first, last = place.range_
            if last is None or number <= _ALIKE or (last - first) * _SHORT <= first:
                found.append(place.range_)
                continue
            ends = np.unique(np.linspace(first - 1, last, _PARTS + 1).astype(int)).tolist()
            found += [Range(begin + 1, end) for begin, end in pairwise(ends)]
        self._places = [Place(range_, self._demand, self._ramps) for range_ in found]
