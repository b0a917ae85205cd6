"""The sorts of trials, each a chunk of work of some seconds that its name and a seed determine."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from fractions import Fraction
from functools import partial
from itertools import product
from random import Random
from types import MappingProxyType
from typing import Any

from optsched import Restrictions, replace
from optsched.bounds.bound import BoundMethod
from optsched.bounds.catalogue import BOUNDS, BOUNDS_OF_SEVERAL, bound_method, bound_of_several
from optsched.catalogue import FORMULATION_GROUP, entries
from optsched.check import UnprovedError, check_schedule, proved_bound
from optsched.methods.bound import bound
from optsched.methods.formulations import make_formulation
from optsched.methods.simulate import simulate
from optsched.methods.solve import solve
from optsched.model.errors import InputError
from optsched.model.objectives import Objective
from optsched.solvers.formulation import Formulation, Outcome, Task, Termination, UnsupportedError, require_covered
from optsched_formulations.batching.layer_search import LayerSearch
from trial import caches, clusters
from trial.case import OBJECTIVES, IllegalError, play, value
from trial.exhaustive import TooLargeError
from trial.grammar import GRAMMARS, About, nudged, spoiled
from trial.mutated import documents
from trial.odd import ANY, Wanted, alike, changed, many
from trial.several import LARGEST, SUMS, TriedCluster, cluster, many_on_several
from trial.tried import EnoughError, SlowError, Tally, TriedAlike, TriedProblem, as_batches, drawn, limited, prove

LIMIT_S = 3.0
SLOW_S = 150.0
"""For what solves; code is compiled the first time."""
_HEURISTIC_S = 0.05
"""For the planner, which claims no bound and takes all the time that it is given."""
_PAPER = "infermax_milp"
"""The paper's programme, which soon takes minutes."""
_UNUSUAL = {
    "layer_search, no core": LayerSearch(cores=()),
    "layer_search, no graph": LayerSearch(most_nodes=0, cores=()),
    "layer_search, near walks": LayerSearch(few_places=0, cores=()),
}
"""As it does where the graph of resident sets is too large, and where it is large: that of few requests never is."""
_IN_FLOATS = ("class_flow_mip", _PAPER)
_STEPS = 6
_ROUTERS = ("round_robin", "least_requests", "random")
_POLICIES = ("vllm", "sarathi", "infermax", "srtf")
"""Policies that give bounds on many requests something to stay below."""


# Certificates ------------------------------------------------------------------------------------------------


def certificates(name: str, rng: Random, tally: Tally) -> None:
    """Draw certificates of a kind for some problems, change them where the bound does not fall, and spoil some."""
    grammar = GRAMMARS[name]
    plain = grammar.make.__name__ == "alone"
    for _ in range(12):
        if grammar.machines == "one":
            given = drawn(rng, grammar.wanted)
        else:
            given = cluster(rng, grammar.wanted, grammar.machines == "equal")
        objectives = grammar.objectives if plain else (rng.choice(grammar.objectives),)
        if rng.random() < 0.05:
            objectives = (rng.choice(OBJECTIVES),)
        for objective in objectives:
            try:
                best = given.optimum(objective).value
            except TooLargeError:
                continue
            about = About(given.case, objective, best, given.cases)
            for _ in range(1 if plain else 12):
                certificate = grammar.make(rng, about)
                bound = prove(tally, name, given, objective, certificate)
                for _ in range(0 if plain else _STEPS):
                    other = nudged(rng, certificate)
                    proved = prove(tally, name, given, objective, other)
                    if proved is not None and (bound is None or proved >= bound):
                        certificate, bound = other, proved
                prove(tally, name, given, objective, spoiled(rng, certificate), malformed=True)


# Bounds ------------------------------------------------------------------------------------------------------


def bounds(rng: Random, tally: Tally) -> None:
    """Ask every bound, and for the best of all."""
    for _ in range(12):
        given = drawn(rng, ANY)
        for objective in OBJECTIVES:
            try:
                given.optimum(objective)
            except TooLargeError:
                continue
            for name in BOUNDS:
                _bound(tally, name, given, objective)
            if rng.random() < 0.2:
                _best_bound(tally, given, objective)


def bounds_of_several(rng: Random, tally: Tally) -> None:
    """Ask every bound of several machines, and for joint optima."""
    for _ in range(12):
        given = cluster(rng, Wanted(most=3), rng.random() < 0.5)
        for objective in LARGEST + SUMS:
            try:
                given.optimum(objective)
            except TooLargeError:
                continue
            for name in BOUNDS_OF_SEVERAL:
                _bound(tally, name, given, objective)
            if rng.random() < 0.1:
                _solve_several(tally, given, objective)


