"""What a machine's memory does for batches if it caches: two ways to keep one cache, and how to choose one."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from optsched.cache.evictors import EVICTORS, Belady, Evictor
from optsched.cache.foresight import BlockUses, Foresight
from optsched.cache.machine import BlockSequence, MachineCache
from optsched.cache.vllm import VllmCache
from optsched.catalogue import in_file, lookup
from optsched.model.cluster import CacheMode
from optsched.model.errors import InputError, one_of
from optsched.model.instance import Instance

EVICTOR_NAMES = (*EVICTORS, "belady", "vllm")
"""What `CacheSetting.evictor` may be, beside ``FILE.py:NAME``."""
_GROUP = "optsched.evictors"
_NODES = ":nodes"
"""Behind the name of an evictor that drops whole leaves."""


def require_evictor(name: str, field: str = "evictor") -> None:
    """Raise `InputError` for ``field`` if there is no such evictor, or none where ``FILE.py:NAME`` points."""
    if in_file(name):
        evictor_in_file(name, field)
    elif name not in EVICTOR_NAMES:
        raise InputError(field, name, one_of(name, EVICTOR_NAMES))


def require_setting(name: str, field: str = "evictor") -> None:
    """Raise `InputError` for ``field`` if there is no setting of this name (`CacheSetting.named`)."""
    evictor = _without_nodes(name)
    require_evictor(evictor, field)
    if evictor == "vllm" and evictor != name:
        raise InputError(field, name, "vllm, which drops single blocks")


def _without_nodes(name: str) -> str:
    """Return the evictor of a setting; a file may define one that is called ``nodes``."""
    evictor = name.removesuffix(_NODES)
    return name if evictor.endswith(".py") else evictor


def evictor_in_file(name: str, field: str = "evictor") -> Evictor:
    """Return the function of a `Leaf` that ``FILE.py:NAME`` means."""
    found: Evictor = lookup(_GROUP, name, field)
    if not callable(found):
        raise InputError(field, name, "a function of a leaf, which returns a tuple of integers")
    return found


@dataclass(frozen=True)
class CacheSetting:
    """How a machine keeps its cache, as far as the instance leaves that open.

    Parameters
    ----------
    evictor
        Which cached blocks are dropped first, if memory is short: a name of `EVICTOR_NAMES`, or ``FILE.py:NAME``, a
        function of a `optsched.cache.evictors.Leaf`. ``belady`` knows the requests to come; ``vllm`` is vLLM's own
        block pool.
    whole_nodes
        Whole leaves of the tree are dropped, and so perhaps more than needed, as in SGLang; not with ``vllm``.

    Raises
    ------
    InputError
        If no evictor has this name.
    """

    evictor: str = "lru"
    whole_nodes: bool = False

    @classmethod
    def named(cls, name: str) -> CacheSetting:
        """Return the setting of an evictor: ``NAME`` drops single blocks, ``NAME:nodes`` whole leaves."""
        require_setting(name)
        evictor = _without_nodes(name)
        return cls(evictor, whole_nodes=evictor != name)

    @property
    def name(self) -> str:
        """What `named` makes it of."""
        return f"{self.evictor}{_NODES if self.whole_nodes else ''}"

    def __post_init__(self) -> None:
        require_evictor(self.evictor)
        if self.whole_nodes and self.evictor == "vllm":
            raise InputError("whole_nodes", self.whole_nodes, "False with evictor vllm, which drops single blocks")


class Blocks(Protocol):
    """The blocks of a machine that caches.

    For each batch: `begin`; `release` what is evicted; for each run in order `match` in the first step of a fill, and
    `step`, which drops what memory is short of; at its end `end`, then `release` what has ended.
    """

    @property
    def free(self) -> int:
        """Blocks that runs may take: those that are empty, and those that can be dropped."""

    @property
    def blank(self) -> int:
        """Blocks that runs may take before one is dropped."""

    @property
    def dropped(self) -> list[Hashable]:
        """What this batch drops."""

    def begin(self) -> None:
        """Begin a batch."""

    def tokens(self, request: int) -> int:
        """Return m of a request that holds KV."""

    def found(self, sequence: BlockSequence, tokens: int) -> int:
        """Return how many of the first ``tokens`` tokens a request would find; nothing changes."""

    def held(self, sequence: BlockSequence, tokens: int) -> int:
        """Return how many of the first ``tokens`` tokens are cached, in whole blocks; not what the batch completes."""

    def takes(self, sequence: BlockSequence, found: int, tokens: int) -> int:
        """Return how much less is `free` if a request that finds ``found`` tokens runs ``tokens`` more."""

    def match(self, request: int, sequence: BlockSequence, tokens: int) -> int:
        """Let a request without KV, of which ``tokens`` tokens exist, find and pin its cached blocks; return m."""

    def step(self, request: int, run: int) -> None:
        """Run ``run`` tokens of a request."""

    def end(self) -> Collection[Hashable]:
        """End a batch: cache what it completed; return what was not cached."""

    def release(self, request: int) -> None:
        """Take the pins of a request away, which is evicted, has ended or has left, and free what is not cached."""

    def expect(self, request: int, sequence: BlockSequence, tokens: int) -> tuple[int, list[Hashable]]:
        """Begin the move of a request with m = ``tokens`` to here; return what is `held` of it, and what is dropped."""

    def land(self, request: int) -> list[Hashable]:
        """End the move of a request to here: its whole blocks are cached; return those that were not."""


class TreeBlocks(MachineCache):
    """`MachineCache` with a number of blocks, of which it drops those that are too many at every step.

    Parameters
    ----------
    blocks, block
        How many blocks there are, and b, the tokens of one.
    mode, evictor, share_in_batch, whole_nodes
        As `MachineCache` has them.

    Attributes
    ----------
    dropped
        What this batch drops.
    """

    def __init__(
        self, blocks: int, block: int, mode: CacheMode, evictor: Evictor, *, share_in_batch: bool, whole_nodes: bool
    ) -> None:
        super().__init__(block, mode, evictor, share_in_batch=share_in_batch, whole_nodes=whole_nodes)
        self._blocks = blocks
        self.dropped: list[Hashable] = []

    @property
    def free(self) -> int:
        """Blocks that runs may take: those that are empty, and those that can be dropped."""
        return self._blocks - self.pinned

    @property
    def blank(self) -> int:
        """Blocks that runs may take before one is dropped."""
        return self._blocks - self.used

    def begin(self) -> None:
        """Begin a batch."""
        if self.dropped:
            self.dropped = []

    def step(self, request: int, run: int) -> None:
        """Run ``run`` tokens of a request, and drop what memory is short of."""
        super().step(request, run)
        if (over := self.used - self._blocks) > 0:
            self.dropped += self.drop(over)

    def expect(self, request: int, sequence: BlockSequence, tokens: int) -> tuple[int, list[Hashable]]:
        """Begin the move of a request to here, and drop what memory is short of (`Blocks.expect`)."""
        held = self.reserve(request, sequence, tokens)
        over = self.used - self._blocks
        return held, self.drop(over) if over > 0 else []


def _order(name: str) -> Evictor:
    return evictor_in_file(name) if in_file(name) else EVICTORS[name]


def uses_of(instances: Sequence[Instance], setting: CacheSetting) -> list[BlockUses | None]:
    """Return what is used when, for machines that keep their caches by it, and None for others.

    The instances differ in their machines alone; those with blocks of one size share it.
    """
    made: dict[int, BlockUses] = {}
    found: list[BlockUses | None] = []
    for instance in instances:
        size = instance.limits.kv_block
        needs = instance.is_cached and setting.evictor == "belady"
        if needs and size not in made:
            made[size] = BlockUses(instance)
        found.append(made[size] if needs else None)
    return found


def blocks_of(instance: Instance, setting: CacheSetting, foresight: Foresight | None) -> Blocks:
    """Return the blocks of an instance's one machine; with ``belady`` they are kept by foresight."""
    limits, rules = instance.limits, instance.cache
    size, mode, shared = limits.kv_block, rules.mode, rules.share_in_batch
    if setting.evictor == "vllm":
        return VllmCache(limits.kv_blocks, size, mode, share_in_batch=shared)
    order = _order(setting.evictor) if foresight is None else Belady(foresight)
    return TreeBlocks(limits.kv_blocks, size, mode, order, share_in_batch=shared, whole_nodes=setting.whole_nodes)
