"""Replaying a schedule batch by batch.

The checker says on its own what a batch does, so that mistakes in `optsched.model.state` are found:

==================================================  ===========================================================
here                                                there
==================================================  ===========================================================
`_State` (``filling`` is not ``decoding``)          `RequestState`
`Tally`                                             `Work`
`_Replay._evict`, ``_swap_out``, ``_swap_in``       `MachineState.act`
`_Replay._run_all`, ``_run``, ``_prefill``,         `MachineState.carry_out`, `RequestState.run` and ``decode``
``_generate``
`_Replay._play_all_but_last`, `_Repeats`            `MachineState.repeat`; `optsched.model.following.Followed.rise`
`_Replay._hold`, `Problem.blocks_of`                `optsched.model.memory.HeldBlocks`, in blocks, not in tokens
`Tally.duration_ps`                                 `Work.duration_ps`, `optsched.model.cost.CostModel`
==================================================  ===========================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from optsched.check.forms import broken_form, broken_repeats
from optsched.check.problem import Problem
from optsched.check.schedule.over_time import OverTime, Progression, Totals
from optsched.check.tally import Tally
from optsched.model.instance import Request
from optsched.model.schedule import Batch


@dataclass(slots=True)
class _State:
    """One request during the replay: g, m and its blocks, tokens on the host, its phase, and when its tokens came."""

    request: Request
    generated: int = 0
    cached: int = 0
    blocks: int = 0
    swapped: int = 0
    filling: bool = True
    finished: bool = False
    first_token_ps: int = 0
    last_token_ps: int = 0

    @property
    def missing(self) -> int:
        """Tokens that exist and are not cached, S − m."""
        return self.request.input + self.generated - self.cached


@dataclass(slots=True)
class _Tally(Tally):
    """What one batch runs, and which requests finish in it."""

    finished: list[_State] = field(default_factory=list)


@dataclass(frozen=True)
class _Repeats:
    """Batches of the same decode steps, each right after the one before.

    Parameters
    ----------
    times
        How many they are.
    first_ps, growth_ps
        What the first takes, and by how much longer each takes than the one before.
    """

    times: int
    first_ps: int
    growth_ps: int

    def span_ps(self, begin: int, end: int) -> int:
        """Return what the batches from number ``begin`` to number ``end`` − 1 take, counted from 0."""
        return (end - begin) * self.first_ps + (end - begin) * (begin + end - 1) // 2 * self.growth_ps

    def blocks(self, held: int, cached: Sequence[int], block: int) -> Iterator[Progression]:
        """Yield numbers of occupied blocks, and for how many ps each is occupied.

        Before the first batch ``held`` blocks are occupied, and the requests of the runs have ``cached`` tokens.
        A request with m cached tokens takes a new block in each batch n with (m + n) mod b = 0, once in b batches. So
        between two neighbours j < j' of the places (−m) mod b, all of the batches n = q b + j, …, q b + j' − 1 have the
        same number of blocks. From q to q + 1 this number grows by the number of requests, and the time of these
        batches by b (j' − j) times the growth of a batch.
        """
        begin = Counter(-tokens % block for tokens in cached)
        for place, following in pairwise([*sorted({0, *begin}), block]):
            if place >= self.times:
                return
            held += begin[place]
            whole = (self.times - following) // block + 1
            growth = (following - place) * block * self.growth_ps
            if whole:
                yield Progression(held, len(cached), whole, self.span_ps(place, following), growth)
            rest = whole * block + place
            if rest < self.times:
                yield Progression(held + whole * len(cached), 0, 1, self.span_ps(rest, self.times), 0)


class Replay:
    """Follows a schedule and notes what breaks a rule.

    The sums over all requests that hold KV are kept up to date run by run, so that a batch costs the time of
    its own runs and evictions however many requests keep their KV in it.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.states = [_State(request) for request in problem.requests]
        self.violations: list[str] = []
        self.totals = Totals()
        self.time = OverTime(problem)
        self.gaps: Counter[int] = Counter()
        self.repeated_gaps: list[Progression] = []
        self.end_ps = 0
        self._kv_blocks = 0
        self._resident = 0
        self._evictions = 0
        self._first_runs: dict[int, int] = {}

    def play(self, batch: Batch) -> None:
        """Replay one batch, or all that it represents."""
        start_ps = batch.start_ps
        self.time.run(start_ps, 0, self._kv_blocks)
        if batch.repeat > 1 and self._may_repeat(batch):
            start_ps = self._play_all_but_last(batch)
        number = self.totals.batches
        self._check_shape(number, batch, start_ps)
        for index in dict.fromkeys(batch.evict):
            self._evict(number, index)
        tally = _Tally(self.problem)
        for index in dict.fromkeys(batch.swap_out):
            self._swap_out(number, index, tally)
        for index in dict.fromkeys(batch.swap_in):
            self._swap_in(number, index, tally)
        self._run_all(number, batch, tally)
        self._check_limits(number, batch, tally)
        self._check_end(number, batch, start_ps, tally)
        self.time.keep(self._resident)
        self.time.run(batch.end_ps, tally.tokens, self._kv_blocks)
        duration_ps = batch.end_ps - start_ps
        self._record(batch, tally.tokens, duration_ps, self._kv_blocks * duration_ps)
        self.totals.swapped_tokens += tally.left
        self.end_ps = batch.end_ps
        for state in tally.finished:  # only now: a finished request counts in its last batch
            self._hold(state, 0)
        self.time.keep(self._resident)

    def _may_repeat(self, batch: Batch) -> bool:
        """Say whether the runs can be repeated that often, and note it if not."""
        wrong = broken_repeats(batch, batch.repeat, self._to_generate)
        if wrong:
            self._note(self.totals.batches, wrong)
        return not wrong

    def _to_generate(self, index: int) -> int | None:
        state = self.states[index] if 0 <= index < len(self.states) else None
        if state is None or state.filling or state.swapped or state.finished:
            return None
        return state.request.output - state.generated

    def _play_all_but_last(self, batch: Batch) -> int:
        """Replay decode steps that are repeated, up to the last time, and return when that starts.

        What the cache holds only grows, and nothing else changes but how long they take, so that everything else that
        is checked of the last of them holds for the others. Each takes longer than the one before by what it takes to
        read one more token of every request, so all sums have closed forms.
        """
        if batch.start_ps < self.end_ps:
            self._note(self.totals.batches, self._early(batch.start_ps))
        cost, decodes, times = self.problem.cost, len(batch.run), batch.repeat - 1
        states = [self.states[index] for index, _ in batch.run]
        read = sum(state.cached for state in states)
        first_ps = Tally(self.problem, decodes=decodes, read=read).duration_ps(batch.considered)
        repeats = _Repeats(times, first_ps, cost.decode_kv * decodes)
        blocks = list(repeats.blocks(self._kv_blocks, [state.cached for state in states], self.problem.limits.kv_block))
        self.gaps.update(batch.start_ps + first_ps - state.last_token_ps for state in states)
        # After the first, each follows a batch that has generated a token of every one of its requests.
        if times > 1:
            later = Progression(first_ps + repeats.growth_ps, repeats.growth_ps, times - 1, decodes, 0)
            self.repeated_gaps.append(later)
        self.end_ps = batch.start_ps + repeats.span_ps(0, times)
        self.time.grow(self.end_ps, decodes, blocks)
        for state in states:
            self._hold(state, state.cached + times)
            state.generated += times
            state.last_token_ps = self.end_ps
        self._record(batch, decodes, repeats.span_ps(0, times), sum(part.total for part in blocks), times)
        return self.end_ps

    def _record(self, batch: Batch, tokens: int, busy_ps: int, block_time: int, times: int = 1) -> None:
        """Count a batch, or its repeats, in the last of which the cache is as it is now."""
        totals = self.totals
        totals.batches += times
        totals.busy_ps += busy_ps
        totals.tokens += times * tokens
        totals.runs += times * len(batch.run)
        totals.evictions += times * len(batch.evict)
        totals.swaps += times * len(batch.swap_out)
        totals.resident += times * self._resident
        totals.block_time += block_time
        totals.most_blocks = max(totals.most_blocks, self._kv_blocks)

    def require_completion(self) -> None:
        """Note every request that is unfinished after the last batch."""
        for index, state in enumerate(self.states):
            if not state.finished:
                self.violations.append(
                    f"request {index} is unfinished at the end of the schedule: it has generated "
                    f"{state.generated} tokens and must generate {state.request.output}"
                )

    def require_queue(self) -> None:
        """Note every request whose first run is in an earlier batch than that of one before it in the order."""
        queue = self.problem.queue
        if queue and len(queue) != len(self.states):
            self.violations.append(f"the order has {len(queue)} requests, the instance has {len(self.states)}")
            return
        latest = None
        for index in queue:
            number = self._first_runs.get(index)
            if number is None:
                continue  # it is unfinished, which is noted elsewhere
            if latest is None or number >= self._first_runs[latest]:
                latest = index
            else:
                self._note(
                    number,
                    f"request {index} has its first run, before that of request {latest} in batch "
                    f"{self._first_runs[latest]}, but request {latest} stands before it in the order",
                )

    def _note(self, number: int, text: str) -> None:
        self.violations.append(f"batch {number}: {text}")

    def _hold(self, state: _State, tokens: int) -> None:
        """Let a request hold ``tokens`` cached tokens from now on."""
        blocks = self.problem.blocks_of(tokens)
        if blocks != state.blocks:
            self._kv_blocks += blocks - state.blocks
            self._resident += (blocks > 0) - (state.blocks > 0)
        state.cached, state.blocks = tokens, blocks

    def _early(self, start_ps: int) -> str:
        return f"starts at {start_ps} ps, before the previous batch has ended at {self.end_ps} ps"

    def _check_shape(self, number: int, batch: Batch, start_ps: int) -> None:
        """Check what can be seen without any request's state."""
        if batch.replica != 0:
            self._note(number, f"runs on replica {batch.replica}, the only replica is 0")
        if start_ps < self.end_ps:
            self._note(number, self._early(start_ps))
        for wrong in broken_form(batch):
            self._note(number, wrong)

    def _unfinished(self, number: int, index: int, action: str) -> _State | None:
        """Return the state of a request that something can be done to; else note why nothing can."""
        if not 0 <= index < len(self.states):
            self._note(
                number,
                f"request {index} {action}, but requests are numbered from 0 to {len(self.states) - 1}",
            )
            return None
        state = self.states[index]
        if state.finished:
            self._note(
                number,
                f"request {index} {action}, but it is finished: it has generated {state.generated} of "
                f"{state.request.output} tokens",
            )
            return None
        return state

    def _evict(self, number: int, index: int) -> None:
        state = self._unfinished(number, index, "is evicted")
        if state is None:
            return
        if not self.problem.eviction:
            self._note(number, f"request {index} is evicted, but eviction is forbidden")
        self._evictions += 1
        if self.problem.evictions is not None and self._evictions > self.problem.evictions:
            self._note(
                number,
                f"request {index} is evicted, which is eviction number {self._evictions} of the schedule, at most "
                f"{self.problem.evictions} are allowed",
            )
        if state.cached < 1:
            self._note(
                number,
                f"request {index} is evicted with {state.cached} cached tokens, at least 1 is required",
            )
        self._hold(state, 0)
        state.filling = True

    def _swap_out(self, number: int, index: int, tally: _Tally) -> None:
        state = self._unfinished(number, index, "is swapped out")
        if state is None:
            return
        if not self.problem.swap:
            self._note(number, f"request {index} is swapped out, but swapping is forbidden")
        if state.cached < 1:
            self._note(
                number, f"request {index} is swapped out with {state.cached} cached tokens, at least 1 is required"
            )
            return
        tally.left += state.cached
        state.swapped = state.cached
        self._hold(state, 0)

    def _swap_in(self, number: int, index: int, tally: _Tally) -> None:
        state = self._unfinished(number, index, "is swapped in")
        if state is None:
            return
        if not state.swapped:
            self._note(number, f"request {index} is swapped in, but it has no tokens on the host")
            return
        tally.back += state.swapped
        self._hold(state, state.swapped)
        state.swapped = 0

    def _run_all(self, number: int, batch: Batch, tally: _Tally) -> None:
        """Carry out the runs. Most are decode steps, for which this says all there is to do while nothing is wrong."""
        states, block, end_ps, wrong = self.states, self.problem.limits.kv_block, batch.end_ps, bool(self.violations)
        for index, count in batch.run:
            state = states[index] if 0 <= index < len(states) else None
            if wrong or state is None or count != 1 or state.filling or state.swapped or state.finished:
                self._run(number, batch, index, count, tally)
                continue
            tally.decodes += 1
            tally.read += state.cached
            if state.cached % block == 0:
                state.blocks += 1
                self._kv_blocks += 1
            state.cached += 1
            state.generated += 1
            self.gaps[end_ps - state.last_token_ps] += 1
            state.last_token_ps = end_ps
            if state.generated == state.request.output:
                state.finished = True
                tally.finished.append(state)

    def _run(self, number: int, batch: Batch, index: int, count: int, tally: _Tally) -> None:
        state = self._unfinished(number, index, "runs")
        if state is None:
            return
        if state.swapped:
            self._note(number, f"request {index} runs, but its {state.swapped} tokens are on the host")
            return
        if count < 1:
            self._note(number, f"request {index} runs {count} tokens, at least 1 is required")
            return
        self._first_runs.setdefault(index, number)
        if state.request.arrival_ps > batch.start_ps:
            self._note(
                number,
                f"request {index} runs before it arrives: the batch starts at {batch.start_ps} ps, the "
                f"request arrives at {state.request.arrival_ps} ps",
            )
        missing = state.missing
        if state.filling:
            self._prefill(number, index, count, tally)
        else:
            if count != 1:
                self._note(number, f"request {index} runs {count} tokens in a decode step, exactly 1 is allowed")
                tally.surplus += count - 1
            tally.decodes += 1
            tally.read += state.cached
        if count < missing:
            self._hold(state, state.cached + count)
        else:
            self._hold(state, state.cached + missing)
            self._generate(state, batch.end_ps, tally)

    def _prefill(self, number: int, index: int, count: int, tally: _Tally) -> None:
        """Check and tally a prefill step; also the last missing token of a filling request is one."""
        state = self.states[index]
        wrong = tally.prefill(count, state.cached, state.missing)
        if wrong:
            self._note(number, f"request {index} {wrong}")

    def _generate(self, state: _State, end_ps: int, tally: _Tally) -> None:
        """Give a request whose tokens are all cached one more token, at the batch's end."""
        state.generated += 1
        state.filling = False
        if state.generated == 1:
            state.first_token_ps = end_ps
        else:
            self.gaps[end_ps - state.last_token_ps] += 1
        state.last_token_ps = end_ps
        if state.generated == state.request.output:
            state.finished = True
            tally.finished.append(state)

    def _check_limits(self, number: int, batch: Batch, tally: _Tally) -> None:
        for wrong in tally.broken_limits(len(batch.run)):
            self._note(number, wrong)
        limits = self.problem.limits
        if self._kv_blocks > self.problem.blocks:
            self._note(
                number,
                f"{self._kv_blocks * limits.kv_block} KV tokens are occupied, at most "
                f"{self.problem.blocks * limits.kv_block} are allowed (blocks of {limits.kv_block} in "
                f"{limits.kv_tokens})",
            )

    def _check_end(self, number: int, batch: Batch, start_ps: int, tally: _Tally) -> None:
        duration_ps = tally.duration_ps(batch.considered)
        if batch.end_ps != start_ps + duration_ps:
            self._note(
                number,
                f"ends at {batch.end_ps} ps, but it starts at {start_ps} ps and takes "
                f"{duration_ps} ps, so it must end at {start_ps + duration_ps} ps",
            )
