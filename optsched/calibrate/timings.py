"""What readers of measurements return: batches, and their times in ps of a whole model.

Whatever a table holds (milliseconds of one layer, nanoseconds of a forward pass), its reader states the unit and
returns picoseconds of the whole model on all its GPUs together, so that nothing after it can mix units up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from optsched.calibrate.library import Check, Part, Source

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Timings:
    """Batches, or what belongs to them, and how long they took; a row each.

    Parameters
    ----------
    tokens
        Σ c: tokens that all steps run; of a swap, KV tokens moved.
    decodes, decode_kv
        Decode steps, and the KV tokens that they read together.
    prefills, prefill_kv, prefill_sq
        Prefill steps, Σ m and Σ (c² + 2 c m) over them.
    times
        In ps of the whole model.
    """

    tokens: Array
    decodes: Array
    decode_kv: Array
    prefills: Array
    prefill_kv: Array
    prefill_sq: Array
    times: Array

    @classmethod
    def dense(cls, tokens: Sequence[float] | Array, times: Sequence[float] | Array) -> Timings:
        """Return times that depend on the number of tokens only."""
        none = np.zeros(len(tokens))
        return cls(_column(tokens), none, none, none, none, none, _column(times))

    @classmethod
    def per_sequence(cls, sequences: Sequence[float] | Array, times: Sequence[float] | Array) -> Timings:
        """Return times that depend on the number of requests only, here with a decode step each."""
        none = np.zeros(len(sequences))
        return cls(_column(sequences), _column(sequences), none, none, none, none, _column(times))

    @classmethod
    def attention(cls, rows: Sequence[tuple[float, float, float, float, float]]) -> Timings:
        """Return attention calls: decode steps, KV that they read together, c and m of a prefill step, and time.

        Without a prefill step c is 0.
        """
        table = np.array(rows, dtype=np.float64).reshape(-1, 5)
        decodes, decode_kv, chunk, cached, times = table.T
        prefills = (chunk > 0).astype(np.float64)
        return cls(decodes + chunk, decodes, decode_kv, prefills, cached, chunk * (chunk + 2 * cached), times)

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, rows: Mask) -> Timings:
        return Timings(*(getattr(self, column.name)[rows] for column in fields(self)))

    @property
    def only_decodes(self) -> Mask:
        """Rows without a prefill step."""
        return np.equal(self.prefills, 0)

    @property
    def only_prefills(self) -> Mask:
        """Rows without a decode step."""
        return np.equal(self.decodes, 0)

    @property
    def hybrid(self) -> Mask:
        """Rows with both kinds of step."""
        return ~(self.only_decodes | self.only_prefills)

    @property
    def chunk(self) -> Array:
        """Tokens that the prefill steps run."""
        return self.tokens - self.decodes

    def attention_features(self, call: bool) -> Array:
        """Return the columns of decode_kv, decode_req, prefill_sq, prefill_kv, prefill_req, and 1 per ``call``."""
        columns = [self.decode_kv, self.decodes, self.prefill_sq, self.prefill_kv, self.prefills]
        return np.column_stack([*columns, np.ones(len(self))] if call else columns)


def _column(values: Sequence[float] | Array) -> Array:
    return np.asarray(values, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Measurements:
    """What was measured of one model on one machine.

    Parameters
    ----------
    hardware, model
        What was measured, in words.
    sources
        The files behind it.
    dense
        Everything but attention, by tokens. None if only whole batches were measured.
    attention
        Attention calls: pure ones, and hybrid ones where the table has them.
    per_sequence
        Times that a batch takes once, by its number of requests: LM head and sampler, CPU.
    swaps
        KV moved out of the GPU's memory, and back.
    batches
        Whole batches, everything included.
    checks
        What the reader has compared itself.
    notes
        What is in the table and what is not, a sentence each.
    """

    hardware: str
    model: str
    sources: tuple[Source, ...]
    dense: Timings | None = None
    attention: Timings | None = None
    per_sequence: Mapping[Part, Timings] = field(default_factory=dict)
    swaps: Mapping[Part, Timings] = field(default_factory=dict)
    batches: Timings | None = None
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a table does not say itself, or what it may be joined with; each format takes some of these.

    Parameters
    ----------
    layers
        Of the model, where a table has the times of one.
    tensor_parallel
        How many GPUs share each layer.
    attention, network, cpu
        Further tables: attention kernels, all-reduce, CPU overheads.
    hardware, model
        Which one, where a table has several; else what to call them.
    """

    layers: int | None = None
    tensor_parallel: int = 1
    attention: str | None = None
    network: str | None = None
    cpu: str | None = None
    hardware: str | None = None
    model: str | None = None


def ratio_check(claim: str, ours: Array, measured: Array) -> Check:
    """Compare pairs of times that the cost model's form takes to be equal."""
    ratio = ours / measured
    low, high = np.percentile(ratio, [1, 99])
    return Check(
        claim=claim,
        rows=len(ratio),
        mean=round(float(ratio.mean()), 5),
        low=round(float(low), 5),
        high=round(float(high), 5),
        mape=round(float(np.abs(ratio - 1).mean()), 5),
    )
