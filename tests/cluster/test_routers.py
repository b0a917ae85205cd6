"""Routers beside hand arithmetic, and what they count beside counting it again."""

from collections.abc import Hashable, Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optsched.cache.prompt_tree import PromptTree
from optsched.model.cluster import ViewAge
from optsched.model.errors import InputError
from optsched.routers import ROUTERS, find_router
from optsched.routers.active import ActivePrompts
from optsched.routers.cache_aware import CacheAware
from optsched.routers.e2 import E2, E2Options
from optsched.routers.e2_code import E2Code, E2CodeOptions
from optsched.routers.hashing import BoundedConsistent, PrefixHash, beginning
from optsched.routers.llumnix import Llumnix, migration_pairs
from optsched.routers.oracle import OraclePartition
from optsched.routers.router import MachineSetting, Piece, RoutedRequest, RouterSetting
from optsched.routers.sal import Sal
from optsched.routers.scores import AibrixPrefix, Conductor, DynamoKv, Lmetric, ScoreMix, VllmDp
from optsched.routers.simple import BySession, Least, RoundRobin, TwoChoices, pending_tokens, requests_there
from optsched.routers.views import Snapshot, SnapshotHistory

PIECES = st.lists(st.tuples(st.integers(0, 2), st.just(0), st.integers(1, 4)), min_size=1, max_size=4).map(tuple)
MS = 10**9


def spelled(pieces: Sequence[Piece]) -> tuple[tuple[Hashable, int], ...]:
    return tuple((node, first + offset) for node, first, count in pieces for offset in range(count))


def common(left: Sequence[object], right: Sequence[object]) -> int:
    pairs = zip(left, right, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right)))


def request(index: int, *prompt: Piece, output: int = 1, session: Hashable = None, at_ms: int = 0) -> RoutedRequest:
    tokens = sum(count for _, _, count in prompt)
    return RoutedRequest(index, tokens, output, prompt, session, at_ms * MS)


def loads(*waiting: int) -> list[Snapshot]:
    return [Snapshot(machine, waiting=count) for machine, count in enumerate(waiting)]


def caching(*tokens: int, waiting: Sequence[int] = (0, 0, 0, 0)) -> list[Snapshot]:
    """Return views of machines that cache these numbers of tokens of any prompt."""
    return [
        Snapshot(machine, waiting=count, kv_capacity=100, cached=lambda _, hit=hit: hit)  # type: ignore[misc]
        for machine, (hit, count) in enumerate(zip(tokens, waiting, strict=False))
    ]


ONE = request(0, ("a", 0, 100))


@given(st.lists(PIECES, max_size=6), PIECES)
def test_prompt_tree_finds_the_longest_common_run(prompts: list[tuple[Piece, ...]], asked: tuple[Piece, ...]) -> None:
    tree: PromptTree[None] = PromptTree(lambda: None, lambda _: None)
    for prompt in prompts:
        node, _ = tree.insert(prompt)
        assert node.end == len(spelled(prompt))
    found = max((common(spelled(asked), spelled(prompt)) for prompt in prompts), default=0)
    assert tree.find(asked)[1] == found


@given(st.lists(st.tuples(st.booleans(), PIECES), max_size=12), st.integers(1, 3))
def test_active_prompts_count_each_full_block_once(changes: list[tuple[bool, tuple[Piece, ...]]], size: int) -> None:
    active = ActivePrompts(size)
    there: list[tuple[Piece, ...]] = []
    for adds, prompt in changes:
        if adds or not there:
            active.add(prompt, len(spelled(prompt)))
            there.append(prompt)
        else:
            gone = there.pop(0)
            active.remove(gone, len(spelled(gone)))
        blocks = {spelled(each)[:end] for each in there for end in range(size, len(spelled(each)) + 1, size)}
        assert active.blocks == len(blocks)


def test_round_robin_and_sessions() -> None:
    turns = RoundRobin(order=(2, 0, 1))
    assert [turns.route(ONE, loads(0, 0, 0)) for _ in range(4)] == [2, 0, 1, 2]
    sessions = BySession()
    named = [request(index, session=name) for index, name in enumerate(["x", "y", "x", "z", "y"])]
    assert [sessions.route(each, loads(0, 0, 0)) for each in named] == [0, 1, 0, 2, 1]


