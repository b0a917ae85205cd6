"""The kinds of certificates: which function proves the bound of each."""

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
from optsched.check.certificates.proofs import prove, prove_part
from optsched.check.certificates.ramp import ramp_bound
from optsched.check.certificates.resident_walk import resident_walk_bound
from optsched.check.certificates.roles import roles_bound
from optsched.check.certificates.volume import volume_bound
from optsched.check.certificates.worth import worth_bound
from optsched.check.problem import Problem
from optsched.model.instance import Instance
from optsched.model.objectives import Objective


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


def _layered_search_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Call a proof with compiled loops, which take a while to load."""
    from optsched.check.certificates.layered_search import layered_search_bound  # noqa: PLC0415 - numba

    return layered_search_bound(problem, objective, certificate)


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
        "layered_search": _layered_search_bound,
        "request_search": _request_search_bound,
        "patterns": patterns_bound,
        "free_pauses": free_pauses_bound,
        "last_arrivals": partial(last_arrivals_bound, prove=prove),
    }
)
"""The kinds of certificates; a new kind is one more function here."""


def _joint_bound(machines: Sequence[Instance], objective: Objective, certificate: Mapping[str, Any]) -> int:
    from optsched.check.certificates.joint import joint_bound  # noqa: PLC0415 - numpy

    return joint_bound(machines, objective, certificate, prove_part)


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

PROOFS_WITH_ROLES: Mapping[str, Callable[[Instance, Objective, Mapping[str, Any]], int]] = MappingProxyType(
    {"roles": roles_bound}
)
"""The kinds that know roles and links, for which they have to see the whole instance."""
