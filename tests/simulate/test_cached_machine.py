"""One machine with a block cache: by hand, and every policy and evictor against the rules told once more."""

from __future__ import annotations

from random import Random

import pytest
from cache_rules import followed, random_cached
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import TEN, instances, outcome, problem, ready

from optsched import Assignment, InputError, Instance, NoBatchError, Request, policy_names, replace, simulate
from optsched.cache.blocks import EVICTOR_NAMES, CacheSetting
from optsched.cache.contents import BlockNames
from optsched.cache.sequences import BlockSequences
from optsched.check import check_schedule
from optsched.model.cluster import CacheMode, CacheRules
from optsched.model.instance import Limits, Rules
from optsched.model.prefixes import PrefixNode, PrefixTree
from optsched.model.schedule import Batch, Schedule
from optsched.policies.vllm import VLLM_V1
from optsched.simulator.caching import BatchCache
from optsched.simulator.engine import PolicyRun, arrival_order, run_policy
from optsched.simulator.replica import PolicyFailureError, Replica

AWARE = ("vllm_v1", "lpm", "preble_local", "preble_local_code", "mooncake")
"""Policies that form their batches on the cache."""
REORDERING = {"lpm", "preble_local", "preble_local_code", "mooncake"}
"""Those of them that consider all that wait on a machine with a cache."""
UNAWARE = sorted(set(policy_names()) - {*AWARE, "planner"})


def cached(
    *requests: Request,
    blocks: int,
    block: int = 4,
    mode: CacheMode = CacheMode.PREFIX,
    share: bool = False,
    nodes: dict[str, int] | None = None,
    budget: int = 1000,
) -> Instance:
    """Return an instance of batches of 10 ps, whose nodes are roots."""
    tree = PrefixTree(tuple(PrefixNode(name, tokens) for name, tokens in (nodes or {}).items()))
    limits = Limits(blocks * block, budget, budget, None, block)
    return Instance("cached", limits, Rules(), TEN, requests, prefixes=tree, cache=CacheRules(mode, share))


def batches(instance: Instance, policy: str = "vllm_v1", evictor: str = "lru") -> tuple[Batch, ...]:
    schedule = run_policy(instance, ready(policy, instance), jumps=False, setting=CacheSetting(evictor))
    followed(instance, schedule)
    return schedule.batches


# By hand -------------------------------------------------------------------------------------------------------------


def test_a_cached_prompt_runs_its_last_tokens_again() -> None:
    # The prompt is 2 blocks. The second request finds floor((8 − 1)/4) 4 = 4 of its tokens. The block that it completes
    # is cached: with a third block for the copy nothing is dropped; without, the cached one is, and is completed again.
    two = Request(8, 1, prefix=("s",)), Request(8, 1, 20, prefix=("s",))
    for blocks, drop in ((3, ()), (2, ((0, 1),))):
        found = batches(cached(*two, blocks=blocks, nodes={"s": 8}))
        assert found == (
            Batch(0, 10, ((0, 8),)),
            Batch(20, 30, ((1, 4),), hits=((1, 4),), drop=drop),
        )


@pytest.mark.parametrize(("blocks", "together"), [(6, True), (5, False)])
def test_copies_count_twice_and_a_policy_waits_where_there_is_no_room(blocks: int, together: bool) -> None:
    # Two prompts of 9 tokens, 8 of them shared: 2 blocks and a part of one. In one batch the second completes the same
    # 2 blocks again: 3 + 3 = 6 blocks. With 5 it has to wait, and finds the 2 blocks.
    found = batches(cached(*[Request(9, 1, prefix=("s",))] * 2, blocks=blocks, nodes={"s": 8}))
    if together:
        assert found == (Batch(0, 10, ((0, 9), (1, 9))),)
    else:
        assert found == (Batch(0, 10, ((0, 9),)), Batch(10, 20, ((1, 1),), hits=((1, 8),)))


def test_with_share_in_batch_the_second_finds_what_the_first_completes() -> None:
    # 2 shared blocks and a part of one for each: 4 blocks suffice.
    found = batches(cached(*[Request(9, 1, prefix=("s",))] * 2, blocks=4, nodes={"s": 8}, share=True))
    assert found == (Batch(0, 10, ((0, 9), (1, 1)), hits=((1, 8),)),)


