"""Every field of every kind of certificate, changed: what is still accepted still follows."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from brute_force import optimum
from pair import BEST, PAIR
from test_check_layers import stated as by_batches
from test_check_patterns import BEST as BEST_OF_PATTERNS
from test_check_patterns import MEMORY, PACKED, WEIGHTS
from test_check_patterns import PAIR as PAIR_OF_PATTERNS
from test_check_patterns import stated as patterns
from test_check_requests import stated as by_request
from test_check_search import MEETING, MET
from test_check_search import stated as searched
from test_check_walk import TIGHT
from test_congestion import busy
from test_core_alone import BETWEEN
from test_core_alone import ask as ask_core_alone
from test_free_pauses import TWO
from test_inflow import PAIRS, RENTED
from test_last_arrivals import QUEUE
from test_last_arrivals import ask as ask_last_arrivals
from test_ramp import RAMP, SPIKE, memory_bound
from test_waiting import queued, queued_bound

from optsched import Instance, Objective, Restrictions, replace, simulate
from optsched.bounds.catalogue import bound_method
from optsched.bounds.congested.prices import priced_bound
from optsched.bounds.machine import most_needs
from optsched.check import UnprovedError, check_result, proved_bound
from optsched.check.certificates.kinds import PROOFS
from optsched.model.documents import dump, parse_results, result_document
from optsched.model.errors import InputError
from optsched.model.result import Badge, Result, Status

Path = tuple[str | int, ...]
DELETED = object()
MAKESPAN, SUM = Objective.MAKESPAN, Objective.MEAN_E2E


@dataclass(frozen=True)
class Witness:
    """A certificate, what it bounds, and a value that a schedule reaches."""

    instance: Instance
    objective: Objective
    certificate: dict[str, Any]
    reached: int


def _of_bound(name: str, instance: Instance, objective: Objective) -> Witness:
    found = bound_method(name)(instance, objective)
    assert found is not None
    return Witness(instance, objective, found.certificate, optimum(instance, objective))


@cache
def witnesses() -> dict[str, Witness]:
    """Return one for every kind, most of them with the optimum."""
    hurried = replace(QUEUE, requests=tuple(replace(request, slo_e2e_ps=15) for request in QUEUE.requests))
    last = ask_last_arrivals()[0].certificate
    core = ask_core_alone()[0].certificate
    assert last is not None
    assert core is not None
    few = busy(12)
    prices = priced_bound(few, most_needs(few))
    served = simulate(few, "planner", SUM).value
    queued_served = simulate(queued(100), "planner", SUM).value
    assert prices is not None
    assert served is not None
    assert queued_served is not None
    three, terms = memory_bound(3, 10), {"kind": "ramp", "release_ps": 0, "prefill_step_ps": 0}
    return {
        "volume": _of_bound("volume", QUEUE, MAKESPAN),
        "alone": _of_bound("alone", QUEUE, SUM),
        "machine": _of_bound("machine", QUEUE, SUM),
        "late": _of_bound("late", hurried, Objective.SLO_MISSES),
        "percentile": _of_bound("percentile", QUEUE, Objective.P95_E2E),
        "congestion": Witness(few, SUM, prices.certificate, served),
        "waiting": Witness(queued(100), SUM, queued_bound().certificate, queued_served),
        "ramp": Witness(three, MAKESPAN, terms | {"prices": [SPIKE, RAMP]}, optimum(three)),
        "inflow": Witness(PAIRS, MAKESPAN, RENTED, optimum(PAIRS)),
        "resident_walk": Witness(PAIR, MAKESPAN, TIGHT | {"scale": 1, "tracked": []}, BEST),
        "resident_search": Witness(MEETING, MAKESPAN, searched(MET, 0, 0, 0, 0, 0, 0), MET),
        "layered_search": Witness(PAIR, MAKESPAN, by_batches(BEST, [3], 0, 0, scale=1), BEST),
        "request_search": Witness(MEETING, MAKESPAN, by_request(MET, 0, 0, 0, 0, 0, 0), MET),
        "free_pauses": Witness(TWO, MAKESPAN, {"kind": "free_pauses", "bound": 35, "steps": 99}, 35),
        "patterns": Witness(PAIR_OF_PATTERNS, MAKESPAN, patterns(MEMORY, PACKED, packings=WEIGHTS), BEST_OF_PATTERNS),
        "last_arrivals": Witness(QUEUE, MAKESPAN, last, optimum(QUEUE)),
        "core_alone": Witness(BETWEEN, MAKESPAN, core, optimum(BETWEEN)),
    }


def test_every_kind_has_a_witness() -> None:
    assert set(witnesses()) == set(PROOFS)
    for witness in witnesses().values():
        assert proved_bound(witness.instance, Restrictions(), witness.objective, witness.certificate) > 0


def _paths(document: object, path: Path = ()) -> Iterator[Path]:
    """Yield where everything in a document is; of long lists the first and the last two."""
    if path:
        yield path
    if isinstance(document, dict):
        for name, part in document.items():
            yield from _paths(part, (*path, name))
    elif isinstance(document, list):
        for place in sorted({*range(len(document))[:2], *range(len(document))[-2:]}):
            yield from _paths(document[place], (*path, place))


def _others(value: object) -> Iterator[object]:
    """Yield what might stand in a value's place."""
    yield from (DELETED, None, "1", 1.5, True, [], {}, -1, 0, 1, 2**70)
    if isinstance(value, int):
        yield from (value + 1, value - 1, 2 * value, 3 * value + 7, -value, float(value), str(value))
    if isinstance(value, list):
        yield from (value[1:], value[:-1], value[::-1], value + value, [value])


