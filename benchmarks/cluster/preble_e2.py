"""Preble's global scheduler: every decision, the loads after it, and the tokens that it believes to be cached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cluster.outcome import Outcome, Sources, compared, together
from optsched.routers.e2_code import E2Code, E2CodeOptions
from optsched.routers.router import Piece, RoutedRequest, RouterSetting

UNITS = ("decisions", "loads", "cached tokens")
_MICROSECOND_PS = 10**6


def recognises(document: Any) -> bool:
    """Whether a document's first line is such a run."""
    return isinstance(document, list) and {"gpus", "enable_rebalancing", "requests", "log"} <= document[0].keys()


def outcomes(runs: Sequence[Mapping[str, Any]], _: Sources) -> Iterator[Outcome]:
    """Replay all runs of a file."""
    found = [outcome for run in runs for outcome in _replay(run)]
    for unit in UNITS:
        yield from together(unit, found)


def mistral_a6000_ps(new: int, context: int) -> int:
    """Return Preble's time of a prefill: Mistral-7B on an A6000 (`LP_mistral_7b_A6000_sglang_extend_flashinfer`)."""
    if new >= 384:
        linear = 0.10842571 * new + 4.209777054806409
    elif new >= 192:
        linear = -118 + 1.25 * new - 2.56e-3 * new**2
    else:
        linear = 22
    attention = 0.32 if context <= 1024 else (1.86e-4 * context + 0.159) / (2 if new <= 1024 else 1)
    if new * context > 1024 * 1024:
        attention += 1.13e-3 * new + 1.75e-3 * context + 2.19e-6 * new * context
    return round((linear + attention) / 0.9 * 1e9)


def pieces(path: Sequence[tuple[int, int]]) -> tuple[Piece, ...]:
    """Return the pieces of a path of (node, tokens)."""
    return tuple((name, 0, tokens) for name, tokens in path)


def _replay(run: Mapping[str, Any]) -> Iterator[Outcome]:
    options = E2CodeOptions(
        eviction=run["enable_eviction"],
        rebalancing=run["enable_rebalancing"],
        capacity=run["max_tokens_gpu"],
    )
    router = E2Code(RouterSetting(run["gpus"], prefill_ps=mistral_a6000_ps), options)
    requests = [
        RoutedRequest(index, sum(tokens for _, tokens in row["path"]), row["max_new_tokens"], pieces(row["path"]))
        for index, row in enumerate(run["requests"])
    ]
    decided, loads, cached = [], [], []
    for event in run["log"]:
        now = round(event["t"] * 1e6) * _MICROSECOND_PS
        if "finish" in event:
            ttft, tpot = (round(event[name] * 1e12) for name in ("ttft", "tpot"))
            router.finished(requests[event["finish"]], event["gpu"], now, ttft, tpot)
            continue
        index = event["request"]
        label = f"request {index}"
        request = requests[index]
        ours = router.route(RoutedRequest(index, request.input, request.output, request.prompt, None, now), ())
        decided.append((label, event["gpu"], ours))
        pairs = zip(event["cost_after"], router.loads_ps(), strict=True)
        same = all(abs(theirs - load / 1e12) <= 2e-9 for theirs, load in pairs)
        shown = [round(load / 1e12, 9) for load in router.loads_ps()]
        loads.append((label, event["cost_after"], event["cost_after"] if same else shown))
        cached.append((label, event["cached_tokens"], list(router.cached_tokens)))
    name = f"{run['workload']}, {run['gpus']} GPUs, eviction {options.eviction}, rebalancing {options.rebalancing}"
    yield compared(name, UNITS[0], decided)
    yield compared(name, UNITS[1], loads)
    yield compared(name, UNITS[2], cached)
