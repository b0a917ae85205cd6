"""Schedules of several machines and of caches that were worked out by hand.

A batch of c tokens takes 10 + c ps and a copy of k tokens 5 + k ps, unless a test says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from optsched import (
    Batch,
    CacheMode,
    CacheRules,
    CostModel,
    Instance,
    Limits,
    Link,
    MachineGroup,
    Move,
    Objective,
    PrefixNode,
    PrefixTree,
    Request,
    Restrictions,
    Result,
    Role,
    Rules,
    Schedule,
    Status,
    check_result,
    check_schedule,
    replace,
)
from optsched.model.documents import dump, parse_results, result_document
from optsched.model.result import Badge

COST, LINK = CostModel(10, 1), Link(5, 1)
TREE = PrefixTree((PrefixNode("s", 6), PrefixNode("t", 4, "s"), PrefixNode("u", 4, "s")))


def cached(
    *requests: Request, blocks: int = 20, mode: CacheMode = CacheMode.PREFIX, share: bool = False, b: int = 2
) -> Instance:
    """Return one machine with a cache."""
    limits = Limits(blocks * b, 99, 99, kv_block=b)
    return Instance("cached", limits, Rules(), COST, requests, prefixes=TREE, cache=CacheRules(mode, share))


def pair(
    *requests: Request,
    roles: tuple[Role, Role] = (Role.BOTH, Role.BOTH),
    link: Link = LINK,
    tokens: Sequence[int] = (40, 40),
    migration: bool = True,
    mode: CacheMode = CacheMode.NONE,
) -> Instance:
    """Return two machines."""
    groups = tuple(
        MachineGroup(role=role, limits=Limits(most, 99, 99, kv_block=2))
        for role, most in zip(roles, tokens, strict=True)
    )
    return Instance(
        "pair", Limits(40, 99, 99, kv_block=2), Rules(migration=migration), COST, requests, machine_groups=groups,
        links=link, prefixes=TREE, cache=CacheRules(mode),
    )  # fmt: skip


def plan(*batches: Batch, routes: Sequence[int] = (), moves: Sequence[Move] = ()) -> Schedule:
    return Schedule(batches, tuple(routes), tuple(moves))


def wrong(instance: Instance, schedule: Schedule, restrictions: Restrictions | None = None) -> list[str]:
    return check_schedule(instance, schedule, restrictions or Restrictions())[0]


def metrics(instance: Instance, schedule: Schedule) -> dict[str, Any]:
    violations, found = check_schedule(instance, schedule)
    assert violations == []
    assert found is not None
    return found


# Matches -------------------------------------------------------------------------------------------------------


def test_a_prompt_that_is_cached_entirely_runs_its_last_tokens_again() -> None:
    """The path s has 6 tokens, 3 blocks of 2. With I = 6 a fill may find floor(5 / 2) x 2 = 4 of them."""
    instance = cached(Request(6, 1, prefix=("s",)), Request(6, 1, prefix=("s",)))
    schedule = plan(Batch(0, 16, ((0, 6),)), Batch(16, 28, ((1, 2),), hits=((1, 4),)))
    found = metrics(instance, schedule)
    assert (found["hit_tokens"], found["computed_tokens"], found["prefill_tokens"]) == (4, 8, 8)
    assert found["load_ps"] == [28]
    assert found["imbalance"] == 1
    assert wrong(instance, plan(schedule.batches[0], replace(schedule.batches[1], hits=()))) == [
        "batch 1 of machine 0: request 1 is stated to find 0 tokens in the cache, it finds 4"
    ]
    # It cannot decline: 6 tokens after a match of 4 are too many.
    assert wrong(instance, plan(schedule.batches[0], Batch(16, 32, ((1, 6),)))) == [
        "batch 1 of machine 0: request 1 runs 6 tokens in a prefill step, at most the 2 tokens that exist and are not "
        "cached are allowed",
        "batch 1 of machine 0: request 1 is stated to find 0 tokens in the cache, it finds 4",
    ]


def test_blocks_are_in_the_cache_from_the_end_of_the_batch_or_at_once_where_batches_share() -> None:
    """Two equal prompts of 7 with the path s in one batch: 7 + 7 tokens, or 7 + 1 where the second finds 6."""
    requests = Request(7, 1, prefix=("s",)), Request(7, 1, prefix=("s",))
    apart, shared = plan(Batch(0, 24, ((0, 7), (1, 7)))), plan(Batch(0, 18, ((0, 7), (1, 1)), hits=((1, 6),)))
    assert metrics(cached(*requests), apart)["hit_tokens"] == 0
    assert metrics(cached(*requests, share=True), shared)["hit_tokens"] == 6
    assert wrong(cached(*requests), shared)
    assert wrong(cached(*requests, share=True), apart)
    # Before the first in the list nothing is complete.
    swapped = plan(Batch(0, 18, ((1, 1), (0, 7)), hits=((1, 6),)))
    assert wrong(cached(*requests, share=True), swapped)


def test_second_copies_count_once_more_in_their_batch() -> None:
    """In blocks of 2: 3 of s, 3 second ones, and one of each request alone make 8; with sharing they make 5."""
    requests = Request(7, 1, prefix=("s",)), Request(7, 1, prefix=("s",))
    apart, shared = plan(Batch(0, 24, ((0, 7), (1, 7)))), plan(Batch(0, 18, ((0, 7), (1, 1)), hits=((1, 6),)))
    assert wrong(cached(*requests, blocks=8), apart) == []
    assert wrong(cached(*requests, blocks=7), apart) == [
        "batch 0 of machine 0: 16 KV tokens are occupied on machine 0 (0 cached blocks and 8 of single requests), at "
        "most 14 are allowed (blocks of 2 in 14)"
    ]
    assert wrong(cached(*requests, blocks=5, share=True), shared) == []
    assert len(wrong(cached(*requests, blocks=4, share=True), shared)) == 1


def test_a_block_belongs_to_the_node_of_its_last_position() -> None:
    """In blocks of 4, s has 1 and a half, so that t and u have different second blocks: 4 tokens are found, not 8."""
    requests = Request(11, 1, prefix=("s", "t")), Request(11, 1, prefix=("s", "u")), Request(11, 1, prefix=("s", "t"))
    instance = cached(*requests, b=4)
    schedule = plan(
        Batch(0, 21, ((0, 11),)), Batch(21, 38, ((1, 7),), hits=((1, 4),)), Batch(38, 51, ((2, 3),), hits=((2, 8),))
    )
    assert metrics(instance, schedule)["hit_tokens"] == 12


# Drops and evictions -------------------------------------------------------------------------------------------

FOLLOWED = Request(11, 1, prefix=("s", "t"))
"""In blocks of 2 its path has 5: 3 of s, 2 of t."""


def test_drops_leave_no_block_behind() -> None:
    """After the first request 5 blocks are cached; the second, without a path, may drop the last n of them."""
    instance = cached(FOLLOWED, Request(1, 1))
    first = Batch(0, 21, ((0, 11),))

    def dropping(*numbers: int) -> list[str]:
        return wrong(instance, plan(first, Batch(21, 32, ((1, 1),), drop=tuple((0, number) for number in numbers))))

    assert dropping(4) == dropping(3, 4) == dropping(4, 2, 3) == dropping(0, 1, 2, 3, 4) == []
    assert dropping(3) == ["batch 1 of machine 0: block 3 of node t is dropped, but block 4 behind it stays cached"]
    assert dropping(2) == [
        "batch 1 of machine 0: block 2 of node s is dropped, but a block behind the node stays cached"
    ]
    assert dropping(5) == ["batch 1 of machine 0: block 5 of request 0 is dropped, but it is not cached"]
    assert dropping(4, 4) == ["batch 1 of machine 0: block 4 of request 0 is dropped twice"]
    assert wrong(instance, plan(first, Batch(21, 32, ((1, 1),), drop=((7, 0),)))) == [
        "batch 1 of machine 0: drops blocks of requests that are not numbered from 0 to 1"
    ]


def test_a_pinned_block_is_not_dropped() -> None:
    """Request 0 decodes and holds all its blocks; named by request 1, they are the same."""
    requests = replace(FOLLOWED, output=2), FOLLOWED
    instance = cached(*requests)
    first = Batch(0, 21, ((0, 11),))
    schedule = plan(first, Batch(21, 33, ((0, 1), (1, 1)), hits=((1, 10),), drop=((1, 4),)))
    assert wrong(instance, schedule)[0] == (
        "batch 1 of machine 0: block 4 of node t is dropped, but request 0 pins its first 5 blocks"
    )
    without = plan(first, Batch(21, 33, ((0, 1), (1, 1)), hits=((1, 10),)))
    assert wrong(instance, without) == []


def test_there_is_no_bypass() -> None:
    """A cache of 6 blocks: 5 of the path are cached when request 1 of 2 blocks comes, so one has to go."""
    instance = cached(FOLLOWED, Request(3, 1), blocks=6)
    first = Batch(0, 21, ((0, 11),))
    assert len(wrong(instance, plan(first, Batch(21, 34, ((1, 3),))))) == 1
    assert wrong(instance, plan(first, Batch(21, 34, ((1, 3),), drop=((0, 4),)))) == []


@pytest.mark.parametrize(("mode", "found"), [(CacheMode.NONE, 0), (CacheMode.PREFIX, 6), (CacheMode.ALL, 8)])
def test_a_refill_finds_what_was_cached(mode: CacheMode, found: int) -> None:
    """I = 8 with the path s. After the first token it is evicted, and refills 9: 6 of s, 8 of its own blocks too."""
    instance = replace(
        cached(Request(8, 2, prefix=("s",)), Request(1, 1)), cache=CacheRules(mode), machine_groups=(MachineGroup(),)
    )
    end = 29 + 10 + 9 - found
    schedule = plan(
        Batch(0, 18, ((0, 8),)),
        Batch(18, 29, ((1, 1),), evict=(0,)),
        Batch(29, end, ((0, 9 - found),), hits=((0, found),)),
        routes=(0, 0),
    )
    result = metrics(instance, schedule)
    assert (result["hit_tokens"], result["evictions"], result["computed_tokens"]) == (found, 1, 18 - found)


def test_a_path_that_covers_the_output_is_published_token_by_token() -> None:
    """A turn of 4 + 3 tokens on s (6), then one of 9 that goes on: 6 computed tokens are 3 blocks of s."""
    requests = Request(4, 3, prefix=("s",)), Request(9, 1, prefix=("s",))
    instance = cached(*requests)
    # The first turn computes 4 + 2 tokens: 14, 11 and 11 ps. Of 9 the second finds 6.
    schedule = plan(
        Batch(0, 14, ((0, 4),)), Batch(14, 36, ((0, 1),), repeat=2), Batch(36, 49, ((1, 3),), hits=((1, 6),))
    )
    assert metrics(instance, schedule)["hit_tokens"] == 6
    # One decode before, only 2 blocks are complete.
    early = plan(Batch(0, 14, ((0, 4),)), Batch(14, 25, ((0, 1),)), Batch(25, 41, ((1, 5), (0, 1)), hits=((1, 4),)))
    assert metrics(instance, early)["hit_tokens"] == 4


# Moves ---------------------------------------------------------------------------------------------------------

APART = (Role.PREFILL, Role.DECODE)


def test_exclusive_links_carry_one_move_at_a_time() -> None:
    """Two prompts of 3 and 4, filled in 17 ps; copies of 8 and 9 ps, one after the other: 25, 34."""
    requests = Request(3, 2), Request(4, 2)
    instance = pair(*requests, roles=APART, migration=False, link=replace(LINK, exclusive=True))
    fill = Batch(0, 17, ((0, 3), (1, 4)))
    moves = Move(0, 0, 1, 17, 25), Move(1, 0, 1, 25, 34)
    ends = Batch(25, 36, ((0, 1),), replica=1), Batch(36, 47, ((1, 1),), replica=1)
    found = metrics(instance, plan(fill, *ends, routes=(0, 0), moves=moves))
    assert (found["moves"], found["moved_tokens"], found["load_ps"]) == (2, 7, [17, 22])
    assert found["objectives"]["max_load"] == 22
    assert found["imbalance"] == 44 / 39
    together = moves[0], Move(1, 0, 1, 17, 26)
    assert wrong(instance, plan(fill, *ends, routes=(0, 0), moves=together)) == [
        "move 1: starts at 17 ps, but move 0 is under way from machine 0 to machine 1, and a link carries 1 move at a "
        "time"
    ]
    assert wrong(replace(instance, links=LINK), plan(fill, *ends, routes=(0, 0), moves=together)) == []
    # It does not run before its move has ended, and is not where it was.
    early = Batch(24, 35, ((0, 1),), replica=1)
    assert wrong(instance, plan(fill, early, ends[1], routes=(0, 0), moves=moves)) != []


def test_roles() -> None:
    instance = pair(Request(3, 2), roles=APART, migration=False)
    stays = plan(Batch(0, 13, ((0, 3),)), Batch(13, 24, ((0, 1),)), routes=(0,))
    assert wrong(instance, stays) == [
        "batch 1 of machine 0: request 0 runs after its first token, but the machine has role prefill"
    ]
    assert wrong(instance, plan(*(replace(batch, replica=1) for batch in stays.batches), routes=(1,))) == [
        "request 0 is routed to machine 1, which has role decode"
    ]
    early = plan(
        Batch(0, 12, ((0, 2),)), Batch(19, 30, ((0, 1),), replica=1), Batch(30, 41, ((0, 1),), replica=1),
        routes=(0,), moves=[Move(0, 0, 1, 12, 19)],
    )  # fmt: skip
    assert len(wrong(instance, early)) == 1
    assert wrong(pair(Request(3, 2), roles=APART), early) == []  # with the rule migration


LIVE = replace(LINK, live=True)


def test_a_live_move_runs_on_until_its_last_stage() -> None:
    """I = 4 and 5 outputs: filled at 14 with 4 tokens, then decodes of 11 ps end at 25, 36.

    Stage 1 copies 4 tokens in 9 ps, 14 to 23. Stage 2 starts at 23, when the decode of 14 to 25 has not ended: nothing
    is new, and 5 ps end at 28. Stage 3 is the last: it copies what the decode that has ended at 25 brought, 1 token, in
    6 ps, from 28 to 34, if none runs then. On machine 1 it decodes from 34 on: 45, 56, 67.
    """
    instance = pair(Request(4, 5), link=LIVE)
    fill, one = Batch(0, 14, ((0, 4),)), Batch(14, 25, ((0, 1),))
    move = Move(0, 0, 1, 14, 34, stages_ps=(23, 28, 34))
    rest = Batch(34, 67, ((0, 1),), replica=1, repeat=3)
    found = metrics(instance, plan(fill, one, rest, routes=(0,), moves=[move]))
    assert (found["moves"], found["moved_tokens"]) == (1, 5)
    running = Batch(25, 36, ((0, 1),))
    assert any(
        "starts to copy the last part of request 0 at 28 ps, before the batch" in text
        for text in wrong(instance, plan(fill, one, running, rest, routes=(0,), moves=[move]))
    )
    two = replace(instance, links=replace(LIVE, stages=2))
    assert wrong(two, plan(fill, one, rest, routes=(0,), moves=[move])) == [
        "move 0: has 3 stages, at most 2 are allowed"
    ]
    # The repeats of 14 to 69 are cut where stages begin: in stage 1 it ends at the source, and the move is aborted.
    ending = replace(instance, requests=(Request(4, 2),))
    aborted = Move(0, 0, 1, 14, 25, stages_ps=(23,), aborted=True)
    found = metrics(ending, plan(fill, one, routes=(0,), moves=[aborted]))
    assert (found["moves"], found["moved_tokens"]) == (0, 0)
    assert len(wrong(ending, plan(fill, one, routes=(0,), moves=[replace(aborted, end_ps=24)]))) == 1


def test_a_move_may_start_within_repeats_of_others() -> None:
    """Request 1 decodes on machine 1 in batches of 11 ps, from 11 to 66; request 0 comes at 13 + 8 = 21.

    It fits machine 1 of 5 blocks if request 1 has at most 3 then: in the batch from 11 to 22 it has 2 tokens, 1 block.
    """
    requests = Request(3, 1 + 1), Request(1, 6)
    fills = Batch(0, 13, ((0, 3),)), Batch(0, 11, ((1, 1),), replica=1)
    move = Move(0, 0, 1, 13, 21)
    schedule = plan(
        *fills, Batch(11, 66, ((1, 1),), replica=1, repeat=5), Batch(66, 77, ((0, 1),), replica=1),
        routes=(0, 1), moves=[move],
    )  # fmt: skip
    # Request 1 reaches 6 tokens, 3 blocks, with the 2 of request 0: 5.
    assert wrong(pair(*requests, tokens=(4, 10)), schedule) == []
    assert len(wrong(pair(*requests, tokens=(4, 8)), schedule)) == 1


def test_what_is_copied_counts_at_the_target_in_the_batch_under_way() -> None:
    """Machine 1 has 3 blocks. Its batch from 0 to 104 holds 2 of them when 2 are copied, at 13."""
    slow = CostModel(100, 1)
    instance = pair(Request(3, 2), Request(4, 1), tokens=(4, 6))
    groups = instance.machine_groups[0], replace(instance.machine_groups[1], cost=slow)
    instance = replace(instance, machine_groups=groups)
    schedule = plan(
        Batch(0, 13, ((0, 3),)), Batch(0, 104, ((1, 4),), replica=1), Batch(104, 205, ((0, 1),), replica=1),
        routes=(0, 1), moves=[Move(0, 0, 1, 13, 21)],
    )  # fmt: skip
    (violation,) = wrong(instance, schedule)
    assert violation.startswith("move 0, during a batch: 8 KV tokens are occupied on machine 1")
    late = replace(schedule, batches=(*schedule.batches[:2], Batch(112, 213, ((0, 1),), replica=1)))
    assert wrong(instance, replace(late, moves=(Move(0, 0, 1, 104, 112),))) == []


def test_a_move_copies_what_the_target_has_not() -> None:
    """Both have the path s; machine 1 has its 6 tokens from request 1, so 2 of 8 are copied in 7 ps, none in a drop."""
    requests = Request(8, 2, prefix=("s",)), Request(7, 1, prefix=("s",))
    instance = pair(*requests, mode=CacheMode.PREFIX)
    fills = Batch(0, 18, ((0, 8),)), Batch(0, 17, ((1, 7),), replica=1)
    schedule = plan(*fills, Batch(25, 36, ((0, 1),), replica=1), routes=(0, 1), moves=[Move(0, 0, 1, 18, 25)])
    assert metrics(instance, schedule)["moved_tokens"] == 2
    # If it drops the last block of s there first, 4 are copied in 9 ps.
    dropped = plan(
        *fills, Batch(27, 38, ((0, 1),), replica=1), routes=(0, 1), moves=[Move(0, 0, 1, 18, 27, drop=((1, 2),))]
    )
    assert metrics(instance, dropped)["moved_tokens"] == 4


def test_a_move_that_takes_no_time_ends_at_once() -> None:
    """There and back again at 13, over links that carry one move at a time."""
    instance = pair(Request(3, 2), link=Link(exclusive=True))
    moves = Move(0, 0, 1, 13, 13), Move(0, 1, 0, 13, 13), Move(0, 0, 1, 13, 13)
    schedule = plan(Batch(0, 13, ((0, 3),)), Batch(13, 24, ((0, 1),), replica=1), routes=(0,), moves=moves)
    assert metrics(instance, schedule)["moves"] == 3
    assert metrics(instance, schedule)["moved_tokens"] == 9


# Order, restrictions, documents --------------------------------------------------------------------------------


def test_first_come_first_served_holds_on_each_machine() -> None:
    instance = pair(Request(1, 1), Request(1, 1), Request(1, 1))
    fcfs = Restrictions(forbid=("reordering",))
    schedule = plan(
        Batch(0, 11, ((2, 1),)), Batch(0, 11, ((1, 1),), replica=1), Batch(11, 22, ((0, 1),)), routes=(0, 1, 0)
    )
    assert wrong(instance, schedule) == []
    assert wrong(instance, schedule, fcfs) == [
        "machine 0: request 2 has its first run in batch 0 of the machine, before that of request 0 in batch 1, but "
        "request 0 is before it in the order"
    ]
    # On different machines any order is one.
    apart = plan(
        Batch(0, 11, ((0, 1),)), Batch(0, 11, ((1, 1),), replica=1), Batch(11, 22, ((2, 1),)), routes=(0, 1, 0)
    )
    assert wrong(instance, apart, fcfs) == []


def test_restrictions_hold_on_every_machine() -> None:
    """Each machine starts a prompt of 2, evicts it for a prompt of 1, and fills it again: 11, 11 and 12 ps."""
    requests = Request(2, 1), Request(2, 1), Request(1, 1), Request(1, 1)
    evicting = plan(
        Batch(0, 11, ((0, 1),)), Batch(0, 11, ((1, 1),), replica=1),
        Batch(11, 22, ((2, 1),), evict=(0,)), Batch(11, 22, ((3, 1),), evict=(1,), replica=1),
        Batch(22, 34, ((0, 2),)), Batch(22, 34, ((1, 2),), replica=1), routes=(0, 1, 0, 1),
    )  # fmt: skip
    instance = pair(*requests)
    assert metrics(instance, evicting)["evictions"] == 2
    assert wrong(instance, evicting, Restrictions(max_evictions=2)) == []
    assert len(wrong(instance, evicting, Restrictions(max_evictions=1))) == 1
    assert len(wrong(instance, evicting, Restrictions(forbid=("eviction",)))) == 2
    # The first batches are parts of prompts of 2.
    assert len(wrong(instance, evicting, Restrictions(forbid=("chunked",)))) == 2
    both = plan(Batch(0, 15, ((0, 2), (1, 2), (2, 1))), Batch(15, 26, ((3, 1),)), routes=(0, 0, 0, 0))
    assert wrong(instance, both) == wrong(instance, both, Restrictions(max_batch=3)) == []
    assert len(wrong(instance, both, Restrictions(max_batch=2))) == 1


@pytest.mark.parametrize(
    ("schedule", "violation"),
    [
        (plan(Batch(0, 11, ((0, 1),))), "routes has 0 machines, one for each of the 1 requests"),
        (plan(Batch(0, 11, ((0, 1),)), routes=(5,)), "request 0 is routed to machine 5, but machines"),
        (plan(Batch(0, 11, ((0, 1),), replica=9), routes=(0,)), "batch 0: runs on machine 9, but machines are"),
        (plan(Batch(0, 11, ((0, 1),), replica=1), routes=(0,)), "request 0 runs, but it is on machine 0"),
        (plan(Batch(0, 11, ((9, 1),)), routes=(0,)), "request 9 runs, but requests are numbered from 0 to 0"),
        (plan(routes=(0,)), "request 0 is unfinished at the end of the schedule"),
        (plan(Batch(0, 12, ((0, 1),)), routes=(0,)), "ends at 12 ps, but it starts at 0 ps and takes 11 ps"),
        (plan(Batch(0, 11, ((0, 1),), hits=((0, 2),)), routes=(0,)), "is stated to find 2 tokens in the cache, it"),
        (plan(Batch(0, 11, ((0, 1),)), routes=(0,), moves=[Move(0, 0, 7, 11, 12)]), "move 0: goes to machine 7, but"),
        (plan(Batch(0, 11, ((0, 1),)), routes=(0,), moves=[Move(0, 0, 0, 11, 12)]), "goes from machine 0 to"),
        (plan(Batch(0, 11, ((0, 1),)), routes=(0,), moves=[Move(0, 0, 1, 11, 12)]), "moves with 0 cached tokens"),
        (plan(Batch(0, 11, ((0, 1),)), routes=(0,), moves=[Move(3, 0, 1, 11, 12)]), "request 3 moves, but requests"),
        (
            plan(Batch(0, 11, ((0, 1),), repeat=10**9), routes=(0,)),
            "is repeated 1000000000 times, but it runs 1 tokens of request 0 in what is no decode step",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named_in_a_sentence(schedule: Schedule, violation: str) -> None:
    found = wrong(pair(Request(1, 1)), schedule)
    assert any(violation in text for text in found), found


def test_an_instance_of_one_machine_has_no_routes_moves_hits_or_drops() -> None:
    instance = Instance("plain", Limits(40, 99, 99), Rules(), COST, (Request(1, 1),))
    schedule = plan(Batch(0, 11, ((0, 1),), hits=((0, 1),), drop=((0, 0),)), routes=(0,), moves=[Move(0, 0, 1, 11, 12)])
    assert wrong(instance, schedule) == [
        "routes has 1 machines, but there is only one, to which nothing is routed",
        "moves has 1 moves, but there is only one machine",
        "batches[0].hits has 1 entries, but nothing is cached",
        "batches[0].drop has 1 entries, but nothing is cached",
    ]


def test_result_documents_of_clusters_are_checked() -> None:
    instance = pair(Request(3, 2), roles=APART, migration=False)
    schedule = plan(
        Batch(0, 13, ((0, 3),)), Batch(21, 32, ((0, 1),), replica=1), routes=(0,), moves=[Move(0, 0, 1, 13, 21)]
    )
    result = Result(
        instance, "hand", Objective.MAKESPAN, Status.FEASIBLE, value=32, schedule=schedule,
        metrics=metrics(instance, schedule),
    )  # fmt: skip
    document = result_document(result)

    def violations(changed: dict[str, Any]) -> tuple[str, ...]:
        (claimed,) = parse_results(dump(changed).encode(), lambda _: COST)
        return check_result(claimed).violations

    assert violations(document) == ()
    assert violations(document | {"value": 31}) == ("value is 31, but makespan of the schedule is 32",)
    moved = document["metrics"] | {"moved_tokens": 2}
    assert violations(document | {"metrics": moved}) == ("metrics.moved_tokens is 2, of the schedule it is 3",)
    bounded = replace(result, bound=1, badge=Badge.CERTIFIED, certificate={"kind": "alone"})
    complaint = "certificate: kind alone covers neither roles nor moves"
    assert check_result(bounded).violations == (complaint,)
    infeasible = Result(instance, "hand", Objective.MAKESPAN, Status.INFEASIBLE)
    assert check_result(infeasible).violations == (
        "status is infeasible, but each request can be served, so one after another is a schedule",
    )


# Infeasible instances ------------------------------------------------------------------------------------------

NONE = "request 0 fits no machine that it may be routed to:"


@pytest.mark.parametrize(
    ("instance", "reason"),
    [
        # I + O - 1 = 6 tokens, 3 blocks of 2.
        (pair(Request(4, 3), tokens=(4, 6)), ""),
        (pair(Request(4, 3), tokens=(6, 2), roles=(Role.BOTH, Role.DECODE)), ""),
        (pair(Request(4, 3), tokens=(4, 6), roles=APART), ""),
        (pair(Request(4, 1), tokens=(4, 2), roles=APART), ""),
        (
            pair(Request(4, 3), tokens=(4, 4)),
            f"{NONE} on machine 0 it needs 6 KV tokens (input 4 + output 3 - 1, in blocks of 2), the cache holds 4 "
            "(kv_tokens = 4)",
        ),
        (
            pair(Request(4, 3), tokens=(4, 4), roles=APART),
            f"{NONE} on machine 0 it finds no machine to move to with room for its 6 KV tokens",
        ),
        (
            pair(Request(4, 3), tokens=(2, 6), roles=APART),
            f"{NONE} on machine 0 it needs 4 KV tokens (input 4, in blocks of 2), the cache holds 2 (kv_tokens = 2)",
        ),
    ],
)  # fmt: skip
def test_a_request_that_fits_no_machine_is_named(instance: Instance, reason: str) -> None:
    assert instance.infeasibilities() == ((reason,) if reason else ())
    claimed = Result(instance, "hand", Objective.MAKESPAN, Status.INFEASIBLE)
    assert check_result(claimed).ok is bool(reason)
