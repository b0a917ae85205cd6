"""The requests of Mooncake's traces, with their prompts in pieces."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optsched.routers.router import Piece

_BLOCK = 512


@dataclass(frozen=True)
class TraceRow:
    """A request of the trace.

    Parameters
    ----------
    time_ms, input, output
        Arrival, prompt and output tokens.
    prompt
        Its prompt: a piece for each hash.
    """

    time_ms: float
    input: int
    output: int
    prompt: tuple[Piece, ...]


def read_trace(path: Path) -> list[TraceRow]:
    """Read a trace."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    return [_row(json.loads(line)) for line in text.splitlines()]


def _row(entry: Mapping[str, Any]) -> TraceRow:
    tokens = entry["input_length"]
    hashes: Sequence[int] = entry["hash_ids"]
    prompt = tuple((name, 0, min(_BLOCK, tokens - _BLOCK * place)) for place, name in enumerate(hashes))
    return TraceRow(float(entry["timestamp"]), tokens, entry["output_length"], prompt)


def assign(rows: Sequence[TraceRow], keys: Sequence[tuple[float, int, int]]) -> list[int]:
    """Return for each (arrival, input, output) the row that it is, the first that is left of equal ones."""
    left: dict[tuple[float, int, int], list[int]] = {}
    for index, row in reversed(list(enumerate(rows))):
        left.setdefault((row.time_ms, row.input, row.output), []).append(index)
    return [left[key].pop() for key in keys]
