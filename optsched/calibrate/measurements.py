"""Reader of what ``optsched profile`` writes: a folder with ``measurements.csv`` and ``environment.json``.

Times are **integer nanoseconds of the whole model**, medians with their 10th and 90th percentiles. A row's
`MeasurementKind` says what was timed, its sizes how much of it; a size that does not apply is empty or 0.
"""

from __future__ import annotations

from collections import defaultdict
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from optsched.calibrate.columns import TableRow, read_table, require_rows
from optsched.calibrate.library import Part, file_source
from optsched.calibrate.timings import Measurements, SourceOptions, Timings
from optsched.model.documents import read_bytes
from optsched.model.errors import InputError, one_of
from optsched.model.json_text import load_json

UNIT = "ns"
FORMAT: Final = "optsched-measurements/1"
TABLE, ENVIRONMENT = "measurements.csv", "environment.json"
SIZES = ("kind", "tokens", "decodes", "decode_kv", "chunk", "cached")
"""Columns that say what was measured."""
HEADER = (*SIZES, "median_ns", "p10_ns", "p90_ns", "samples")
_PS_PER_NS = 1000


class MeasurementKind(StrEnum):
    """What a row times; each is the whole model, all layers.

    ``dense``: all but attention of a batch of ``tokens`` tokens, LM head and sampling of one row included. ``decode``:
    attention of ``decodes`` steps that read ``decode_kv`` KV tokens in all. ``prefill``: attention of a prefill step
    of ``chunk`` tokens on ``cached`` ones. ``batch``: a whole forward pass with any of these. ``swap_out``,
    ``swap_in``: moving the KV of ``tokens`` tokens to the host's memory, or back.
    """

    DENSE = "dense"
    DECODE = "decode"
    PREFILL = "prefill"
    BATCH = "batch"
    SWAP_OUT = "swap_out"
    SWAP_IN = "swap_in"


_SWAPS = {MeasurementKind.SWAP_OUT: Part.SWAP_OUT, MeasurementKind.SWAP_IN: Part.SWAP_IN}


def read_measurements(source: str, options: SourceOptions) -> Measurements:
    """Read a folder of measurements."""
    folder = Path(source)
    environment = read_environment(folder / ENVIRONMENT)
    rows: defaultdict[MeasurementKind, list[tuple[float, float, float, float, float, float]]] = defaultdict(list)
    for row in read_table(folder / TABLE, HEADER):
        text = row.text("kind")
        if text not in set(MeasurementKind):
            raise row.error("kind", text, one_of(text, tuple(MeasurementKind)))
        rows[MeasurementKind(text)].append(_sizes(row, MeasurementKind(text)))
    for kind in (MeasurementKind.DENSE, MeasurementKind.DECODE, MeasurementKind.PREFILL):
        require_rows(folder / TABLE, rows[kind], f"a row of kind {kind}")
    return Measurements(
        hardware=f"{environment['device']}, tensor parallel {environment.get('tensor_parallel', 1)}",
        model=_shape(environment),
        sources=tuple(file_source(folder, name, (None, None, None)) for name in (TABLE, ENVIRONMENT)),
        dense=Timings.dense(*zip(*((row[0], row[5]) for row in sorted(rows[MeasurementKind.DENSE])), strict=True)),
        attention=Timings.attention([row[1:] for row in rows[MeasurementKind.DECODE] + rows[MeasurementKind.PREFILL]]),
        swaps={
            part: Timings.dense(*zip(*((row[0], row[5]) for row in sorted(rows[kind])), strict=True))
            for kind, part in _SWAPS.items()
            if rows[kind]
        },
        batches=_batches(rows[MeasurementKind.BATCH]) if rows[MeasurementKind.BATCH] else None,
        notes=(f"Measured on {environment.get('date', 'a day that the file does not name')} by optsched profile.",),
    )


def read_environment(path: Path) -> dict[str, Any]:
    """Read what was measured, and on what."""
    data = read_bytes(path)
    try:
        found = load_json(data)
    except InputError as error:
        raise error.located(str(path)) from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        value = found.get("format") if isinstance(found, dict) else found
        raise InputError("format", value, FORMAT, str(path))
    if not isinstance(found.get("device"), str):
        raise InputError("device", found.get("device"), "a string", str(path))
    return found


def _shape(environment: dict[str, Any]) -> str:
    """Say which model was measured."""
    shape = environment.get("shape")
    named = ", ".join(f"{key} {value}" for key, value in shape.items()) if isinstance(shape, dict) else str(shape)
    return f"{named}, {environment.get('dtype', 'unknown dtype')}"


def _sizes(row: TableRow, kind: MeasurementKind) -> tuple[float, float, float, float, float, float]:
    """Return tokens, decode steps, KV tokens that they read, c, m, and the median in ps."""
    tokens, decodes, decode_kv, chunk, cached = (row.integer(name, 0) if row.text(name) else 0 for name in SIZES[1:])
    needed = {MeasurementKind.DECODE: ("decodes", decodes), MeasurementKind.PREFILL: ("chunk", chunk)}.get(
        kind, ("tokens", tokens)
    )
    if needed[1] < 1:
        raise row.error(needed[0], row.text(needed[0]), f"an integer ≥ 1 in a row of kind {kind}")
    if kind == MeasurementKind.BATCH and tokens != decodes + chunk:
        raise row.error("tokens", tokens, f"decodes + chunk = {decodes + chunk}")
    low, middle, high = (row.integer(name, 1) for name in ("p10_ns", "median_ns", "p90_ns"))
    if not low <= middle <= high:
        raise row.error("median_ns", middle, f"p10_ns to p90_ns, {low} to {high}")
    return tokens, decodes, decode_kv, chunk, cached, middle * _PS_PER_NS


def _batches(rows: list[tuple[float, float, float, float, float, float]]) -> Timings:
    return Timings.attention([row[1:] for row in rows])
