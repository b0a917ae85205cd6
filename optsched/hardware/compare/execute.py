"""Running a policy or a schedule on a real engine, beside what the cost model predicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from optsched.hardware.compare.batches import Execution
from optsched.hardware.run.following import follow_policy, follow_schedule, ignore_batch
from optsched.methods.policies import policy_code, policy_of, ready_policy
from optsched.model.errors import InputError
from optsched.model.feasibility import require_feasible
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.schedule import Schedule, timed
from optsched.simulator.engine import run_policy

if TYPE_CHECKING:
    from optsched.hardware.run.engine import Engine


def _require_no_swaps(instance: Instance) -> None:
    if instance.rules.swap:
        raise InputError("rules.swap", True, "false: the engine keeps all KV on its device")


def execute_policy(
    instance: Instance,
    policy: str,
    engine: Engine,
    about: dict[str, Any],
    *,
    predictor: str | None = None,
    seed: int = 0,
    watch: Callable[[], None] = ignore_batch,
) -> Execution:
    """Let a policy decide on every batch with measured times as its clock; the simulator predicts.

    Where requests arrive over time, both may decide differently: request metrics compare two runs of the policy, batch
    errors are about the batches that the engine ran.

    Raises
    ------
    PolicyFailureError, InfeasibleInstanceError
        If it cannot serve the instance.
    PolicyCrashError
        If the policy's code raises while it is simulated.
    """
    _require_no_swaps(instance)
    instance.require_plain()
    runner, _ = policy_of(policy, predictor)
    instance.require_plain()
    require_feasible(instance)
    makespan, anything = Objective.MAKESPAN, Restrictions()
    with policy_code(policy):
        predicted = run_policy(instance, ready_policy(runner, instance, makespan, anything, seed), jumps=False)
        again = ready_policy(runner, instance, makespan, anything, seed)
    followed = follow_policy(instance, again, engine, watch)
    return Execution(instance, policy, "online", followed, predicted, about)


def execute_schedule(
    instance: Instance,
    schedule: Schedule,
    method: str,
    engine: Engine,
    about: dict[str, Any],
    *,
    watch: Callable[[], None] = ignore_batch,
) -> Execution:
    """Run the batches of a schedule in its order; the same batches with the cost model's times are the prediction."""
    _require_no_swaps(instance)
    followed = follow_schedule(instance, schedule, engine, watch)
    return Execution(instance, method, "schedule", followed, timed(instance, schedule.assignments()), about)
