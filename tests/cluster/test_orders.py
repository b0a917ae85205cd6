"""Orders of waiting requests by what is cached of them, beside hand arithmetic."""

import pytest

from optsched.cache.orders import GroupTurns, WaitingRequest, by_groups, cached_group, longest_match_first


def waiting(*cached: int, tokens: int = 100) -> list[WaitingRequest]:
    return [WaitingRequest(index, tokens, hit) for index, hit in enumerate(cached)]


def numbers(requests: list[WaitingRequest]) -> list[int]:
    return [request.index for request in requests]


def test_longest_match_first_unless_too_many_wait() -> None:
    requests = waiting(40, 90, 40, 60)
    assert numbers(longest_match_first(requests)) == [1, 3, 0, 2]
    assert numbers(longest_match_first(requests, most=3)) == [0, 1, 2, 3]


def test_what_shares_with_one_that_is_not_computed_yet_goes_last() -> None:
    # 0, 1 and 2 share 32 tokens, 3 shares 31 with them; nothing of 0, 1, 3 and much of 2 is cached. 1 goes last.
    prompts = [(("a", 0, 32), (0, 0, 9)), (("a", 0, 32), (1, 0, 9)), (("a", 0, 32), (2, 0, 9)), (("a", 0, 31),)]
    requests = [WaitingRequest(index, 41, 33 if index == 2 else 0, prompt) for index, prompt in enumerate(prompts)]
    assert numbers(longest_match_first(requests)) == [2, 0, 3, 1]


@pytest.mark.parametrize(("cached", "group"), [(0, 0), (1, 0), (10, 0), (11, 1), (63, 6), (90, 8), (91, 9), (100, 9)])
def test_groups_are_tenths(cached: int, group: int) -> None:
    # 0 is group 0, else ⌈cached / 10⌉ − 1 of 100 tokens.
    assert cached_group(WaitingRequest(0, 100, cached)) == group


def test_groups_are_taken_in_proportion() -> None:
    # Three of group 1 (20 of 100) and two of group 0: rounds take 2 and 1, then 1 and 1.
    assert numbers(by_groups(waiting(0, 20, 20, 0, 20))) == [1, 2, 0, 4, 3]


def test_groups_take_turns() -> None:
    # Groups 9, 9, 9, 2, 0; with a factor of 1 a batch takes at most 10, 3 or 1 of them.
    turns = GroupTurns(factor=1)
    requests = waiting(95, 95, 95, 30, 0)
    assert numbers(turns.next_requests(requests)) == [0, 1, 2]
    assert numbers(turns.next_requests(requests)) == [3]
    assert numbers(turns.next_requests(requests)) == [4]
    assert numbers(turns.next_requests(requests)) == [0, 1, 2]
    assert turns.next_requests([]) == []
    assert numbers(GroupTurns(factor=1, group=0).next_requests(waiting(0, 0))) == [0]
