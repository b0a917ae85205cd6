"""Certificates of kind ``chains``: the makespan of equal machines, each with as many batches as any of its requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optsched.check.certificates.shared.work import blocks_held, own_ps, rate_of, require_blocks
from optsched.check.problem import problem_of
from optsched.check.reading import UnprovedError, shown
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions


def chains_bound(machines: Sequence[Instance], objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return the ``bound`` of a ``chains`` certificate; ``machines`` are their problems with all requests each.

    It has ``release_ps``, an arrival t0, ``piece_weights`` and ``prefill_step_ps`` as in kind ``machine``, which give a
    rate with a base, and ``memory_share``, integers [a, b] with 0 ≤ a ≤ b and b > 0.

    Say that all ends earlier than the bound, so that Z is what there is from t0 to that time, less 1. A machine that
    runs J batches since t0 with a request of S spends at least the base on each, and what S needs by itself; and J is
    at least what S holds, summed over batches, of what a batch can hold. With a / b of the base by memory and the rest
    by J, the needs p of S add up to at most Z - (1 - a / b) base J. Order the machines by J, the most first. The first
    has as many batches as the longest request of all takes. The next one has as many as the longest that is left, if
    the machines before serve as many of the longest as they have time for; the fewer batches they have, the more time.
    If requests are left when all machines' time is spent, there is no such schedule.
    """
    if objective is not Objective.MAKESPAN:
        raise UnprovedError(f"kind chains bounds the makespan, the objective is {objective.value}")
    if any(
        (each.limits, each.rules, each.cost) != (machines[0].limits, machines[0].rules, machines[0].cost)
        for each in machines
    ):
        raise UnprovedError("kind chains is for equal machines")
    problem = problem_of(machines[0], Restrictions())
    require_blocks(problem)
    bound, release = certificate.get("bound"), certificate.get("release_ps")
    if certificate.get("kind") != "chains" or type(bound) is not int or bound < 1:
        raise UnprovedError(f"certificate is {shown(certificate)}, expected kind chains and a bound of at least 1")
    if type(release) is not int or all(request.arrival_ps != release for request in problem.requests):
        raise UnprovedError(f"release_ps is {shown(release)}, expected the arrival time of a request")
    share = certificate.get("memory_share")
    if not isinstance(share, list) or len(share) != 2 or any(type(part) is not int for part in share):
        raise UnprovedError(f"memory_share is {shown(share)}, expected two integers")
    by_memory, whole = share
    if not 0 <= by_memory <= whole or not whole:
        raise UnprovedError(f"memory_share is {shown(share)}, expected a part and a whole > 0")
    rate = rate_of(problem, certificate.get("piece_weights"), certificate.get("prefill_step_ps"))
    # All in ps × the rate's scale × whole × blocks.
    own, held = whole * problem.blocks, by_memory * rate.base
    clock = (whole - by_memory) * problem.blocks * rate.base
    jobs = iter(
        sorted(
            (
                (
                    problem.fewest_steps(request.input) + request.output - 1,
                    own_ps(problem, request.input, request.output, rate) * own
                    + blocks_held(problem, request.input, request.output) * held,
                )
                for request in problem.requests
                if request.arrival_ps >= release
            ),
            reverse=True,
        )
    )
    start = min(request.arrival_ps for request in problem.requests)
    duration = (bound - 1 - (release - start)) * rate.scale * own
    batches, left = next(jobs)
    room = 0
    for _ in machines:
        room += duration - clock * batches
        while left <= room:
            room -= left
            following = next(jobs, None)
            if following is None:
                raise UnprovedError(f"bound is {bound}, the machines have time for all requests earlier")
            batches, left = following
    return bound