def test_two_choices_are_different_machines_and_the_lesser_wins() -> None:
    # Machine 0 has the most requests: of two different ones it is never the lesser; with replacement it may be both.
    apart = TwoChoices(requests_there, Random(1))
    assert {apart.route(ONE, loads(9, 1, 2)) for _ in range(60)} == {1, 2}
    same = TwoChoices(requests_there, Random(1), replacement=True)
    assert {same.route(ONE, loads(9, 1, 2)) for _ in range(60)} == {0, 1, 2}


def test_least_takes_the_first_of_equals_or_any_with_a_seed() -> None:
    views = [Snapshot(0, pending_tokens=8), Snapshot(1, pending_tokens=5), Snapshot(2, pending_tokens=5)]
    assert Least(pending_tokens).route(ONE, views) == 1
    drawing = Least(pending_tokens, Random(3))
    assert {drawing.route(ONE, views) for _ in range(40)} == {1, 2}


def test_sal_by_hand() -> None:
    # No request has ended, so β = (100 + 50)/50 = 3. C = 10.
    # 0: max(3 (100 − 120), (0 + 100)/10) = 10; 1: max(3 (100 − 97), 10) = 10; 2: max(3 (100 − 95), 10) = 15.
    # The first of the equal ones is taken.
    views = [Snapshot(machine, kv_capacity=free) for machine, free in enumerate((120, 97, 95))]
    sal = Sal(batch_tokens=10)
    assert sal.route(request(0, ("a", 0, 100), output=50), views) == 0
    # Not polled again before 100 ms: machine 0 now has 20 free and 100 queued, max(3 · 80, 20) = 240.
    assert sal.route(request(1, ("a", 0, 100), output=50, at_ms=99), views) == 1
    # Polled at 100 ms: as at first.
    assert sal.route(request(2, ("a", 0, 100), output=50, at_ms=100), views) == 0


def test_cache_aware_by_hand() -> None:
    router = CacheAware(threshold=0.5, most_apart=3, most_times=1.5)
    whole = request(0, ("a", 0, 10))
    assert router.route(whole, loads(1, 0, 0)) == 1
    # 6 of 10 tokens are shared with the first prompt: to its machine, though others have less.
    assert router.route(request(1, ("a", 0, 6), ("b", 0, 4)), loads(0, 2, 0)) == 1
    # 5 of 10 are not more than the threshold: the least loaded.
    assert router.route(request(2, ("a", 0, 5), ("c", 0, 5)), loads(1, 2, 0)) == 2
    # 4 − 0 > 3 and 4 > 1.5 · 0: the least loaded, whatever is shared.
    assert router.route(whole, loads(0, 4, 1)) == 0
    # The tree remembers the machine that got a node first.
    assert router.route(whole, loads(0, 3, 1)) == 1


def test_dynamo_costs_by_hand() -> None:
    # b = 10. Request 0 of 25 tokens goes to 0. Request 1 shares 20 of its 35: at 0 its prefill is (25 + 35)/10 = 6,
    # less 2 cached blocks = 4, and there are 2 + 1 different full blocks: 7. At 1: 3.5 + 3 = 6.5.
    router = DynamoKv(2, 10, Random(0))
    first, second = request(0, ("a", 0, 25)), request(1, ("a", 0, 20), ("b", 0, 15))
    router.sent(first, 0, 0)
    assert (router.cost(second, 0, 20), router.cost(second, 1, 0)) == (7, 6.5)
    # After the first token of request 0: 3.5 − 2 + 3 = 4.5 at 0, which is less.
    router.first_token(first, 0, 0, 0)
    assert router.cost(second, 0, 20) == 4.5
    views = [Snapshot(0, cached=lambda _: 20), Snapshot(1)]
    assert router.route(second, views) == 0
    # Both end: nothing is left but the prompt itself.
    for each in (first, second):
        router.finished(each, 0, 0, 0, None)
    router.first_token(second, 0, 0, 0)
    assert router.cost(second, 0, 0) == 6.5


