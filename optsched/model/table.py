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