def _changed(document: dict[str, Any], path: Path, value: object) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    part: Any = changed
    for step in path[:-1]:
        part = part[step]
    if value is DELETED:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return changed


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROOFS)
def test_a_mutated_certificate_proves_nothing_false(kind: str) -> None:
    """Some mutations are refused, some are other prices; a kind without fields has only its name to change."""
    witness, reasons = witnesses()[kind], []
    for path in _paths(witness.certificate):
        for value in _others(_at(witness.certificate, path)):
            mutated = _changed(witness.certificate, path, value)
            try:
                found = proved_bound(witness.instance, Restrictions(), witness.objective, mutated)
            except UnprovedError as error:
                reasons.append(str(error))
            else:
                assert type(found) is int
                assert found <= witness.reached, (path, value)
    assert reasons
    assert not any("\n" in reason for reason in reasons)


def _at(document: object, path: Path) -> object:
    part: Any = document
    for step in path:
        part = part[step]
    return part


def _violations(document: dict[str, Any], instance: Instance) -> tuple[str, ...]:
    (claimed,) = parse_results(dump(document).encode(), lambda _: instance.cost)
    return check_result(claimed).violations


def _honest(kind: str) -> dict[str, Any]:
    """Return a result document that states what a witness proves."""
    witness = witnesses()[kind]
    instance, objective, certificate = witness.instance, witness.objective, witness.certificate
    bound = proved_bound(instance, Restrictions(), objective, certificate)
    result = Result(
        instance, "test", objective, Status.BOUND_ONLY, Badge.CERTIFIED, bound=bound, certificate=certificate
    )
    return result_document(result)


@pytest.mark.parametrize("kind", PROOFS)
def test_no_more_than_a_certificate_proves_is_accepted(kind: str) -> None:
    honest, instance = _honest(kind), witnesses()[kind].instance
    assert _violations(honest, instance) == ()
    for more in (honest["bound"] + 1, 2 * honest["bound"], 10**18):
        assert _violations(honest | {"bound": more}, instance)


@pytest.mark.parametrize("kind", PROOFS)
def test_another_instance_is_not_the_one_that_was_solved(kind: str) -> None:
    """Every number of the instance counts for its hash, whether or not the bound still follows."""
    honest, instance = _honest(kind), witnesses()[kind].instance
    for path in _paths(honest["instance"], ("instance",)):
        value = _at(honest, path)
        if type(value) is not int:
            continue
        try:
            violations = _violations(_changed(honest, path, value + 1), instance)
        except InputError:
            continue
        assert any("sha256" in violation for violation in violations), path