def _solve_several(tally: Tally, given: TriedCluster, objective: str) -> None:
    label = "optima/solve, several"
    try:
        with limited(SLOW_S):
            result = solve(given.instance, objective, time_limit=LIMIT_S, workers=1)
    except SlowError:
        tally.find("slow", label, given.finding(objective))
        return
    except Exception:
        tally.find("traceback", label, given.finding(objective, error=traceback.format_exc()))
        return
    tally.counts[f"{label}/tried"] += 1
    tally.counts[f"{label}/proved"] += result.status == "optimal"
    wrong = _contradictions(result.bound, result.value, given.optimum(objective).value, None)
    if result.status == "optimal" and result.bound != result.value:
        wrong.append("not optimal")
    if wrong:
        tally.find("false", label, given.finding(objective, bound=result.bound, value=result.value, wrong=wrong))


def _method(name: str, given: TriedProblem) -> BoundMethod:
    return (bound_of_several if given.instance.is_distributed else bound_method)(name)


def _bound(tally: Tally, name: str, given: TriedProblem, objective: str) -> Fraction | None:
    """Hold a bound against the optimum and its certificate against the bound; return their ratio."""
    method = _method(name, given)
    name += ", several" if given.instance.is_distributed else ""
    try:
        with limited():
            found = method(given.allowed.apply(given.instance), Objective(objective))
    except SlowError:
        tally.find("slow", f"bounds/{name}", given.finding(objective))
        return None
    except Exception:
        tally.find("traceback", f"bounds/{name}", given.finding(objective, error=traceback.format_exc()))
        return None
    if found is None:
        return None
    best = given.optimum(objective).value
    tally.counts[f"bounds/{name}/tried"] += 1
    tally.counts[f"bounds/{name}/tight"] += found.value == best
    if found.value > best:
        finding = given.finding(objective, bound=found.value, certificate=found.certificate)
        tally.find("false", f"bounds/{name}", finding)
    proved = prove(tally, f"of bound {name}", given, objective, found.certificate)
    if proved != found.value:
        finding = given.finding(objective, bound=found.value, certificate=found.certificate, proved=proved)
        tally.find("unproved", f"bounds/{name}", finding)
    return Fraction(found.value, best) if best else Fraction(found.value > 0)


def _best_bound(tally: Tally, given: TriedProblem, objective: str) -> None:
    try:
        result = bound(given.instance, objective, restrictions=given.allowed)
    except Exception:
        tally.find("traceback", "bounds/best", given.finding(objective, error=traceback.format_exc()))
        return
    tally.counts["bounds/best/tried"] += 1
    if result.bound is not None and result.bound > given.optimum(objective).value:
        tally.find("false", "bounds/best", given.finding(objective, bound=result.bound))


def bounds_of_many(rng: Random, tally: Tally) -> None:
    """Hold bounds on more requests, of which no search finds the optimum, against what policies reach."""
    for _ in range(2):
        given = TriedProblem(many(rng), {})
        for objective in ("makespan", "mean_e2e", rng.choice(OBJECTIVES)):
            reached: list[int] = []
            for policy in _POLICIES:
                try:
                    played = simulate(given.instance, policy, objective)
                except InputError:  # an end beyond the largest time
                    continue
                if played.schedule is not None:
                    reached.append(value(given.case, objective, play(given.case, as_batches(played.schedule))))
            if not reached:
                continue
            for name in BOUNDS:
                _bound_of_many(tally, name, given, objective, min(reached))


def bounds_of_many_on_several(rng: Random, tally: Tally) -> None:
    """Hold bounds of several machines against what routers and policies reach."""
    for _ in range(2):
        given = TriedCluster(many_on_several(rng), {})
        for objective in ("makespan", "mean_e2e", rng.choice(LARGEST + SUMS)):
            reached: list[int] = []
            for policy, router in product(_POLICIES[:2], _ROUTERS):
                try:
                    played = simulate(given.instance, policy, objective, router=router)
                except InputError:  # an end beyond the largest time
                    continue
                if played.value is not None:
                    reached.append(played.value)
            if not reached:
                continue
            for name in BOUNDS_OF_SEVERAL:
                _bound_of_many(tally, name, given, objective, min(reached))


