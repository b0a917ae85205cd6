"""Measured beside predicted: batch times by kind of batch, and what requests see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from optsched.hardware.run.following import BatchKind, Followed
from optsched.model.documents import instance_document, instance_sha256
from optsched.model.errors import InputError, Said
from optsched.model.instance import Instance
from optsched.model.metrics import evaluate
from optsched.model.objectives import percentile
from optsched.model.schedule import Schedule

EXECUTION_FORMAT = "optsched-execution/1"
ALL = "all"

METRICS: Mapping[str, tuple[str, str]] = {
    "mean TTFT": ("ttft_ps", "mean"),
    "p95 TTFT": ("ttft_ps", "p95"),
    "mean TPOT": ("tpot_ps", "mean"),
    "p95 TPOT": ("tpot_ps", "p95"),
    "mean e2e": ("e2e_ps", "mean"),
    "p95 e2e": ("e2e_ps", "p95"),
}
"""What requests see, and where `optsched.model.metrics.metrics` has it."""


class Errors(NamedTuple):
    """How far predicted batch times p are from n measured ones t.

    Parameters
    ----------
    batches
        n.
    mean, p50, p95, worst
        Of ``|p − t| / t``, fractions.
    total
        ``Σ p / Σ t − 1``: negative if batches take longer than predicted.
    """

    batches: int
    mean: float
    p50: float
    p95: float
    worst: float
    total: float


@dataclass(frozen=True)
class Execution:
    """What an engine ran, beside what was predicted.

    Parameters
    ----------
    instance
        The problem, with the cost model that predicts.
    method
        The policy that decided, or the method whose schedule was followed.
    decided
        ``online``: a policy decided, with measured times as its clock. ``schedule``: the batches were given.
    followed
        The batches as they ran.
    predicted
        What the simulator says of the policy; or the same batches with predicted times.
    engine
        Device, driver, versions, shape, and how it was run.
    """

    instance: Instance
    method: str
    decided: str
    followed: Followed
    predicted: Schedule
    engine: dict[str, Any]

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Predicted and measured time of every batch that ran, in ps."""
        cost = self.instance.cost
        return tuple((batch.predicted_ps(cost), batch.measured_ps) for batch in self.followed.batches)

    def batch_errors(self) -> dict[str, Errors]:
        """Return the errors of the kinds of batch that occurred, and of all batches."""
        found = {kind.value: [batch.kind == kind for batch in self.followed.batches] for kind in BatchKind}
        found[ALL] = [True] * len(self.followed.batches)
        chosen = {
            name: [pair for pair, is_one in zip(self.pairs, members, strict=True) if is_one]
            for name, members in found.items()
        }
        return {name: _errors(pairs) for name, pairs in chosen.items() if pairs}

    def request_metrics(self) -> dict[str, tuple[float, float]]:
        """Return what requests see, predicted and measured, in ps; the makespan besides.

        Requests without a second token have no time between tokens.
        """
        predicted, measured = (
            evaluate(self.instance, schedule) for schedule in (self.predicted, self.followed.schedule)
        )
        found = {"makespan": (predicted["objectives"]["makespan"], measured["objectives"]["makespan"])}
        for name, (group, statistic) in METRICS.items():
            if predicted[group] is not None:
                found[name] = (predicted[group][statistic], measured[group][statistic])
        return found

    def document(self) -> dict[str, Any]:
        """Return the execution as a document (docs/documents.md)."""
        batches = [
            {
                "start_ps": placed.start_ps,
                "end_ps": placed.end_ps,
                "predicted_ps": predicted,
                "run": [list(step) for step in placed.run],
                "evict": list(placed.evict),
                "tokens": batch.tokens,
                "decodes": batch.decodes,
                "decode_kv": batch.decode_kv_tokens,
                "prefills": [list(prefill) for prefill in batch.prefills],
            }
            for placed, batch, (predicted, _) in zip(
                self.followed.schedule.batches, self.followed.batches, self.pairs, strict=True
            )
        ]
        errors = self.batch_errors()
        return {
            "format": EXECUTION_FORMAT,
            "instance": instance_document(self.instance),
            "instance_sha256": instance_sha256(self.instance),
            "method": self.method,
            "decided": self.decided,
            "engine": self.engine,
            "batch_errors": {name: error._asdict() for name, error in errors.items()},
            "requests": {
                name: {"predicted_ps": predicted, "measured_ps": measured}
                for name, (predicted, measured) in self.request_metrics().items()
            },
            "batches": batches,
        }


def _errors(pairs: Sequence[tuple[int, int]]) -> Errors:
    if any(measured <= 0 for _, measured in pairs):
        raise InputError("", Said("a batch that took no time"), "a clock that tells batches apart")
    relative = [abs(predicted - measured) / measured for predicted, measured in pairs]
    total = sum(predicted for predicted, _ in pairs) / sum(measured for _, measured in pairs) - 1
    mean = sum(relative) / len(relative)
    return Errors(len(pairs), mean, percentile(relative, 50), percentile(relative, 95), max(relative), total)