@pytest.mark.parametrize(
    ("evictor", "goes", "hits"),
    [
        ("lru", 0, ()),
        ("fifo", 0, ()),
        ("vllm", 0, ()),
        ("mru", 1, ((3, 4),)),
        ("filo", 1, ((3, 4),)),
        ("belady", 1, ((3, 4),)),
    ],
)
def test_evictors_drop_in_their_order(evictor: str, goes: int, hits: tuple[tuple[int, int], ...]) -> None:
    # Three blocks. Requests 0 and 1 leave a block each; the 5 tokens of request 2 take two: one block has to go. Then
    # request 3 wants that of request 0, as `belady` knows.
    requests = [Request(5, 1, 20 * at, prefix=(name,)) for at, name in enumerate("abca")]
    instance = cached(*requests, blocks=3, nodes=dict.fromkeys("abc", 4))
    found = batches(instance, evictor=evictor)
    assert [batch.drop for batch in found[:3]] == [(), (), ((goes, 0),)]
    assert found[3].hits == hits


def test_an_evicted_request_finds_its_own_blocks_again() -> None:
    # Blocks of 2, four of them. Both prompts take two, and so do 4 tokens, which are cached then. The fifth of request
    # 0 needs another: request 1 is evicted, and its last block dropped. While request 0 holds 3 blocks, the 5 tokens of
    # request 1, of which it would find 2, need its cached block and two more, and one is there. Then they take the last
    # two blocks of request 0.
    requests = Request(3, 4), Request(3, 3)
    found = batches(cached(*requests, blocks=4, block=2, mode=CacheMode.ALL))
    assert found == (
        Batch(0, 10, ((0, 3), (1, 3))),
        Batch(10, 20, ((0, 1), (1, 1))),
        Batch(20, 30, ((0, 1),), (1,), drop=((1, 1),)),
        Batch(30, 40, ((0, 1),)),
        Batch(40, 50, ((1, 3),), hits=((1, 2),), drop=((0, 2), (0, 1))),
    )


def test_blocks_of_an_answer_are_found_by_the_next_turn() -> None:
    # The first turn has 3 tokens of prompt and 3 of output, on the path: node t, 6 tokens; its last token has no KV.
    # Blocks of 2: 2 blocks are complete, 4 tokens. The next turn finds them with mode `all` and `prefix` alike.
    requests = Request(3, 3, prefix=("t",)), Request(7, 1, 100, prefix=("t",))
    for mode in (CacheMode.ALL, CacheMode.PREFIX):
        assert batches(cached(*requests, blocks=8, block=2, mode=mode, nodes={"t": 6}))[-1].hits == ((1, 4),)


def test_decode_steps_are_repeated_until_a_block_has_to_be_dropped() -> None:
    # Blocks of 2, five of them. Request 0 leaves 2 blocks. Request 1 needs blocks at 1, 3, 5 and 7 tokens: it fills one
    # token, decodes until it has 6, and then two more tokens with the last block of request 0 dropped before the first.
    instance = cached(Request(4, 1), Request(1, 8, 50), blocks=5, block=2, mode=CacheMode.ALL)
    schedule = run_policy(instance, VLLM_V1)
    followed(instance, schedule)
    assert schedule.batches == (
        Batch(0, 10, ((0, 4),)),
        Batch(50, 60, ((1, 1),)),
        Batch(60, 110, ((1, 1),), repeat=5),
        Batch(110, 120, ((1, 1),), drop=((0, 1),)),
        Batch(120, 130, ((1, 1),)),
    )


def first_runs(instance: Instance, policy: str) -> list[int]:
    order = [index for batch in batches(instance, policy) for index, _ in batch.run]
    return list(dict.fromkeys(order))


def test_orders_by_what_is_cached() -> None:
    # Request 0 leaves the 16 tokens of node a. Then 5 wait, of which a batch has room for one prompt of 17 tokens.
    # Their cached shares are 0, 16/17, 16/40, 0 and 16/20; these are Preble's groups 0, ceil(9.4) − 1 = 9, 3, 0 and 7.
    prefixes = ((), ("a",), ("a",), (), ("a",))
    later = (Request(size, 1, 5, prefix=prefix) for size, prefix in zip((17, 17, 40, 17, 20), prefixes, strict=True))
    instance = cached(Request(17, 1, prefix=("a",)), *later, blocks=60, nodes={"a": 16}, budget=17)
    assert first_runs(instance, "vllm_v1") == [0, 1, 2, 3, 4, 5]
    # The longest match first, ties by arrival.
    assert first_runs(instance, "lpm") == [0, 2, 3, 5, 1, 4]
    # Group 9, then 7, then 3, then 0.
    assert first_runs(instance, "preble_local") == [0, 2, 5, 3, 1, 4]