def _bound_of_many(tally: Tally, name: str, given: TriedProblem, objective: str, reached: int) -> None:
    label, finding = f"many/{name}", {"instance": given.document, "objective": objective, "reached": reached}
    label += ", several" if given.instance.is_distributed else ""
    try:
        with limited(SLOW_S):
            found = _method(name, given)(given.allowed.apply(given.instance), Objective(objective))
            if found is None:
                return
            proved = proved_bound(given.instance, given.allowed, Objective(objective), found.certificate)
    except SlowError:
        tally.find("slow", label, finding)
    except UnprovedError as error:
        tally.find("unproved", label, finding | {"error": str(error)})
    except Exception:
        tally.find("traceback", label, finding | {"error": traceback.format_exc()})
    else:
        tally.counts[f"{label}/tried"] += 1
        if proved != found.value or found.value > reached:
            tally.find("false", label, finding | {"bound": found.value, "proved": proved})


# Optima ------------------------------------------------------------------------------------------------------


def optima(rng: Random, tally: Tally) -> None:
    """Ask every formulation, without anything known, and `solve` with its default plan."""
    wanted = rng.choice(
        (
            Wanted(most=3),
            Wanted(most=3, swap=False),
            Wanted(most=3, whole=True, arrivals=False, swap=False),
            Wanted(most=3, whole=True, swap=False),
            Wanted(memory_only=True, swap=False),
            Wanted(memory_only=True, arrivals=True, swap=False),
        )
    )
    for _ in range(5):
        given = drawn(rng, wanted)
        objective = rng.choice((*OBJECTIVES, "makespan", "makespan", "makespan"))
        try:
            best = given.optimum(objective).value
        except TooLargeError:
            continue
        at_most = max(0, best + rng.choice((-1, 0, 1))) if rng.random() < 0.2 else None
        # A search that is stopped early says what it has by then, which may be nothing.
        limit_s = LIMIT_S if rng.random() < 0.6 else LIMIT_S * 10 ** -rng.uniform(0.5, 3)
        for name in (*entries(FORMULATION_GROUP), *_UNUSUAL):
            _formulation(tally, name, given, objective, at_most, limit_s)
        _solve(tally, given, objective, at_most, limit_s)


def optima_in_floats(rng: Random, tally: Tally) -> None:
    """Ask the formulations that solvers in floats solve, of problems with few ps beside a large coefficient."""
    for _ in range(5):
        given = drawn(rng, Wanted(most=3, whole=True, arrivals=rng.choice((False, None)), swap=False, wide=True))
        try:
            given.optimum("makespan")
        except TooLargeError:
            continue
        for name in _IN_FLOATS:
            _formulation(tally, name, given, "makespan")


def optima_of_alike(rng: Random, tally: Tally) -> None:
    """Ask for the makespan of some more requests of one or two kinds, without anything known."""
    for _ in range(3):
        given = TriedAlike(alike(rng, 12), {})
        try:
            given.optimum("makespan")
        except TooLargeError:
            continue
        for name in _FOR_ALIKE:
            _formulation(tally, name, given, "makespan")
        _solve(tally, given, "makespan")
    _hold_against_each_other(tally, TriedProblem(alike(rng, 28), {}))


def _hold_against_each_other(tally: Tally, given: TriedProblem) -> None:
    """Hold each bound on the makespan, without an optimum, against the best schedule of all formulations."""
    values, proved = {}, {}
    finding: Callable[..., dict[str, Any]] = partial(dict, instance=given.document)
    for name in _FOR_ALIKE:
        label, task = f"alike/{name}", Task(given.instance, Objective("makespan"), time_limit_s=LIMIT_S)
        outcome = _outcome(tally, label, name, task, finding)
        if outcome is None:
            continue
        tally.counts[f"{label}/tried"] += 1
        tally.counts[f"{label}/proved"] += outcome.termination == Termination.OPTIMAL
        if outcome.schedule is not None:
            found = _played(tally, label, given, "makespan", outcome.schedule, finding)
            if found is not None:
                values[name] = found
        if outcome.bound is not None:
            proved[name] = outcome.bound
    for name, stated in proved.items():
        if values and stated > min(values.values()):
            tally.find("false", f"alike/{name}", finding(bounds=proved, values=values))


def _small(given: TriedProblem) -> bool:
    """Whether the paper's programme takes less than seconds."""
    jobs = given.case.jobs
    steps = sum(job.output * (job.prompt if given.case.chunked else 1) for job in jobs)
    return steps * len(jobs) <= (8 if given.case.chunked else 14)


