"""Reader of the kernel timing tables of Vidur and its relatives: ``mlp.csv``, ``attention.csv``, network and CPU.

The tables hold **milliseconds per layer per GPU**; what is returned are picoseconds of a whole model::

    non-attention  =  layers × (Σ over the per-layer operators of their median + 2 all-reduces)  +  median of emb
    decode         =  layers × median of attn_decode
    prefill        =  layers × median of attn_prefill

``add`` counts once a layer, as in Vidur's own sum (Agrawal et al., "Vidur", MLSys 2024; `execution_time.py` of
microsoft/vidur). With tensor parallelism a layer has two all-reduces, after attention and after the MLP, of 2 ×
n_embd × tokens bytes each (16 bit); their table is interpolated linearly between sizes. The tables have no row for
the LM head; sampler and CPU have a table of their own, ``cpu_overheads.csv``, milliseconds per batch.
"""

from __future__ import annotations

from collections import defaultdict
from math import inf
from pathlib import Path
from statistics import median

import numpy as np

from optsched.calibrate.columns import (
    KERNEL_PS,
    TableRow,
    read_table,
    require_plausible,
    require_rows,
)
from optsched.calibrate.library import Part, Source, file_source
from optsched.calibrate.timings import Array, Measurements, SourceOptions, Timings
from optsched.model.errors import InputError, Said

UNIT = "ms"


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
_ALL_REDUCES = 2
"""A layer."""
_BYTES = 2
"""Of a number."""
_CPU_STEPS = ("schedule", "sampler_e2e", "prepare_inputs_e2e", "process_model_outputs")
"""What Vidur adds up besides the communication with workers (`execution_time.py`), their medians."""
_CPU_PS = (10**7, 10**11)
"""What the CPU takes for a batch lies between 10 µs and 100 ms."""
_BETWEEN_WORKERS = ("ray_comm_time_mean", "ray_comm_time_median")
"""It has one name or the other, and only this statistic."""


def read_vidur(source: str, options: SourceOptions) -> Measurements:
    """Read the tables of one model: ``source`` is ``mlp.csv``, the others are in the options."""
    if options.layers is None:
        raise InputError("layers", Said("nothing"), "how many layers the model has: these tables hold the times of one")
    if options.attention is None:
        raise InputError("attention", Said("nothing"), "the table of attention times that belongs to it")
    parallel = options.tensor_parallel
    if (options.network is None) != (parallel == 1):
        wanted = "no such table with one GPU" if parallel == 1 else "a table of all-reduce times, for several GPUs"
        raise InputError("network", Said("nothing") if options.network is None else options.network, wanted)
    network = None if options.network is None else Path(options.network)
    dense = read_dense(Path(source), options.layers, parallel, network)
    files = [file for file in (source, options.attention, options.network, options.cpu) if file is not None]
    notes = ["The tables have no LM head and no writing of the KV cache, nor does the profile."]
    overheads: dict[Part, Timings] = {}
    if options.cpu is not None:
        overheads[Part.CPU_OVERHEAD] = read_cpu(Path(options.cpu), options.model, parallel)
    else:
        notes.append("Sampler and CPU time are not in the profile either.")
    return Measurements(
        hardware=f"{options.hardware or 'as in its table'}, tensor parallel {parallel}",
        model=f"{options.model or 'as in its table'}, {options.layers} layers",
        sources=tuple(_own_source(file) for file in files),
        dense=dense,
        attention=read_attention(Path(options.attention), options.layers, parallel),
        per_sequence=overheads,
        notes=tuple(notes),
    )


def _own_source(file: str) -> Source:
    path = Path(file)
    return file_source(path.parent, path.name, (None, None, None))


