"""Replaying the batches of one machine.

A batch is carried out when it starts: from then on m, g and phases are those after its steps, as memory counts them,
and `State.held_at` says what is there until it has ended. When it ends, blocks are published and requests finish.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from optsched.check.cluster.memory import Hold, Memory
from optsched.check.cluster.record import Record, State
from optsched.check.forms import broken_form, broken_repeats
from optsched.check.problem import Problem
from optsched.check.schedule.over_time import Progression
from optsched.check.tally import Tally
from optsched.model.cluster import Role
from optsched.model.schedule import Batch


@dataclass(slots=True)
class Part:
    """A batch of the schedule, or some of the last of its repeats: ``times`` of them, the first at ``start_ps``."""

    number: int
    batch: Batch
    start_ps: int
    times: int


@dataclass(slots=True)
class _Tally(Tally):
    """What one batch runs, finds and completes, and which requests finish in it.

    ``steps`` are its prefill steps: the tokens that they run, and those that they would run without a hit.
    """

    filling: list[State] = field(default_factory=list)
    finished: list[State] = field(default_factory=list)
    completing: list[Hold] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    hits: dict[int, int] = field(default_factory=dict)


class Machine:
    """One machine: its blocks, its clock, and the batch under way.

    Parameters
    ----------
    index
        Its index.
    problem, role
        What it permits.
    memory
        Its blocks.
    record
        What is written down for all machines.
    """

    def __init__(self, index: int, problem: Problem, role: Role, memory: Memory, record: Record) -> None:
        self.index, self.problem, self.role, self.memory = index, problem, role, memory
        self._record = record
        self.events: list[int] = []
        self.end_ps = self.load_ps = 0
        self.first_runs: dict[int, int] = {}
        self._open: _Tally | None = None
        self._played = 0

    @property
    def running(self) -> bool:
        """Whether a batch is under way."""
        return self._open is not None

    def start(self, part: Part) -> Part | None:
        """Start a batch, and return those of its repeats that come later than the next event of a move, if any.

        What lies between two such events is carried out at once: only moves join machines.
        """
        batch, start_ps = part.batch, part.start_ps
        if start_ps < self.end_ps:
            self._note(part, f"starts at {start_ps} ps, before the previous batch has ended at {self.end_ps} ps")
        self.end()
        times, end_ps = part.times, batch.end_ps
        if times > 1:
            if not self._may_repeat(part):
                times = part.times = 1
            else:
                times = self._before_next_event(part)
                start_ps = self._repeat(part, times - 1)
        rest = part.times - times
        end_ps = self._play(part, start_ps, batch.end_ps if not rest else None)
        self.end_ps = max(start_ps, end_ps)
        return Part(part.number, batch, self.end_ps, rest) if rest else None

    def end(self) -> None:
        """End the batch under way, if there is one: publish, then finish."""
        tally, self._open = self._open, None
        if tally is None:
            return
        for hold in tally.completing:
            self.memory.publish(hold)
        for state in tally.finished:
            self.memory.release(state.hold)
            if state.move is not None:
                self._record.aborts.append((state, "ends", self.end_ps))

    def _note(self, part: Part, text: str) -> None:
        self._record.violations.append(f"batch {part.number} of machine {self.index}: {text}")

    # Repeats ---------------------------------------------------------------------------------------------------

    def _may_repeat(self, part: Part) -> bool:
        wrong = broken_repeats(part.batch, part.times, self._to_generate)
        if wrong:
            self._note(part, wrong)
        return not wrong

    def _to_generate(self, index: int) -> int | None:
        state = self._record.states.get(index)
        if state is None or state.machine != self.index or state.filling or state.swapped or state.finished:
            return None
        return state.request.output - state.generated

    def _first_ps(self, part: Part) -> tuple[int, int]:
        """Return what the first of repeated batches takes, and by how much longer each takes than the one before."""
        decodes = len(part.batch.run)
        read = sum(self._record.states[index].hold.tokens for index, _ in part.batch.run)
        first = Tally(self.problem, decodes=decodes, read=read)
        return first.duration_ps(part.batch.considered), self.problem.cost.decode_kv * decodes

    def _before_next_event(self, part: Part) -> int:
        """Return how many repeats to carry out now: those that have ended by the next event, or the one under way."""
        following = bisect_right(self.events, part.start_ps)
        if following == len(self.events):
            return part.times
        first_ps, growth_ps = self._first_ps(part)
        span_ps = self.events[following] - part.start_ps
        ended = bisect_right(
            range(1, part.times + 1),
            span_ps,
            key=lambda times: times * first_ps + times * (times - 1) // 2 * growth_ps,
        )
        return max(1, ended)

    def _repeat(self, part: Part, times: int) -> int:
        """Carry out the first ``times`` repeats, and return when they end.

        Memory only grows with them: each cached block stays, and each run adds its token. So the last, which is played
        like any other batch, shows whether it suffices.
        """
        if times == 0:
            return part.start_ps
        record, decodes = self._record, len(part.batch.run)
        first_ps, growth_ps = self._first_ps(part)
        span_ps = times * first_ps + times * (times - 1) // 2 * growth_ps
        end_ps = part.start_ps + span_ps
        for index, _ in part.batch.run:
            state = record.states[index]
            record.gaps[part.start_ps + first_ps - state.last_token_ps] += 1
            state.generated += times
            state.last_token_ps = state.ran_ps = end_ps
            self.memory.grow(state.hold, state.hold.tokens + times)
            self.memory.publish(state.hold)
        if times > 1:
            record.repeated_gaps.append(Progression(first_ps + growth_ps, growth_ps, times - 1, decodes, 0))
        record.totals.batches += times
        record.totals.computed_tokens += times * decodes
        self.load_ps += span_ps
        self._played += times
        return end_ps

    # One batch -------------------------------------------------------------------------------------------------

    def _play(self, part: Part, start_ps: int, stated_ps: int | None) -> int:
        """Carry out one batch, and return its end: that which is stated, or else that which follows."""
        batch, tally, totals = part.batch, _Tally(self.problem), self._record.totals
        for wrong in broken_form(batch):
            self._note(part, wrong)
        for index in dict.fromkeys(batch.evict):
            self._evict(part, index, start_ps)
        for index in dict.fromkeys(batch.swap_out):
            self._swap_out(part, index, tally)
        for index in dict.fromkeys(batch.swap_in):
            self._swap_in(part, index, tally)
        if batch.drop:
            if any(not 0 <= index < self._record.requests for index, _ in batch.drop):
                self._note(
                    part, f"drops blocks of requests that are not numbered from 0 to {self._record.requests - 1}"
                )
            else:
                for wrong in self.memory.drop(batch.drop):
                    self._note(part, wrong)
        filled, generating = self._run_all(part, start_ps, tally)
        self.memory.end_matches()
        self._check_limits(part, tally)
        self._check_hits(part, tally)
        duration_ps = tally.duration_ps(batch.considered)
        end_ps = start_ps + duration_ps
        if stated_ps is not None and stated_ps != end_ps:
            self._note(
                part,
                f"ends at {stated_ps} ps, but it starts at {start_ps} ps and takes {duration_ps} ps, so it must end at "
                f"{end_ps} ps",
            )
            end_ps = stated_ps
        for state in tally.filling:
            state.fill_ps += duration_ps
        for state in filled:
            state.ran_ps = end_ps
        self._generate(generating, end_ps, tally)
        totals.batches += 1
        totals.computed_tokens += tally.tokens
        totals.prefill_tokens += tally.prefill_tokens
        if any(tally.hits.values()):
            totals.saved_ps += self._without_hits(tally).duration_ps(batch.considered) - duration_ps
        self.load_ps += duration_ps
        self._open = tally
        self._played += 1
        return end_ps

    def _without_hits(self, tally: _Tally) -> Tally:
        """Return the steps of a batch in which what its runs find is run with them."""
        bare = Tally(self.problem, decodes=tally.decodes, surplus=tally.surplus, read=tally.read)
        for count, cached in tally.steps:
            bare.prefill(count, cached, count)
        return bare

    def _present(self, part: Part, index: int, name: str) -> State | None:
        """Return the state of a request that is here and unfinished; else note why it cannot be ``name``."""
        if not 0 <= index < self._record.requests:
            last = self._record.requests - 1
            self._note(part, f"request {index} {name}, but requests are numbered from 0 to {last}")
            return None
        state = self._record.states.get(index)
        if state is None:
            return None  # its route is wrong, which is noted
        if state.finished:
            self._note(
                part,
                f"request {index} {name}, but it is finished: it has generated {state.generated} of "
                f"{state.request.output} tokens",
            )
            return None
        if state.machine != self.index:
            self._note(part, f"request {index} {name}, but it is on machine {state.machine}")
            return None
        if state.move is not None and state.move.in_last_stage:
            self._note(
                part, f"request {index} {name}, but move {state.move.number} takes it to machine {state.move.target}"
            )
            return None
        return state

    def _evict(self, part: Part, index: int, start_ps: int) -> None:
        state = self._present(part, index, "is evicted")
        if state is None:
            return
        totals = self._record.totals
        totals.evictions += 1
        if not self.problem.eviction:
            self._note(part, f"request {index} is evicted, but eviction is forbidden")
        elif self.problem.evictions is not None and totals.evictions > self.problem.evictions:
            self._note(
                part,
                f"request {index} is evicted, which is eviction number {totals.evictions} of the schedule, at most "
                f"{self.problem.evictions} are allowed",
            )
        if state.hold.tokens < 1:
            self._note(part, f"request {index} is evicted with 0 cached tokens, at least 1 is required")
        if self.role is Role.PREFILL and state.generated > 0:
            self._note(
                part,
                f"request {index} is evicted after its first token, but a machine of role prefill keeps it until it "
                "has moved",
            )
        state.lost = max(state.lost, state.hold.tokens)
        self.memory.release(state.hold)
        state.filling = True
        if state.move is not None:
            self._record.aborts.append((state, "is evicted", start_ps))

    def _swap_out(self, part: Part, index: int, tally: _Tally) -> None:
        state = self._present(part, index, "is swapped out")
        if state is None:
            return
        if not self.problem.swap:
            self._note(part, f"request {index} is swapped out, but swapping is forbidden")
        if state.hold.tokens < 1 or state.move is not None:
            self._note(part, f"request {index} is swapped out, but it holds 0 cached tokens or moves")
            return
        tally.left += state.hold.tokens
        state.swapped = state.hold.tokens
        self.memory.release(state.hold)

    def _swap_in(self, part: Part, index: int, tally: _Tally) -> None:
        state = self._present(part, index, "is swapped in")
        if state is None:
            return
        if not state.swapped:
            self._note(part, f"request {index} is swapped in, but it has no tokens on the host")
            return
        tally.back += state.swapped
        self.memory.grow(state.hold, state.swapped)
        state.swapped = 0

    def _run_all(self, part: Part, start_ps: int, tally: _Tally) -> tuple[list[State], list[State]]:
        """Carry out the runs, and return those that generate no token, and those that do.

        Most are decode steps, for which the first branch says all there is to do while nothing is wrong.
        """
        filled: list[State] = []
        generating: list[State] = []
        seen: set[int] = set()
        states, wrong, memory = self._record.states, bool(self._record.violations), self.memory
        block, prefill = self.problem.limits.kv_block, self.role is Role.PREFILL
        for index, count in part.batch.run:
            state = states.get(index)
            if (
                state is not None
                and count == 1
                and state.machine == self.index
                and not (state.filling or state.finished or state.swapped or state.move or prefill or wrong)
            ):
                hold = state.hold
                tally.decodes += 1
                tally.read += hold.tokens
                if hold.tokens % block == 0:
                    hold.private += 1
                    memory.private_blocks += 1
                hold.tokens += 1
                state.ran = 1
                if hold.segments and hold.tokens % block == 0:
                    memory.announce(hold)
                    tally.completing.append(hold)
                generating.append(state)
                continue
            state = self._present(part, index, "runs")
            if state is None or index in seen:
                continue
            seen.add(index)
            if state.swapped:
                self._note(part, f"request {index} runs, but its {state.swapped} tokens are on the host")
                continue
            if state.filling:
                self._prefill(part, start_ps, state, count, tally)
                done = state.hold.tokens == state.request.input + state.generated
                (generating if done else filled).append(state)
                continue
            if count != 1:
                self._note(part, f"request {index} runs {count} tokens in a decode step, exactly 1 is allowed")
                tally.surplus += count - 1
            if prefill:
                self._note_role(part, index)
            tally.decodes += 1
            tally.read += state.hold.tokens
            state.ran = 1
            self._step(state.hold, 1, tally)
            generating.append(state)
        return filled, generating

    def _note_role(self, part: Part, index: int) -> None:
        self._note(part, f"request {index} runs after its first token, but the machine has role prefill")

    def _step(self, hold: Hold, count: int, tally: _Tally) -> None:
        block = self.problem.limits.kv_block
        before = hold.tokens // block
        self.memory.grow(hold, hold.tokens + count)
        if hold.segments and hold.tokens // block > before:
            self.memory.announce(hold)
            tally.completing.append(hold)

    def _prefill(self, part: Part, start_ps: int, state: State, count: int, tally: _Tally) -> None:
        """Match if a fill begins, then check and carry out a prefill step."""
        index, hold = state.index, state.hold
        if not state.started:
            state.started = True
            self.first_runs[index] = self._played
        if state.request.arrival_ps > start_ps:
            self._note(
                part,
                f"request {index} runs before it arrives: the batch starts at {start_ps} ps, the request arrives at "
                f"{state.request.arrival_ps} ps",
            )
        if self.role is Role.PREFILL and state.generated > 0:
            self._note_role(part, index)
        found_tokens = 0
        if hold.tokens == 0:
            block = self.problem.limits.kv_block
            found = self.memory.match(hold.segments, (state.missing - 1) // block)
            self.memory.pin(hold, found)
            tally.hits[index] = found_tokens = hold.tokens
            state.fill_ps = 0
            self._record.totals.hit_tokens += found_tokens
        tally.steps.append((count + found_tokens, hold.tokens - found_tokens))
        missing = state.missing
        wrong = tally.prefill(count, hold.tokens, missing)
        if wrong:
            self._note(part, f"request {index} {wrong}")
        state.ran = min(count, missing)
        before = hold.tokens
        self._step(hold, state.ran, tally)
        self._record.totals.recomputed_tokens += max(min(hold.tokens, state.lost) - before, 0)
        state.fill_tokens = hold.tokens
        tally.filling.append(state)

    def _generate(self, states: Sequence[State], end_ps: int, tally: _Tally) -> None:
        """Give requests whose tokens are all cached one more token each, at a batch's end."""
        gaps = self._record.gaps
        for state in states:
            state.ran_ps = end_ps
            state.generated += 1
            state.filling = False
            if state.generated == 1:
                state.first_token_ps = end_ps
            else:
                gaps[end_ps - state.last_token_ps] += 1
            state.last_token_ps = end_ps
            if state.generated == state.request.output:
                state.finished = True
                tally.finished.append(state)

    def _check_limits(self, part: Part, tally: _Tally) -> None:
        for wrong in tally.broken_limits(len(part.batch.run)):
            self._note(part, wrong)
        self.check_memory(f"batch {part.number} of machine {self.index}")

    def check_memory(self, cause: str) -> None:
        """Note if more blocks are occupied than there are."""
        limits, used = self.problem.limits, self.memory.used
        if used > self.problem.blocks:
            self._record.violations.append(
                f"{cause}: {used * limits.kv_block} KV tokens are occupied on machine {self.index} "
                f"({self.memory.cached_blocks} cached blocks and {self.memory.private_blocks} of single requests), at "
                f"most {self.problem.blocks * limits.kv_block} are allowed (blocks of {limits.kv_block} in "
                f"{limits.kv_tokens})"
            )

    def _check_hits(self, part: Part, tally: _Tally) -> None:
        stated: dict[int, int] = {}
        for index, tokens in part.batch.hits:
            if index in stated:
                self._note(part, f"the hit of request {index} is stated twice")
            stated[index] = tokens
            if index not in tally.hits:
                self._note(part, f"a hit of request {index} is stated, which has no first step of a fill here")
        for index, tokens in tally.hits.items():
            if stated.get(index, 0) != tokens:
                self._note(
                    part,
                    f"request {index} is stated to find {stated.get(index, 0)} tokens in the cache, it finds {tokens}",
                )

    def require_queue(self, queue: Sequence[int]) -> None:
        """Note every request whose first run here is in an earlier batch than that of one before it in the order."""
        latest = None
        for index in queue:
            number = self.first_runs.get(index)
            if number is None:
                continue
            if latest is None or number >= self.first_runs[latest]:
                latest = index
            else:
                self._record.violations.append(
                    f"machine {self.index}: request {index} has its first run in batch {number} of the machine, before "
                    f"that of request {latest} in batch {self.first_runs[latest]}, but request {latest} is before it "
                    "in the order"
                )