def test_sglang_lets_wait_what_shares_with_one_that_computes_it() -> None:
    # Nothing is cached, and a batch has room for two prompts. Requests 0 and 1 share 40 tokens, 32 or more: request 1
    # goes last, and finds them in the next batch.
    requests = Request(41, 1, prefix=("a",)), Request(41, 1, prefix=("a",)), Request(41, 1)
    instance = cached(*requests, blocks=60, nodes={"a": 40}, budget=82)
    found = batches(instance, "lpm")
    assert [batch.run for batch in found] == [((0, 41), (2, 41)), ((1, 1),)]
    assert found[1].hits == ((1, 40),)


def test_prebles_program_takes_one_group_each_batch() -> None:
    # Of requests 1 and 2 nothing is cached, of 3 all but one block: 16/20, group 7. Groups go from 9 down to 0, and
    # request 0 was in group 0, so the next turn is that of 9: group 7 is the first that is not empty, then 0.
    later = Request(20, 1, 5), Request(20, 1, 5), Request(20, 1, 5, prefix=("a",))
    instance = cached(Request(17, 1, prefix=("a",)), *later, blocks=60, nodes={"a": 16})
    assert [batch.run for batch in batches(instance, "preble_local_code")] == [
        ((0, 17),),
        ((3, 4),),
        ((1, 20), (2, 20)),
    ]


def test_mooncake_lets_wait_what_misses_its_objective() -> None:
    # Batches of 10 ps, one prompt each. At 0 all could meet their objectives; at 10 request 1 would end at 20 > 15, and
    # requests 2 and 3 go first. On a machine without a cache as well.
    requests = (Request(4, 1, slo_ttft_ps=slo) for slo in (None, 15, 30, None))
    instance = cached(*requests, blocks=8, budget=4)
    for each in (instance, replace(instance, cache=CacheRules())):
        schedule = run_policy(each, ready("mooncake", each))
        assert [batch.run for batch in schedule.batches] == [((0, 4),), ((2, 4),), ((3, 4),), ((1, 4),)]


# The cache as policies use it ----------------------------------------------------------------------------------------


class _Says:
    """Answers something else than it has formed."""

    def __init__(self, answer: Assignment | None, *, evicts: bool = False) -> None:
        self.answer, self.evicts = answer, evicts

    def next_batch(self, replica: Replica) -> Assignment:
        cache = replica.cache
        assert cache is not None
        if not replica.running:
            job = replica.waiting[0]
            assert cache.run(job, 2)
            return Assignment([(job.index, 2)], [])
        if self.evicts:
            cache.evict(replica.running[0])
        else:
            assert cache.run(replica.running[0], 1)
        if self.answer is None:
            raise NoBatchError(0, replica.now_ps, "nothing")
        return self.answer


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (_Says(Assignment([(0, 2)], [])), "answers another batch than it has formed in the cache"),
        (_Says(None, evicts=True), "a batch was begun: nothing"),
    ],
)
def test_a_policy_has_to_answer_what_it_has_formed(policy: _Says, reason: str) -> None:
    with pytest.raises(PolicyFailureError) as failure:
        run_policy(cached(Request(4, 2), blocks=4), policy)
    assert reason in failure.value.reason


