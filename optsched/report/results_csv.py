"""Results as a table for machines: the same columns whatever the suite and the methods, so that files concatenate."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from optsched.model.documents import instance_sha256
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.result import Result

_FEATURES: Mapping[str, Callable[[Instance], object]] = MappingProxyType(
    {
        "requests": lambda instance: len(instance.requests),
        "input_min_tokens": lambda instance: min(each.input for each in instance.requests),
        "input_max_tokens": lambda instance: max(each.input for each in instance.requests),
        "output_min_tokens": lambda instance: min(each.output for each in instance.requests),
        "output_max_tokens": lambda instance: max(each.output for each in instance.requests),
        "kv_tokens": lambda instance: instance.limits.kv_tokens,
        "batch_tokens": lambda instance: instance.limits.batch_tokens,
        "prefill_tokens": lambda instance: instance.limits.prefill_tokens,
        "batch_requests": lambda instance: instance.limits.batch_requests,
        "kv_block": lambda instance: instance.limits.kv_block,
        "kappa": lambda instance: round(instance.kappa, 6),
    }
)
_COUNTS = ("batches", "evictions", "recomputed_tokens", "peak_kv_tokens")
_SPREADS = ("ttft_ps", "tpot_ps", "tbt_ps", "e2e_ps")
_PARTS = ("mean", "p50", "p95", "p99")
_OPTIONS = ("router", "evictor")
_OF_CLUSTERS = (
    *("hit_tokens", "hit_rate", "saved_ps", "hit_time_rate", "computed_tokens", "prefill_tokens", "imbalance"),
    *("moves", "moved_tokens", "moved_bytes"),
)
_OTHER_NAMES = MappingProxyType({"prefill_tokens": "computed_prefill_tokens"})
"""Columns of metrics whose name is a limit's."""
_RATES = ("output_tokens_per_s", "requests_per_s", "kv_utilisation", "token_utilisation")
COLUMNS = (
    *("instance", "instance_sha256", *_FEATURES),
    *("method", "objective", "status", "badge", "value", "bound", "gap", "value_s", "bound_s", "runtime_s", "seed"),
    *(f"{objective.value}_{'requests' if objective is Objective.SLO_MISSES else 'ps'}" for objective in Objective),
    *_COUNTS,
    *(f"{spread.removesuffix('_ps')}_{part}_ps" for spread in _SPREADS for part in _PARTS),
    *_RATES,
    *("machines", *_OPTIONS, *(_OTHER_NAMES.get(name, name) for name in _OF_CLUSTERS)),
)
"""``value`` and ``bound`` are in the objective's unit: ps, of means the sum over requests; ``…_s`` are seconds, and
means. ``gap`` is (value − bound) / value."""


def results_csv(results: Iterable[Result]) -> str:
    """Write a row for each result; what it does not have is an empty field."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_row(result) for result in results)
    return stream.getvalue()


def _row(result: Result) -> Sequence[object]:
    instance, metrics = result.instance, result.metrics or {}
    own = (
        *(result.method, result.objective.value, result.status.value, result.badge.value),
        *(result.value, result.bound, result.gap, result.value_s, result.bound_s, result.runtime_s, result.seed),
    )
    objectives: Mapping[str, Any] = metrics.get("objectives", {})
    spreads = ((metrics.get(spread) or {}).get(part) for spread in _SPREADS for part in _PARTS)
    return (
        *(instance.name, instance_sha256(instance), *(feature(instance) for feature in _FEATURES.values())),
        *own,
        *(objectives.get(objective.value) for objective in Objective),
        *(metrics.get(count) for count in _COUNTS),
        *spreads,
        *(metrics.get(rate) for rate in _RATES),
        len(instance.machines),
        *(result.options.get(option) for option in _OPTIONS),
        *(metrics.get(name) for name in _OF_CLUSTERS),
    )
