"""When a block will be used next, for `optsched.cache.evictors.Belady`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from heapq import heappop, heappush

from optsched.cache.evictors import NEVER
from optsched.cache.sequences import BlockSequences
from optsched.model.instance import Instance


class BlockUses:
    """Which requests of an instance use each block, in the order of their arrival.

    Machines with blocks of one size can share it: it does not depend on what they serve.

    Parameters
    ----------
    instance
        The requests.

    Attributes
    ----------
    sequences
        Their blocks.
    ranks
        The place of each request in the order of arrival.
    """

    def __init__(self, instance: Instance) -> None:
        requests = instance.requests
        self.sequences = BlockSequences(instance)
        order = sorted(range(len(requests)), key=lambda index: requests[index].arrival_ps)
        self.ranks = {index: rank for rank, index in enumerate(order)}
        self._of: dict[Hashable, list[int]] = {}
        for rank, index in enumerate(order):
            sequence = self.sequences.of(index)
            # Blocks of one request alone are never cached before it starts.
            found = min(sequence.path_blocks, (requests[index].input - 1) // self.sequences.block)
            for name in sequence.names[:found]:
                self._of.setdefault(name, []).append(rank)

    def of(self, name: Hashable) -> Sequence[int]:
        """Return the places of the requests that will find a block if it is cached, in ascending order."""
        return self._of.get(name, ())


class Foresight:
    """Knows which requests have not started yet on a machine, and what they will find if it is cached.

    They are expected in the order of their arrival. On one of several machines all of the instance's requests are
    expected, as if they came here: a router decides when a request arrives, and what it sees then depends on what has
    been dropped before, so it is not known which requests a machine will serve.

    Parameters
    ----------
    uses
        Of the instance's blocks.
    """

    def __init__(self, uses: BlockUses) -> None:
        self._uses = uses
        self._started: set[int] = set()
        self._passed: dict[Hashable, int] = {}
        """Of each block, how many of its first uses are by requests that have started."""
        self._again: dict[Hashable, list[int]] = {}
        """Heaps of what evicted requests use."""

    def __call__(self, name: Hashable) -> int:
        """Return the place in the order of arrival of the next request that uses a block, `NEVER` if there is none."""
        uses, started = self._uses.of(name), self._started
        passed = before = self._passed.get(name, 0)
        while passed < len(uses) and uses[passed] in started:
            passed += 1
        if passed > before:
            self._passed[name] = passed
        first = uses[passed] if passed < len(uses) else NEVER
        again = self._again.get(name, [])
        while again and again[0] in started:
            heappop(again)
        return min(first, again[0]) if again else first

    def starts(self, index: int) -> None:
        """Note that a request starts, and needs what is cached now."""
        self._started.add(self._uses.ranks[index])

    def again(self, index: int, tokens: int) -> None:
        """Note that a request is evicted: it will need its first ``tokens`` tokens again."""
        rank, sequences = self._uses.ranks[index], self._uses.sequences
        self._started.discard(rank)
        for name in sequences.of(index).names[: (tokens - 1) // sequences.block]:
            heappush(self._again.setdefault(name, []), rank)