def test_score_mix_weighs_queue_memory_and_match() -> None:
    # Weights 2, 2, 3. 0: queue 1, memory 1/2, match 0: 3. 1: queue 0, memory 1, match 0.4: 3.2. 2: 1/2, 1, 0: 3.
    views = [
        Snapshot(0, waiting=0, kv_used=50, kv_capacity=100),
        Snapshot(1, waiting=4, kv_capacity=100, cached=lambda _: 40),
        Snapshot(2, waiting=2, kv_capacity=100),
    ]
    assert ScoreMix().route(ONE, views) == 1
    assert ScoreMix((2, 1, 1)).route(ONE, views) == 0


def test_vllm_dp_counts_what_it_has_sent_and_goes_round() -> None:
    # Equal machines: the scan starts at 0, then at 1 and 2, and each choice counts as waiting.
    router = VllmDp()
    views = [Snapshot(machine, kv_capacity=100) for machine in range(3)]
    assert [router.route(ONE, views) for _ in range(3)] == [0, 1, 2]
    # 2 waiting at usage 0.9: 2 + 6 · 2 · 0.4 = 6.8 against 5 running.
    full = [Snapshot(0, waiting=2, kv_used=90, kv_capacity=100), Snapshot(1, running=5, kv_capacity=100)]
    assert VllmDp().route(ONE, full) == 1
    # The older rule: 4 · 2 = 8 against 5 running.
    assert VllmDp(weight=4).route(ONE, full) == 1
    assert VllmDp(weight=2).route(ONE, full) == 0


def test_lmetric_and_aibrix() -> None:
    # (100 − 60) · 4 = 160, 100 · 2 = 200.
    assert Lmetric().route(ONE, caching(60, 0, waiting=(3, 1))) == 0
    # Loads 5, 1, 0: mean 2, σ = √(14/3) = 2.16; 5 > 4.16 is out, so the next best match.
    assert AibrixPrefix().route(ONE, caching(90, 50, 10, waiting=(5, 1, 0))) == 1
    # 9 − 0 > 8: the least loaded.
    assert AibrixPrefix().route(ONE, caching(90, 50, 10, waiting=(9, 1, 0))) == 2


def test_conductor_may_copy_the_best_prefix() -> None:
    # Prefill takes 1 a token, 0 has 80 of work left. Alone: 0 takes 80 + 40, 1 takes 0 + 100.
    views = [Snapshot(0, work_ps=80, cached=lambda _: 60), Snapshot(1), Snapshot(2, work_ps=130)]
    assert Conductor(lambda new, _: new).route(ONE, views) == 1
    # With copies of 60 tokens at 1 each machine 1 takes 60 + 40 = 100, and at 2 a token 160: more than 120.
    assert Conductor(lambda new, _: new, lambda tokens: tokens).route(ONE, views) == 1
    assert Conductor(lambda new, _: new, lambda tokens: 2 * tokens).route(ONE, views) == 0


def test_hashes_look_at_the_beginning_and_bound_the_load() -> None:
    assert beginning((("a", 0, 200), ("b", 0, 100)), 256) == (("a", 0, 200), ("b", 0, 56))
    router = PrefixHash(4, 256, (5, 4))
    long, other = request(0, ("a", 0, 256), ("b", 0, 9)), request(1, ("a", 0, 256), ("c", 0, 70))
    home = router.route(long, loads(1, 1, 1, 1))
    assert router.route(other, loads(1, 1, 1, 1)) == home
    # With 9 of 11 requests the home is beyond 1.25 · 12/4 = 3.75: the least loaded of the others.
    full = [9 if machine == home else 1 for machine in range(4)]
    full[(home + 2) % 4] = 0
    assert router.route(long, loads(*full)) == (home + 2) % 4
    # Bounded: 1.5 · 13/4 = 4.9, so 9 is too many, and the others are taken clockwise, each as far as it has room.
    bounded = BoundedConsistent(4, 256, (3, 2))
    assert bounded.route(long, loads(0, 0, 0, 0)) == bounded.route(other, loads(0, 0, 0, 0))
    assert bounded.route(long, loads(*full)) != home


