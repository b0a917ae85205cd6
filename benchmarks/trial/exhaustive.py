r"""The optimum of a tiny problem by looking at everything that can be done.

*States.* A request is in a local state: tokens generated, tokens cached, whether its KV has generated a token, whether
it is on the host, and, where first runs have an order, whether it has run. A state of the problem has one of these for
each request, and the number of evictions where that is limited. A *move* is a batch: for each request one of wait or
keep, evict, swap out, run c tokens, swap in, swap in and run; all combinations that the rules permit are made. A batch
changes the state in a way that does not depend on time, and lasts a time that does not depend on time.

*When batches start.* A batch can start as soon as the one before has ended and all that it runs have arrived. It never
has to start later: a schedule with some batch later stays legal if the batch starts then, for requests that have
arrived stay there, and all its ends are no later; and every objective rises with the times at which tokens come. So
waiting for an arrival is covered: it is the start of a batch that runs the request that arrives. And if one sequence of
batches leads to a state at a time when another sequence is in the same state later, whatever follows the second can
follow the first, at the same moments.

*Search.* A label of a state is the time, and when requests had their first and last tokens, as far as the objective
needs it. Of two labels of a state one is left out if its time and each of these is no earlier than in the other: then
whatever completes it completes the other, and objectives rise with each latency. Labels are looked at by the value that
the objective would have if all that is missing came at the label's time; this never falls from a label to what follows
it. So the first label that has everything has the least value. No other bound prunes anything.

*Times between tokens.* ``mean_tpot`` and ``p99_tbt`` depend on the times between tokens of a request only. These are at
least the batches in between, and no more if all batches but the last are put off until each begins when the one before
it ends, which no arrival forbids. So for these objectives a label has no clock: it has the value of what is complete,
and how long every request that has a token has been going on since its first, or since its last.

*Requests that are alike.* For the makespan it does not matter which of two requests of equal tokens and arrival does
what. So where only the makespan is asked for, requests that are alike and stand together are told apart by what they
are in only: states have their local states in order, and of those in the same local state no later one takes an earlier
option. Renaming requests turns any schedule into one of these, batch by batch, as no rule but an order of first runs
tells such requests apart.

It says on its own what a batch does, and so does `trial.case.play`, which follows a schedule:

===============================  ====================  =======================================================
here                             in `trial.case`       in `optsched.model`
===============================  ====================  =======================================================
`_Local`                         `_Held`               `state.RequestState` (``host``: all KV is ``swapped``)
`_Option`, `Exhaustive._can`     `_batch`              `state.Action`, `state.MachineState.act`
`Exhaustive._runs`               `_batch`              `state.MachineState.carry_out`
`Exhaustive._batches`, `Move`    `_batch`, `play`      `state.Work`
`Case.held`                      `Case.held`           `memory.HeldBlocks`, in blocks, not in tokens
`Case.lasts`, `Case.attends`     the same              `state.Work.duration_ps`, `cost.CostModel`
===============================  ====================  =======================================================
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, groupby, pairwise
from operator import itemgetter, le
from typing import Any, NamedTuple

from trial.case import BETWEEN_TOKENS, Case, value_of_ends

_MOVES = 50
"""Batches for each label that may be looked at."""


class TooLargeError(Exception):
    """The search has looked at more labels than it may, or would have to look at too many batches."""


class _Local(NamedTuple):
    """What a request is in."""

    generated: int
    cached: int
    decoding: bool
    host: bool
    started: bool


class _Option(NamedTuple):
    """What a request can do in a batch; ``action`` is run, evict, out, back, back-run or nothing; ``head`` is where to.

    It runs ``tokens``, holds ``blocks``, generates token number ``token``, if any, and sends ``out`` and ``back`` over
    the link.
    """

    action: str = ""
    tokens: int = 0
    decoding: bool = False
    blocks: int = 0
    attention: int = 0
    token: int = 0
    out: int = 0
    back: int = 0
    head: int = 0


class Move(NamedTuple):
    """A batch: where it leads, how long it lasts, when it can start, whose first and last tokens it has."""

    head: tuple[int, ...]
    lasts: int
    release: int
    firsts: tuple[int, ...]
    ends: tuple[int, ...]
    options: tuple[_Option, ...]


@dataclass(frozen=True)
class Optimum:
    """The least value, and the batches of a schedule that has it, as in documents."""

    value: int
    batches: list[dict[str, Any]]


class Exhaustive:
    """The search for one case; what is found of states is kept for other objectives.

    Parameters
    ----------
    case
        The case.
    most_labels
        The most labels that it looks at, and batches of a state.
    alike
        Whether requests that are alike, next to each other, are told apart by what they are in only; right for the
        makespan without an order of first runs.
    """

    def __init__(self, case: Case, most_labels: int = 60_000, *, alike: bool = False) -> None:
        self._case, self._most, self._alike = case, most_labels, alike
        tokens = [(job.prompt, job.output, job.arrival) for job in case.jobs]
        self._classes = [[*map(itemgetter(0), group)] for _, group in groupby(enumerate(tokens), itemgetter(1))]
        self._twin = [alike and index > 0 and tokens[index] == tokens[index - 1] for index in range(len(tokens))]
        self._locals: list[list[_Local]] = []
        self._options: list[list[list[_Option]]] = []
        for index in range(len(case.jobs)):
            found, options = self._explore(index)
            self._locals.append(found)
            self._options.append(options)
        self._moves: dict[tuple[int, ...], list[Move]] = {}
        self._made = 0
        self._optima: dict[str, Optimum] = {}

    # One request ---------------------------------------------------------------------------------------------

    def _explore(self, index: int) -> tuple[list[_Local], list[list[_Option]]]:
        states = [_Local(0, 0, False, False, not self._case.queue)]
        numbers = {states[0]: 0}
        options: list[list[_Option]] = []
        for state in states:  # which grows
            here = []
            for after, option in self._can(index, state):
                if after not in numbers:
                    numbers[after] = len(states)
                    states.append(after)
                here.append(option._replace(head=numbers[after]))
            options.append(here)
        return states, options

    def _can(self, index: int, state: _Local) -> Iterator[tuple[_Local, _Option]]:
        """Yield what can be done in a state, and the state after it."""
        case, job = self._case, self._case.jobs[index]
        if state.generated == job.output:
            yield state, _Option()
            return
        held = case.held(state.cached)
        if state.host:
            here = state._replace(host=False)
            yield state, _Option()
            yield here, _Option("back", blocks=held, back=state.cached)
            for after, run in self._runs(index, here):
                yield after, run._replace(action="back-run", back=state.cached)
            return
        yield state, _Option(blocks=held)
        if state.cached and case.eviction:
            yield state._replace(cached=0, decoding=False), _Option("evict")
        if state.cached and case.swap:
            yield state._replace(host=True), _Option("out", out=state.cached)
        yield from self._runs(index, state)

    def _runs(self, index: int, state: _Local) -> Iterator[tuple[_Local, _Option]]:
        case, job = self._case, self._case.jobs[index]
        missing = job.prompt + state.generated - state.cached
        for run in range(1 if state.decoding or case.chunked else missing, missing + 1):
            cached, whole = state.cached + run, run == missing
            after = _Local(state.generated + whole, cached, whole, False, True)
            if after.generated == job.output:
                after = after._replace(cached=0)
            attention = case.attends(state.decoding, run, state.cached)
            token = after.generated if whole else 0
            yield after, _Option("run", run, state.decoding, case.held(cached), attention, token)

    # Batches -------------------------------------------------------------------------------------------------

    def moves(self, state: tuple[int, ...]) -> list[Move]:
        """Return all batches that are legal in a state."""
        if state not in self._moves:
            self._moves[state] = list(self._batches(state))
            self._made += len(self._moves[state])
            if self._made > _MOVES * self._most:
                raise TooLargeError(f"more than {_MOVES * self._most} batches")
        return self._moves[state]

    def _batches(self, state: tuple[int, ...]) -> Iterator[Move]:
        case = self._case
        evicted = state[-1] if case.evictions is not None else 0
        most_runs = len(case.jobs) if case.runs is None else case.runs
        # what the requests so far do: blocks, runs, prefill tokens, decodes, evictions, options, place of the last one
        chosen: list[tuple[int, int, int, int, int, tuple[_Option, ...], int]] = [(0, 0, 0, 0, evicted, (), 0)]
        for index in range(len(case.jobs)):
            longer = []
            in_order = self._twin[index] and state[index] == state[index - 1]
            for place, option in enumerate(self._options[index][state[index]]):
                run = option.tokens > 0
                prefill = 0 if option.decoding else option.tokens
                decode = 1 if run and option.decoding else 0
                evict = 1 if option.action == "evict" else 0
                for blocks, runs, prefills, decodes, evictions, options, last in chosen:
                    if (
                        (place >= last or not in_order)
                        and blocks + option.blocks <= case.blocks
                        and runs + run <= most_runs
                        and prefills + prefill <= case.prefill_tokens
                        and prefills + prefill + decodes + decode <= case.tokens
                        and (case.hybrid or not (prefills + prefill and decodes + decode))
                        and (case.evictions is None or evictions + evict <= case.evictions)
                    ):
                        sums = (blocks + option.blocks, runs + run, prefills + prefill, decodes + decode)
                        longer.append((*sums, evictions + evict, (*options, option), place))
            if len(longer) > self._most:
                raise TooLargeError(f"more than {self._most} batches of a state")
            chosen = longer
        for _, runs, prefills, decodes, evictions, options, _ in chosen:
            if not runs:
                continue
            head = tuple([option.head for option in options])
            if case.queue:
                started = [self._locals[index][head[index]].started for index in case.queue]
                if any(later and not earlier for earlier, later in pairwise(started)):
                    continue
            lasts = case.lasts(
                prefills + decodes,
                sum([option.attention for option in options]),
                sum([option.out for option in options]),
                sum([option.back for option in options]),
            )
            release = max([job.arrival for job, option in zip(case.jobs, options, strict=True) if option.tokens])
            firsts = tuple([index for index, option in enumerate(options) if option.token == 1])
            ends = tuple([index for index, option in enumerate(options) if option.token == case.jobs[index].output])
            if self._alike:
                head = tuple([head[index] for index in self._order(head)])
            if case.evictions is not None:
                head = (*head, evictions)
            yield Move(head, lasts, release, firsts, ends, options)

    def _order(self, head: tuple[int, ...]) -> list[int]:
        """Return the requests with those that are alike by what they are in."""
        return [index for group in self._classes for index in sorted(group, key=head.__getitem__)]

    # Objectives ----------------------------------------------------------------------------------------------

    def optimum(self, objective: str) -> Optimum:
        """Return the optimum of an objective; every request must fit alone, so that there is one."""
        if objective not in self._optima:
            search = self._search_between if objective in BETWEEN_TOKENS else self._search
            self._optima[objective] = search(objective)
        return self._optima[objective]

    def _search(self, objective: str) -> Optimum:
        case, jobs = self._case, self._case.jobs
        first_counts = objective.endswith("ttft") or (
            objective == "slo_misses" and any(job.slo_ttft is not None for job in jobs)
        )
        last_counts = not objective.endswith("ttft") and objective != "makespan"
        size = len(jobs)
        nothing = (-1,) * (2 * size)
        start = min(job.arrival for job in jobs)
        source = (0,) * size + ((0,) if case.evictions is not None else ())
        labels: dict[tuple[int, ...], list[tuple[int, tuple[int, ...]]]] = {source: [(start, nothing)]}
        tie = count()
        queue: list[Any] = [(self._estimate(objective, start, nothing), 0, start, next(tie), source, nothing, None)]
        looked = 0
        while queue:
            key, _, time, _, state, known, way = heapq.heappop(queue)
            if (time, known) not in labels[state]:
                continue  # one that is no worse has come since
            looked += 1
            if looked > self._most:
                raise TooLargeError(f"more than {self._most} labels")
            if self._done(state):
                return Optimum(key, self._told(way))
            for move in self.moves(state):
                begin = move.release if move.release > time else time
                end = begin + move.lasts
                after = known
                if (move.firsts and first_counts) or (move.ends and last_counts):
                    times = list(known)
                    for index in move.firsts if first_counts else ():
                        times[index] = end
                    for index in move.ends if last_counts else ():
                        times[size + index] = end
                    after = tuple(times)
                others = labels.get(move.head)
                if others is None:
                    others = labels[move.head] = []
                elif any(_no_later(other, (end, after)) for other in others):
                    continue
                others[:] = [other for other in others if not _no_later((end, after), other)]
                others.append((end, after))
                estimate = self._estimate(objective, end, after)
                # Of equal ones those first that have generated most.
                entry = (estimate, -self._generated(move.head), end, next(tie), move.head, after)
                heapq.heappush(queue, (*entry, (way, begin, end, move)))
        raise AssertionError("every request can be served alone, but no schedule was found")

    def _estimate(self, objective: str, time: int, known: tuple[int, ...]) -> int:
        """Return the objective if all tokens that are missing come now, or at the request's arrival if it is later."""
        jobs, size = self._case.jobs, len(self._case.jobs)
        if objective == "makespan":
            return time - min([job.arrival for job in jobs])
        now = [job.arrival if job.arrival > time else time for job in jobs]
        firsts = [one if one >= 0 else other for one, other in zip(known[:size], now, strict=True)]
        lasts = [one if one >= 0 else other for one, other in zip(known[size:], now, strict=True)]
        return value_of_ends(self._case, objective, firsts, lasts)

    def _search_between(self, objective: str) -> Optimum:
        """Return the optimum of an objective of the times between tokens."""
        jobs, mean = self._case.jobs, objective == "mean_tpot"
        if sum([job.output - 1 for job in jobs]) >= 100:
            raise TooLargeError("percentile 99 is not the largest latency")
        source = (0,) * len(jobs) + ((0,) if self._case.evictions is not None else ())
        labels = {source: [(0, (0,) * len(jobs))]}
        tie = count()
        queue: list[Any] = [(0, 0, next(tie), source, *labels[source][0], None)]
        looked = 0
        while queue:
            key, _, _, state, complete, since, way = heapq.heappop(queue)
            if (complete, since) not in labels[state]:
                continue
            looked += 1
            if looked > self._most:
                raise TooLargeError(f"more than {self._most} labels")
            if self._done(state):
                return Optimum(key, self._told(_put_off(way)))
            for move in self.moves(state):
                whole, after = complete, list(since)
                for index, option in enumerate(move.options):
                    job = jobs[index]
                    if not 1 <= self._locals[index][state[index]].generated < job.output:
                        continue
                    after[index] += move.lasts
                    if option.token == job.output and mean:
                        whole += after[index] // (job.output - 1)
                    elif option.token and not mean:
                        whole = max(whole, after[index])
                    else:
                        continue
                    after[index] = 0
                label = (whole, tuple(after))
                others = labels.setdefault(move.head, [])
                if any(_no_later(other, label) for other in others):
                    continue
                others[:] = [other for other in others if not _no_later(label, other)]
                others.append(label)
                least = max(whole, *after)
                if mean:
                    going_on = [time // (job.output - 1) for time, job in zip(after, jobs, strict=True) if time]
                    least = whole + sum(going_on)
                entry = (least, -self._generated(move.head), next(tie), move.head, *label)
                heapq.heappush(queue, (*entry, (way, 0, 0, move)))
        raise AssertionError("every request can be served alone, but no schedule was found")

    def _generated(self, state: tuple[int, ...]) -> int:
        return sum([found[place].generated for found, place in zip(self._locals, state, strict=False)])

    def _done(self, state: tuple[int, ...]) -> bool:
        return self._generated(state) == sum([job.output for job in self._case.jobs])

    def _told(self, way: Any) -> list[dict[str, Any]]:
        """Return the batches of a way to a label."""
        steps: list[Any] = []
        while way is not None:
            steps.append(way[1:])
            way = way[0]
        batches: list[dict[str, Any]] = []
        names = list(range(len(self._case.jobs)))
        for begin, end, move in reversed(steps):
            options = sorted(zip(names, move.options, strict=True), key=itemgetter(0))
            entry: dict[str, Any] = {
                "replica": 0,
                "start_ps": begin,
                "end_ps": end,
                "run": [[index, option.tokens] for index, option in options if option.tokens],
                "evict": [index for index, option in options if option.action == "evict"],
            }
            moved = {
                "swap_out": [index for index, option in options if option.out],
                "swap_in": [index for index, option in options if option.back],
            }
            batches.append(entry | {name: indices for name, indices in moved.items() if indices})
            if self._alike:
                names = [names[index] for index in self._order(tuple([option.head for option in move.options]))]
        return batches


def _put_off(way: Any) -> Any:
    """Return a way whose batches follow each other without a break, as early as all that they run have arrived."""
    moves = []
    while way is not None:
        way, _, _, move = way
        moves.append(move)
    moves.reverse()
    offset, clock = 0, 0
    for move in moves:
        clock = max(clock, move.release - offset)
        offset += move.lasts
    found: Any = None
    for move in moves:
        found = (found, clock, clock + move.lasts, move)
        clock += move.lasts
    return found


_Label = tuple[int, tuple[int, ...]]


def _no_later(one: _Label, other: _Label) -> bool:
    """Whether a label's time and each of its tokens come no later than in another of the same state."""
    if one[0] > other[0]:
        return False
    return one[1] == other[1] or all(map(le, one[1], other[1]))
