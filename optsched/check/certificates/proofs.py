"""The bound that a certificate proves: which function knows each kind, and what all kinds have to be first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from optsched.check.certificates.alone import alone_bound, alone_bound_of_several
from optsched.check.certificates.assignment import assignment_bound
from optsched.check.certificates.chains import chains_bound
from optsched.check.certificates.free_pauses import free_pauses_bound
from optsched.check.certificates.last_arrivals import Proof, last_arrivals_bound
from optsched.check.certificates.late import late_bound
from optsched.check.certificates.machine import machine_bound
from optsched.check.certificates.patterns import patterns_bound
from optsched.check.certificates.percentile import percentile_bound
from optsched.check.certificates.prefixed import prefixed_bound
from optsched.check.certificates.ramp import ramp_bound
from optsched.check.certificates.resident_walk import resident_walk_bound
from optsched.check.certificates.roles import roles_bound
from optsched.check.certificates.shared.guard import require_form, require_size
from optsched.check.certificates.volume import volume_bound
from optsched.check.certificates.worth import worth_bound
from optsched.check.problem import Problem, problem_of
from optsched.check.reading import UnprovedError, shown
from optsched.model.cluster import Role
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions


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
    return _prove(problem_of(instance, restrictions), objective, certificate)


def _prove_of_several(
    instance: Instance, restrictions: Restrictions, objective: Objective, certificate: Mapping[str, Any]
) -> int:
    """Prove a bound of several machines; none of its kinds covers classes of schedules, or the rule migration."""
    kind = certificate.get("kind")
    if not isinstance(kind, str) or (kind not in PROOFS_OF_SEVERAL and kind != _WITH_ROLES):
        raise UnprovedError(f"kind is {shown(kind)}, expected one of {', '.join((*PROOFS_OF_SEVERAL, _WITH_ROLES))}")
    machines = instance.machines
    if kind != _WITH_ROLES and any(each.role is not Role.BOTH or each.rules.migration for each in machines):
        raise UnprovedError(f"kind {kind} covers neither roles nor moves")
    if instance.is_cached and kind not in _WITH_CACHES:
        raise UnprovedError(f"kind {kind} does not cover caches")
    if restrictions != Restrictions():
        raise UnprovedError(f"kind {kind} covers no class of schedules")
    if len(machines) * len(instance.requests) > _MOST_PLACES:
        raise UnprovedError(f"machines × requests is more than {_MOST_PLACES}")
    if kind == _WITH_ROLES:
        return roles_bound(instance, objective, certificate)
    return PROOFS_OF_SEVERAL[kind]([instance.on(place) for place in range(len(machines))], objective, certificate)


def _prove(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    kind = certificate.get("kind")
    if not isinstance(kind, str) or kind not in PROOFS:
        raise UnprovedError(f"kind is {shown(kind)}, expected one of {', '.join(PROOFS)}")
    if problem.swap and kind in _WITHOUT_SWAPS:
        raise UnprovedError(f"kind {kind} does not cover swapping, which is allowed")
    require_size(kind, problem)
    return PROOFS[kind](problem, objective, certificate)


def _congestion_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Call a proof that needs numpy, which takes a while to load; there is one more, of kind ``joint``."""
    from optsched.check.certificates.congestion import congestion_bound  # noqa: PLC0415 - numpy

    return congestion_bound(problem, objective, certificate)


def _congestion_bound_of_several(
    machines: Sequence[Instance], objective: Objective, certificate: Mapping[str, Any]
) -> int:
    from optsched.check.certificates.congestion import congestion_bound_of_several  # noqa: PLC0415 - numpy

    return congestion_bound_of_several(machines, objective, certificate)


def _waiting_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Call a proof with compiled loops, which take a while to load."""
    from optsched.check.certificates.waiting import waiting_bound  # noqa: PLC0415 - numba

    return waiting_bound(problem, objective, certificate)


def _resident_search_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Call a proof with compiled loops, which take a while to load."""
    from optsched.check.certificates.resident_search import resident_search_bound  # noqa: PLC0415 - numba

    return resident_search_bound(problem, objective, certificate)


def _request_search_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Call a proof with compiled loops, which take a while to load."""
    from optsched.check.certificates.request_search import request_search_bound  # noqa: PLC0415 - numba

    return request_search_bound(problem, objective, certificate)


PROOFS: Mapping[str, Proof] = MappingProxyType(
    {
        "alone": alone_bound,
        "machine": machine_bound,
        "late": late_bound,
        "congestion": _congestion_bound,
        "waiting": _waiting_bound,
        "percentile": percentile_bound,
        "volume": volume_bound,
        "ramp": ramp_bound,
        "resident_walk": resident_walk_bound,
        "resident_search": _resident_search_bound,
        "request_search": _request_search_bound,
        "patterns": patterns_bound,
        "free_pauses": free_pauses_bound,
        "last_arrivals": partial(last_arrivals_bound, prove=_prove),
    }
)
"""The kinds of certificates; a new kind is one more function here."""


def _prove_part(instance: Instance, objective: Objective, certificate: Mapping[str, Any]) -> int:
    return _prove(problem_of(instance, Restrictions()), objective, certificate)


def _joint_bound(machines: Sequence[Instance], objective: Objective, certificate: Mapping[str, Any]) -> int:
    from optsched.check.certificates.joint import joint_bound  # noqa: PLC0415 - numpy

    return joint_bound(machines, objective, certificate, _prove_part)


PROOFS_OF_SEVERAL: Mapping[str, Callable[[Sequence[Instance], Objective, Mapping[str, Any]], int]] = MappingProxyType(
    {
        "alone": alone_bound_of_several,
        "assignment": assignment_bound,
        "chains": chains_bound,
        "congestion": _congestion_bound_of_several,
        "joint": _joint_bound,
        "prefixed": prefixed_bound,
        "worth": worth_bound,
    }
)
"""The kinds of certificates of several machines, and of caches."""

_WITH_CACHES = frozenset({"prefixed"})
"""Kinds that know what caches are; to the others each request is all that it holds."""

_WITH_ROLES = "roles"
"""The kind that knows roles and links, for which it has to see the whole instance."""

_MOST_PLACES = 10_000_000
"""Machines times requests that the checker is ready to list."""

_WITHOUT_SWAPS = frozenset(
    {"ramp", "resident_walk", "resident_search", "request_search", "patterns", "free_pauses", "last_arrivals"}
)
"""Kinds whose theorems say that a request either keeps its KV or is filled again, or that leave batches out.

The others look at every token by itself: how many tokens a request holds in the batch that generates it, and what it
takes at least. Both are as they were if KV may wait on the host; and what the link takes is as if the machine had been
idle before the batch.
"""