def test_llumnix_dispatches_and_pairs_by_remaining_steps() -> None:
    # Remaining steps: (100 − 90)/5 = 2; none; (100 − 40)/2 = 30; (100 − 98 − 2)/1 = 0.
    views = [
        Snapshot(0, running=5, kv_used=90, kv_capacity=100),
        Snapshot(1, kv_capacity=100),
        Snapshot(2, running=2, kv_used=40, kv_capacity=100),
        Snapshot(3, waiting=1, kv_used=98, kv_capacity=100, queued_tokens=2),
    ]
    assert Llumnix().route(ONE, views) == 1
    assert migration_pairs(views) == [(3, 1), (0, 2)]


def test_oracle_places_the_largest_key_portions_first() -> None:
    # Behind the root of 1 token: key a with 50 tokens and three requests of 4 more, key b with 30 and one, c with 25.
    # Work, of which a token's prefill or decode is 1: a 50 + 3 · 5, b 30 + 5, c 25 + 5: a on 0, b and c on 1.
    prompts = [("a", 50, 3), ("b", 30, 1), ("c", 25, 1)]
    requests, index = [], 0
    for name, tokens, count in prompts:
        for _ in range(count):
            requests.append(request(index, ("s", 0, 1), (name, 0, tokens), (("own", index), 0, 4)))
            index += 1
    router = OraclePartition(RouterSetting(2, prefill_ps=lambda new, _: new, decode_ps=1).of_all(), requests)
    assert [router.route(each, loads(0, 0)) for each in requests] == [0, 0, 0, 1, 1]


def e2(options: E2Options, machines: int = 2) -> E2:
    """Return an E2 whose prefill takes 1 a token and whose decode takes 1 a token before any has ended."""
    return E2(RouterSetting(machines, prefill_ps=lambda new, _: new, decode_ps=1), options)


BARE = E2Options(rebalancing=False, autoscaling=False, decode_share=None, eviction_cost=False)


def test_e2_exploits_what_it_saves_and_explores_the_rest() -> None:
    router = e2(BARE)
    assert router.route(request(0, ("a", 0, 100), (0, 0, 10)), loads(0, 0)) == 0
    # 100 cached of 110: exploited at 0, whose load is 111 (110 + one token) and more than that of 1.
    assert router.route(request(1, ("a", 0, 100), (1, 0, 10)), loads(0, 0)) == 0
    # 40 of 100 cached: explored. 0 costs 110 + 10 + 2 + 60, 1 costs 0 + 100.
    assert router.route(request(2, ("a", 0, 40), (2, 0, 60)), loads(0, 0)) == 1
    # As printed it would be exploited.
    printed = e2(E2Options(True, as_printed=True, rebalancing=False, decode_share=None))
    printed.route(request(0, ("a", 0, 100), (0, 0, 10)), loads(0, 0))
    assert printed.route(request(2, ("a", 0, 40), (2, 0, 60)), loads(0, 0)) == 0


@pytest.mark.parametrize(("counted", "last"), [(False, 1), (True, 0)])
def test_e2_counts_what_would_be_evicted(counted: bool, last: int) -> None:
    # H = 1: loads are of the last two requests, of which a decode is 1. a (50) goes to 0, b (60) to 1, which is empty.
    # d (62): 0 costs 51 + 62, with M 50 more; 1 costs 61 + 62, with M 60 more; so 0, and a has none of the window.
    # c (30): 0 costs 63 + 30, and a can go for nothing; 1 costs 61 + 30, with M 60 more.
    router = e2(E2Options(history=1, rebalancing=False, decode_share=None, eviction_cost=counted))
    prompts = [("a", 50), ("b", 60), ("d", 62), ("c", 30)]
    chosen = [
        router.route(request(index, (name, 0, count)), loads(0, 0)) for index, (name, count) in enumerate(prompts)
    ]
    assert chosen == [0, 1, 0, last]