def _asked(given: TriedProblem, at_most: int | None) -> Restrictions:
    return given.allowed if at_most is None else replace(given.allowed, at_most=at_most)


def _made(name: str) -> Formulation:
    return _UNUSUAL[name] if name in _UNUSUAL else make_formulation(name, {})


def _formulation(
    tally: Tally, name: str, given: TriedProblem, objective: str, at_most: int | None = None, limit_s: float = LIMIT_S
) -> Fraction | None:
    """Hold what a formulation says against the optimum; return bound / optimum."""
    if name == _PAPER and not _small(given):
        return None
    allowed = _asked(given, at_most)
    instance = allowed.apply(given.instance)
    label = f"optima/{name}"
    least_s = min(limit_s, _HEURISTIC_S) if name == "planner" else limit_s
    task = Task(instance, Objective(objective), allowed, time_limit_s=least_s)
    finding = partial(given.finding, objective, at_most=at_most)
    outcome = _outcome(tally, label, name, task, finding)
    if outcome is None:
        return None
    tally.counts[f"{label}/tried"] += 1
    tally.counts[f"{label}/proved"] += outcome.termination != Termination.LIMIT
    best = given.optimum(objective).value
    found = None
    if outcome.schedule is not None:
        found = _played(tally, label, given, objective, outcome.schedule, finding)
    wrong = _contradictions(outcome.bound, found, best, at_most)
    if outcome.termination == Termination.OPTIMAL and not (outcome.bound == found == best):
        wrong.append("not optimal")
    if outcome.termination == Termination.INFEASIBLE and (at_most is None or best <= at_most):
        wrong.append("not infeasible")
    if wrong:
        ended = outcome.termination.value
        tally.find("false", label, finding(bound=outcome.bound, value=found, wrong=wrong, termination=ended))
    if outcome.certificate is not None and outcome.bound is not None:
        proved = prove(tally, f"of {name}", given, objective, outcome.certificate)
        if proved is not None and proved < outcome.bound:
            about = finding(bound=outcome.bound, proved=proved, certificate=outcome.certificate)
            tally.find("unproved", label, about)
    return Fraction(outcome.bound or 0, best) if best else Fraction((outcome.bound or 0) > 0)


def _outcome(tally: Tally, label: str, name: str, task: Task, finding: Callable[..., dict[str, Any]]) -> Outcome | None:
    """Return what a formulation says of a task; None if it does not cover it, takes too long, or crashes."""
    try:
        with limited(SLOW_S):
            formulation = _made(name)
            require_covered(formulation, task.instance)
            return formulation.solve(task)
    except UnsupportedError:
        pass
    except SlowError:
        tally.find("slow", label, finding())
    except Exception:  # whatever it is, it is a finding
        tally.find("traceback", label, finding(error=traceback.format_exc()))
    return None


def _contradictions(bound: int | None, found: int | None, best: int, at_most: int | None) -> list[str]:
    wrong = []
    # Asked for a schedule that good, beyond at_most a bound may only say that there is none.
    if bound is not None and bound > best and not (at_most is not None and bound == at_most + 1 <= best):
        wrong.append("bound above the optimum")
    if found is not None and found < best:
        wrong.append("value below the optimum")
    return wrong


def _played(
    tally: Tally, label: str, given: TriedProblem, objective: str, schedule: Any, finding: Callable[..., dict[str, Any]]
) -> int | None:
    """Return the value of a schedule that both the trial and the checker find legal, and agree about."""
    batches = as_batches(schedule)
    found, reason = None, ""
    try:
        found = value(given.case, objective, play(given.case, batches))
    except IllegalError as error:
        reason = str(error)
    violations, metrics = check_schedule(given.instance, schedule, given.allowed)
    theirs = metrics["objectives"][objective] if metrics else None
    if found is None or theirs != found:
        about = {"batches": batches, "reason": reason, "violations": violations, "value": found, "theirs": theirs}
        tally.find("false", f"{label}/schedule", finding(**about))
    return found


