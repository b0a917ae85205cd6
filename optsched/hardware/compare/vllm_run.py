"""Reader of a run of vLLM as LLMServingSim records it: a folder with ``requests.jsonl`` and ``meta.json``.

A request has two clocks: ``arrival_time`` in Unix seconds, and ``queued_ts``, ``scheduled_ts``, ``first_token_ts`` and
``last_token_ts`` in **seconds of a monotonic clock** whose offset to the first wanders. Only the second is used: a
request
arrives when the engine queues it. Limits are the engine's own: ``max_num_batched_tokens`` is C and P,
``max_num_seqs`` is
N. The KV capacity is not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optsched.model.documents import read_bytes
from optsched.model.domain import MAX_TOKENS, replace
from optsched.model.errors import InputError, Said
from optsched.model.instance import Limits, Request
from optsched.model.json_text import load_json

REQUESTS, META = "requests.jsonl", "meta.json"
_PS_PER_S = 10**12
_BLOCK = 16
"""vLLM's."""
_CLOCKS = ("queued_ts", "first_token_ts", "last_token_ts")


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """What an engine did.

    Parameters
    ----------
    requests
        By arrival, the first at 0.
    first_ps, last_ps
        When each has its first and its last token, ps after the first arrival.
    limits
        The engine's.
    """

    requests: tuple[Request, ...]
    first_ps: tuple[int, ...]
    last_ps: tuple[int, ...]
    limits: Limits


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run, and not times of kernels."""
    return (folder / REQUESTS).exists()


def read_run(folder: Path, kv_tokens: int) -> MeasuredRun:
    """Read a run.

    Parameters
    ----------
    folder
        Where its files are.
    kv_tokens
        M, what the engine had for KV.

    Raises
    ------
    InputError
        For a file that cannot be read, or a line that is not a served request.
    """
    engine = _object(read_bytes(folder / META), str(folder / META)).get("engine_kwargs")
    batch, most = (
        _positive(engine.get(name) if isinstance(engine, dict) else None, f"engine_kwargs.{name}", folder / META)
        for name in ("max_num_batched_tokens", "max_num_seqs")
    )
    found: list[tuple[Request, int, int]] = []
    path = folder / REQUESTS
    for number, line in enumerate(read_bytes(path).splitlines(), 1):
        record = _object(line, f"{path}: line {number}")
        prompt, output = (
            _positive(record.get(name), f"line {number}.{name}", path) for name in ("input_toks", "output_toks")
        )
        queued, first, last = (_seconds(record, name, number, path) for name in _CLOCKS)
        if not queued <= first <= last:
            raise InputError(f"line {number}.first_token_ts", first, f"from {queued} to {last}", str(path))
        arrival, begun, ended = (round(value * _PS_PER_S) for value in (queued, first, last))
        found.append((Request(prompt, output, arrival_ps=arrival), begun, ended))
    if not found:
        raise InputError("", Said("no request"), "at least one", str(path))
    found.sort(key=lambda served: served[0].arrival_ps)
    start = found[0][0].arrival_ps
    return MeasuredRun(
        tuple(replace(request, arrival_ps=request.arrival_ps - start) for request, _, _ in found),
        tuple(first - start for _, first, _ in found),
        tuple(last - start for _, _, last in found),
        Limits(kv_tokens, batch, batch, most, _BLOCK),
    )


def _object(data: bytes, source: str) -> dict[str, Any]:
    try:
        value = load_json(data)
    except InputError as error:
        raise error.located(source) from None
    if not isinstance(value, dict):
        raise InputError("", value, "a JSON object", source)
    return value


def _positive(value: object, field: str, path: Path) -> int:
    if type(value) is not int or not 1 <= value <= MAX_TOKENS:
        raise InputError(field, value, f"an integer from 1 to {MAX_TOKENS}", str(path))
    return value


def _seconds(record: dict[str, Any], name: str, number: int, path: Path) -> float:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 10**9:
        raise InputError(f"line {number}.{name}", value, "seconds of a monotonic clock, from 0 to 10^9", str(path))
    return float(value)
