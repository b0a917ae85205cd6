"""Orders of waiting requests that look at what is cached of them (SGLang's and Preble's local schedulers)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optsched.cache.contents import Piece
from optsched.cache.prompt_tree import PromptTree

GROUPS = 10


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A waiting request.

    Parameters
    ----------
    index
        Its index in the instance.
    input
        Tokens that it has to prefill if nothing is cached.
    cached
        How many of them are cached.
    prompt
        These tokens in pieces.
    """

    index: int
    input: int
    cached: int
    prompt: tuple[Piece, ...] = ()


def longest_match_first(
    waiting: Sequence[WaitingRequest], most: int = 128, little: int = 32, shared: int = 32
) -> list[WaitingRequest]:
    """Order requests as SGLang's ``lpm``: the longest cached match first, in the given order if they are equal.

    If at most ``little`` tokens of a request are cached, and it shares ``shared`` tokens or more with an earlier one of
    which as little is cached, it goes last: it will find what that one computes.

    Source: SGLang 0.5.23, ``schedule_policy.py``.

    Parameters
    ----------
    waiting
        In the order of arrival.
    most
        If more requests wait they stay in this order.
    little, shared
        See above, in tokens.
    """
    if len(waiting) > most:
        return list(waiting)
    tree: PromptTree[None] = PromptTree(lambda: None, lambda _: None)
    last = set()
    for request in waiting:
        if request.cached <= little:
            if tree.find(request.prompt)[1] >= shared:
                last.add(request.index)
            else:
                tree.insert(request.prompt)
    return sorted(waiting, key=lambda request: (request.index in last, 0 if request.index in last else -request.cached))


def cached_group(request: WaitingRequest) -> int:
    """Return Preble's group of a request: 0 if nothing is cached, else ⌈10 share⌉ − 1."""
    return max(-(-GROUPS * request.cached // request.input) - 1, 0)


def by_groups(waiting: Sequence[WaitingRequest]) -> list[WaitingRequest]:
    """Order requests as Preble's paper (section 4.3): each round takes 10 of group 9, 9 of group 8, … and 1 of group 0.

    Within a group they stay in the given order. A batch that takes the first ones so takes from the groups in
    proportion to their priority.
    """
    groups: list[list[WaitingRequest]] = [[] for _ in range(GROUPS)]
    for request in waiting:
        groups[cached_group(request)].append(request)
    ordered: list[WaitingRequest] = []
    turn = 0
    while len(ordered) < len(waiting):
        for group in range(GROUPS - 1, -1, -1):
            share = group + 1
            ordered += groups[group][turn * share : (turn + 1) * share]
        turn += 1
    return ordered


@dataclass
class GroupTurns:
    """Preble's program: one group each batch, from 9 down to 0 and again, leaving out empty ones.

    There a request stays in the group to which it comes first: `WaitingRequest.cached` is what was cached then.

    Source: WukLab/preble 8e7906a, ``model_rpc.py``.

    Parameters
    ----------
    group
        The group whose turn it is.
    factor
        A batch takes at most this times (group + 1) requests.
    """

    group: int = GROUPS - 1
    factor: int = 10

    def next_requests(self, waiting: Sequence[WaitingRequest]) -> list[WaitingRequest]:
        """Return the requests that the next batch may take, in the given order."""
        if not waiting:
            return []
        groups: list[list[WaitingRequest]] = [[] for _ in range(GROUPS)]
        for request in waiting:
            groups[cached_group(request)].append(request)
        while not groups[self.group]:
            self.group = (self.group - 1) % GROUPS
        chosen = self.group
        self.group = (self.group - 1) % GROUPS
        return groups[chosen][: self.factor * (chosen + 1)]
