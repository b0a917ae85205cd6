"""Policies by name, and running their code."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from contextlib import contextmanager

from optsched.catalogue import OWN_PACKAGES, POLICY_GROUP, entries, in_file, lookup, package_of
from optsched.failures import FAILURES, ReportedFailureError, failure_text, raised_at
from optsched.model.errors import InputError, Said, one_of, require_type
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.policies import POLICIES, STANDARD
from optsched.simulator.replica import Occasion, Policy, PolicyFailureError, Preparing
from optsched.simulator.router_code import RouterCrashError


class PolicyCrashError(ReportedFailureError):
    """A policy's code raises what no policy should; the message says what, and where."""


def policy_names() -> tuple[str, ...]:
    """Return the names of all installed policies."""
    return tuple(entries(POLICY_GROUP))


def standard_policies() -> tuple[str, ...]:
    """Return the policies that tables compare: a few of ours, and all others."""
    return tuple(name for name in policy_names() if name in STANDARD or name not in POLICIES)


@contextmanager
def policy_code(policy: str | Policy | Preparing) -> Iterator[None]:
    """Run a policy's code; whatever it raises becomes a `PolicyCrashError` that names a line of its file.

    The line is the innermost one of the policy's package. If it has no part in the exception, as where it answers what
    is no assignment, the line where the policy is defined. `PolicyFailureError` is what a policy may raise; and unknown
    names are not its fault.
    """
    try:
        yield
    except (PolicyFailureError, PolicyCrashError, RouterCrashError):
        raise
    except FAILURES as error:
        package = _package(policy)
        text = failure_text(error, package)
        if isinstance(error, ReportedFailureError) or raised_at(error, package) is not None:
            raise PolicyCrashError(f"raised {text}") from error
        raise PolicyCrashError(f"raised {text}; the policy is {defined_at(policy)}") from error


@dataclasses.dataclass(frozen=True)
class PolicyOfEach:
    """A policy for each entry of the list of machines.

    Parameters
    ----------
    policies
        In the order of the entries.
    """

    policies: tuple[Policy | Preparing, ...]

    def of_machines(self, instance: Instance) -> list[Policy | Preparing]:
        """Return the policy of each machine.

        Raises
        ------
        InputError
            If the list has another number of entries.
        """
        groups = instance.machine_groups
        if len(groups) != len(self.policies):
            expected = f"one, or one for each of the {len(groups)} entries of machines" if groups else "one"
            raise InputError("policy", Said(f"{len(self.policies)} policies"), expected)
        return [policy for group, policy in zip(groups, self.policies, strict=True) for _ in range(group.count)]

    def prepared(self, occasion: Occasion) -> Policy:
        """Raise `InputError`: a machine has one policy."""
        raise InputError("policy", Said(f"{len(self.policies)} policies"), "one")


def parts_of(name: str) -> tuple[str, ...]:
    """Return the names that ``+`` joins, which have to be those of policies or of files; else the name alone."""
    parts = name.split("+")
    return tuple(parts) if all(part in policy_names() or in_file(part) for part in parts) else (name,)


def _package(policy: str | Policy | Preparing) -> str | None:
    """Return the package whose lines are the policy's; None for one of ours, to which others may give functions."""
    if isinstance(policy, str):
        # Of several policies the first one that is not ours.
        found = (package_of(POLICY_GROUP, part) for part in parts_of(policy))
        return next((package for package in found if package not in OWN_PACKAGES), None)
    package = type(policy).__module__.partition(".")[0]
    return None if package in OWN_PACKAGES else package


def defined_at(policy: str | Policy | Preparing) -> str:
    """Return where a policy is defined: file and line of its class, or its module and name."""
    if isinstance(policy, str) and len(parts_of(policy)) > 1:
        return " or ".join(map(defined_at, parts_of(policy)))
    try:
        runner = lookup(POLICY_GROUP, policy, "policy") if isinstance(policy, str) else policy
        kind = runner if inspect.isclass(runner) else type(runner)
        return f"{inspect.getsourcefile(kind)}:{inspect.getsourcelines(kind)[1]}"
    except (OSError, TypeError):
        return entries(POLICY_GROUP)[policy] if isinstance(policy, str) else repr(type(policy))


def policy_in_file(name: str, field: str = "policy") -> Policy | Preparing:
    """Return the policy that ``FILE.py:NAME`` means; of a class a new object.

    Raises
    ------
    InputError
        For ``field``, if the file cannot be read or run, or NAME is no policy.
    """
    found: Policy | Preparing | type[Policy | Preparing] = lookup(POLICY_GROUP, name, field)
    try:
        policy = found() if inspect.isclass(found) else found
    except FAILURES as error:
        raise InputError(field, name, f"a class that needs no arguments: {failure_text(error)}") from error
    if not (isinstance(policy, Preparing) or hasattr(policy, "next_batch")):
        raise InputError(field, name, "an object with next_batch or prepared, or its class")
    return policy


def policy_of(policy: str | Policy | Preparing, predictor: str | None) -> tuple[Policy | Preparing, dict[str, str]]:
    """Return the policy that is meant, and what was chosen of its options (see `simulate`).

    Raises
    ------
    InputError
        For an unknown policy or predictor.
    PolicyCrashError
        If the policy cannot be imported, or does not take the predictor.
    """
    if isinstance(policy, str) and len(parts := parts_of(policy)) > 1:
        found_of = [policy_of(part, predictor) for part in parts]
        chosen = {name: text for _, options in found_of for name, text in options.items()}
        return PolicyOfEach(tuple(runner for runner, _ in found_of)), chosen
    if isinstance(policy, str) and in_file(policy):
        policy = policy_in_file(policy)
    if isinstance(policy, str) and policy not in policy_names():
        raise InputError("policy", policy, one_of(policy, policy_names()))
    if inspect.isclass(policy) or not (isinstance(policy, str | Preparing) or hasattr(policy, "next_batch")):
        raise InputError("policy", policy, "a policy's name, or an object with next_batch or prepared")
    if predictor is not None:
        require_type("predictor", predictor, str, "text such as gaussian:25, or None")
    if predictor is None:
        found = None
    else:
        from optsched.policies.predictors import read_predictor  # noqa: PLC0415  # numpy takes a while to load

        found = read_predictor(predictor)
    with policy_code(policy):
        runner: Policy | Preparing = lookup(POLICY_GROUP, policy, "policy") if isinstance(policy, str) else policy
        if predictor is None or not hasattr(runner, "predictor"):
            return runner, {}
        # Whatever has such a field is a dataclass.
        return dataclasses.replace(runner, predictor=found), {"predictor": predictor}  # type: ignore[type-var]


def ready_policy(
    runner: Policy | Preparing, instance: Instance, objective: Objective, restrictions: Restrictions, seed: int
) -> Policy:
    """Return the policy of one run; `instance` has the rules that the restrictions leave.

    Raises
    ------
    PolicyFailureError
        If it can never serve the instance.
    """
    if not isinstance(runner, Preparing):
        return runner
    return runner.prepared(occasion_of(instance, objective, restrictions, seed))


def occasion_of(instance: Instance, objective: Objective, restrictions: Restrictions, seed: int) -> Occasion:
    """Return what a policy may prepare for."""
    import numpy as np  # noqa: PLC0415  # it takes a while to load

    return Occasion(instance, objective, restrictions, np.random.default_rng(seed))