@pytest.mark.parametrize(("rebalancing", "chosen"), [(False, [0, 0, 0, 0]), (True, [0, 1, 0, 1])])
def test_e2_rebalances_when_loads_differ(rebalancing: bool, chosen: list[int]) -> None:
    # Key a: 100 tokens, 10 own, decode 1. The second would go to 0, whose load of 111 is more than 3/2 of 0: to 1.
    # Then both cache a: the third finds 111 at both, the fourth 122 and 111.
    options = E2Options(rebalancing=rebalancing, autoscaling=False, decode_share=None, eviction_cost=False)
    router = e2(options)
    assert [router.route(request(index, ("a", 0, 100), (index, 0, 10)), loads(0, 0)) for index in range(4)] == chosen


@pytest.mark.parametrize(("limit", "last"), [(None, 1), ((7, 10), 0)])
def test_e2_explores_at_the_machine_that_decodes_most(limit: tuple[int, int] | None, last: int) -> None:
    # Until a request has ended, decodes are guessed from the output of the request that is routed.
    # a (10, output 90) to 0. b (100, output 1): 0 costs 10 + 1 + 100, 1 costs 100; shares 1/11 and 0.
    # c (5, output 90): 0 costs 10 + 90 + 5, 1 costs 100 + 90 + 5; shares 90/100 and 90/190.
    # d (5, output 90): 0 costs 15 + 180 + 5, 1 costs 195; shares 180/195, which is more than 7/10, and 90/190.
    options = E2Options(rebalancing=False, autoscaling=False, decode_share=limit, eviction_cost=False)
    router = e2(options)
    prompts = [("a", 10, 90), ("b", 100, 1), ("c", 5, 90), ("d", 5, 90)]
    chosen = [
        router.route(request(index, (name, 0, count), output=output), loads(0, 0))
        for index, (name, count, output) in enumerate(prompts)
    ]
    assert chosen == [0, 1, 0, last]


