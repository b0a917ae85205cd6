"""Whether a schedule is legal, and what its metrics are if it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from optsched.check.cluster.metrics import cluster_metrics, outcome_of
from optsched.check.cluster.replay import ClusterReplay
from optsched.check.problem import problem_of
from optsched.check.schedule.metrics import metrics_of, swaps_of
from optsched.check.schedule.replay import Replay
from optsched.model.errors import require_type
from optsched.model.instance import Instance
from optsched.model.restrictions import Restrictions
from optsched.model.schedule import Schedule

_UNRESTRICTED = Restrictions()
_MANY_RUNS = 300_000
"""Runs whose replay batch by batch takes half a second."""


def check_schedule(
    instance: Instance, schedule: Schedule, restrictions: Restrictions = _UNRESTRICTED
) -> tuple[list[str], dict[str, Any] | None]:
    """Replay a schedule batch by batch, on one machine or several.

    After a violation the replay goes on with what the schedule states: a request that should not run runs
    all the same, the next batch follows the stated end of the last one. Only what cannot be carried out is
    left out: runs and evictions of requests that do not exist or are finished, runs of no token, and tokens
    that do not exist yet.

    Parameters
    ----------
    instance, schedule
        The problem and the schedule to check.
    restrictions
        The class of schedules that this one has to belong to; ``at_most`` needs an objective and does not count.

    Returns
    -------
    tuple
        All violations, and the metrics (the dictionary that documents hold), None if there is a violation.
    """
    require_type("instance", instance, Instance, "an Instance")
    require_type("schedule", schedule, Schedule, "a Schedule")
    require_type("restrictions", restrictions, Restrictions, "Restrictions")
    if instance.is_distributed or instance.is_cached:
        return _check_cluster(instance, schedule, restrictions)
    problem = problem_of(instance, restrictions)
    if schedule.tables is not None or _is_long(schedule):
        # Few schedules are.
        from optsched.check.schedule.tables import replay_schedule  # noqa: PLC0415  # compiled code takes a while to load

        found = replay_schedule(problem, schedule)
        if found is not None:
            return [], metrics_of(problem, found) | (swaps_of(found) if instance.rules.swap else {})
    replay = Replay(problem)
    replay.violations += _beyond_one_machine(schedule)
    for batch in schedule.batches:
        replay.play(batch)
    replay.require_completion()
    replay.require_queue()
    if replay.violations:
        return replay.violations, None
    return [], metrics_of(problem, replay) | (swaps_of(replay) if instance.rules.swap else {})


def _check_cluster(
    instance: Instance, schedule: Schedule, restrictions: Restrictions
) -> tuple[list[str], dict[str, Any] | None]:
    if schedule.machine_tables is not None:
        # As above: it takes a while to load.
        from optsched.check.cluster.arrays import replay_machines  # noqa: PLC0415

        found = replay_machines(instance, schedule.machine_tables, schedule.routes, restrictions)
        if found is not None:
            return [], cluster_metrics(found)
    replay = ClusterReplay(instance, restrictions)
    replay.play(schedule)
    if replay.record.violations:
        return replay.record.violations, None
    return [], cluster_metrics(outcome_of(replay))


def _is_long(schedule: Schedule) -> bool:
    """Whether to replay a schedule batch by batch would take longer than to load compiled code."""
    return sum(len(batch.run) for batch in schedule.batches) > _MANY_RUNS


def _beyond_one_machine(schedule: Schedule) -> Iterator[str]:
    """Say what a schedule states that an instance of one machine without a cache has not."""
    if schedule.routes:
        yield f"routes has {len(schedule.routes)} machines, but there is only one, to which nothing is routed"
    if schedule.moves:
        yield f"moves has {len(schedule.moves)} moves, but there is only one machine"
    for number, batch in enumerate(schedule.batches):
        for name, pairs in (("hits", batch.hits), ("drop", batch.drop)):
            if pairs:
                yield f"batches[{number}].{name} has {len(pairs)} entries, but nothing is cached"