class _Breaks:
    """Asks the cache for what cannot be."""

    def __init__(self, what: str) -> None:
        self.what = what

    def next_batch(self, replica: Replica) -> Assignment:
        cache, job = replica.cache, (replica.running or replica.waiting)[0]
        assert cache is not None
        match self.what:
            case "evict":
                cache.evict(job)
            case "too many":
                cache.run(job, 9)
            case "twice":
                cache.run(job, 1)
                cache.run(job, 1)
        raise AssertionError(self.what)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("evict", "request 0 is to be evicted, and holds no KV"),
        ("too many", "9 tokens of request 0 are to run, and it has 4 to run"),
        ("twice", "1 tokens of request 0 are to run, and it runs in this batch"),
    ],
)
def test_what_cannot_be_is_named(what: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        run_policy(cached(Request(4, 2), blocks=4), _Breaks(what))


class _Answers:
    """Knows of no cache."""

    def __init__(self, *answers: Assignment) -> None:
        self.answers = list(answers)

    def next_batch(self, _: Replica) -> Assignment:
        return self.answers.pop(0)


def test_runs_of_policies_that_know_of_no_cache_are_cut_to_what_is_not_found() -> None:
    requests = Request(9, 1, prefix=("s",)), Request(9, 1, prefix=("s",))
    policy = _Answers(Assignment([(0, 9)], []), Assignment([(1, 9)], []))
    schedule = run_policy(cached(*requests, blocks=4, nodes={"s": 8}), policy)
    assert schedule.batches[1] == Batch(10, 20, ((1, 1),), hits=((1, 8),))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Assignment([(1, 4)], []), "memory does not suffice for its run, whatever is dropped"),
        (Assignment([(0, 2)], []), "2 tokens of request 0 are to run, and it has 1 to run"),
        (Assignment([(1, 5)], []), "5 tokens of request 1 are to run, and it has 4 to run"),
        (Assignment([(7, 1)], []), "the policy runs 1 tokens of request 7, which has 0 to run"),
        (Assignment([(1, 1)], [], swap_out=[0]), "the policy swaps request 0, where prefixes are cached"),
        (Assignment([(1, 1)], [1]), "the policy evicts request 1, which holds no KV"),
        (Assignment([(0, 1)], [0]), "1 tokens of request 0 are to run, and it is evicted for this batch"),
    ],
)
def test_answers_that_cannot_be_are_named(answer: Assignment, reason: str) -> None:
    instance = cached(Request(4, 2), Request(4, 2), blocks=2, block=3, nodes={})
    with pytest.raises(PolicyFailureError) as failure:
        run_policy(instance, _Answers(Assignment([(0, 4)], []), answer))
    assert failure.value.reason == reason


def test_an_unknown_evictor_is_one_line() -> None:
    with pytest.raises(InputError, match="evictor: got 'lruu'"):
        CacheSetting("lruu")
    with pytest.raises(InputError, match="whole_nodes"):
        CacheSetting("vllm", whole_nodes=True)


def test_the_planner_says_that_it_plans_for_no_cache() -> None:
    instance = cached(Request(4, 2), blocks=4)
    with pytest.raises(PolicyFailureError) as failure:
        ready("planner", instance)
    assert failure.value.reason == "it does not plan what a machine's cache holds"
    several = simulate(replace(instance, replicas=2), "planner")
    assert several.message == "planner: request 0 at 0 ps: it does not plan what a machine's cache holds"


# At random -----------------------------------------------------------------------------------------------------------


def spelled(instance: Instance, schedule: Schedule) -> list[tuple[object, ...]]:
    """Return batches one by one, without their times; the checker and the rules told once more have seen these."""
    violations, found = check_schedule(instance, schedule)
    assert violations == []
    assert found is not None
    assert found["hit_tokens"] == followed(instance, schedule).found_tokens
    return [
        (batch.run, batch.evict, batch.hits, batch.drop, batch.considered)
        for batch in schedule.batches
        for _ in range(batch.repeat)
    ]


def played(instance: Instance, policy: str, setting: CacheSetting, *, jumps: bool) -> object:
    try:
        return spelled(instance, run_policy(instance, ready(policy, instance), jumps=jumps, setting=setting))
    except PolicyFailureError as failure:
        return failure.index, failure.now_ps, failure.reason


def random_setting(rng: Random, evictor: str) -> CacheSetting:
    return CacheSetting(evictor, whole_nodes=evictor != "vllm" and rng.random() < 0.3)


@pytest.mark.parametrize("evictor", EVICTOR_NAMES)
@pytest.mark.parametrize("policy", AWARE)
@given(rng=st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=8)
def test_batches_are_legal_and_jumps_change_nothing(rng: Random, policy: str, evictor: str) -> None:
    instance, setting = random_cached(rng), random_setting(rng, evictor)
    plain = played(instance, policy, setting, jumps=False)
    assert played(instance, policy, setting, jumps=True) == plain
    assert played(instance, policy, setting, jumps=False) == plain