def slower(times: int) -> MachineSetting:
    """A machine on which a token takes this time, to prefill and to decode."""
    return MachineSetting(1000, 100 // times, lambda new, _: times * new, times, 1)


def test_e2_counts_the_time_of_each_machine() -> None:
    # Machine 1 takes 3 times as long. 110 tokens and one more: 110 at 0, 330 at 1; then 111 + 110 and 330; then 222 +
    # 110 and 330; then 222 + 110 and 330 + 3 + 330.
    router = E2(RouterSetting(2, each=(slower(1), slower(3))), BARE)
    prompts = [request(index, (index, 0, 110)) for index in range(4)]
    assert [router.route(each, loads(0, 0)) for each in prompts] == [0, 0, 1, 0]


def test_e2_goes_where_a_request_fits() -> None:
    # 100 of 110 tokens are cached at 0, which is not shown to the second request.
    router = E2(RouterSetting(2, each=(slower(1), slower(3))), BARE)
    assert router.route(request(0, ("a", 0, 100), (0, 0, 10)), loads(0, 0)) == 0
    assert router.route(request(1, ("a", 0, 100), (1, 0, 10)), loads(0, 0)[1:]) == 1
    # It is cached at both now. 0: 111 + 10; 1: 333 + 30.
    assert router.route(request(2, ("a", 0, 100), (2, 0, 10)), loads(0, 0)) == 0


def test_oracle_counts_the_work_on_each_machine() -> None:
    # Work at 0 is 50 + 1, 40 + 1 and 30 + 1, and 3 times that at 1. 51 to 0; 92 or 123: to 0; 123 or 93: to 1.
    requests = [
        request(index, (name, 0, tokens)) for index, (name, tokens) in enumerate([("a", 50), ("b", 40), ("c", 30)])
    ]
    router = OraclePartition((slower(1), slower(3)), requests)
    assert [router.route(each, loads(0, 0)) for each in requests] == [0, 0, 1]
    # What does not fit machine 1 goes to the other one.
    assert router.route(requests[2], loads(0, 0)[:1]) == 0


def test_conductor_and_sal_count_what_each_machine_takes() -> None:
    # 10 tokens: 10 at 0, and 30 at 1, beside 25 of work left at 0.
    views = [Snapshot(0, work_ps=25, kv_capacity=100), Snapshot(1, kv_capacity=100)]
    setting = RouterSetting(2, each=(slower(1), slower(3)))
    assert find_router("conductor")(setting).route(request(0, ("a", 0, 10)), views) == 1
    assert find_router("conductor")(setting).route(request(0, ("a", 0, 20)), views) == 0
    # Budgets of 100 and 33 tokens. 20 tokens wait at 0, and none at 1: (20 + 10) / 100 is less than 10 / 33; then (30 +
    # 10) / 100 is more than 10 / 33.
    waiting = [Snapshot(0, queued_tokens=20, kv_capacity=1000), Snapshot(1, kv_capacity=1000)]
    sal = find_router("sal")(setting)
    assert [sal.route(request(index, (index, 0, 10)), waiting) for index in range(2)] == [0, 1]


@given(st.lists(PIECES, min_size=1, max_size=12), st.integers(1, 4))
@settings(deadline=None)
def test_e2_decides_as_its_definition(prompts: list[tuple[Piece, ...]], history: int) -> None:
    """Beside token by token: prefill 1 a token, decode 3 a request, no eviction cost, no rebalancing."""
    options = E2Options(history, eviction_cost=False, rebalancing=False, autoscaling=False, decode_share=None)
    router = E2(RouterSetting(3, prefill_ps=lambda new, _: new, decode_ps=3), options)
    sent: list[list[tuple[tuple[Hashable, int], ...]]] = [[], [], []]
    window: list[tuple[int, int]] = []
    for index, prompt in enumerate(prompts):
        tokens = spelled(prompt)
        everything = [tokens, *(each for there in sent for each in there)]
        # Nodes end where this prompt leaves another, or where one of two that agree ends.
        cuts = sorted({common(tokens, each) for each in everything} - {0})
        cached = [max((common(tokens, each) for each in there), default=0) for there in sent]
        own = [len(tokens) - hit for hit in cached]
        total = own.copy()
        for machine, cost in window[-3 * history :]:
            total[machine] += cost + 3
        candidates = [0, 1, 2]
        if max(cached) > len(tokens) - max(cached):
            nodes = [(end - begin, end) for begin, end in pairwise([0, *cuts]) if end <= max(cached)]
            longest = max(size for size, _ in nodes)
            end = next(end for size, end in nodes if size == longest)
            candidates = [machine for machine in range(3) if cached[machine] >= end]
        expected = min(candidates, key=lambda machine: total[machine])
        assert router.route(request(index, *prompt), loads(0, 0, 0)) == expected
        sent[expected].append(tokens)
        window.append((expected, own[expected]))


@given(st.lists(st.tuples(PIECES, st.integers(0, 4)), max_size=15))
@settings(deadline=None)
def test_e2_evicts_no_node_before_one_behind_it(drawn: list[tuple[tuple[Piece, ...], int]]) -> None:
    router = e2(E2Options(history=3), machines=3)
    for index, (prompt, kept) in enumerate(drawn):
        machine = router.route(request(index, *prompt), loads(0, 0, 0))
        if kept:
            router.dropped(machine, prompt, kept, 0)
        for number, there in enumerate(router._machines):
            order = list(there.order)
            for place, node in enumerate(order):
                assert number in node.data.cached
                assert node.parent in {*order[place + 1 :], router._tree.root}


def test_e2_keeps_what_is_before_a_divided_node_behind_it_in_the_order_of_eviction() -> None:
    # ab of 2 + 4 tokens to 0. ax of 2 + 9 to 1: 11, where 0 has 7 of load and 9 new. a, half of b and 30 more to 2: 34,
    # where 0 has 7 + 30 and 1 has 12 + 32. Then 0 evicts the second half of b, to 6, the first, to 4, and a, to 2.
    router = e2(BARE, machines=3)
    prompts = [(("a", 0, 2), ("b", 0, 4)), (("a", 0, 2), ("x", 0, 9)), (("a", 0, 2), ("b", 0, 2), ("c", 0, 30))]
    chosen = [router.route(request(index, *prompt), loads(0, 0, 0)) for index, prompt in enumerate(prompts)]
    assert chosen == [0, 1, 2]
    assert [node.end for node in router._machines[0].order] == [6, 4, 2]


def test_e2_forgets_what_is_dropped_and_not_used() -> None:
    router = e2(E2Options(history=1, rebalancing=False, decode_share=None, eviction_cost=False))
    old = request(0, ("a", 0, 100))
    assert router.route(old, loads(0, 0)) == 0
    router.first_token(old, 0, 0, 0)
    router.dropped(0, old.prompt, 0, 0)
    # Nothing is cached any more: explored, and 1 has the least load.
    assert router.route(request(1, ("a", 0, 100), (1, 0, 1)), loads(0, 0)) == 1
    # Now a is cached at 1: exploited there, though 0 has less load.
    assert router.route(request(2, ("a", 0, 100), (2, 0, 1)), loads(0, 0)) == 1


def test_e2_keeps_what_is_left_of_a_node() -> None:
    # Of a (100) 0 drops all behind 80. Of the next prompt 80 of 101 are cached: exploited, though 1 has less load.
    router = e2(E2Options(rebalancing=False, decode_share=None, eviction_cost=False))
    old = request(0, ("a", 0, 100))
    assert router.route(old, loads(0, 0)) == 0
    router.first_token(old, 0, 0, 0)
    router.dropped(0, old.prompt, 80, 0)
    assert [(node.before, node.end) for node in router._machines[0].order] == [(0, 80)]
    assert router.route(request(1, ("a", 0, 100), (1, 0, 1)), loads(0, 0)) == 0


def test_e2_expects_what_a_waiting_request_uses() -> None:
    # The drop comes before the request has run, which then caches a again; after its first token a drop counts.
    router = e2(E2Options(history=1, rebalancing=False, decode_share=None, eviction_cost=False))
    sent = [request(index, ("a", 0, 100), (index, 0, 1)) for index in range(3)]
    assert router.route(sent[0], loads(0, 0)) == 0
    router.dropped(0, sent[0].prompt, 0, 0)
    assert router.route(sent[1], loads(0, 0)) == 0
    for each in sent[:2]:
        router.first_token(each, 0, 0, 0)
    router.dropped(0, sent[1].prompt, 0, 0)
    assert router.route(sent[2], loads(0, 0)) == 1


def test_e2_counts_how_many_requests_a_machine_gets() -> None:
    # H = 2, so the last four requests count, each with 10 tokens of its own and a decode. Three with key a follow one
    # another to 0, whose load is 100 + 3 · 11; of a window for each machine it would be 11 + 11.
    # b (10 tokens): 0 costs 133 + 10, and 1, with c (123) before, 124 + 10.
    router = e2(E2Options(2, rebalancing=False, autoscaling=False, decode_share=None, eviction_cost=False))
    prompts = [(("a", 0, 100), (0, 0, 10)), (("c", 0, 123),)]
    prompts += [(("a", 0, 100), (index, 0, 10)) for index in (2, 3)] + [(("b", 0, 10),)]
    chosen = [router.route(request(index, *prompt), loads(0, 0)) for index, prompt in enumerate(prompts)]
    assert chosen == [0, 1, 0, 0, 1]


def test_e2_estimates_decodes_by_the_outputs_of_each_machine() -> None:
    # 30 tokens at 0, 10 at 1, and each ends with outputs of 5 and 40: loads of 30 + 5 and 10 + 40, whatever they took.
    router = e2(BARE)
    for index, (tokens, output) in enumerate(((30, 5), (10, 40))):
        sent = request(index, (index, 0, tokens), output=output)
        machine = router.route(sent, loads(0, 0))
        router.first_token(sent, machine, 0, 0)
        router.finished(sent, machine, 10**15, 10**14, 10**14)
    assert router.route(request(2, (2, 0, 7)), loads(0, 0)) == 0


def test_e2_gives_a_slow_key_portion_a_second_machine() -> None:
    # Waiting times of key a: 1, 1, then 5, 5 (ms): the later half is five times the earlier. Without rebalancing only
    # autoscaling can send it elsewhere: from then on both machines are candidates, and 1 has less load.
    options = E2Options(rebalancing=False, waits=4, decode_share=None, eviction_cost=False)
    router = e2(options)
    chosen = []
    for index, wait in enumerate((1, 1, 1, 5, 5)):
        sent = request(index, ("a", 0, 100), (index, 0, 1))
        chosen.append(router.route(sent, loads(0, 0)))
        router.first_token(sent, chosen[-1], wait * MS, 0)
    assert chosen == [0, 0, 0, 0, 0]
    later = [router.route(request(index, ("a", 0, 100), (index, 0, 1)), loads(0, 0)) for index in (5, 6)]
    assert later == [0, 1]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 6), st.integers(1, 9)), max_size=30))
