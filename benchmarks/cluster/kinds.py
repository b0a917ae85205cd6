"""The kinds of runs that are known, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cluster import sglang_radix
from cluster.outcome import Outcome, Sources


@dataclass(frozen=True)
class Kind:
    """One kind of file.

    Parameters
    ----------
    recognises
        Whether a document is of this kind.
    outcomes
        Replays a document.
    """

    recognises: Callable[[Any], bool]
    outcomes: Callable[[Any, Sources], Iterable[Outcome]]


KINDS = {
    "sglang_radix": Kind(sglang_radix.recognises, sglang_radix.outcomes),
}
