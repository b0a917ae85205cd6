"""Reader of the kernel timing tables of Vidur and its relatives (``mlp.csv`` and ``attention.csv``).

The tables hold milliseconds per layer; what is returned are picoseconds of a whole model::

    non-attention  =  layers × Σ over the per-layer operators of their median  +  median of emb
    decode         =  layers × median of attn_decode
    prefill        =  layers × median of attn_prefill

``add`` counts once a layer, as in Vidur's own sum (Agrawal et al., "Vidur", MLSys 2024;
`execution_time.py` of microsoft/vidur). The tables have no row for the LM head, the sampler or the CPU.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np

from optsched.calibrate.fit import Array
from optsched.model.errors import InputError, Said

PS_PER_MS = 10**9

LAYER_OPERATORS = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)


@dataclass(frozen=True, slots=True)
class DenseTimings:
    """Non-attention times of batches: tokens, and ps of the whole model; by ascending tokens."""

    tokens: Array
    times: Array


@dataclass(frozen=True, slots=True)
class DecodeTimings:
    """Decode attention: requests, cached tokens of *each* of them, and ps of the whole model."""

    batch: Array
    kv: Array
    times: Array

    def features(self) -> Array:
        """Return the columns of ``decode_kv`` and ``decode_req``: KV tokens read, requests."""
        return np.column_stack([self.batch * self.kv, self.batch])


@dataclass(frozen=True, slots=True)
class PrefillTimings:
    """Prefill attention of one request: tokens run, tokens cached before, and ps of the whole model."""

    chunk: Array
    kv: Array
    times: Array

    def features(self) -> Array:
        """Return the columns of ``prefill_sq``, ``prefill_kv`` and ``prefill_req``: c² + 2 c m, m, 1."""
        return np.column_stack([self.chunk * (self.chunk + 2 * self.kv), self.kv, np.ones_like(self.kv)])


def read_dense(path: Path, layers: int, tensor_parallel: int = 1) -> DenseTimings:
    """Read an ``mlp.csv`` (or ``.gz``): the rows measured with ``tensor_parallel`` GPUs."""
    rows: list[tuple[int, float]] = []
    for row in _rows(path):
        if row.integer("num_tensor_parallel_workers", 1) == tensor_parallel:
            per_layer = sum(row.milliseconds(f"time_stats.{name}.median") for name in LAYER_OPERATORS)
            once = row.milliseconds("time_stats.emb.median")
            rows.append((row.integer("num_tokens", 1), (layers * per_layer + once) * PS_PER_MS))
    tokens, times = _columns(path, sorted(rows, key=lambda row: row[0]), 2, "a row of this many GPUs")
    return DenseTimings(tokens, times)


def read_attention(path: Path, layers: int, tensor_parallel: int = 1) -> tuple[DecodeTimings, PrefillTimings]:
    """Read an ``attention.csv`` (or ``.gz``): the rows measured with ``tensor_parallel`` GPUs.

    Also read is a selection of its rows with one column ``time_ms_median`` and no number of GPUs; all
    of its rows count.
    """
    decodes: list[tuple[int, int, float]] = []
    prefills: list[tuple[int, int, float]] = []
    for row in _rows(path):
        if "num_tensor_parallel_workers" in row.fields and (
            row.integer("num_tensor_parallel_workers", 1) != tensor_parallel
        ):
            continue
        prefill = row.boolean("is_prefill")
        column = f"time_stats.attn_{'prefill' if prefill else 'decode'}.median"
        time = layers * row.milliseconds(column, instead="time_ms_median") * PS_PER_MS
        cached = row.integer("kv_cache_size", 0)
        if prefill:
            prefills.append((row.integer("prefill_chunk_size", 1), cached, time))
        else:
            decodes.append((row.integer("batch_size", 1), cached, time))
    return (
        DecodeTimings(*_columns(path, decodes, 3, "a decode row")),
        PrefillTimings(*_columns(path, prefills, 3, "a prefill row")),
    )


def _columns(path: Path, rows: Sequence[tuple[float, ...]], width: int, expected: str) -> tuple[Array, ...]:
    if not rows:
        raise InputError("rows", Said("none"), expected, str(path))
    table = np.array(rows, dtype=np.float64)
    return tuple(table[:, column] for column in range(width))


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of a table, whose fields are checked as they are taken."""

    path: Path
    line: int
    fields: dict[str, str]

    def error(self, column: str, value: object, expected: str) -> InputError:
        return InputError(f"line {self.line}.{column}", value, expected, str(self.path))

    def text(self, column: str) -> str:
        if column not in self.fields:
            raise InputError(column, Said("nothing"), "a column of this name", str(self.path))
        return self.fields[column]

    def integer(self, column: str, least: int) -> int:
        text = self.text(column)
        if not (text.isascii() and text.isdigit() and int(text) >= least):
            raise self.error(column, text, f"an integer ≥ {least}")
        return int(text)

    def boolean(self, column: str) -> bool:
        text = self.text(column)
        if text not in {"True", "False"}:
            raise self.error(column, text, "True or False")
        return text == "True"

    def milliseconds(self, column: str, instead: str | None = None) -> float:
        if instead is not None and column not in self.fields:
            column = instead
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not (isfinite(value) and value > 0):
            raise self.error(column, text, "a time > 0 in ms")
        return value


def _rows(path: Path) -> Iterator[_Row]:
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = Said(getattr(error, "strerror", None) or error)
        raise InputError("", reason, "a readable .csv or .csv.gz", str(path)) from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        for record in reader:
            if len(record) != len(header):
                raise InputError(f"line {reader.line_num}", Said(f"{len(record)} fields"), f"{len(header)}", str(path))
            yield _Row(path, reader.line_num, dict(zip(header, record, strict=True)))
    except csv.Error as error:
        raise InputError(f"line {reader.line_num}", Said(str(error)), "CSV", str(path)) from None
