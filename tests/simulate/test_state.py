"""What one batch does to requests and a machine, by hand."""

from __future__ import annotations

import pytest
from playing import COST

from optsched import Assignment, Limits, Request, replace
from optsched.model.memory import HeldBlocks, PrivateBlocks
from optsched.model.state import Action, MachineState, Place, RequestState

LIMITS = Limits(22, 99, 99, kv_block=4)


def test_an_assignments_lists_are_its_actions_by_place() -> None:
    actions = [
        Action(4, Place.MACHINE),
        Action(2, Place.NOWHERE),
        Action(1, Place.HOST),
        Action(3, Place.NOWHERE),
    ]
    made = Assignment.of([(0, 1)], actions, 7)
    assert made == Assignment([(0, 1)], evict=[2, 3], swap_out=[1], swap_in=[4], considered=7)
    # Evictions come first, then what leaves for the host, then what comes back.
    assert made.actions == [actions[1], actions[3], actions[2], actions[0]]
    assert made.between(0, 9).actions == made.actions
    assert Assignment.of([(0, 1)], []).actions == ()


def test_batches_by_hand() -> None:
    # Requests of 5 + 2, 3 + 9 and 4 + 1 tokens, in blocks of 4.
    states = [RequestState(Request(*sizes)) for sizes in ((5, 2), (3, 9), (4, 1))]
    held = HeldBlocks(LIMITS)
    machine = MachineState(states, held)

    # A chunk of 2 of 5 tokens; a prompt of 3; a prompt of 4, whose only token it generates.
    work = machine.carry_out((), [(0, 2), (1, 3), (2, 4)])
    assert (work.tokens, work.decodes, work.decode_kv_tokens) == (9, 0, 0)
    assert work.prefills == [(2, 0), (3, 0), (4, 0)]
    assert (work.started, work.generated, work.finished) == ([0, 1, 2], [1, 2], [2])
    # A block each; request 2 counts until the batch has ended.
    assert held.occupied == 12
    machine.finish(work.finished)
    assert (held.occupied, sorted(held.held)) == (8, [0, 1])
    # max(100 + 10 · 9, 40 · 9) + Σ (2 c² + 7) for c = 2, 3, 4.
    assert work.duration_ps(COST, COST) == 360 + 2 * (4 + 9 + 16) + 3 * 7

    # The rest of the prompt beside a decode step on 3 tokens.
    work = machine.carry_out((), [(0, 3), (1, 1)])
    assert (work.tokens, work.decodes, work.decode_kv_tokens, work.prefills) == (4, 1, 3, [(3, 2)])
    assert (work.started, work.generated, work.finished) == ([], [0, 1], [])
    assert held.occupied == 8 + 4  # 5 tokens take two blocks, 4 tokens one
    assert [(state.cached, state.generated, state.missing) for state in states[:2]] == [(5, 1, 1), (4, 2, 1)]

    # Request 0 leaves for the host, and request 1 decodes four times: with 8 tokens it has two blocks.
    assert machine.act([Action(0, Place.HOST)]) == (5, 0)
    assert machine.repeat([(1, 1)], 4) == []
    assert (states[0].swapped, states[1].cached, held.occupied) == (5, 8, 8)

    # Request 0 comes back and ends; request 1 is evicted. The link takes 10 a token back, half of the steps beside it.
    work = machine.carry_out([Action(1, Place.NOWHERE), Action(0, Place.MACHINE)], [(0, 1)])
    assert (work.out, work.back, work.finished, held.occupied) == (0, 5, [0], 8)
    link = replace(COST, swap_in_kv=40, swap_overlap=50, cpu_request=3)
    steps = 100 + 10 + 5 + 5
    assert work.duration_ps(COST, link, considered=2) == steps + (5 * 40 - steps // 2) + 2 * 3
    machine.finish(work.finished)
    assert held.occupied == 0
    assert (states[1].cached, states[1].decoding, states[1].missing) == (0, False, 3 + 6)


def test_what_is_required_of_a_run_is_asked_when_it_is_no_plain_decode_step() -> None:
    states = [RequestState(Request(2, 4)), RequestState(Request(2, 4))]
    machine = MachineState(states)
    asked: list[tuple[int, int]] = []

    def require(index: int, tokens: int) -> None:
        asked.append((index, tokens))

    machine.carry_out((), [(0, 2)], require)
    machine.carry_out((), [(0, 1), (1, 1), (1, 1)], require)
    assert asked == [(0, 2), (1, 1), (1, 1)]


@pytest.mark.parametrize(("tokens", "reserved", "takes"), [(0, 0, 0), (1, 0, 4), (4, 0, 4), (5, 0, 8), (5, 9, 12)])
def test_private_blocks(tokens: int, reserved: int, takes: int) -> None:
    memory, state = PrivateBlocks(LIMITS), RequestState(Request(1, 1))
    assert memory.capacity == 20  # five blocks of the 22 tokens
    assert memory.reserving(lambda _: reserved)(state, tokens) == takes
    assert memory.size(state, max(tokens, reserved)) == takes
