"""The planner as a policy: it plans ahead, and then follows its plan."""

from __future__ import annotations

from collections.abc import Iterator

from optsched.model.schedule import Assignment, Batch, Schedule
from optsched.planner.machines import FleetSearch
from optsched.planner.search import RuleSearch
from optsched.planner.sizes import TooLargeToPlanError
from optsched.simulator.replica import NoBatchError, Occasion, Policy, PolicyFailureError, Replica


class PlannerPolicy:
    """Knows all lengths and arrivals: the planner's list scheduling for an objective, without its long search.

    Without a router it serves several machines by the best of the assignments that the planner for them begins with.
    """

    def prepared(self, occasion: Occasion) -> Policy:
        """Plan, and return the policy that follows the plan."""
        instance = occasion.instance
        if not occasion.objective.is_monotone:
            raise PolicyFailureError(0, instance.start_ps, f"it does not plan for {occasion.objective.value}")
        if instance.is_cached:
            raise PolicyFailureError(0, instance.start_ps, "it does not plan what a machine's cache holds")
        if unserved := instance.infeasibilities():
            # One of several machines, which others are larger than.
            raise PolicyFailureError(
                0, instance.start_ps, f"it plans for all requests on each machine, but {unserved[0]}"
            )
        try:
            search = RuleSearch.of(instance, occasion.objective, occasion.restrictions, occasion.rng)
        except TooLargeToPlanError as error:
            raise PolicyFailureError(0, instance.start_ps, str(error)) from None
        for _ in search.start():
            pass
        assert search.best is not None, "there is always a list to schedule by"
        return _PlanFollower(search.best.plan.schedule())

    def planned(self, occasion: Occasion) -> Schedule:
        """Return a schedule of several machines without caches and moves, unrestricted."""
        instance = occasion.instance
        try:
            search = FleetSearch(instance, occasion.objective, occasion.rng)
        except TooLargeToPlanError as error:
            raise PolicyFailureError(0, instance.start_ps, str(error)) from None
        for _ in search.start():
            pass
        return search.schedule()


class _PlanFollower:
    """Follows a schedule whose batches start as early as they can, or when a request arrives."""

    keeps_records = True

    def __init__(self, schedule: Schedule) -> None:
        self._batches: Iterator[Batch] = iter(schedule.batches)
        self._next = next(self._batches, None)

    def next_batch(self, replica: Replica) -> Assignment:
        """Return what the schedule's next batch does, once it is due."""
        batch = self._next
        if batch is None or batch.start_ps > replica.now_ps:
            due = "never" if batch is None else f"at {batch.start_ps} ps"
            job = (replica.running or replica.waiting)[0]
            raise NoBatchError(job.index, replica.now_ps, f"the next batch of the plan is due {due}")
        self._next = next(self._batches, None)
        return Assignment(batch.run, batch.evict)


PLANNER = PlannerPolicy()