@pytest.mark.parametrize("policy", UNAWARE)
@given(rng=st.randoms(use_true_random=False), evictor=st.sampled_from(EVICTOR_NAMES))
@settings(deadline=None, max_examples=8)
def test_policies_that_know_of_no_cache_run_on_it(rng: Random, policy: str, evictor: str) -> None:
    instance, setting = random_cached(rng), random_setting(rng, evictor)
    plain = played(instance, policy, setting, jumps=False)
    assert played(instance, policy, setting, jumps=True) == plain


@given(rng=st.randoms(use_true_random=False), policy=st.sampled_from((*AWARE, "vllm", "sarathi_ef")))
@settings(deadline=None, max_examples=40)
def test_pauses_change_nothing(rng: Random, policy: str) -> None:
    instance, setting = random_cached(rng), random_setting(rng, rng.choice(EVICTOR_NAMES))
    plain = played(instance, policy, setting, jumps=False)
    if isinstance(plain, tuple):
        return
    run = PolicyRun(instance, ready(policy, instance), cache=BatchCache(instance, setting))
    for index in arrival_order(instance):
        arrival = instance.requests[index].arrival_ps
        for until in sorted(rng.randrange(arrival + 1) for _ in range(rng.randrange(3))):
            run.advance(until)
        run.advance(arrival)
        run.submit(index)
    for _ in range(rng.randrange(20)):
        if rng.random() < 0.5:
            run.upcoming()
        run.advance(run.now_ps + rng.randrange(1, 2000))
    run.advance()
    assert spelled(instance, run.schedule()) == plain


@given(instance=instances(), policy=st.sampled_from(("vllm_v1", *sorted({*AWARE, *UNAWARE} - REORDERING))))
@settings(deadline=None, max_examples=150)
def test_where_nothing_is_on_a_path_the_schedule_is_that_without_a_cache(instance: Instance, policy: str) -> None:
    # What a policy considers has a price, so that it is compared, too.
    rules, cost = replace(instance.rules, swap=False), replace(instance.cost, cpu_request=2)
    instance = replace(instance, rules=rules, cost=cost)
    empty = replace(instance, cache=CacheRules(CacheMode.PREFIX))
    plain = outcome(instance, policy, jumps=True)
    found = outcome(empty, policy, jumps=True)
    if isinstance(plain, Schedule) or isinstance(found, Schedule):
        assert found == plain
    else:
        assert found[:2] == plain[:2]


@given(st.integers(1, 5), st.integers(1, 30), st.integers(1, 4))
@settings(deadline=None, max_examples=30)
def test_equal_prompts_one_after_another_find_all_but_the_first(block: int, prompt: int, others: int) -> None:
    # Far apart, with memory for all: each but the first finds floor((I − 1)/b) b tokens.
    requests = [Request(prompt, 1, 1000 * at, prefix=("s",)) for at in range(others + 1)]
    instance = cached(*requests, blocks=100, block=block, nodes={"s": prompt})
    for policy in AWARE:
        found = followed(instance, run_policy(instance, ready(policy, instance))).found_tokens
        assert found == others * ((prompt - 1) // block * block)


@given(rng=st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=80)
def test_blocks_have_one_number_if_they_and_all_before_are_equal(rng: Random) -> None:
    """Against `BlockNames`, which compares contents."""
    instance = random_cached(rng)
    nodes, names = instance.prefixes.by_name(), BlockNames(instance.limits.kv_block)
    sequences = BlockSequences(instance)
    numbers: dict[int, int] = {}
    order = list(range(len(instance.requests)))
    rng.shuffle(order)
    for index in [*order, *order]:
        request = instance.requests[index]
        path = [(node, 0, nodes[node].tokens) for node in request.prefix]
        rest = request.input + request.output - sum(count for *_, count in path)
        expected, found = names.of([*path, (("own", index), 0, rest)]), list(sequences.of(index).names)
        assert len(found) == len(expected)
        for place, (number, name) in enumerate(zip(found, expected, strict=True)):
            assert isinstance(number, int)
            assert numbers.setdefault(number, name) == name
            ((owner, at),) = sequences.owners([number])
            assert (sequences.of(owner).names[at], at) == (number, place)
        sequences.forget(index)
    assert len(set(numbers.values())) == len(numbers)


def test_a_machine_without_a_cache_has_none() -> None:
    class Sees:
        def next_batch(self, replica: Replica) -> Assignment:
            assert replica.cache is None
            return Assignment([(0, 1)], [])

    assert len(run_policy(problem(Request(1, 1)), Sees()).batches) == 1
