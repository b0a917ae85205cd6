"""Running a heuristic policy on the simulator."""

from __future__ import annotations

import copy
import time
from itertools import repeat
from pathlib import Path

from optsched.catalogue import file_version
from optsched.methods.arguments import read_integer, read_problem, read_seed, require_coverable
from optsched.methods.checked import IllegalScheduleError, checked_cluster_metrics, checked_metrics
from optsched.methods.policies import (
    PolicyCrashError,
    PolicyOfEach,
    occasion_of,
    parts_of,
    policy_code,
    policy_of,
    ready_policy,
)
from optsched.methods.question import Question
from optsched.methods.routing import Routing, read_routing
from optsched.model.domain import replace
from optsched.model.errors import InputError, Said
from optsched.model.instance import Instance
from optsched.model.metrics import Tally
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Result, Status, versions
from optsched.model.schedule import Schedule
from optsched.routers.router import RouterFactory
from optsched.simulator.cluster import run_cluster
from optsched.simulator.engine import run_policy, serve
from optsched.simulator.replica import (
    COMPILED_TOKENS,
    Compiled,
    Planning,
    Policy,
    PolicyFailureError,
    Preparing,
)
from optsched.simulator.routed import DecisionRecord
from optsched.simulator.router_code import RouterCrashError


def simulate(
    instance: Instance | str | Path,
    policy: str | Policy | Preparing,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    restrictions: Restrictions | None = None,
    predictor: str | None = None,
    router: str | RouterFactory | None = None,
    evictor: str | None = None,
    routers: int | None = None,
    seed: int = 0,
    record: DecisionRecord | None = None,
) -> Result:
    """Let a policy schedule an instance, and report its schedule and metrics.

    Parameters
    ----------
    instance
        The problem, or its name or file.
    policy
        A policy's name; or ``FILE.py:NAME``, where the file defines such an object or its class; or any object with
        ``next_batch`` or ``prepared`` (`optsched.simulator.replica`). Where machines are listed, several names joined
        by ``+`` are the policies of the entries of that list.
    objective
        Which objective ``value`` reports, and a policy with hindsight aims at.
    restrictions
        A smaller class of schedules that the policy must stay in.
    predictor
        What predicts output lengths for a policy that needs them, as `optsched.policies.predictors.read_predictor`
        reads it; None for the policy's own choice, the truth. Other policies do not mind.
    router
        Of an instance of several machines: a router's name; or ``FILE.py:NAME``, where the file defines a function that
        takes an `optsched.routers.router.RouterSetting` and returns a router, or a `Router` without parameters; or such
        a function. None for ``round_robin``.
    evictor
        Which cached blocks are dropped first (`optsched.cache.blocks.EVICTOR_NAMES`); None for ``lru``. ``NAME:nodes``
        drops whole leaves of the tree of blocks, as SGLang does.
    routers
        How many routers there are; None for as many as the instance says (`optsched.model.cluster.ViewAge`).
    seed
        Of whatever a policy leaves to chance, such as the errors of predictions.
    record
        Where the decisions of routers are written down, and how much more work the chosen machine had than the best
        (`optsched.simulator.cluster.run_cluster`).

    Returns
    -------
    Result
        ``feasible`` with a checked schedule; or ``failed`` with a message that names request or batch, and reason:
        the policy gets stuck, breaks a rule, or leaves the class; or file and line, if its code raises an exception.

    Raises
    ------
    InputError
        For an unknown policy, instance, objective, predictor, router or evictor; a router where there is one machine,
        or an evictor where nothing is cached.
    InfeasibleInstanceError
        If no schedule exists.
    DefectError
        If the checker computes other metrics than the simulator.
    """
    question = Question(*read_problem(instance, objective, restrictions, clusters=True))
    seed = read_seed(seed)
    given = None if routers is None else read_integer("routers", routers, 1)
    routing = read_routing(question.instance, router, evictor, given)
    if record is not None and (routing is None or routing.name is None):
        raise InputError("record", Said("a record of decisions"), "none: the instance has one machine, and no router")
    try:
        return play(question, policy, predictor=predictor, routing=routing, seed=seed, record=record)
    except (PolicyCrashError, RouterCrashError) as crash:
        name = _name(policy)
        crashed = f"router {routing.name}" if isinstance(crash, RouterCrashError) and routing is not None else name
        return Result(
            instance=question.instance,
            method=name,
            objective=question.objective,
            status=Status.FAILED,
            seed=seed,
            restrictions=question.restrictions,
            message=f"{crashed}: {crash}",
        )