@settings(deadline=None, max_examples=60)
def test_e2_code_keeps_its_loads_up_to_date(drawn: list[tuple[int, int, int, int]]) -> None:
    """The sums that change with each request beside the sum over all nodes, as the rule says it.

    Prefill takes 1 ms a token; no TPOT is reported, so it is 150 ms.
    """
    router = E2Code(RouterSetting(3, prefill_ps=lambda new, _: new * MS), E2CodeOptions(window_ps=4000 * MS, settled=1))
    now, there = 0, []
    for index, (tool, task, tokens, output) in enumerate(drawn):
        now += 400
        prompt: tuple[Piece, ...] = (("s", 0, 2), (("t", tool), 0, 6), (("u", tool, task), 0, tokens))
        sent = request(index, *prompt, output=output, at_ms=now)
        there.append((sent, router.route(sent, ())))
        if len(there) > 4:
            done, machine = there.pop(0)
            router.finished(done, machine, now * MS, 0, None)
        expected = [0, 0, 0]
        for record in router._records:
            node = record.node
            missed, asked = record.missed
            for machine in node.data.placed:
                part = missed * record.requests * node.tokens * MS // asked // len(node.data.placed)
                expected[machine] += part + node.data.requests[machine] * record.output * 150 * MS
        assert router.loads_ps() == expected


