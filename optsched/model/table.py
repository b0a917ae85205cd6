"""Stretches of a schedule as arrays: what a batch says in `optsched.model.schedule.Batch`, a row each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    ShortInts = npt.NDArray[np.int32]


class BatchTable(NamedTuple):
    """Batches in a row of one machine without swaps.

    Parameters
    ----------
    start_ps, end_ps, repeat
        Of every batch.
    run_begin
        Which runs are a batch's: from its entry up to the next; one entry more than there are batches.
    request, tokens
        Of every run.
    evict_begin, evict
        The same for evictions.
    """

    start_ps: Ints
    end_ps: Ints
    repeat: Ints
    run_begin: Ints
    request: ShortInts
    tokens: ShortInts
    evict_begin: Ints
    evict: ShortInts


class Tables(Protocol):
    """A whole schedule in stretches, made anew whenever they are asked for, so that they need not be kept."""

    def __iter__(self) -> Iterator[BatchTable]: ...


class MachineTable(NamedTuple):
    """All batches of one of several machines, or of one with a cache, without swaps and without moves.

    Parameters
    ----------
    start_ps, end_ps, repeat, run_begin, request, tokens, evict_begin, evict
        As of `BatchTable`.
    hit_begin, hit, hit_tokens
        The same for what requests find in the cache.
    drop_begin, drop, drop_number
        The same for cached blocks that are dropped.
    """

    start_ps: Ints
    end_ps: Ints
    repeat: Ints
    run_begin: Ints
    request: ShortInts
    tokens: ShortInts
    evict_begin: Ints
    evict: ShortInts
    hit_begin: Ints
    hit: ShortInts
    hit_tokens: ShortInts
    drop_begin: Ints
    drop: ShortInts
    drop_number: ShortInts
