"""Moves of requests between machines: when they may start, what they copy, when they end."""

from __future__ import annotations

from collections.abc import Sequence

from optsched.check.cluster.machine import Machine
from optsched.check.cluster.record import Record, State, Underway
from optsched.model.cluster import Link, Role
from optsched.model.schedule import Move


class Moves:
    """Carries out moves.

    Parameters
    ----------
    link
        What copies take, and what is allowed.
    migration
        Of every machine: whether a request may leave it without having to.
    machines
        All machines.
    record
        What is written down for all of them.
    """

    def __init__(self, link: Link, migration: Sequence[bool], machines: Sequence[Machine], record: Record) -> None:
        self._link, self._migration, self._machines, self._record = link, migration, machines, record
        self._busy: dict[tuple[int, int], int] = {}

    def start(self, number: int, move: Move) -> Underway | None:
        """Start a move, if there is anything to move; its first stage is still to start."""
        state = self._movable(number, move)
        if state is None:
            return None
        self._check_permission(number, move, state)
        self._check_stages(number, move)
        pair = move.source, move.target
        if self._link.exclusive and pair in self._busy:
            self._note(
                number,
                f"starts at {move.start_ps} ps, but move {self._busy[pair]} is under way from machine {move.source} to "
                f"machine {move.target}, and a link carries 1 move at a time",
            )
        self._busy[pair] = number
        memory = self._machines[move.target].memory
        if any(not 0 <= index < self._record.requests for index, _ in move.drop):
            self._note(number, f"drops blocks of requests that are not numbered from 0 to {self._record.requests - 1}")
        else:
            for wrong in memory.drop(move.drop):
                self._note(number, f"at machine {move.target}, {wrong}")
        hold = memory.hold_of(move.request)
        held = state.held_at(move.start_ps)
        memory.pin(hold, memory.match(hold.segments, held // memory.contents.block))
        ends = move.stages_ps or (() if move.aborted else (move.end_ps,))
        state.move = Underway(
            number, move.request, move.source, move.target, move.end_ps, ends, move.aborted, hold, hold.tokens
        )
        return state.move

    def start_stage(self, move: Underway, now_ps: int) -> None:
        """Start to copy what is at the source and not copied yet."""
        state = self._record.states[move.request]
        if move.in_last_stage and state.ran_ps > now_ps:
            self._note(
                move.number,
                f"starts to copy the last part of request {move.request} at {now_ps} ps, before the batch that it last "
                f"ran in has ended at {state.ran_ps} ps",
            )
        # Less than before only after a violation.
        reached = max(state.held_at(now_ps), move.reached)
        copied = reached - move.reached
        copy_ps = self._link.kv_ps * copied
        if self._link.layerwise and move.stage == 0:
            copy_ps = max(copy_ps - state.computed_ps, 0)
        move.due_ps = now_ps + self._link.base_ps + copy_ps
        move.sent += copied
        move.reached = reached
        self._machines[move.target].memory.grow(move.hold, reached)
        if move.stage == len(move.ends):
            if move.due_ps < move.end_ps:
                self._note(
                    move.number, f"is aborted at {move.end_ps} ps, but its stage has ended at {move.due_ps} ps before"
                )
        elif move.ends[move.stage] != move.due_ps:
            self._note(
                move.number,
                f"stage {move.stage} copies {copied} tokens of request {move.request} and is stated to end at "
                f"{move.ends[move.stage]} ps, it must end at {move.due_ps} ps",
            )

    def check_room(self, move: Underway) -> None:
        """Check that what is copied fits the target's batch under way; later batches check it themselves."""
        target = self._machines[move.target]
        if target.running:
            target.check_memory(f"move {move.number}, during a batch")

    def complete(self, move: Underway) -> None:
        """End a move: the source frees what it held, the target publishes its blocks."""
        state = self._record.states[move.request]
        source, target = self._machines[move.source].memory, self._machines[move.target].memory
        target.grow(move.hold, max(state.hold.tokens, move.hold.tokens))
        source.release(state.hold)
        state.hold, state.machine, state.move = move.hold, move.target, None
        state.fill_ps = 0
        target.publish(move.hold)
        self._record.totals.moves += 1
        self._record.totals.moved_tokens += move.sent
        self._free(move)

    def abort(self, state: State, cause: str, now_ps: int) -> None:
        """Abort the move of a request that has ended or was evicted."""
        move = state.move
        if move is None:
            return
        if not move.aborted:
            self._note(move.number, f"request {state.index} {cause} at {now_ps} ps, before it has moved")
        elif move.end_ps != now_ps:
            self._note(move.number, f"is aborted at {move.end_ps} ps, but request {state.index} {cause} at {now_ps} ps")
        elif move.stage < len(move.ends):
            self._note(
                move.number,
                f"is aborted at {now_ps} ps, but {len(move.ends)} stages are stated to have ended, of which "
                f"{move.stage} have",
            )
        elif cause != "ends" and move.due_ps <= now_ps:
            self._note(
                move.number,
                f"request {state.index} {cause} at {now_ps} ps, but the stage under way had ended at {move.due_ps} ps",
            )
        self._give_up(state, move)

    def require_abort(self, move: Underway) -> None:
        """Note if a move is aborted for no reason, and abort it."""
        state = self._record.states[move.request]
        if state.move is move:
            self._note(
                move.number,
                f"is aborted at {move.end_ps} ps, but request {move.request} neither ends nor is evicted then",
            )
            self._give_up(state, move)

    def _give_up(self, state: State, move: Underway) -> None:
        self._machines[move.target].memory.release(move.hold)
        state.move = None
        self._free(move)

    def _free(self, move: Underway) -> None:
        pair = move.source, move.target
        if self._busy.get(pair) == move.number:
            del self._busy[pair]

    def _note(self, number: int, text: str) -> None:
        self._record.violations.append(f"move {number}: {text}")

    def _movable(self, number: int, move: Move) -> State | None:
        """Return the state of a request that can be moved; else note why it cannot."""
        count = len(self._machines)
        for name, machine in (("from", move.source), ("to", move.target)):
            if machine >= count:
                self._note(number, f"goes {name} machine {machine}, but machines are numbered from 0 to {count - 1}")
                return None
        if move.source == move.target:
            self._note(number, f"goes from machine {move.source} to itself")
            return None
        if move.request >= self._record.requests:
            last = self._record.requests - 1
            self._note(number, f"request {move.request} moves, but requests are numbered from 0 to {last}")
            return None
        state = self._record.states.get(move.request)
        if state is None:
            return None  # its route is wrong, which is noted
        if state.machine != move.source:
            self._note(number, f"goes from machine {move.source}, but request {move.request} is on {state.machine}")
        elif state.move is not None:
            self._note(number, f"request {move.request} moves, but move {state.move.number} is under way")
        elif state.ran_ps > move.start_ps:
            self._note(
                number,
                f"starts at {move.start_ps} ps, before the batch that request {move.request} last ran in has ended at "
                f"{state.ran_ps} ps",
            )
        elif state.hold.tokens < 1:
            self._note(number, f"request {move.request} moves with 0 cached tokens, at least 1 is required")
        else:
            return state
        return None

    def _check_permission(self, number: int, move: Move, state: State) -> None:
        source, target = self._machines[move.source], self._machines[move.target]
        if self._migration[move.source]:
            return
        if source.role is not Role.PREFILL or target.role is Role.PREFILL or state.generated == 0:
            self._note(
                number,
                f"request {move.request} with {state.generated} generated tokens moves from machine {move.source} "
                f"(role {source.role.value}) to machine {move.target} (role {target.role.value}); without the rule "
                "migration it may only leave a machine of role prefill, after its first token, for one of another role",
            )

    def _check_stages(self, number: int, move: Move) -> None:
        most = self._link.stages if self._link.live else 1
        found = len(move.stages_ps) or (0 if move.aborted else 1)
        if move.aborted:
            # It ran, or was evicted, in a stage that is not listed and was not the last that is possible.
            if found + 2 > most:
                self._note(
                    number,
                    f"is aborted after {found} stages, but request {move.request} may neither run nor be evicted from "
                    f"the start of the last of {most} stages on",
                )
        elif found > most:
            self._note(number, f"has {found} stages, at most {most} are allowed")
        if not move.aborted and move.stages_ps and move.stages_ps[-1] != move.end_ps:
            self._note(number, f"ends at {move.end_ps} ps, but its last stage ends at {move.stages_ps[-1]} ps")