def read_dense(path: Path, layers: int, tensor_parallel: int = 1, network: Path | None = None) -> Timings:
    """Read an ``mlp.csv`` (or ``.gz``): the rows measured with ``tensor_parallel`` GPUs, by ascending tokens.

    With a table of all-reduces, tokens beyond its sizes are left out.
    """
    rows: list[tuple[int, float]] = []
    widths = set()
    shortest = inf
    for row in read_table(path):
        if row.integer("num_tensor_parallel_workers", 1) == tensor_parallel:
            operators = [row.time_ps(f"time_stats.{name}.median", UNIT) for name in LAYER_OPERATORS]
            shortest = min(shortest, *operators)
            rows.append(
                (row.integer("num_tokens", 1), layers * sum(operators) + row.time_ps("time_stats.emb.median", UNIT))
            )
            if network is not None:
                widths.add(row.integer("n_embd", 1))
    require_rows(path, rows, "a row of this many GPUs")
    _require_kernel(path, "the shortest operator", shortest)
    tokens, times = np.array(sorted(rows, key=lambda row: row[0]), dtype=np.float64).T
    if network is not None:
        sizes = _BYTES * widths.pop() * tokens
        known, taken = _all_reduce(network, tensor_parallel)
        measured = sizes <= known[-1]
        collectives = layers * _ALL_REDUCES * np.interp(sizes, known, taken)
        tokens, times = tokens[measured], (times + collectives)[measured]
    return Timings.dense(tokens, times)


def read_attention(path: Path, layers: int, tensor_parallel: int = 1) -> Timings:
    """Read an ``attention.csv`` (or ``.gz``): the rows measured with ``tensor_parallel`` GPUs.

    Also read is a selection of its rows with one column ``time_ms_median`` and no number of GPUs; all
    of its rows count.
    """
    decodes: list[tuple[float, float, float, float, float]] = []
    prefills: list[tuple[float, float, float, float, float]] = []
    shortest = inf
    for row in read_table(path):
        if "num_tensor_parallel_workers" in row.fields and (
            row.integer("num_tensor_parallel_workers", 1) != tensor_parallel
        ):
            continue
        prefill = row.boolean("is_prefill")
        column = f"time_stats.attn_{'prefill' if prefill else 'decode'}.median"
        time = row.time_ps(column if column in row.fields else "time_ms_median", UNIT)
        shortest = min(shortest, time)
        cached = row.integer("kv_cache_size", 0)
        if prefill:
            prefills.append((0, 0, row.integer("prefill_chunk_size", 1), cached, layers * time))
        else:
            batch = row.integer("batch_size", 1)
            decodes.append((batch, batch * cached, 0, 0, layers * time))
    require_rows(path, decodes, "a decode row")
    require_rows(path, prefills, "a prefill row")
    _require_kernel(path, "the shortest time", shortest)
    return Timings.attention(decodes + prefills)


def read_cpu(path: Path, model: str | None, tensor_parallel: int) -> Timings:
    """Read ``cpu_overheads.csv``: CPU time of a batch by its number of requests."""
    rows: list[tuple[int, float]] = []
    for line in read_table(path):
        row = TableRow(path, line.line, {name.lower(): value for name, value in line.fields.items()})
        if row.text("model_name") == model and row.integer("tensor_parallel_degree", 1) == tensor_parallel:
            between = next((name for name in _BETWEEN_WORKERS if name in row.fields), _BETWEEN_WORKERS[0])
            steps = [*(f"{step}_median" for step in _CPU_STEPS), between]
            time = sum(row.time_ps(step, UNIT) for step in steps)
            require_plausible(path, f"line {row.line}", time, _CPU_PS, UNIT)
            rows.append((row.integer("batch_size", 1), time))
    require_rows(path, rows, f"a row of {model} on {tensor_parallel} GPUs")
    return Timings.per_sequence(*np.array(sorted(rows), dtype=np.float64).T)


def _all_reduce(path: Path, workers: int) -> tuple[Array, Array]:
    """Return sizes in bytes, ascending, and the median of the times measured for each, in ps."""
    times: defaultdict[int, list[float]] = defaultdict(list)
    for row in read_table(path):
        if row.text("collective") != "all_reduce":
            raise row.error("collective", row.text("collective"), "all_reduce")
        if row.integer("num_workers", 1) == workers == row.integer("devices_per_node", 1):
            times[row.integer("size", 1)].append(row.time_ps("time_stats.all_reduce.median", UNIT))
    require_rows(path, list(times), f"rows of {workers} GPUs in one node")
    sizes = sorted(times)
    taken = [median(times[size]) for size in sizes]
    _require_kernel(path, "the shortest time", min(taken))
    return np.array(sizes, dtype=np.float64), np.array(taken)


def _require_kernel(path: Path, field: str, found_ps: float) -> None:
    require_plausible(path, field, found_ps, KERNEL_PS, UNIT)
