r"""Certificates of kind ``free_pauses``: no schedule with arrivals ends below the bound, by a search in order of waste.

Prefills run whole, batches are hybrid, the batch time has one affine piece, refills take no less time than the decodes
in their place (`require_dear_refills`), and C, P and N admit a step of every request at once, so that only memory
binds. An order of first runs or a number of evictions may restrict schedules further: what holds without them holds
with them. The certificate has ``bound``, and ``steps``: how often the search may decide on a request at most.

*Relaxation.* Let a request that does not run in a batch hold nothing, and go on later with a decode. So a batch may run
any unfinished requests that have arrived, if what they hold with their next tokens fits the blocks, and takes the base
and what a first fill or a decode of each takes. Every schedule is one of these, a refill taken for a decode, that ends
no later: batches hold and last no more, and may begin when they did. Batches in which nothing runs are left out.

*Waste.* What all first fills and decodes take together is a constant. The rest of the makespan is the *waste*: a base
for every batch, and time without one. A state is how many tokens every request has, p, and the waste w so far; it is
reached at the clock w + (what the tokens p take).

*More tokens for no more waste.* If p ≥ p' in every request and w ≤ w', schedules from (p, w) end no later than from
(p', w'). Follow any schedule from (p', w') and leave out tokens that p has, and batches that run nothing then. Let
every other batch begin when it did, or as soon as the one before it has ended. What runs has arrived, is what comes
next in its request, and is a part of what fitted. If some batch begins just when it did, take the last of these: from
then on there is no gap, and all batches last no longer than before, so that the end is no later. Else there is no gap
from the clock on. This is later than the other clock by what the tokens beyond p' take at most, as w ≤ w'; and just
these have been left out, so that the batches take less by as much. ∎ So a state is left out if another one has no fewer
tokens of any request and no more waste. Two things follow:

- A set of requests to which one more could be added that has arrived and fits wastes no less, with fewer tokens.
- A batch begins at the clock, or at a later arrival; but not at an arrival by which a batch that runs one request, and
  began before, could have ended. That batch takes its base and what the request takes out of the wait, and the latter
  is no waste: by the arrival no more is wasted, with one token more.

*Estimate.* From a moment t on, the clock or an arrival after it: batches that begin between the clock and t begin at
least a base apart. So a request that arrives at a gets ⌈(t - max(a, clock)) / base⌉ tokens from these at most, and all
together hold as many times the blocks at most. All other tokens come in batches that begin at t or later, of which
there are as many as one request needs that has arrived by t, and as many as the blocks that are held in them need. The
end is no earlier than t, their bases, and what all these tokens take. Without a base nothing is known of the time
before t.

States are looked at by ascending waste, so that none is better than one before. Those whose estimate is ``bound`` or
more are left out. If no state with all tokens is reached at a clock below ``bound``, that is proved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from optsched.check.certificates.shared.contents import require_memory_only
from optsched.check.certificates.shared.refills import require_dear_refills
from optsched.check.problem import Problem, pieces_of
from optsched.check.reading import UnprovedError, shown
from optsched.model.objectives import Objective

MOST_STEPS = 3_000_000
"""A search takes no more: a minute or so."""
_MOST_TOKENS, _MOST_REQUESTS = 20_000, 255
"""Output tokens of all requests, of which each has numbers of its own; requests, which are looked at one in another."""
_KIND = "free_pauses"

_Tokens = tuple[int, ...]


def free_pauses_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return the makespan bound of a ``free_pauses`` certificate; the module says why it holds."""
    _require_covered(problem, objective)
    bound, steps = certificate.get("bound"), certificate.get("steps")
    if type(bound) is not int or bound < 1:
        raise UnprovedError(f"bound is {shown(bound)}, expected an integer ≥ 1")
    if type(steps) is not int or not 1 <= steps <= MOST_STEPS:
        raise UnprovedError(f"steps is {shown(steps)}, expected an integer from 1 to {MOST_STEPS}")
    _Search(problem, bound, steps).require_no_end()
    return bound


def _require_covered(problem: Problem, objective: Objective) -> None:
    """Refuse problems and objectives of which the theorem does not speak."""
    requests = problem.requests
    if objective is not Objective.MAKESPAN:
        raise UnprovedError(f"kind {_KIND} bounds the makespan, the objective is {objective.value}")
    require_memory_only(_KIND, problem)
    if len(requests) > _MOST_REQUESTS or sum(request.output for request in requests) > _MOST_TOKENS:
        raise UnprovedError(f"kind {_KIND} covers {_MOST_REQUESTS} requests and {_MOST_TOKENS} output tokens at most")
    require_dear_refills(_KIND, problem)


@dataclass(frozen=True)
class _Request:
    """One request: when it arrives, from the first arrival on, its output, and numbers by its tokens.

    ``held`` are the blocks with token k + 1, ``work`` and ``volume`` what the first k tokens take, and hold, together.
    """

    arrival: int
    output: int
    held: Sequence[int]
    work: Sequence[int]
    volume: Sequence[int]


