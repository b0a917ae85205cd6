"""The cache of one machine by the contract's rules: match, pin, publish, drop, and the memory of a batch.

For each batch: `release` what is evicted; then for each run in order `match` in the first step of a fill, and `step`;
then, or between them, `drop` as many blocks as are too many in `used`; at its end `end`, then `release` what has ended.
The contract drops before it runs; it is the same, as what a run has matched is pinned and is not dropped, and what a
run has completed a second time is, when the cached one is dropped, the only one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from optsched.cache.evictors import Evictor
from optsched.cache.radix import RadixNode, RadixTree
from optsched.model.cluster import CacheMode


@dataclass(frozen=True)
class BlockSequence:
    """The blocks of a request.

    Parameters
    ----------
    names
        The names of its whole blocks, I + O tokens (`optsched.cache.contents.BlockNames`).
    path_blocks
        How many of them are path blocks: the leading ones whose last position is on its path.
    """

    names: Sequence[Hashable]
    path_blocks: int = 0


def cacheable_blocks(mode: CacheMode, sequence: BlockSequence, whole: int) -> int:
    """Return how many of the first ``whole`` blocks of a sequence are cached once they are complete."""
    match mode:
        case CacheMode.NONE:
            return 0
        case CacheMode.PREFIX:
            return min(whole, sequence.path_blocks)
        case CacheMode.ALL:
            return whole


@dataclass(slots=True, eq=False)
class _Resident:
    """A request with KV."""

    sequence: BlockSequence
    tokens: int
    """m."""
    counted: int
    """Its leading blocks that are counted as cached, or as completed in this batch."""
    node: RadixNode
    """What it pins."""
    alone: bool = False
    """Whether it has made this node itself, so that what it completes next may become a part of it."""

    def own_blocks(self, block: int) -> int:
        """Return the blocks that are counted as its own."""
        return -(-self.tokens // block) - self.counted


class MachineCache:
    """The cache of one machine.

    Parameters
    ----------
    block
        b, tokens of a block.
    mode
        What is cached.
    share_in_batch
        A run finds the blocks that earlier runs of its batch complete.
    evictor
        The order of `drop`.
    whole_nodes
        `drop` takes whole leaves of the tree, and so perhaps more.
    """

    def __init__(
        self,
        block: int,
        mode: CacheMode,
        evictor: Evictor,
        *,
        share_in_batch: bool = False,
        whole_nodes: bool = False,
    ) -> None:
        self.tree = RadixTree(evictor, whole_nodes)
        self._block = block
        self._mode = mode
        self._share = share_in_batch
        self._residents: dict[int, _Resident] = {}
        self._own = 0
        """Blocks that residents hold and that are not cached, before the steps of the batch."""
        self._completed: set[Hashable] = set()
        self._copied: list[Hashable] = []
        self._grown: list[_Resident] = []
        """Those whose counted blocks are not all in the tree."""

    @property
    def used(self) -> int:
        """Blocks of memory after the steps so far.

        Cached blocks and those that the batch completes once, second copies, and what residents hold besides.
        """
        return self.tree.size + len(self._completed) + len(self._copied) + self._own

    @property
    def pinned(self) -> int:
        """Those of `used` that cannot be dropped."""
        return self.tree.pinned + len(self._completed) + len(self._copied) + self._own

    def tokens(self, request: int) -> int:
        """Return m, the tokens of KV of a request."""
        resident = self._residents.get(request)
        return resident.tokens if resident else 0

    def found(self, sequence: BlockSequence, tokens: int) -> int:
        """Return how many of the first ``tokens`` tokens a request would find; nothing changes.

        Whole blocks only, and never the last token: a prompt that is cached entirely runs its last tokens again.
        """
        most = min((tokens - 1) // self._block, self._cacheable(sequence, tokens))
        names = sequence.names[:most]
        blocks = self.tree.leading(names)
        while self._share and blocks < most and names[blocks] in self._completed:
            blocks += 1
        return blocks * self._block

    def held(self, sequence: BlockSequence, tokens: int) -> int:
        """Return how many of the first ``tokens`` tokens are cached, in whole blocks; not what the batch completes."""
        return self.tree.leading(sequence.names[: self._cacheable(sequence, tokens)]) * self._block

    def takes(self, sequence: BlockSequence, found: int, tokens: int) -> int:
        """Return how much `pinned` grows if a request that finds ``found`` tokens runs ``tokens`` more."""
        whole = found // self._block
        return -(-(found + tokens) // self._block) - whole + self.tree.unpinned(sequence.names[:whole])

    def match(self, request: int, sequence: BlockSequence, tokens: int) -> int:
        """Let a request find and pin its cached blocks; return m.

        Parameters
        ----------
        request
            Its index; it has no KV.
        sequence
            Its blocks.
        tokens
            S, the tokens that exist of it.
        """
        found = self.found(sequence, tokens)
        # With `share_in_batch` the tree may not have all of it yet: its pin then reaches as far as the tree does.
        self._residents[request] = resident = self._pinned(sequence, found)
        if resident.node.depth < resident.counted:
            self._grown.append(resident)
        return found

    def step(self, request: int, run: int) -> None:
        """Run ``run`` tokens of a request."""
        resident, block = self._residents[request], self._block
        before = resident.tokens
        resident.tokens = after = before + run
        self._own += -(-after // block) + -before // block
        if after // block > before // block:
            self._complete(resident)

    def _complete(self, resident: _Resident) -> None:
        """Count what a step completes."""
        known, whole = resident.counted, self._cacheable(resident.sequence, resident.tokens)
        if whole <= known:
            return
        node, names = resident.node, resident.sequence.names
        cached = self.tree.leading(names[:whole], node) if node.children else known
        new = names[known:whole]
        if cached <= known and self._completed.isdisjoint(new):
            self._completed.update(new)
        else:
            for place, name in enumerate(new, known):
                if place < cached or name in self._completed:
                    self._copied.append(name)
                else:
                    self._completed.add(name)
        if node.depth == known:
            self._grown.append(resident)
        resident.counted = whole
        self._own -= whole - known

    def drop(self, blocks: int) -> list[Hashable]:
        """Drop blocks without a pin, at least ``blocks`` of them if there are as many; return them in this order."""
        dropped = self.tree.drop(blocks)
        if self._copied:
            self._make_first(dropped)
        return dropped

    def _make_first(self, dropped: Sequence[Hashable]) -> None:
        """Count what this batch completes as the first of its content where that is dropped."""
        for name in dropped:
            if name in self._copied:
                self._copied.remove(name)
                self._completed.add(name)

    def drop_block(self, sequence: BlockSequence, place: int) -> bool:
        """Drop the block at ``place`` of a sequence, from 0; return whether it could be dropped."""
        done = self.tree.drop_last(sequence.names[: place + 1])
        if done and self._copied:
            self._make_first([sequence.names[place]])
        return done

    def end(self) -> list[Hashable]:
        """End a batch: what its steps completed is cached, and pinned by those that ran; return what was not cached."""
        if not self._grown:
            return []
        new = [name for resident in self._grown for name in self._publish(resident)]
        self._completed.clear()
        self._copied.clear()
        self._grown.clear()
        return new

    def release(self, request: int) -> None:
        """Take the pins of a request away, which is evicted or has ended, and free what is not cached."""
        resident = self._residents.pop(request)
        self._own -= resident.own_blocks(self._block)
        self.tree.match(resident.sequence.names[: resident.counted])
        self.tree.unpin(resident.node)

    def reserve(self, request: int, sequence: BlockSequence, tokens: int) -> int:
        """Begin the move of a request with m = ``tokens`` to here; return h, the tokens that need not be copied.

        They are pinned; the others count as its own until `land`.
        """
        held = self.held(sequence, tokens)
        resident = self._pinned(sequence, held)
        resident.tokens = tokens
        self._own += resident.own_blocks(self._block)
        self._residents[request] = resident
        return held

    def land(self, request: int) -> list[Hashable]:
        """End the move of a request to here: its whole blocks are cached; return those that were not."""
        resident = self._residents[request]
        self._own -= resident.own_blocks(self._block)
        resident.counted = self._cacheable(resident.sequence, resident.tokens)
        self._own += resident.own_blocks(self._block)
        return self._publish(resident)

    def _cacheable(self, sequence: BlockSequence, tokens: int) -> int:
        return cacheable_blocks(self._mode, sequence, tokens // self._block)

    def _pinned(self, sequence: BlockSequence, found: int) -> _Resident:
        node = self.tree.match(sequence.names[: found // self._block], hit=True)
        self.tree.pin(node)
        return _Resident(sequence, found, found // self._block, node)

    def _publish(self, resident: _Resident) -> list[Hashable]:
        node, names, whole = resident.node, resident.sequence.names, resident.counted
        if node.depth == whole:
            return []
        if resident.alone and not node.children and node.pins == 1:
            new = list(names[node.depth : whole])
            self.tree.extend(node, new)
            return new
        before, resident.node = self.tree.insert(names[:whole], start=node)
        self.tree.pin(resident.node, above=node)
        resident.alone = before < whole
        return list(names[before:whole])
