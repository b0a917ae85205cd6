"""The kinds of certificates: which function proves the bound of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any

from optsched.check.certificates.alone import alone_bound, alone_bound_of_several
from optsched.check.certificates.assignment import assignment_bound
from optsched.check.certificates.chains import chains_bound
from optsched.check.certificates.core_alone import core_alone_bound
from optsched.check.certificates.free_pauses import free_pauses_bound
from optsched.check.certificates.inflow import inflow_bound
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
from optsched.model.instance import Instance
from optsched.model.objectives import Objective


def _when_asked(module: str, function: str) -> Callable[..., int]:
    """Return a proof whose module is loaded when it is asked for: numpy, or compiled loops, take a while to load."""

    def proof(*arguments: object, **named: object) -> int:
        bound: int = getattr(import_module(f"{__package__}.{module}"), function)(*arguments, **named)
        return bound

    return proof


PROOFS: Mapping[str, Proof] = MappingProxyType(
    {
        "alone": alone_bound,
        "machine": machine_bound,
        "late": late_bound,
        "congestion": _when_asked("congestion", "congestion_bound"),
        "waiting": _when_asked("waiting", "waiting_bound"),
        "percentile": percentile_bound,
        "volume": volume_bound,
        "ramp": ramp_bound,
        "inflow": inflow_bound,
        "resident_walk": resident_walk_bound,
        "resident_search": _when_asked("resident_search", "resident_search_bound"),
        "layered_search": _when_asked("layered_search", "layered_search_bound"),
        "request_search": _when_asked("request_search", "request_search_bound"),
        "patterns": patterns_bound,
        "free_pauses": free_pauses_bound,
        "last_arrivals": partial(last_arrivals_bound, prove=prove),
        "core_alone": partial(core_alone_bound, prove=prove),
    }
)
"""The kinds of certificates; a new kind is one more function here."""

PROOFS_OF_SEVERAL: Mapping[str, Callable[[Sequence[Instance], Objective, Mapping[str, Any]], int]] = MappingProxyType(
    {
        "alone": alone_bound_of_several,
        "assignment": assignment_bound,
        "chains": chains_bound,
        "congestion": _when_asked("congestion", "congestion_bound_of_several"),
        "joint": partial(_when_asked("joint", "joint_bound"), prove=prove_part),
        "prefixed": prefixed_bound,
        "worth": worth_bound,
    }
)
"""The kinds of certificates of several machines, and of caches."""

PROOFS_WITH_ROLES: Mapping[str, Callable[[Instance, Objective, Mapping[str, Any]], int]] = MappingProxyType(
    {"roles": roles_bound}
)
"""The kinds that know roles and links, for which they have to see the whole instance."""
