"""Evictors: which cached blocks are dropped first.

An evictor gives each leaf of the tree of cached blocks a key; the leaf with the least key is dropped first. The key may
depend on what happened to that leaf and, for `Belady`, on the future. It must not change between two touches of a leaf.

Sources: SGLang 0.5.23 (``evict_policy.py``) for ``lru``, ``lfu``, ``fifo``, ``filo``, ``mru``, ``slru`` and
``priority``; Zhang et al., *Tail-Optimized LRU* (arXiv:2510.15152), for ``tlru``; Belády (1966) for ``belady``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

from optsched.model.errors import InputError, one_of

Key = tuple[int, ...]
"""Keys are compared as tuples of integers; the least is dropped first."""
NEVER = 2**62
"""The next use of a block that is never used again."""


class Leaf(Protocol):
    """What an evictor sees of a leaf; times are ticks of the tree's clock."""

    @property
    def last_access(self) -> int:
        """Tick of the last match or insertion that passed here."""

    @property
    def created(self) -> int:
        """Tick at which the node was made, by an insertion or by splitting another."""

    @property
    def hits(self) -> int:
        """Insertions that passed here, the first included."""

    @property
    def priority(self) -> int:
        """The largest priority of an insertion that passed here."""

    @property
    def longest(self) -> int:
        """Blocks of the longest sequence that was ever inserted through here."""

    @property
    def depth(self) -> int:
        """Blocks from the root to the end of the node."""

    @property
    def blocks(self) -> list[Hashable]:
        """The node's blocks."""


Evictor = Callable[[Leaf], Key]


def lru(leaf: Leaf) -> Key:
    """Least recently used."""
    return (leaf.last_access,)


def lfu(leaf: Leaf) -> Key:
    """Least frequently used, the least recently used of equals."""
    return leaf.hits, leaf.last_access


def fifo(leaf: Leaf) -> Key:
    """First in, first out."""
    return (leaf.created,)


def filo(leaf: Leaf) -> Key:
    """First in, last out."""
    return (-leaf.created,)


def mru(leaf: Leaf) -> Key:
    """Most recently used."""
    return (-leaf.last_access,)


def priority(leaf: Leaf) -> Key:
    """Lowest priority, the least recently used of equals."""
    return leaf.priority, leaf.last_access


@dataclass(frozen=True)
class SegmentedLru:
    """SLRU: what has fewer than ``protected`` hits goes first, the least recently used of equals.

    Parameters
    ----------
    protected
        Hits from which a node is protected, ≥ 1.
    """

    protected: int = 2

    def __call__(self, leaf: Leaf) -> Key:
        """Return the key of a leaf."""
        return int(leaf.hits >= self.protected), leaf.last_access


@dataclass(frozen=True)
class TailLru:
    """T-LRU: first what the next prompt can lose and still meet its TTFT, then the least recently used.

    A conversation of length L whose next prompt adds Q blocks meets its TTFT if at most `threshold` blocks have to be
    computed, so L + Q − threshold blocks suffice. A leaf goes first if without what is dropped as many remain.

    Parameters
    ----------
    threshold
        Blocks that may be computed within the TTFT, ≥ 0.
    next_prompt
        Q, blocks that the next prompt is expected to add, ≥ 0.
    whole_nodes
        What is dropped is the whole leaf, and not its last block.
    """

    threshold: int = 0
    next_prompt: int = 0
    whole_nodes: bool = False

    def __call__(self, leaf: Leaf) -> Key:
        """Return the key of a leaf."""
        enough = max(leaf.longest + self.next_prompt - self.threshold, 0)
        going = len(leaf.blocks) if self.whole_nodes else 1
        return int(leaf.depth - going < enough), leaf.last_access


@dataclass(frozen=True)
class Belady:
    """Belády's rule: the block that is used again last, or never, goes first.

    With blocks of one size and requests served one after another it recomputes the fewest tokens: a block is used
    whenever one behind it is, so the block that is used last is always at the end of a branch.

    Parameters
    ----------
    next_use
        When a block is used next; `NEVER` if it is not.
    """

    next_use: Callable[[Hashable], int]

    def __call__(self, leaf: Leaf) -> Key:
        """Return the key of a leaf: its last block decides."""
        return -self.next_use(leaf.blocks[-1]), leaf.last_access


EVICTORS: dict[str, Evictor] = {
    "lru": lru,
    "lfu": lfu,
    "fifo": fifo,
    "filo": filo,
    "mru": mru,
    "priority": priority,
    "slru": SegmentedLru(),
    "tlru": TailLru(),
}
"""Evictors by name; `Belady` is not here, as it needs to know the future."""


_ALIKE = (lru, lfu, fifo, filo, mru, priority)


def alike(evictor: Evictor) -> bool:
    """Whether all blocks of a leaf have the same key, so that its key stays what it is while they are dropped."""
    return evictor in _ALIKE or isinstance(evictor, SegmentedLru)


def evictor(name: str) -> Evictor:
    """Return the evictor called ``name``.

    Raises
    ------
    InputError
        If there is none.
    """
    if name not in EVICTORS:
        raise InputError("evictor", name, one_of(name, EVICTORS))
    return EVICTORS[name]
