"""Reader of LLMServingSim's kernel profiles: a folder with ``dense.csv``, ``attention.csv`` and ``per_sequence.csv``.

The tables hold **microseconds of one layer** (CUDA kernel time inside vLLM); what is returned are picoseconds of a
whole model::

    non-attention  =  layers × (Σ over the per-layer operators, layernorm twice)  +  embedding  +  final_layernorm
    attention      =  layers × time_us
    per sequence   =  lm_head + sampler, once a batch, by its number of requests

``attention.csv`` holds single calls for n decode steps, all on the same context, and one prefill step together:
hybrid ones too. ``skew.csv`` has decode steps on unequal contexts beside equal ones of the same mean; it is compared,
not fitted. No CPU time is in the tables (casys-kaist/LLMServingSim, ``profiler/``).
"""

from __future__ import annotations

import re
from collections import defaultdict
from math import inf
from pathlib import Path

import numpy as np

from optsched.calibrate.columns import (
    KERNEL_PS,
    PS,
    read_table,
    require_plausible,
    require_rows,
)
from optsched.calibrate.library import Check, Part, Source, file_source
from optsched.calibrate.timings import Measurements, SourceOptions, Timings, ratio_check
from optsched.model.documents import read_bytes
from optsched.model.errors import InputError, Said, one_of

UNIT = "us"
_TIMES = {
    "qkv_proj": 1,
    "o_proj": 1,
    "gate_up_proj": 1,
    "down_proj": 1,
    "act_fn": 1,
    "layernorm": 2,
    "rotary_emb": 1,
}
"""How often a layer calls an operator."""
_ONCE = ("embedding", "final_layernorm")
_PER_SEQUENCE = ("lm_head", "sampler")
FILES = ("dense.csv", "attention.csv", "per_sequence.csv", "skew.csv", "meta.yaml")


def read_llmservingsim(source: str, options: SourceOptions) -> Measurements:
    """Read a folder of LLMServingSim's profiler (one GPU; files may be packed)."""
    if options.layers is None:
        raise InputError("layers", Said("nothing"), "how many layers the model has: these tables hold the times of one")
    folder = Path(source)
    dense, attention, sequences, skew, meta = (_find(folder, name) for name in FILES)
    said = read_bytes(meta).decode("utf-8", "replace")
    return Measurements(
        hardware=options.hardware or _meta(said, "gpu", meta),
        model=f"{options.model or _meta(said, 'model', meta)}, {options.layers} layers, {_meta(said, 'variant', meta)}",
        sources=tuple(_own_source(path) for path in (dense, attention, sequences, skew, meta)),
        dense=read_dense(dense, options.layers),
        attention=read_attention(attention, options.layers),
        per_sequence={Part.PER_SEQUENCE: read_per_sequence(sequences)},
        checks=(read_skew(skew),),
        notes=(
            f"Kernels of vLLM {_meta(said, 'vllm_version', meta)}, run eagerly; CPU time and gaps between kernels "
            "are not "
            "in the tables, nor in the profile.",
        ),
    )


def _find(folder: Path, name: str) -> Path:
    packed = folder / f"{name}.gz"
    return packed if packed.exists() else folder / name


def _own_source(path: Path) -> Source:
    return file_source(path.parent, path.name, (None, None, None))


def _meta(text: str, key: str, path: Path) -> str:
    """Return a value at the top of ``meta.yaml``."""
    found = re.search(rf"^{key}: *(\S.*)$", text, re.MULTILINE)
    if found is None:
        raise InputError(key, Said("nothing"), "this field", str(path))
    return found[1].strip()


def _operators(path: Path, count: str, names: tuple[str, ...]) -> dict[int, dict[str, float]]:
    """Return the time of each operator in ps, by the number that ``count`` holds."""
    rows: defaultdict[int, dict[str, float]] = defaultdict(dict)
    shortest = inf
    for row in read_table(path):
        name, time = row.text("layer"), row.time_ps("time_us", UNIT)
        if name not in names:
            raise row.error("layer", name, one_of(name, names))
        shortest = min(shortest, time)
        rows[row.integer(count, 1)][name] = time
    require_rows(path, list(rows), "a row")
    for number, found in rows.items():
        missing = [name for name in names if name not in found]
        if missing:
            raise InputError(f"{count} {number}", Said(f"no {missing[0]}"), "a row of every operator", str(path))
    require_plausible(path, "the shortest operator", shortest, KERNEL_PS, UNIT)
    return dict(sorted(rows.items()))


def read_dense(path: Path, layers: int) -> Timings:
    """Read ``dense.csv``: everything but attention and what a batch takes per request."""
    rows = _operators(path, "tokens", (*_TIMES, *_ONCE))
    times = [
        layers * sum(often * found[name] for name, often in _TIMES.items()) + sum(found[name] for name in _ONCE)
        for found in rows.values()
    ]
    return Timings.dense(list(rows), times)


def read_per_sequence(path: Path) -> Timings:
    """Read ``per_sequence.csv``: LM head and sampler, once a batch."""
    rows = _operators(path, "sequences", _PER_SEQUENCE)
    return Timings.per_sequence(list(rows), [sum(found.values()) for found in rows.values()])


def read_attention(path: Path, layers: int) -> Timings:
    """Read ``attention.csv``: pure and hybrid calls."""
    rows: list[tuple[float, float, float, float, float]] = []
    shortest = inf
    for row in read_table(path):
        decodes, chunk = row.integer("n_decode", 0), row.integer("prefill_chunk", 0)
        if not decodes and not chunk:
            raise row.error("prefill_chunk", 0, "a prefill step, a decode step, or both")
        time = row.time_ps("time_us", UNIT)
        shortest = min(shortest, time)
        cached = row.integer("kv_prefill", 0)
        rows.append((decodes, decodes * row.integer("kv_decode", 0), chunk, cached, layers * time))
    require_rows(path, rows, "a row")
    require_plausible(path, "the shortest time", shortest, KERNEL_PS, UNIT)
    return Timings.attention(rows)


def read_skew(path: Path) -> Check:
    """Read ``skew.csv``: how far decode steps on unequal contexts are from as many on their mean."""
    unequal, equal = [], []
    for row in read_table(path):
        unequal.append(row.time_ps("t_skew_us", UNIT) / PS[UNIT])
        equal.append(row.time_ps("t_mean_us", UNIT) / PS[UNIT])
    require_rows(path, unequal, "a row")
    return ratio_check(
        "Only the sum of the contexts of decode steps matters: a call with all at their mean / one with unequal "
        "contexts",
        np.array(equal),
        np.array(unequal),
    )