def _solve(
    tally: Tally, given: TriedProblem, objective: str, at_most: int | None = None, limit_s: float = LIMIT_S
) -> None:
    finding = partial(given.finding, objective, at_most=at_most)
    try:
        with limited(SLOW_S):
            result = solve(
                given.instance, objective, time_limit=limit_s, restrictions=_asked(given, at_most), workers=1
            )
    except SlowError:
        tally.find("slow", "optima/solve", finding())
        return
    except Exception:
        tally.find("traceback", "optima/solve", finding(error=traceback.format_exc()))
        return
    tally.counts["optima/solve/tried"] += 1
    tally.counts["optima/solve/proved"] += result.status in {"optimal", "infeasible"}
    best, found = given.optimum(objective).value, None
    if result.schedule is not None:
        found = _played(tally, "optima/solve", given, objective, result.schedule, finding)
    wrong = _contradictions(result.bound, found, best, at_most)
    if found != result.value:
        wrong.append("value of another schedule")
    if result.status == "optimal" and not (result.bound == result.value == best):
        wrong.append("not optimal")
    if result.status == "infeasible" and (at_most is None or best <= at_most):
        wrong.append("not infeasible")
    if wrong:
        about = {"bound": result.bound, "value": result.value, "found_by": result.found_by}
        tally.find("false", "optima/solve", finding(**about, wrong=wrong))


# Hill-climbing -----------------------------------------------------------------------------------------------

_OFFLINE = ("class_flow", "class_flow_mip", "layer_search", *_UNUSUAL, "pattern_cg")
_ONLINE = ("core_alone", "free_pauses", "last_arrivals")
_FOR_ALIKE = (*_OFFLINE, "small_search", "state_search")
_CLIMBED = (*_OFFLINE, *_ONLINE, "token_cpsat", "small_search", "state_search", _PAPER)


def climb_bounds(rng: Random, tally: Tally) -> None:
    """Change problems a little wherever bound / optimum does not fall, for each bound."""
    for name in BOUNDS:
        if name not in {"congestion", "inflow", "ramp", "waiting"}:  # which say nothing of few requests
            _climb(rng, tally, ANY, rng.choice(GRAMMARS[name].objectives), 60, name, _bound)


def climb_formulations(rng: Random, tally: Tally) -> None:
    """Change problems a little wherever bound / optimum does not fall, for each formulation."""
    name = rng.choice(_CLIMBED)
    wanted = Wanted(most=3, swap=False)
    if name in _ONLINE:
        wanted = Wanted(most=3, whole=True, arrivals=True, swap=False)
    if name in _OFFLINE:
        wanted = Wanted(most=3, whole=True, arrivals=False, swap=False)
    _climb(rng, tally, wanted, "makespan", 15, name, _formulation)


def _climb(
    rng: Random,
    tally: Tally,
    wanted: Wanted,
    objective: str,
    steps: int,
    name: str,
    ask: Callable[[Tally, str, TriedProblem, str], Fraction | None],
) -> None:
    given, ratio = drawn(rng, wanted, restrict=False), None
    for _ in range(steps):
        other = TriedProblem(changed(rng, given.document), {})
        try:
            other.optimum(objective)
        except TooLargeError:
            continue
        found = ask(tally, name, other, objective)
        tally.counts[f"climbed/{name}/steps"] += 1
        if ratio is None or (found is not None and found >= ratio):
            given, ratio = other, found if found is not None else ratio


# All ---------------------------------------------------------------------------------------------------------

Trial = Callable[[Random, Tally], None]


def _of_kind(name: str) -> Trial:
    return lambda rng, tally: certificates(name, rng, tally)


TRIALS: Mapping[str, Trial] = MappingProxyType(
    {
        "optima": optima,
        "optima, in floats": optima_in_floats,
        "optima, requests alike": optima_of_alike,
        "bounds": bounds,
        "bounds, many requests": bounds_of_many,
        "bounds, several": bounds_of_several,
        "bounds, many requests on several": bounds_of_many_on_several,
        "documents": documents,
        "climb, bounds": climb_bounds,
        "climb, formulations": climb_formulations,
        "several machines": partial(clusters.clusters, caches=False),
        "several machines, prefixes": partial(clusters.clusters, caches=True),
        "roles": clusters.roles,
        "placements": clusters.placements,
        "caches": caches.one_cache,
        "pooled caches": caches.pooled_caches,
        **{f"certificates, {name}": _of_kind(name) for name in GRAMMARS},
    }
)
"""The sorts of trials by name."""


def run_trial(sort: str, seed: int, first_only: bool = False) -> Tally:
    """Run the chunk of a sort that a seed determines, but for what solvers do in a limited time."""
    tally = Tally(first_only=first_only)
    with suppress(EnoughError):
        TRIALS[sort](Random(f"{sort}/{seed}"), tally)
    return tally
