"""The cache of one machine as vLLM keeps it: its block pool behind what `MachineCache` offers a batch.

Blocks leave the cache in the order of vLLM's queue of free blocks: the longest unused first, the last block of a
request before those in front of it. What is computed a second time keeps a block of its own until that is taken; so
it takes at least as much memory as the contract counts.

Source: vLLM 0.33.0, ``vllm/v1/core/block_pool.py`` and ``kv_cache_manager.py``.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from optsched.cache.block_pool import BlockPool
from optsched.cache.machine import BlockSequence, cacheable_blocks
from optsched.model.cluster import CacheMode


@dataclass(slots=True, eq=False)
class _Resident:
    """A request with KV."""

    sequence: BlockSequence
    tokens: int
    """m."""
    blocks: list[int]
    named: int
    """How many of its blocks have a name."""


class VllmCache:
    """The cache of one machine.

    Parameters
    ----------
    blocks, block
        How many blocks there are, and b, the tokens of one.
    mode
        What is cached.
    share_in_batch
        A run finds the blocks that earlier runs of its batch complete, as in vLLM.

    Attributes
    ----------
    pool
        Its blocks.
    lost
        Contents that lost a block in this batch, in this order; not all of them are dropped.
    """

    def __init__(self, blocks: int, block: int, mode: CacheMode, *, share_in_batch: bool = False) -> None:
        self.pool = BlockPool(blocks)
        self.lost: list[Hashable] = []
        self._block, self._mode, self._share = block, mode, share_in_batch
        self._residents: dict[int, _Resident] = {}
        self._completed: list[Hashable] = []
        self._unnamed: list[_Resident] = []
        self._fresh: set[int] = set()
        """Blocks that this batch has named already."""

    @property
    def free(self) -> int:
        """Blocks that runs may take."""
        return self.pool.free

    @property
    def blank(self) -> int:
        """Those of `free` in which nothing is cached."""
        return self.pool.blank

    @property
    def dropped(self) -> list[Hashable]:
        """What this batch drops, by the contract's rules."""
        return self.pool.dropped() if self.lost else []

    def begin(self) -> None:
        """Begin a batch."""
        if self.lost:
            self.lost = []
        self.pool.begin()

    def tokens(self, request: int) -> int:
        """Return m of a request that holds KV."""
        return self._residents[request].tokens

    def found(self, sequence: BlockSequence, tokens: int) -> int:
        """Return how many of the first ``tokens`` tokens a request would find; nothing changes."""
        return len(self._leading(sequence, tokens)) * self._block

    def held(self, sequence: BlockSequence, tokens: int) -> int:
        """Return how many of the first ``tokens`` tokens are cached, in whole blocks; not what the batch completes."""
        names = sequence.names[: cacheable_blocks(self._mode, sequence, tokens // self._block)]
        return self._block * next((place for place, name in enumerate(names) if not self._is_cached(name)), len(names))

    def takes(self, sequence: BlockSequence, found: int, tokens: int) -> int:
        """Return how much less is `free` if a request that finds ``found`` tokens runs ``tokens`` more."""
        blocks = self.pool.leading(sequence.names[: found // self._block])
        return -(-(found + tokens) // self._block) - len(blocks) + self.pool.unused(blocks)

    def match(self, request: int, sequence: BlockSequence, tokens: int) -> int:
        """Let a request find and hold its cached blocks; return m."""
        blocks = self._leading(sequence, tokens)
        self.pool.hold(blocks)
        self._residents[request] = _Resident(sequence, len(blocks) * self._block, blocks, len(blocks))
        return len(blocks) * self._block

    def step(self, request: int, run: int) -> None:
        """Run ``run`` tokens of a request."""
        resident, block = self._residents[request], self._block
        resident.tokens += run
        if missing := -(-resident.tokens // block) - len(resident.blocks):
            taken, lost = self.pool.take(missing)
            resident.blocks += taken
            self.lost += lost
        if resident.tokens // block > resident.named:
            if self._share:
                named = resident.named
                self._completed += self._name(resident)
                self._fresh.update(resident.blocks[named : resident.named])
            else:
                self._unnamed.append(resident)

    def end(self) -> list[Hashable]:
        """End a batch; return what it completed."""
        for resident in self._unnamed:
            self._completed += self._name(resident)
        self._unnamed.clear()
        self._fresh.clear()
        completed, self._completed = self._completed, []
        return completed

    def release(self, request: int) -> None:
        """Free the blocks of a request, which is evicted or has ended; cached ones stay until they are taken."""
        self.pool.release(self._residents.pop(request).blocks)

    def expect(self, request: int, sequence: BlockSequence, tokens: int) -> tuple[int, list[Hashable]]:
        """Begin the move of a request to here (`optsched.cache.blocks.Blocks.expect`)."""
        held = self.held(sequence, tokens)
        blocks = self.pool.leading(sequence.names[: held // self._block])
        self.pool.hold(blocks)
        taken, lost = self.pool.take(-(-tokens // self._block) - len(blocks))
        self._residents[request] = _Resident(sequence, tokens, blocks + taken, len(blocks))
        return held, [name for name in dict.fromkeys(lost) if not self._is_cached(name)]

    def land(self, request: int) -> list[Hashable]:
        """End the move of a request to here: its whole blocks are cached; return those that were not."""
        return self._name(self._residents[request])

    def _leading(self, sequence: BlockSequence, tokens: int) -> list[int]:
        most = min((tokens - 1) // self._block, cacheable_blocks(self._mode, sequence, tokens // self._block))
        return self.pool.leading(sequence.names[:most])

    def _is_cached(self, name: Hashable) -> bool:
        """Whether a content is cached, apart from what this batch completes."""
        return any(block not in self._fresh for block in self.pool.copies(name))

    def _name(self, resident: _Resident) -> list[Hashable]:
        """Cache the whole blocks of a request that are not yet; return what they hold."""
        whole = cacheable_blocks(self._mode, resident.sequence, resident.tokens // self._block)
        for place in range(resident.named, whole):
            self.pool.name(resident.blocks[place], resident.sequence.names[place])
        names = list(resident.sequence.names[resident.named : whole])
        resident.named = max(resident.named, whole)
        return names
