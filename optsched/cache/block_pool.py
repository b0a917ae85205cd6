"""vLLM's block pool: blocks of one size with a queue of free ones, some of which still hold what was cached in them.

It differs from the contract's cache in one thing: two blocks may hold the same, when a request computes what is cached
(its last prompt block, if all of its prompt is cached). Both stay until they are taken.

Source: vLLM 0.33.0, ``vllm/v1/core/block_pool.py``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence


class BlockPool:
    """Blocks, numbered from 0.

    Every operation takes constant time for each block that it concerns.

    Parameters
    ----------
    blocks
        How many there are.
    """

    def __init__(self, blocks: int) -> None:
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self._users = [0] * blocks
        self._content: list[Hashable | None] = [None] * blocks
        self._copies: dict[Hashable, dict[int, None]] = {}
        self._blank = blocks
        self._named: set[int] = set()
        self._lost: dict[Hashable, None] = {}

    @property
    def free(self) -> int:
        """Blocks that no request holds."""
        return len(self._free)

    @property
    def blank(self) -> int:
        """Those of `free` in which nothing is cached. They are taken first."""
        return self._blank

    @property
    def cached(self) -> int:
        """Different contents that are cached."""
        return len(self._copies)

    def begin(self) -> None:
        """Begin a batch, for `dropped`."""
        self._named.clear()
        self._lost.clear()

    def dropped(self) -> list[Hashable]:
        """Return the contents that were dropped in this batch, by the contract's rules, in the order of their loss.

        They have lost a block, and all that hold them now have been named in this batch: by the contract they were
        dropped and are completed again.
        """
        copies, named = self._copies, self._named
        return [content for content in self._lost if (left := copies.get(content)) is None or named.issuperset(left)]

    def leading(self, contents: Sequence[Hashable]) -> list[int]:
        """Return the blocks that hold the longest cached leading run of ``contents``."""
        found = []
        for content in contents:
            copies = self._copies.get(content)
            if copies is None:
                break
            found.append(next(iter(copies)))
        return found

    def copies(self, content: Hashable) -> Collection[int]:
        """Return the blocks that hold a content."""
        return self._copies.get(content, {})

    def unused(self, blocks: Sequence[int]) -> int:
        """Return how many of these blocks are free: holding them makes fewer free."""
        return sum(not self._users[block] for block in blocks)

    def hold(self, blocks: Sequence[int]) -> None:
        """Let one more request hold blocks that are cached."""
        for block in blocks:
            if not self._users[block]:
                del self._free[block]
            self._users[block] += 1

    def take(self, count: int) -> tuple[list[int], list[Hashable]]:
        """Take blocks from the front of the queue; return them, and the contents that these held until now."""
        taken, lost = [], []
        free, contents, all_copies, users = self._free, self._content, self._copies, self._users
        for _ in range(count):
            block, _ = free.popitem(last=False)
            content = contents[block]
            if content is None:
                self._blank -= 1
            else:
                lost.append(content)
                contents[block] = None
                copies = all_copies[content]
                if len(copies) == 1:
                    del all_copies[content]
                else:
                    del copies[block]
            users[block] = 1
            taken.append(block)
        self._lost.update(dict.fromkeys(lost))
        return taken, lost

    def name(self, block: int, content: Hashable) -> None:
        """Cache a block that a request holds: it is full, and holds ``content``."""
        self._content[block] = content
        self._named.add(block)
        self._copies.setdefault(content, {})[block] = None

    def release(self, blocks: Sequence[int]) -> None:
        """Let a request hold its blocks no longer, the last one first.

        What is cached goes to the end of the queue, what is not to its front.
        """
        for block in reversed(blocks):
            self._users[block] -= 1
            if not self._users[block]:
                self._free[block] = None
                if self._content[block] is None:
                    self._blank += 1
                    self._free.move_to_end(block, last=False)
