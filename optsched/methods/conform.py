"""What every policy has to keep to, tried on small instances: legal, deterministic, jumps that change nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from optsched.check import check_schedule
from optsched.methods.policies import PolicyCrashError, defined_at, policy_code, policy_of, ready_policy
from optsched.model.cost import CostModel
from optsched.model.following import unrolled
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.schedule import Schedule
from optsched.simulator.engine import run_policy
from optsched.simulator.replica import PolicyFailureError

_COST = CostModel(base=1000, token=10, pieces=((0, 60),), decode_kv=1, decode_req=5, prefill_sq=1, prefill_req=7)
_UNRESTRICTED = Restrictions()


def _instances() -> Iterator[Instance]:
    """Yield instances in which memory, budgets, rules or arrivals bind, one thing at a time."""
    lengths = ((8, 4), (3, 9), (12, 2), (5, 6), (1, 1), (7, 3))
    together = tuple(Request(each, output) for each, output in lengths)
    online = tuple(Request(*pair, arrival_ps=1700 * number) for number, pair in enumerate(lengths))
    late = (*online[:3], *(Request(*pair, arrival_ps=10**6) for pair in lengths[3:]))
    roomy, tight = Limits(200, 64, 64), Limits(20, 64, 64)
    yield Instance("all fit", roomy, Rules(), _COST, together)
    yield Instance("memory binds", tight, Rules(), _COST, together)
    yield Instance("memory binds, arrivals", tight, Rules(), _COST, online)
    yield Instance("a pause between arrivals", tight, Rules(), _COST, late)
    yield Instance("blocks of 4 tokens", Limits(24, 64, 64, kv_block=4), Rules(), _COST, online)
    yield Instance("small budgets", Limits(40, 6, 4), Rules(), _COST, online)
    yield Instance("2 requests in a batch", Limits(40, 64, 64, batch_requests=2), Rules(), _COST, online)
    yield Instance("whole prefills", Limits(40, 16, 16), Rules(chunked_prefill=False), _COST, online)
    yield Instance("no hybrid batches", tight, Rules(hybrid=False), _COST, online)
    yield Instance("no eviction", tight, Rules(eviction=False), _COST, online)
    yield Instance(
        "long outputs", Limits(400, 64, 64), Rules(), _COST, (Request(4, 150), Request(9, 80), Request(2, 40))
    )


INSTANCES: Mapping[str, Instance] = MappingProxyType({instance.name: instance for instance in _instances()})


class Verdict(StrEnum):
    """How a check ended; ``n/a``: the policy says that it cannot serve the instance, which it may."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_AVAILABLE = "n/a"


@dataclass(frozen=True)
class Conformance:
    """What came of one policy on one instance.

    Parameters
    ----------
    instance
        A name of `INSTANCES`.
    verdict, reason
        How it ended, and why: what the policy broke, with file and line, or what it says that it cannot do.
    """

    instance: str
    verdict: Verdict
    reason: str = ""


def conform(policy: str) -> list[Conformance]:
    """Try a policy, a name or ``FILE.py:NAME``, on every instance (see `conform_on`)."""
    return [conform_on(policy, name) for name in INSTANCES]


def conform_on(policy: str, name: str) -> Conformance:
    """Try a policy on one of `INSTANCES`.

    It passes if its schedule is legal under every objective (the checker replays it), is the same when it is run again
    with the same seed, and is the same when it is asked before each batch, and not only when it says that its decision
    has changed.

    Raises
    ------
    InputError
        If there is no such policy.
    """
    instance, refused = INSTANCES[name], dict[str, str]()
    for objective in Objective:
        try:
            broken = _broken(policy, instance, objective)
        except PolicyCrashError as crash:
            return Conformance(name, Verdict.FAILED, f"{objective.value}: {crash}")
        except PolicyFailureError as failure:
            refused[objective] = f"{instance.label(failure.index)} at {failure.now_ps} ps: {failure.reason}"
            continue
        if broken:
            return Conformance(name, Verdict.FAILED, f"{objective.value}: {broken}; the policy is {defined_at(policy)}")
    if len(refused) == len(Objective):
        return Conformance(name, Verdict.NOT_AVAILABLE, next(iter(refused.values())))
    reason = f"n/a for {', '.join(refused)}: {next(iter(refused.values()))}" if refused else ""
    return Conformance(name, Verdict.PASSED, reason)


def _broken(policy: str, instance: Instance, objective: Objective) -> str:
    """Return what a policy breaks; nothing if it keeps to everything."""
    schedule = _run(policy, instance, objective)
    violations, _ = check_schedule(instance, schedule)
    if violations:
        return violations[0]
    if _run(policy, instance, objective) != schedule:
        return "another schedule when it is run again with the same seed"
    if _run(policy, instance, objective, jumps=False) != unrolled(instance, schedule):
        return "another schedule when it is asked before each batch: its decisions do not hold as long as it says"
    return ""


def _run(policy: str, instance: Instance, objective: Objective, *, jumps: bool = True) -> Schedule:
    runner, _ = policy_of(policy, None)
    with policy_code(policy):
        ready = ready_policy(runner, instance, objective, _UNRESTRICTED, 0)
        return run_policy(instance, ready, jumps=jumps)