class _Search:
    """The states that may lead to an end before the bound."""

    def __init__(self, problem: Problem, bound: int, most: int) -> None:
        [(self._base, token)] = pieces_of(problem.cost)
        self._blocks, self._bound, self._looked, self._most = problem.blocks, bound, 0, most
        start, cost = min(request.arrival_ps for request in problem.requests), problem.cost
        self._requests: list[_Request] = []
        for request in sorted(problem.requests, key=lambda each: each.arrival_ps):
            prompt = request.input
            held = [problem.blocks_of(prompt + k) for k in range(request.output)]
            fill = token * prompt + cost.prefill_sq * prompt**2 + cost.prefill_req
            work, volume = [0, fill], [0, held[0]]
            for k in range(1, request.output):
                work.append(work[-1] + token + cost.decode_kv * (prompt + k - 1) + cost.decode_req)
                volume.append(volume[-1] + held[k])
            self._requests.append(_Request(request.arrival_ps - start, request.output, held, work, volume))
        self._all_work = sum(request.work[-1] for request in self._requests)
        self._arrivals = sorted({request.arrival for request in self._requests})

    def require_no_end(self) -> None:
        """Look at states by ascending waste; refuse if one of them ends below the bound."""
        nothing = (0,) * len(self._requests)
        waiting, best, front = [(0, nothing)], {nothing: 0}, list[_Tokens]()
        while waiting:
            waste, tokens = heappop(waiting)
            if any(_covers(other, tokens) for other in reversed(front)):
                continue
            front = [*(other for other in front if not _covers(tokens, other)), tokens]
            for wasted, after in self._batches(tokens, waste):
                clock = wasted + self._work(after)
                if all(done == request.output for done, request in zip(after, self._requests, strict=True)):
                    if clock < self._bound:
                        raise UnprovedError(f"with free pauses all requests may end at {clock}, below the bound")
                elif self._estimate(after, clock) < self._bound and wasted < best.get(after, self._bound):
                    best[after] = wasted
                    heappush(waiting, (wasted, after))

    def _work(self, tokens: _Tokens) -> int:
        return sum(request.work[done] for request, done in zip(self._requests, tokens, strict=True))

    def _batches(self, tokens: _Tokens, waste: int) -> Iterator[tuple[int, _Tokens]]:
        """Yield waste and tokens after every batch that may be the next."""
        clock = waste + self._work(tokens)
        for begin in (clock, *(arrival for arrival in self._arrivals if arrival > clock)):
            there = [
                r
                for r, (request, done) in enumerate(zip(self._requests, tokens, strict=True))
                if request.arrival <= begin and done < request.output
            ]
            wasted = waste + begin - clock + self._base
            if wasted + self._all_work >= self._bound or any(self._could_end(r, tokens, clock, begin) for r in there):
                return
            for chosen in self._full_sets(there, tokens):
                after = list(tokens)
                for r in chosen:
                    after[r] += 1
                yield wasted, tuple(after)

    def _could_end(self, r: int, tokens: _Tokens, clock: int, begin: int) -> bool:
        """Return whether a batch that runs one request could begin before some moment and end by then."""
        request, done = self._requests[r], tokens[r]
        before = max(clock, request.arrival)
        return before < begin and before + self._base + request.work[done + 1] - request.work[done] <= begin

    def _full_sets(self, there: list[int], tokens: _Tokens) -> Iterator[list[int]]:
        """Yield the sets of requests that fit, and to which none of the others can be added."""
        held = {r: self._requests[r].held[tokens[r]] for r in there}
        order = sorted(there, key=lambda r: -held[r])
        rest = [sum(held[r] for r in order[place:]) for place in range(len(order) + 1)]

        def sets(place: int, room: int, smallest_out: int, chosen: list[int]) -> Iterator[list[int]]:
            self._looked += 1
            if self._looked > self._most:
                raise UnprovedError(f"the search takes more than {self._most} steps")
            if room - rest[place] >= smallest_out:
                return
            if place == len(order):
                yield chosen
                return
            needed = held[order[place]]
            if needed <= room:
                yield from sets(place + 1, room - needed, smallest_out, [*chosen, order[place]])
            yield from sets(place + 1, room, min(smallest_out, needed), chosen)

        return sets(0, self._blocks, self._blocks + 1, []) if there else iter(())

    def _estimate(self, tokens: _Tokens, clock: int) -> int:
        """Return a moment before which no schedule from a state ends."""
        return max(
            self._end_from(tokens, clock, t) for t in (clock, *(each for each in self._arrivals if each > clock))
        )

    def _end_from(self, tokens: _Tokens, clock: int, moment: int) -> int:
        """Return when all may have ended by what has to run in batches that begin at a moment or later."""
        batches = work = volume = 0
        for request, done in zip(self._requests, tokens, strict=True):
            wait = max(0, moment - max(clock, request.arrival))
            before = request.output if wait and not self._base else -(-wait // max(self._base, 1))
            first = min(request.output, done + before)
            work += request.work[-1] - request.work[first]
            volume += request.volume[-1] - request.volume[done]
            if request.arrival <= moment:
                batches = max(batches, request.output - first)
        if self._base:
            volume -= -(-(moment - clock) // self._base) * self._blocks
            batches = max(batches, -(-volume // self._blocks))
        return moment + self._base * batches + work


def _covers(tokens: _Tokens, other: _Tokens) -> bool:
    """Return whether no request has fewer tokens."""
    return all(mine >= theirs for mine, theirs in zip(tokens, other, strict=True))
