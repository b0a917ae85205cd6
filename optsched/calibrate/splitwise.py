"""Reader of Splitwise's table of measured end-to-end times (``perf_model.csv``).

A row is a batch of ``batch_size`` requests of ``prompt_size`` prompt tokens each, all prefilled together, which then
generate ``token_size`` tokens each (Patel et al., "Splitwise", ISCA 2024; Mutinifni/splitwise-sim). The table holds
**milliseconds of the whole model**: ``prompt_time`` of the prefill batch, ``token_time`` of a decode batch (the mean
from arrival to completion) and ``e2e_time``. Two whole batches come of each row, b the batch, p the prompt, o the
output::

    prompt   b p tokens, b prefill steps of p tokens on none
    token    b decode steps that read b (p + o / 2) KV tokens: the mean over the o − 1 that follow the first token

Repetitions of a setting become their median. The number of tokens that came is not always the one asked for, and
follows from the times: ``1 + (e2e_time − prompt_time) / token_time``. It is smaller where the model stopped early
(most rows of 512 tokens and more), and then o is what came; it is larger where the batch did not fit into memory and
was served in parts (Llama-2-70B on two A100: 32 and 64 requests), and such settings are left out.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from optsched.calibrate.columns import read_table, require_plausible, require_rows
from optsched.calibrate.library import file_source
from optsched.calibrate.timings import Measurements, SourceOptions, Timings
from optsched.model.errors import InputError, Said

UNIT = "ms"
_TOKEN_PS = (10**9, 10**12)
"""A decode batch reads all weights: no GPU does it in less than 1 ms, and none needs 1 s."""
_SAME = 0.02
"""How far what came may be from what was asked for without being something else."""
_UNITS = 10
"""If prompt and tokens together are off by this factor from the end-to-end time, in the median, units differ."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A batch of equal requests, and the medians of its times in ps.

    Parameters
    ----------
    prompt, batch, output
        Prompt tokens of each request, number of requests, output tokens that came of each.
    prompt_ps, token_ps, e2e_ps
        Time of the prefill batch, of a decode batch, of all.
    """

    prompt: int
    batch: int
    output: int
    prompt_ps: float
    token_ps: float
    e2e_ps: float


def read_settings(path: Path, hardware: str, tensor_parallel: int) -> tuple[Setting, ...]:
    """Read the settings measured on this hardware with that number of GPUs, ascending."""
    found: defaultdict[tuple[int, int, int], list[tuple[float, float, float]]] = defaultdict(list)
    known = set()
    for row in read_table(path):
        key = row.text("hardware"), row.integer("tensor_parallel", 1)
        known.add(f"{key[0]} with {key[1]}")
        if key == (hardware, tensor_parallel):
            sizes = row.integer("prompt_size", 1), row.integer("batch_size", 1), row.integer("token_size", 1)
            prompt, token, whole = (row.time_ps(name, UNIT) for name in ("prompt_time", "token_time", "e2e_time"))
            require_plausible(path, f"line {row.line}.token_time", token, _TOKEN_PS, UNIT)
            found[sizes].append((prompt, token, whole))
    require_rows(path, list(found), f"a row of {hardware} with {tensor_parallel} GPUs (of {', '.join(sorted(known))})")
    middles = {sizes: [median(column) for column in zip(*times, strict=True)] for sizes, times in sorted(found.items())}
    apart = median((prompt + token * (sizes[2] - 1)) / whole for sizes, (prompt, token, whole) in middles.items())
    if not 1 / _UNITS < apart < _UNITS:
        ratio = Said(f"{apart:.3g} times as much from prompt_time and token_time")
        raise InputError("e2e_time", ratio, "times in one unit, ms", str(path))
    settings = []
    for (size, batch, asked), (prompt, token, whole) in middles.items():
        came = 1 + (whole - prompt) / token
        if came <= (1 + _SAME) * asked:
            output = round(came) if came < (1 - _SAME) * asked else asked
            settings.append(Setting(size, batch, output, prompt, token, whole))
    return tuple(settings)


def read_splitwise(source: str, options: SourceOptions) -> Measurements:
    """Read the settings of one kind of GPU as whole batches."""
    if options.hardware is None:
        raise InputError("hardware", Said("nothing"), "a name of the table's column hardware, such as a100-80gb")
    path = Path(source)
    settings = read_settings(path, options.hardware, options.tensor_parallel)
    table = np.array([(s.prompt, s.batch, s.output, s.prompt_ps, s.token_ps) for s in settings])
    prompt, batch, output, prompt_ps, token_ps = table.T
    none = np.zeros_like(batch)
    after = output > 1
    batches = Timings(
        tokens=np.concatenate([batch * prompt, batch[after]]),
        decodes=np.concatenate([none, batch[after]]),
        decode_kv=np.concatenate([none, (batch * (prompt + output / 2))[after]]),
        prefills=np.concatenate([batch, none[after]]),
        prefill_kv=np.zeros(len(batch) + int(after.sum())),
        prefill_sq=np.concatenate([batch * prompt**2, none[after]]),
        times=np.concatenate([prompt_ps, token_ps[after]]),
    )
    return Measurements(
        hardware=f"{options.hardware}, tensor parallel {options.tensor_parallel}",
        model=options.model or "llama2-70b",
        sources=(file_source(path.parent, path.name, (None, None, None)),),
        batches=batches,
        notes=(
            "Whole batches as users saw them: LM head, sampler and CPU time are in them. Nothing was measured with "
            "KV cached "
            "before a prefill, so prefill_kv is 0 and chunks extrapolate.",
        ),
    )