@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_every_router_is_found_and_returns_a_machine(name: str) -> None:
    rng = Random(7)
    requests = [
        request(index, ("s", 0, 40), (("t", rng.randrange(3)), 0, 100), (index, 0, 10), output=5, at_ms=index)
        for index in range(60)
    ]
    chosen = [0] * len(requests)
    setting = RouterSetting(3, Random(0), 10**5, 512, lambda new, _: new * MS, 30 * MS, 16, requests, chosen)
    router = find_router(name)(setting)
    views = [Snapshot(machine, kv_capacity=10**5) for machine in range(3)]
    for each in requests:
        machine = router.route(each, views)
        assert machine in range(3)
        router.first_token(each, machine, each.arrival_ps + MS, 0)
        router.finished(each, machine, each.arrival_ps + 2 * MS, MS, MS)
        router.dropped(machine, each.prompt, 140, each.arrival_ps + 2 * MS)


def test_an_unknown_router_is_named() -> None:
    with pytest.raises(InputError, match=r"router: got 'sall', expected one of .*did you mean sal\?"):
        find_router("sall")


def test_views_are_as_old_as_they_should_be() -> None:
    # Every 10, seen 2 later: at 11 what was polled at 0, at 12 what was polled at 10, at 22 what was polled at 20.
    age = ViewAge(every_ps=10, delay_ps=2)
    assert [age.moment(now) for now in (11, 12, 21, 22)] == [0, 10, 10, 20]
    assert ViewAge().moment(7) == 7
    history = SnapshotHistory(Snapshot(0), age)
    for now in (3, 10, 14):
        history.record(now, Snapshot(0, waiting=now))
    assert [history.seen(now).waiting for now in (5, 11, 12, 21, 22)] == [0, 0, 10, 10, 14]


def test_sal_chooses_among_the_machines_that_it_is_shown() -> None:
    # All prompts fit, so a machine's load is what waits there and the prompt of 10, over C = 10; the first of equals.
    views = [Snapshot(machine, kv_capacity=500) for machine in range(3)]
    sal = Sal(batch_tokens=10)
    assert sal.route(request(0, ("a", 0, 10)), views[:2]) == 0
    # 1 would have less load, 1 instead of 2, but is too small for this one, say.
    assert sal.route(request(1, ("a", 0, 10)), views[:1]) == 0
    assert sal.route(request(2, ("a", 0, 10)), views[1:2]) == 1
    # Nothing waits at 2, which was not there at the poll; 10 tokens wait at 1.
    assert sal.route(request(3, ("a", 0, 10)), views[1:]) == 2
