"""What a router knows of a machine's cache: blocks that were cached and dropped, each known some time later."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Iterable, Sequence


class CacheIndex:
    """The cached blocks of a machine, as events with a delay describe them.

    Blocks must have names that identify their content and all before it (`optsched.cache.contents.BlockNames`). A match
    takes time proportional to the logarithm of the number of blocks.

    Parameters
    ----------
    delay_ps
        How long an event is on its way, in ps.
    """

    def __init__(self, delay_ps: int = 0) -> None:
        self._delay_ps = delay_ps
        self._known: set[Hashable] = set()
        self._coming: deque[tuple[int, bool, tuple[Hashable, ...]]] = deque()

    def cached(self, now_ps: int, names: Iterable[Hashable]) -> None:
        """Send an event: blocks were cached. Times never decrease."""
        self._coming.append((now_ps + self._delay_ps, True, tuple(names)))

    def dropped(self, now_ps: int, names: Iterable[Hashable]) -> None:
        """Send an event: blocks were dropped."""
        self._coming.append((now_ps + self._delay_ps, False, tuple(names)))

    def leading(self, now_ps: int, names: Sequence[Hashable]) -> int:
        """Return the number of leading blocks that are known to be cached at ``now_ps``."""
        while self._coming and self._coming[0][0] <= now_ps:
            _, added, changed = self._coming.popleft()
            if added:
                self._known.update(changed)
            else:
                self._known.difference_update(changed)
        # Events come in the order in which they happened: with a block, those before it are known.
        return bisect_left(range(len(names)), 1, key=lambda place: names[place] not in self._known)
