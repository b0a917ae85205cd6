"""Whether a schedule is legal, and what its metrics are if it is."""

from __future__ import annotations

from typing import Any

from optsched.check.problem import problem_of
from optsched.check.schedule.metrics import metrics_of, swaps_of
from optsched.check.schedule.replay import Replay
from optsched.model.errors import require_type
from optsched.model.instance import Instance
from optsched.model.restrictions import Restrictions
from optsched.model.schedule import Schedule

_UNRESTRICTED = Restrictions()


def check_schedule(
    instance: Instance, schedule: Schedule, restrictions: Restrictions = _UNRESTRICTED
) -> tuple[list[str], dict[str, Any] | None]:
    """Replay a schedule batch by batch.

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
    problem = problem_of(instance, restrictions)
    replay = Replay(problem)
    for batch in schedule.batches:
        replay.play(batch)
    replay.require_completion()
    replay.require_queue()
    if replay.violations:
        return replay.violations, None
    return [], metrics_of(problem, replay) | (swaps_of(replay) if instance.rules.swap else {})
