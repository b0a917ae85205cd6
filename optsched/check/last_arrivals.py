"""Certificates of kind ``last_arrivals``: a bound on the makespan of the requests that arrive last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from optsched.check.problem import Problem
from optsched.check.reading import UnprovedError, shown
from optsched.model.objectives import Objective

Proof = Callable[[Problem, Objective, Mapping[str, Any]], int]
"""Returns the bound that a certificate proves for a problem; raises `UnprovedError` if it proves none."""


def last_arrivals_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any], prove: Proof) -> int:
    """Return the makespan bound of a ``last_arrivals`` certificate.

    The certificate has ``from_ps``, the arrival time t of some request, and ``certificate``, one of another kind that
    proves a bound z for the problem of the requests with T_r ≥ t alone, any order of first runs left out. Then::

        makespan ≥ t - earliest arrival + z

    Proof. Take all steps of the other requests out of a schedule, and batches that are then empty; let the others
    begin when they began. No batch lasts longer than before or holds more, nobody else's steps or evictions change, so
    this is a schedule of the remaining problem. Its first batch does not begin before t, and it ends no later than the
    whole one: z is at most its end - t.
    """
    if objective is not Objective.MAKESPAN:
        raise UnprovedError(f"kind last_arrivals bounds the makespan, the objective is {objective.value}")
    arrivals = [request.arrival_ps for request in problem.requests]
    moment, inner = certificate.get("from_ps"), certificate.get("certificate")
    if type(moment) is not int or moment not in arrivals:
        raise UnprovedError(f"from_ps is {shown(moment)}, expected the arrival time of a request")
    if not isinstance(inner, Mapping) or inner.get("kind") == "last_arrivals":
        raise UnprovedError(f"certificate is {shown(inner)}, expected one of another kind")
    late = tuple(request for request in problem.requests if request.arrival_ps >= moment)
    return moment - min(arrivals) + prove(replace(problem, requests=late, queue=()), objective, inner)
