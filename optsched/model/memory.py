"""The KV memory of one machine: what it can hold, and what requests hold in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from optsched.model.instance import Instance, Limits
    from optsched.model.ints import Ints


class Holding(Protocol):
    """Where requests hold KV, named by their indices."""

    def hold(self, index: int, tokens: int, /) -> object:
        """Let a request hold ``tokens`` tokens, no fewer than it holds now."""
        ...

    def release(self, index: int, /) -> None:
        """Free what a request holds, which may be nothing."""
        ...


class Memory(Protocol):
    """What policies ask, all in tokens of capacity, which is given in whole blocks.

    ``state`` is the request (`optsched.model.state.RequestState`) that would hold the tokens: what it takes of its own
    may depend on what is there already.
    """

    @property
    def capacity(self) -> int:
        """What can be held at most."""
        ...

    @property
    def block(self) -> int:
        """What is given at a time."""
        ...

    def size(self, state: Any, tokens: int, /) -> int:
        """Return what a request takes if it holds ``tokens`` tokens."""
        ...

    def sizes(self, states: Any, tokens: Ints, /) -> Ints:
        """Return the same for many requests."""
        ...

    def reserving(self, reserve: Callable[[Any], int], /) -> Callable[[Any, int], int]:
        """Return `size` for policies that set tokens aside: of what a request holds or of its reservation, if more."""
        ...


class PrivateBlocks:
    """Memory in which each block belongs to one request: m tokens take ceil(m/b) b (docs/problem.md).

    Parameters
    ----------
    limits
        M and b.
    """

    def __init__(self, limits: Limits) -> None:
        self.capacity, self.block = limits.kv_capacity, limits.kv_block

    def size(self, _: Any, tokens: int, /) -> int:
        """Return what a request takes if it holds ``tokens`` tokens: whole blocks of its own."""
        return -(-tokens // self.block) * self.block

    def sizes(self, _: Any, tokens: Ints, /) -> Ints:
        """Return the same for many requests."""
        return -(-tokens // self.block) * self.block

    def reserving(self, reserve: Callable[[Any], int], /) -> Callable[[Any, int], int]:
        """Return `size` of what a request holds, or of what is reserved for it, if that is more."""
        block = self.block

        def held(state: Any, tokens: int) -> int:
            # As `size`, without a call for every request of every batch.
            reserved = reserve(state)
            return -(-(reserved if reserved > tokens else tokens) // block) * block

        return held


class HeldBlocks:
    """Counts what requests hold in private blocks. Whether that is within M is for the checker to say.

    Parameters
    ----------
    limits
        M and b.

    Attributes
    ----------
    block
        b.
    held
        Request → capacity in tokens that it takes.
    occupied
        Their sum.
    """

    def __init__(self, limits: Limits) -> None:
        self.block = limits.kv_block
        self.held: dict[int, int] = {}
        self.occupied = 0

    def hold(self, index: int, tokens: int, /) -> None:
        """Let a request hold ``tokens`` tokens."""
        held = self.held
        before = held.get(index, 0)
        if tokens > before:
            held[index] = after = -(-tokens // self.block) * self.block
            self.occupied += after - before

    def release(self, index: int, /) -> None:
        """Free what a request holds."""
        self.occupied -= self.held.pop(index, 0)


def memory_of(instance: Instance) -> Memory:
    """Return the memory of the instance's one machine, as if every request had its blocks for itself."""
    instance.require_one_machine()
    return PrivateBlocks(instance.limits)
