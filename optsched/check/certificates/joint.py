"""Certificates of kind ``joint``: several machines together, by lower bounds of sets of requests on one machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from operator import le
from typing import Any

import numpy as np
import numpy.typing as npt

from optsched.check.certificates.shared.guard import require_64_bits
from optsched.check.certificates.shared.refills import require_dear_refills
from optsched.check.problem import feasible, problem_of
from optsched.check.reading import UnprovedError, shown
from optsched.model.domain import replace
from optsched.model.instance import Instance, Request
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions

Prove = Callable[[Instance, Objective, Mapping[str, Any]], int]
"""Returns the bound that a certificate proves of one machine, or raises `UnprovedError`."""

_MOST_SETS = 20_000
"""Sets of requests that the checker is ready to list."""
_LARGEST = frozenset({Objective.MAKESPAN, Objective.MAX_TTFT, Objective.MAX_E2E})
_SUMS = frozenset({Objective.MEAN_TTFT, Objective.MEAN_E2E, Objective.WEIGHTED_E2E, Objective.SLO_MISSES})

_Counts = tuple[int, ...]
_Ints = npt.NDArray[np.int64]
_NONE = 2**62
"""In place of the value of a set that cannot be served."""


def joint_bound(
    machines: Sequence[Instance], objective: Objective, certificate: Mapping[str, Any], prove: Prove
) -> int:
    """Return the ``bound`` of a ``joint`` certificate if no schedule of all machines has a smaller value.

    ``machines`` are the problems of the machines if each served all requests. The certificate lists ``sets``: for a
    ``machine``, how many requests of every class (equal requests, classes in order of arrival) it serves, a ``bound``
    of its objective then, and the bound's own ``certificate``. A machine that is equal to another has its bounds.

    Every assignment gives each machine a set, and the objective is the largest of the machines' values, or their sum;
    the least of that over all assignments is at least the bound stated. A set may have the bound of a set that it
    contains, and for sums that of what is left besides, if a schedule may lose requests (`_may_lose_requests`).
    """
    if objective not in _LARGEST | _SUMS:
        raise UnprovedError(f"objective {objective.value} is no maximum or sum over machines")
    bound, sets = certificate.get("bound"), certificate.get("sets")
    if certificate.get("kind") != "joint" or type(bound) is not int or not isinstance(sets, list):
        raise UnprovedError(f"certificate is {shown(certificate)}, expected kind joint, an integer bound, and sets")
    if not machines or any(machine.requests != machines[0].requests for machine in machines):
        raise UnprovedError("the machines are not of one problem")
    classes = _classes(machines[0].requests)
    whole = tuple(map(len, classes))
    number_of_sets = prod(size + 1 for size in whole)
    if number_of_sets > _MOST_SETS:
        raise UnprovedError(f"there are {number_of_sets} sets of requests, at most {_MOST_SETS} are listed")
    known: list[dict[_Counts, int]] = [{} for _ in machines]
    alike = [(machine.limits, machine.rules, machine.cost) for machine in machines]
    for position, entry in enumerate(sets):
        proved, counts, value = _proved(f"sets[{position}]", entry, (machines, classes, objective, prove))
        for number, other in enumerate(alike):
            if other == alike[proved]:
                known[number][counts] = max(known[number].get(counts, value), value)
    # A set of several parts has their sum at most, of which there are no more than requests on all machines.
    largest = max((abs(value) for bounds in known for value in bounds.values()), default=0)
    require_64_bits(a_sum=largest * len(machines) * sum(whole))
    found = np.full([size + 1 for size in whole], _NONE)
    found[(0,) * len(whole)] = 0
    for machine, bounds in zip(machines, known, strict=True):
        least = _least(machine, classes, bounds, objective)
        following = np.full_like(found, _NONE)
        for counts in np.ndindex(least.shape):
            rest = found[tuple(slice(size + 1 - one) for one, size in zip(counts, whole, strict=True))]
            own = least[counts]
            together = np.maximum(rest, own) if objective in _LARGEST else np.where(rest == _NONE, _NONE, rest + own)
            place = following[tuple(slice(one, None) for one in counts)]
            np.minimum(place, together, out=place)
        found = following
    best = int(found[whole])
    if best == _NONE:
        raise UnprovedError("the machines cannot serve the requests")
    if best < bound:
        raise UnprovedError(f"bound is {bound}, the sets prove {best}")
    return bound


def _classes(requests: Sequence[Request]) -> list[list[Request]]:
    groups: dict[Request, list[Request]] = {}
    for request in requests:
        groups.setdefault(replace(request, id=None, predicted_output=None), []).append(request)
    return sorted(groups.values(), key=lambda group: group[0].arrival_ps)


def _proved(
    path: str, entry: object, problem: tuple[Sequence[Instance], list[list[Request]], Objective, Prove]
) -> tuple[int, _Counts, int]:
    """Return machine, counts and proved bound of an entry, makespans counted from the earliest arrival of all."""
    machines, classes, objective, prove = problem
    if not isinstance(entry, dict):
        raise UnprovedError(f"{path} is {shown(entry)}, expected an object")
    machine, counts, certificate = entry.get("machine"), entry.get("counts"), entry.get("certificate")
    if type(machine) is not int or not 0 <= machine < len(machines):
        raise UnprovedError(f"{path}.machine is {shown(machine)}, expected one of {len(machines)}")
    if not isinstance(counts, list) or len(counts) != len(classes):
        raise UnprovedError(f"{path}.counts is {shown(counts)}, expected {len(classes)} integers")
    for count, group in zip(counts, classes, strict=True):
        if type(count) is not int or not 0 <= count <= len(group):
            raise UnprovedError(f"{path}.counts has {shown(count)}, expected from 0 to {len(group)}")
    if not any(counts) or not isinstance(certificate, dict):
        raise UnprovedError(f"{path} has no requests, or no certificate")
    alone = _serving(machines[machine], classes, counts)
    value = prove(alone, objective, certificate)
    if objective is Objective.MAKESPAN:
        value += alone.start_ps - machines[machine].start_ps
    return machine, tuple(counts), value


def _serving(machine: Instance, classes: list[list[Request]], counts: Sequence[int]) -> Instance:
    served = [request for group, count in zip(classes, counts, strict=True) for request in group[:count]]
    return replace(machine, requests=tuple(served))


def _least(machine: Instance, classes: list[list[Request]], bounds: dict[_Counts, int], objective: Objective) -> _Ints:
    """Return the bound of every set that the machine can serve, by its counts."""
    servable = [feasible(problem_of(_serving(machine, [group], [1]), Restrictions())) for group in classes]
    sizes = [len(group) if can else 0 for group, can in zip(classes, servable, strict=True)]
    least = np.zeros([size + 1 for size in sizes], dtype=np.int64)
    for counts, value in bounds.items():
        if all(map(le, counts, sizes)):
            least[counts] = max(0, value)
    if not _may_lose_requests(machine):
        return least
    if objective in _LARGEST:
        for axis in range(least.ndim):
            np.maximum.accumulate(least, axis=axis, out=least)
        return least
    for counts, value in bounds.items():
        if all(map(le, counts, sizes)):
            # What a set has besides this part may contain it again.
            for _ in range(min(size // one for one, size in zip(counts, sizes, strict=True) if one)):
                rest = least[tuple(slice(size + 1 - one) for one, size in zip(counts, sizes, strict=True))]
                place = least[tuple(slice(one, None) for one in counts)]
                raised = np.maximum(place, rest + value)
                if (raised == place).all():
                    break
                place[...] = raised
    return least


def _may_lose_requests(machine: Instance) -> bool:
    """Whether a schedule without some of its requests is one of the others that ends no token later.

    Batches without any run disappear, the others start when they did and last no longer. Where evictions are allowed,
    what paused in such a batch pauses in the next instead; or, if it is filled there, it keeps its KV and decodes,
    which holds as much, and takes no longer if prefills are whole and refills dear. Beside prefills that needs hybrid
    batches.
    """
    rules = machine.rules
    if rules.swap:
        return False
    if not rules.eviction:
        return True
    if rules.chunked_prefill or not rules.hybrid:
        return False
    try:
        require_dear_refills("joint", problem_of(machine, Restrictions()))
    except UnprovedError:
        return False
    return True
