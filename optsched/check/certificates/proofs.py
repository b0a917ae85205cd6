"""The bound that a certificate proves: what certificates have to be first, whatever their kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optsched.check.certificates.shared.guard import require_form, require_size
from optsched.check.problem import Problem, problem_of
from optsched.check.reading import UnprovedError, shown
from optsched.model.cluster import Role
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions

_WITH_CACHES = frozenset({"prefixed"})
"""Kinds that know what caches are; to the others each request is all that it holds."""

_MOST_PLACES = 10_000_000
"""Machines times requests that the checker is ready to list."""

_WITHOUT_SWAPS = frozenset(
    {
        "ramp",
        "resident_walk",
        "resident_search",
        "layered_search",
        "request_search",
        "patterns",
        "free_pauses",
        "last_arrivals",
        "core_alone",
    }
)
"""Kinds whose theorems say that a request either keeps its KV or is filled again, or that leave batches out.

The others look at every token by itself: how many tokens a request holds in the batch that generates it, and what it
takes at least. Both are as they were if KV may wait on the host; and what the link takes is as if the machine had been
idle before the batch.
"""


def proved_bound(
    instance: Instance, restrictions: Restrictions, objective: Objective, certificate: Mapping[str, Any] | None
) -> int:
    """Return the bound that a certificate proves.

    Raises
    ------
    UnprovedError
        If it proves none; the message says why.
    """
    if certificate is None:
        raise UnprovedError("there is none, but the badge is certified")
    require_form(certificate)
    if instance.is_distributed or instance.is_cached:
        return _prove_of_several(instance, restrictions, objective, certificate)
    return prove(problem_of(instance, restrictions), objective, certificate)


def _prove_of_several(
    instance: Instance, restrictions: Restrictions, objective: Objective, certificate: Mapping[str, Any]
) -> int:
    """Prove a bound of several machines; none of its kinds covers classes of schedules, or the rule migration."""
    from optsched.check.certificates.kinds import PROOFS_OF_SEVERAL, PROOFS_WITH_ROLES  # noqa: PLC0415  # as below

    kind = certificate.get("kind")
    if not isinstance(kind, str) or kind not in {*PROOFS_OF_SEVERAL, *PROOFS_WITH_ROLES}:
        kinds = ", ".join((*PROOFS_OF_SEVERAL, *PROOFS_WITH_ROLES))
        raise UnprovedError(f"kind is {shown(kind)}, expected one of {kinds}")
    machines = instance.machines
    if kind not in PROOFS_WITH_ROLES and any(each.role is not Role.BOTH or each.rules.migration for each in machines):
        raise UnprovedError(f"kind {kind} covers neither roles nor moves")
    if instance.is_cached and kind not in _WITH_CACHES:
        raise UnprovedError(f"kind {kind} does not cover caches")
    if restrictions != Restrictions():
        raise UnprovedError(f"kind {kind} covers no class of schedules")
    if len(machines) * len(instance.requests) > _MOST_PLACES:
        raise UnprovedError(f"machines × requests is more than {_MOST_PLACES}")
    if kind in PROOFS_WITH_ROLES:
        return PROOFS_WITH_ROLES[kind](instance, objective, certificate)
    return PROOFS_OF_SEVERAL[kind]([instance.on(place) for place in range(len(machines))], objective, certificate)


def prove(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return the bound of one machine that a certificate in the right form proves."""
    from optsched.check.certificates.kinds import PROOFS  # noqa: PLC0415  # proofs take a while to load

    kind = certificate.get("kind")
    if not isinstance(kind, str) or kind not in PROOFS:
        raise UnprovedError(f"kind is {shown(kind)}, expected one of {', '.join(PROOFS)}")
    if problem.swap and kind in _WITHOUT_SWAPS:
        raise UnprovedError(f"kind {kind} does not cover swapping, which is allowed")
    require_size(kind, problem)
    return PROOFS[kind](problem, objective, certificate)


def prove_part(instance: Instance, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return the bound that a certificate within another one proves for an instance of one machine."""
    return prove(problem_of(instance, Restrictions()), objective, certificate)
