"""The search of `small_search`, which says what is searched, and why."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from itertools import accumulate
from typing import Any, NamedTuple

from optsched.model.errors import InputError
from optsched.model.objectives import Objective
from optsched.model.result import Badge
from optsched.solvers.formulation import Outcome, Task, Termination, UnsupportedError, nothing_better
from optsched.stopwatch import now_s
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.search.naming import schedule_of_steps, steps_of_batches
from optsched_formulations.batching.search.request_search import request_certificate
from optsched_formulations.batching.search.state_steps import EVICT, FILL, PAUSE

_MOST_BATCHES = 4_000
"""Batches that are looked at, a tenth of a second."""
_PROOF_STATES = 20_000
"""States that the checker may look at."""

Held = tuple[int, ...]
"""What the unfinished requests hold, ascending: of item i, 2 i if one waits for it, 2 i + 1 if it has generated it."""
State = tuple[Held, int]
"""What is held, and the moment for sums with arrivals; else 0."""
Step = tuple[int, int]


class _Steps(NamedTuple):
    """What some requests do in a batch, and what they hold then.

    Parameters
    ----------
    steps
        Evictions, pauses and fills, by item.
    blocks, time
        What they take of the batch, in which decodes are no steps.
    after
        What they hold then.
    runs, arrivals
        How many run, and how many of these have only just arrived.
    """

    steps: tuple[Step, ...]
    blocks: int
    time: int
    after: Held
    runs: int
    arrivals: int

    def beside(self, other: _Steps) -> _Steps:
        """Return what these and others do."""
        return _Steps(
            self.steps + other.steps,
            self.blocks + other.blocks,
            self.time + other.time,
            self.after + other.after,
            self.runs + other.runs,
            self.arrivals + other.arrivals,
        )


_NONE = _Steps((), 0, 0, (), 0, 0)


class SmallStates:
    """The states of one task, and the search over them; moments count from the earliest arrival, in ps."""

    def __init__(self, task: Task) -> None:
        self._task = task
        instance = task.instance
        # Offline every request waits from the start, so the largest latency is the makespan.
        objective = Objective.MAKESPAN if task.objective == Objective.MAX_E2E else task.objective
        self._classes = classes = Classes(instance, objective)
        self._arrivals = [[instance.arrivals_ps[index] for index in members] for members in classes.members]
        self._moments = sorted({arrival for arrivals in self._arrivals for arrival in arrivals})
        self._pauses = not instance.offline
        self._dated = classes.weighted and not instance.offline
        # What sums of latencies are less than those of completions.
        self._waited = sum(
            kind[2] * sum(arrivals) for kind, arrivals in zip(classes.kinds, self._arrivals, strict=True)
        )
        self._left = [self._left_of(code) for code in range(2 * len(classes.following))]

    def _left_of(self, code: int) -> tuple[int, int, int]:
        """Return tokens, blocks and time that a request with some code has left."""
        classes, item = self._classes, code // 2
        following = classes.following[item] if code % 2 else item
        tokens = blocks = 0
        time = classes.fill_ps[item] - classes.decode_ps[item] if code % 2 == 0 else 0
        while following >= 0:
            tokens, blocks = tokens + 1, blocks + classes.size[following]
            time += classes.decode_ps[following]
            following = classes.following[following]
        return tokens, blocks, time

    def outcome(self) -> Outcome:
        """Search, and return what is proved; nothing if that takes too many batches, or too long."""
        at_most = self._task.restrictions.at_most
        found = self._first_finished(at_most)
        if found is None:
            return Outcome(Termination.LIMIT, None, None, Badge.HEURISTIC)
        value, steps = found
        if steps is None:
            return replace(nothing_better(self._task), badge=Badge.CERTIFIED, certificate=self._proof(value))
        try:
            schedule = schedule_of_steps(self._task.instance, self._classes, steps)
        except InputError as error:
            raise UnsupportedError(f"times beyond 64 bits: {error}") from None
        return Outcome(Termination.OPTIMAL, schedule, value, Badge.CERTIFIED, self._proof(value))

    def _proof(self, bound: int) -> dict[str, Any]:
        """Return a certificate with which the checker finds nothing below a bound: blocks share a batch's base."""
        return request_certificate(self._classes, bound, _PROOF_STATES, self._classes.size, self._classes.capacity)

    def _first_finished(self, at_most: int | None) -> tuple[int, list[Step] | None] | None:
        """Return the optimum and its steps, or what exceeds ``at_most`` and no steps; None if it gives up."""
        classes, until_s = self._classes, now_s() + self._task.time_limit_s
        fresh = [2 * first for first, members in zip(classes.first, classes.members, strict=True) for _ in members]
        source: State = tuple(sorted(fresh)), 0
        labels = {source: 0}
        way: dict[State, tuple[State, tuple[Step, ...]]] = {}
        heap = [(self._estimate(source, 0), 0, 0, source)]
        looked_at = 0
        while heap:
            estimate, _, label, state = heappop(heap)
            if at_most is not None and estimate > at_most:
                break
            if label > labels[state]:
                continue
            held, moment = state
            if not held:
                return estimate, _steps_to(state, way)
            now = moment if classes.weighted else label
            weight = sum(self._weight(code) for code in held)
            for end, batch in self._batches(held, now):
                looked_at += 1
                follower: State = tuple(sorted(batch.after)), end if self._dated else 0
                its_label = label + weight * (end - now) if classes.weighted else end
                if its_label < labels.get(follower, its_label + 1):
                    labels[follower], way[follower] = its_label, (state, batch.steps)
                    # Of equal estimates the last is the furthest on.
                    heappush(heap, (self._estimate(follower, its_label), -looked_at, its_label, follower))
            if looked_at > _MOST_BATCHES or now_s() > until_s:
                return None
        assert at_most is not None, "one request after another is a schedule"
        return at_most + 1, None

    def _estimate(self, state: State, label: int) -> int:
        """Return the value that no way on from a state falls below."""
        held, moment = state
        if not self._classes.weighted:
            return self._last_end(held, label)
        label -= self._waited
        if not held:
            return label
        alone = sorted(self._alone(held, moment))
        weights = {weight for _, weight in alone}
        if len(weights) > 1:
            return label + sum(weight * (end - moment) for end, weight in alone)
        latest = map(max, self._ends(held, moment), [end for end, _ in alone])
        return label + weights.pop() * (sum(latest) - len(held) * moment)

    def _weight(self, code: int) -> int:
        """Return the weight of a request with some code."""
        return self._classes.kinds[self._classes.owner[code // 2]][2]

    def _last_end(self, held: Held, moment: int) -> int:
        """Return a moment that the last of some requests does not end before."""
        if not held:
            return moment
        left = [self._left[code] for code in held]
        most = max(tokens for tokens, *_ in left)
        batches = max(most, -(-sum(blocks for _, blocks, _ in left) // self._classes.capacity))
        together = moment + self._classes.base_ps * batches + sum(time for *_, time in left)
        return max(together, *(end for end, _ in self._alone(held, moment)))

    def _ends(self, held: Held, moment: int) -> Iterator[int]:
        """Yield for each number of requests a moment that as many have not ended before."""
        tokens, blocks, times = (sorted(each) for each in zip(*(self._left[code] for code in held), strict=True))
        for fewest, least, time in zip(tokens, accumulate(blocks), accumulate(times), strict=True):
            yield moment + self._classes.base_ps * max(fewest, -(-least // self._classes.capacity)) + time

    def _alone(self, held: Held, moment: int) -> Iterator[tuple[int, int]]:
        """Yield when each request would be done if it were alone from a moment or its arrival on, and its weight."""
        classes, base = self._classes, self._classes.base_ps
        for code, count in Counter(held).items():
            tokens, _, time = self._left[code]
            owner = classes.owner[code // 2]
            begins = [moment] * count
            if code % 2 == 0 and classes.token[code // 2] == 1:
                begins = [max(moment, arrival) for arrival in self._arrivals[owner][-count:]]
            for begin in begins:
                yield begin + base * tokens + time, self._weight(code)

    # What can follow -------------------------------------------------------------------------------------------

    def _batches(self, held: Held, now: int) -> Iterator[tuple[int, _Steps]]:
        """Yield each batch that may follow, with its end."""
        counts = sorted(Counter(held).items())
        before = now
        for begin in [now, *(moment for moment in self._moments if moment > now)]:
            for batch in self._together(self._may(code, count, begin, before) for code, count in counts):
                if batch.runs and (batch.arrivals or begin == now):
                    yield begin + self._classes.base_ps + batch.time, batch
            before = begin

    def _together(self, all_may: Iterable[Iterable[_Steps]]) -> list[_Steps]:
        """Return what all together may do."""
        found = [_NONE]
        for its_may in all_may:
            its = list(its_may)
            found = [
                some.beside(other)
                for some in found
                for other in its
                if some.blocks + other.blocks <= self._classes.capacity
            ]
        return found

    def _may(self, code: int, count: int, begin: int, before: int) -> Iterator[_Steps]:
        """Yield what ``count`` requests that hold the same may do in a batch.

        It begins at one moment, and could not between an earlier one and it.
        """
        classes, item = self._classes, code // 2
        if code % 2 == 0:
            arrived = already = count
            if classes.token[item] == 1:
                # Those that have not begun are the last to arrive.
                waiting = self._arrivals[classes.owner[item]][-count:]
                arrived = bisect_right(waiting, begin)
                already = bisect_right(waiting, before)
            for fills in range(arrived + 1):
                yield _Steps(
                    ((FILL, item),) * fills,
                    fills * classes.size[item],
                    fills * classes.fill_ps[item],
                    (code,) * (count - fills) + self._after(item) * fills,
                    fills,
                    max(0, fills - already),
                )
            return
        following = classes.following[item]
        for decodes in range(count, -1, -1):
            for evicted in range(count - decodes + 1 if classes.evictable[item] else 1):
                pauses = count - decodes - evicted
                if not pauses or self._pauses:
                    yield _Steps(
                        ((EVICT, following),) * evicted + ((PAUSE, item),) * pauses,
                        decodes * classes.size[following] + pauses * classes.size[item],
                        decodes * classes.decode_ps[following],
                        self._after(following) * decodes + (code,) * pauses + (2 * following,) * evicted,
                        decodes,
                        0,
                    )

    def _after(self, item: int) -> Held:
        """Return what a request holds that has generated an item: nothing after its last."""
        return (2 * item + 1,) if self._classes.following[item] >= 0 else ()


def _steps_to(state: State, way: Mapping[State, tuple[State, tuple[Step, ...]]]) -> list[Step]:
    """Return the steps from the first state on: evictions come first in a batch."""
    batches: list[tuple[Step, ...]] = []
    while state in way:
        state, steps = way[state]
        batches.append(steps)
    return steps_of_batches(batches[::-1])