def play(
    question: Question,
    policy: str | Policy | Preparing,
    *,
    predictor: str | None = None,
    routing: Routing | None = None,
    seed: int = 0,
    record: DecisionRecord | None = None,
) -> Result:
    """Let a policy answer a question, as `simulate` does, but raise `PolicyCrashError` or `RouterCrashError`."""
    instance, objective, restrictions = question.instance, question.objective, question.restrictions
    name = _name(policy)
    runner, options = policy_of(policy, predictor)
    if isinstance(runner, PolicyOfEach):
        runner.of_machines(instance)
    planning = runner if isinstance(runner, Planning) and _may_plan(question, routing) else None
    if routing is not None and planning is None:
        options |= routing.options
    if question.infeasibility is not None:
        raise question.infeasibility
    failed = Result(
        instance=instance,
        method=name,
        objective=objective,
        status=Status.FAILED,
        seed=seed,
        versions=dict(versions()) | _file_versions(name),
        restrictions=restrictions,
        options=options,
    )
    started = time.perf_counter()
    try:
        with policy_code(policy):
            if routing is None:
                schedule, tally = _serve(question, runner, seed)
            elif planning is None:
                schedule, tally = _route(question, runner, routing, seed, record), None
            else:
                schedule, tally = (
                    planning.planned(occasion_of(question.restricted, objective, restrictions, seed)),
                    None,
                )
    except PolicyFailureError as failure:
        with policy_code(policy):
            reason = f"{name}: {instance.label(failure.index)} at {failure.now_ps} ps: {failure.reason}"
        return replace(failed, runtime_s=time.perf_counter() - started, message=reason)
    failed = replace(failed, runtime_s=time.perf_counter() - started)
    try:
        if routing is None:
            metrics = checked_metrics(instance, schedule, f"policy {name}", restrictions, tally)
        else:
            metrics = checked_cluster_metrics(instance, schedule, f"policy {name}", restrictions)
    except IllegalScheduleError as illegal:
        return replace(failed, message=f"{name}: {illegal.violations[0]}")
    value = metrics["objectives"][objective.value]
    if restrictions.at_most is not None and value > restrictions.at_most:
        reason = f"{name}: {objective.value} is {value}, at most {restrictions.at_most} is allowed"
        return replace(failed, message=reason)
    return replace(failed, status=Status.FEASIBLE, value=value, schedule=schedule, metrics=metrics)


def served_alone(question: Question, name: str, seed: int) -> tuple[Schedule, Tally | None]:
    """Let an installed policy serve a feasible instance of one machine without a cache.

    Returns
    -------
    tuple
        Its schedule, which the checker has not seen; and a tally of it, if its run made one.

    Raises
    ------
    PolicyFailureError
        If it cannot serve the instance.
    PolicyCrashError
        If its code raises.
    """
    runner, _ = policy_of(name, None)
    with policy_code(name):
        return _serve(question, runner, seed)


def _serve(question: Question, runner: Policy | Preparing, seed: int) -> tuple[Schedule, Tally | None]:
    instance = question.restricted
    policy = ready_policy(runner, instance, question.objective, question.restrictions, seed)
    worth_it = sum(request.output for request in instance.requests) >= COMPILED_TOKENS
    record = policy.serve(instance) if worth_it and isinstance(policy, Compiled) else None
    if record is None:
        return serve(instance, policy), None
    return record.schedule(), record.tally()


def _may_plan(question: Question, routing: Routing | None) -> bool:
    """Whether a policy may assign requests to machines itself: no router was asked for, no caches, and no moves."""
    instance = question.instance
    if routing is None or routing.name is None or routing.asked or instance.has_roles or instance.is_cached:
        return False
    try:
        require_coverable(question.instance, question.objective, question.restrictions)
    except InputError:
        return False
    return True


def _route(
    question: Question, policy: Policy | Preparing, routing: Routing, seed: int, record: DecisionRecord | None
) -> Schedule:
    """Let a router and a policy of each machine serve an instance."""
    restricted, setting = question.restricted, routing.setting
    # Machines get their policies in order.
    policies = iter(policy.of_machines(restricted)) if isinstance(policy, PolicyOfEach) else repeat(policy)

    def of_machine(alone: Instance) -> Policy:
        # Each machine has an object of its own, which may remember things.
        return ready_policy(copy.deepcopy(next(policies)), alone, question.objective, question.restrictions, seed)

    if routing.name is None:
        return run_policy(restricted, of_machine(restricted), setting=setting)
    return run_cluster(
        restricted, of_machine, routing.factory, setting=setting, seed=seed, routers=routing.routers, record=record
    )


def _name(policy: str | Policy | Preparing) -> str:
    return policy if isinstance(policy, str) else type(policy).__name__


def _file_versions(name: str) -> dict[str, str]:
    return {key: found for part in parts_of(name) for key, found in file_version(part).items()}
