"""Requests in a given order of service, and which of their blocks were used before: what `prefix_cache` works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from optsched.model.cost import CostModel
from optsched.model.errors import InputError
from optsched.model.instance import Instance

Blocks = npt.NDArray[np.int64]
"""The blocks of a path, from the root, as numbers from 0."""


@dataclass(frozen=True)
class Run:
    """Consecutive blocks of a request's path with one previous use.

    Parameters
    ----------
    last
        The request that used them last.
    depth
        Position of the first of them on the path, from 0.
    count
        Number of blocks.
    """

    last: int
    depth: int
    count: int

    @property
    def end(self) -> int:
        """Position after the last block."""
        return self.depth + self.count


@dataclass(frozen=True)
class BlockValue:
    """What it saves to find the first h blocks of a prompt in the cache: ``linear · h + square · h²``.

    The value of a block never falls with its depth.

    Parameters
    ----------
    linear, square
        Coefficients; ``square`` ≥ 0. With ``square`` = 0 all blocks are worth the same.
    """

    linear: int
    square: int = 0

    def __post_init__(self) -> None:
        if self.square < 0:
            raise InputError("square", self.square, "an integer ≥ 0")
        if self.linear + self.square < 0:
            raise InputError("linear", self.linear, f"at least -{self.square}: a block found costs nothing")

    def of(self, blocks: int) -> int:
        """Return the value of a number of leading blocks."""
        return self.linear * blocks + self.square * blocks**2


def token_value(block: int) -> BlockValue:
    """Return the value in tokens of blocks of that size: what is found is not recomputed."""
    return BlockValue(block)


def time_value(cost: CostModel, block: int) -> BlockValue:
    r"""Return the value in ps of blocks of that size, for prompts that are prefilled alone.

    A prefill of c = I − m tokens on m cached ones takes
    :math:`\mathrm{base} + τ c + \mathrm{sq} (I^2 - m^2) + \mathrm{kv}\, m + \mathrm{req}`; m found tokens save
    :math:`(τ - \mathrm{kv}) m + \mathrm{sq}\, m^2` of it.

    Raises
    ------
    InputError
        If the batch time has several pieces: then what blocks save depends on the rest of the batch.
    """
    if len(cost.affine) > 1:
        raise InputError("pieces", cost.pieces, "a batch time of one affine piece")
    return BlockValue((cost.token - cost.prefill_kv) * block, cost.prefill_sq * block**2)


@dataclass(frozen=True)
class ServiceOrder:
    """Requests in the order of service.

    Parameters
    ----------
    paths
        The whole blocks of every request that can be shared, from the root.
    runs
        Of those among them that it may find in the cache: runs with one previous use, from the root on.
    occupied
        Blocks that every request occupies while it is served, those of its path included.
    """

    paths: tuple[Blocks, ...]
    runs: tuple[tuple[Run, ...], ...]
    occupied: tuple[int, ...]

    @property
    def warm(self) -> int:
        """Number of references to blocks that a cache without limit would hold."""
        return sum(run.count for runs in self.runs for run in runs)

    def rooms(self, capacity: int) -> Blocks:
        """Return the blocks left for others while each request is served, of a cache of ``capacity`` blocks."""
        rooms: Blocks = capacity - np.array(self.occupied, dtype=np.int64)
        if rooms.min(initial=0) < 0:
            most = int(np.argmin(rooms))
            raise InputError(
                "capacity", capacity, f"at least {self.occupied[most]} blocks, which request {most} occupies"
            )
        return rooms


def service_order(
    paths: Sequence[Sequence[int] | npt.NDArray[Any]],
    *,
    findable: Sequence[int] | None = None,
    occupied: Sequence[int] | None = None,
) -> ServiceOrder:
    """Prepare requests in the order of service.

    Parameters
    ----------
    paths
        For each request the whole blocks that can be shared, from the root, by any integers ≥ 0: equal numbers are
        one block, which stands behind the same blocks everywhere.
    findable
        How many leading blocks each may find at most: ⌊(I − 1) / b⌋, as the last token of a prompt always runs. None
        for all of its path.
    occupied
        Blocks that each occupies while it is served, private ones included: ⌈(I + O − 1) / b⌉. None for its path.

    Raises
    ------
    InputError
        If a block stands behind different blocks, twice on a path, or a number is out of range.
    """
    lengths = [len(path) for path in paths]
    findable, occupied = lengths if findable is None else findable, lengths if occupied is None else occupied
    for name, given in (("findable", findable), ("occupied", occupied)):
        if len(given) != len(paths):
            raise InputError(name, f"{len(given)} numbers", f"one for each of {len(paths)} requests")
    for request, (length, most, taken) in enumerate(zip(lengths, findable, occupied, strict=True)):
        if not 0 <= most <= length:
            raise InputError(f"findable[{request}]", most, f"from 0 to the {length} blocks of its path")
        if taken < length:
            raise InputError(f"occupied[{request}]", taken, f"at least the {length} blocks of its path")
    numbered = _numbered(paths)
    _require_tree(numbered)
    last = np.full(max((int(path.max(initial=-1)) for path in numbered), default=-1) + 1, -1, dtype=np.int64)
    runs = []
    for request, (path, most) in enumerate(zip(numbered, findable, strict=True)):
        before = last[path[:most]]
        starts = [0, *(np.flatnonzero(np.diff(before)) + 1).tolist()] if most else []
        ends = [*starts[1:], most]
        found = [Run(int(before[start]), start, end - start) for start, end in zip(starts, ends, strict=False)]
        runs.append(tuple(run for run in found if run.last >= 0))
        last[path] = request
    return ServiceOrder(tuple(numbered), tuple(runs), tuple(occupied))


def served_in(instance: Instance, turns: Sequence[int]) -> ServiceOrder:
    """Return requests of an instance, by index, in the order in which they are served.

    Raises
    ------
    InputError
        If machines have blocks of different sizes.
    """
    sizes = sorted({machine.limits.kv_block for machine in instance.machines})
    if len(sizes) > 1:
        raise InputError("limits.kv_block", " and ".join(map(str, sizes)), "one size on all machines")
    block, numbers = sizes[0], dict[tuple[str, int], int]()
    lengths = {node.name: node.tokens for node in instance.prefixes.nodes}
    paths, findable, occupied = [], [], []
    for request in (instance.requests[index] for index in turns):
        path, end = list[int](), 0
        for name in request.prefix:
            end += lengths[name]
            last = min(end, request.peak_tokens) // block
            path += [numbers.setdefault((name, place), len(numbers)) for place in range(len(path), last)]
        paths.append(path)
        findable.append(min(len(path), (request.input - 1) // block))
        occupied.append(-(-request.peak_tokens // block))
    return service_order(paths, findable=findable, occupied=occupied)


def _numbered(paths: Sequence[Sequence[int] | npt.NDArray[Any]]) -> list[Blocks]:
    """Return paths of blocks that are numbered from 0 on, with few numbers left out."""
    arrays = [np.asarray(path, dtype=np.int64).reshape(-1) for path in paths]
    references = sum(map(len, arrays))
    least = min((int(path.min()) for path in arrays if len(path)), default=0)
    if least < 0:
        raise InputError("paths", least, "blocks by integers ≥ 0")
    if max((int(path.max()) for path in arrays if len(path)), default=0) <= references:
        return arrays
    numbers = np.unique(np.concatenate(arrays), return_inverse=True)[1]
    ends = np.cumsum([len(path) for path in arrays])
    return [part.astype(np.int64) for part in np.split(numbers, ends[:-1])]


def _require_tree(paths: Sequence[Blocks]) -> None:
    """Refuse a block with two parents, as one that is twice on a path has; −1 stands for none, −2 for not seen yet."""
    parents = np.full(max((int(path.max(initial=-1)) for path in paths), default=-1) + 1, -2, dtype=np.int64)
    for request, path in enumerate(paths):
        before = np.concatenate((np.array([-1], dtype=np.int64), path[:-1]))[: len(path)]
        known = parents[path]
        wrong = np.flatnonzero((known != -2) & (known != before))
        if not len(wrong):
            parents[path] = before
            wrong = np.flatnonzero(parents[path] != before)
        if len(wrong):
            position = int(wrong[0])
            raise InputError(
                f"paths[{request}][{position}]", int(path[position]), "a block that stands behind the same blocks"
            )
