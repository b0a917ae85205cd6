"""When a block will be used next, for `optsched.cache.evictors.Belady`."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush

from optsched.cache.evictors import NEVER
from optsched.cache.sequences import BlockSequences
from optsched.model.instance import Instance


class Foresight:
    """Knows which requests of an instance have not started yet, and what they will find if it is cached.

    They are expected in the order of their arrival. On one of several machines all of the instance's requests are
    expected, as if they came here.

    Parameters
    ----------
    instance, sequences
        The requests, and their blocks.
    """

    def __init__(self, instance: Instance, sequences: BlockSequences) -> None:
        requests, block = instance.requests, instance.limits.kv_block
        order = sorted(range(len(requests)), key=lambda index: requests[index].arrival_ps)
        self._ranks = {index: rank for rank, index in enumerate(order)}
        self._expected = set(range(len(requests)))
        self._uses: dict[Hashable, list[int]] = {}
        self._sequences = sequences
        for rank, index in enumerate(order):
            # In ascending order each list is a heap.
            for name in sequences.of(index).names[: (requests[index].input - 1) // block]:
                self._uses.setdefault(name, []).append(rank)

    def __call__(self, name: Hashable) -> int:
        """Return the place in the order of arrival of the next request that uses a block, `NEVER` if there is none."""
        uses = self._uses.get(name, [])
        while uses and uses[0] not in self._expected:
            heappop(uses)
        return uses[0] if uses else NEVER

    def starts(self, index: int) -> None:
        """Note that a request starts, and needs what is cached now."""
        self._expected.discard(self._ranks[index])

    def again(self, index: int, tokens: int) -> None:
        """Note that a request is evicted: it will need its first ``tokens`` tokens again."""
        rank, sequence = self._ranks[index], self._sequences.of(index)
        self._expected.add(rank)
        for name in sequence.names[: (tokens - 1) // self._sequences.block]:
            heappush(self._uses.setdefault(name, []), rank)
