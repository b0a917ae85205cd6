"""Letting an engine run what a policy decides, or a schedule says, and keeping how long each batch took."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from optsched.model.cost import BatchCost
from optsched.model.instance import Instance
from optsched.model.schedule import Assignment, Schedule, timed
from optsched.simulator.engine import run_policy
from optsched.simulator.replica import Policy, Replica

if TYPE_CHECKING:
    from optsched.hardware.run.engine import Engine


class BatchKind(StrEnum):
    """What a batch runs."""

    PREFILL = "prefill only"
    DECODE = "decode only"
    HYBRID = "hybrid"


@dataclass(frozen=True)
class MeasuredBatch:
    """One batch, as a cost model sees it, and how long it took.

    Parameters
    ----------
    tokens, decodes, decode_kv_tokens, prefills
        What it runs (`optsched.model.cost.BatchCost`).
    measured_ps
        How long it took.
    """

    tokens: int
    decodes: int
    decode_kv_tokens: int
    prefills: tuple[tuple[int, int], ...]
    measured_ps: int

    @property
    def kind(self) -> BatchKind:
        """What it runs."""
        if not self.decodes:
            return BatchKind.PREFILL
        return BatchKind.HYBRID if self.prefills else BatchKind.DECODE

    def predicted_ps(self, cost: BatchCost) -> int:
        """Return what a cost model says."""
        return cost.batch_ps(self.tokens, self.decodes, self.decode_kv_tokens, self.prefills)


class _MeasuringCost:
    """A cost model: asked for a batch's time, it has an engine run the batch that was announced."""

    def __init__(self, engine: Engine, watch: Callable[[], None]) -> None:
        self._engine, self._watch = engine, watch
        self._next: Assignment | None = None
        self.batches: list[MeasuredBatch] = []

    def announce(self, assignment: Assignment) -> Assignment:
        self._next = assignment
        return assignment

    def batch_ps(self, tokens: int, decodes: int, decode_kv_tokens: int, prefills: Iterable[tuple[int, int]]) -> int:
        assert self._next is not None
        taken = self._engine.run(self._next)
        self._next = None
        self._watch()
        self.batches.append(MeasuredBatch(tokens, decodes, decode_kv_tokens, tuple(prefills), taken))
        return taken


class _Listening:
    """A policy whose decisions are passed on before they are carried out."""

    def __init__(self, policy: Policy, cost: _MeasuringCost) -> None:
        self._policy, self._cost = policy, cost

    def next_batch(self, replica: Replica) -> Assignment:
        return self._cost.announce(self._policy.next_batch(replica))


@dataclass(frozen=True)
class Followed:
    """What an engine has run.

    Parameters
    ----------
    schedule
        The batches with their measured times; arrivals are those of the instance.
    batches
        The same, one by one, as a cost model sees them.
    """

    schedule: Schedule
    batches: tuple[MeasuredBatch, ...]


def ignore_batch() -> None:
    """Ignore that a batch has run."""


def follow_policy(
    instance: Instance, policy: Policy, engine: Engine, watch: Callable[[], None] = ignore_batch
) -> Followed:
    """Let a policy decide on every batch, at the time that the measured batches before have led to.

    ``watch`` is called after each batch.

    Raises
    ------
    PolicyFailureError, InfeasibleInstanceError
        As `optsched.simulator.engine.run_policy` does.
    """
    instance.require_plain()
    cost = _MeasuringCost(engine, watch)
    schedule = run_policy(instance, _Listening(policy, cost), cost=cost, jumps=False)
    return Followed(schedule, tuple(cost.batches))


def follow_schedule(
    instance: Instance, schedule: Schedule, engine: Engine, watch: Callable[[], None] = ignore_batch
) -> Followed:
    """Run the batches of a legal schedule in order, each when the one before has ended and its requests have arrived.

    Nothing is decided anew: the batches are the same whatever they take, only their times are measured ones. Time that
    the schedule lets pass without need is not.
    """
    cost = _MeasuringCost(engine, watch)
    return Followed(timed(instance, map(cost.announce, schedule.assignments()), cost), tuple(cost.batches))
