"""Where one batch's tokens are, and what its attention reads: tensors that are made before its time counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.hardware.transformer.cache import Slots

if TYPE_CHECKING:
    import torch


class Run(NamedTuple):
    """One request's part of a batch.

    Parameters
    ----------
    tokens
        c, how many it runs.
    slots
        Of all that it has then cached, m + c.
    decodes
        Whether it is a decode step.
    generates
        Whether its last token gives the next one.
    """

    tokens: int
    slots: Slots
    decodes: bool
    generates: bool

    @property
    def cached(self) -> int:
        """M, the tokens cached before."""
        return len(self.slots) - self.tokens


class Prefill(NamedTuple):
    """A prefill step: the batch's rows from ``first`` on, and the slots of all m + c keys that they attend to."""

    first: int
    tokens: int
    slots: torch.Tensor


@dataclass(frozen=True)
class Plan:
    """A batch of T tokens, prefill steps first, then decode steps.

    Parameters
    ----------
    positions
        Of every token in its request, shape (T).
    slots
        Where its key and value go, shape (T).
    last
        Rows that give a next token.
    prefills
        The prefill steps.
    decode_slots, decode_keys
        What the decode steps, which have a row each, attend to: shape (steps, most keys), of which the first
        ``decode_keys`` count.
    lengths
        ``decode_keys``, on the host.
    """

    positions: torch.Tensor
    slots: torch.Tensor
    last: torch.Tensor
    prefills: tuple[Prefill, ...]
    decode_slots: torch.Tensor
    decode_keys: torch.Tensor
    lengths: tuple[int, ...]

    @property
    def first_decode(self) -> int:
        """Row of the first decode step."""
        return len(self.positions) - len(self.lengths)


def make_plan(runs: Sequence[Run], device: torch.device) -> Plan:
    """Plan a batch whose prefill steps come before its decode steps."""
    import torch  # noqa: PLC0415  # an extra

    def tensor(array: Slots) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    ends = np.cumsum([run.tokens for run in runs])
    decodes = [run for run in runs if run.decodes]
    lengths = tuple(len(run.slots) for run in decodes)
    table = np.zeros((len(decodes), max(lengths, default=0)), np.int64)
    for row, run in zip(table, decodes, strict=True):
        row[: len(run.slots)] = run.slots
    return Plan(
        positions=tensor(np.concatenate([np.arange(run.cached, len(run.slots)) for run in runs])),
        slots=tensor(np.concatenate([run.slots[run.cached :] for run in runs])),
        last=tensor(np.array([end - 1 for run, end in zip(runs, ends, strict=True) if run.generates], np.int64)),
        prefills=tuple(
            Prefill(int(end) - run.tokens, run.tokens, tensor(run.slots))
            for run, end in zip(runs, ends, strict=True)
            if not run.decodes
        ),
        decode_slots=tensor(table),
        decode_keys=tensor(np.array(lengths, np.int64)),
        lengths=lengths,
    )
