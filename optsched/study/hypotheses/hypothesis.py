"""Hypotheses: claims about policies and optima over a family of instances, and what the engines say of them.

Each side of a claim is an interval in every case: a policy's is its value, an optimum's is [bound, value]. So a claim
is true, false or open in each case. Over a finite family it is **proved** if it is true in every case, **refuted** if
it is false in one, else **open**. Instances that are drawn are a sample of all: a claim about each case is then
**refuted**, or **not refuted**, never proved; and a claim about a mean is **supported** or **contradicted** if it holds
or fails in the whole confidence interval, else **not refuted**.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from math import sqrt
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from optsched.cache.blocks import require_evictor
from optsched.library import instances_directory, load_instances
from optsched.methods.policies import policy_of
from optsched.methods.routing import find_router
from optsched.model.cluster import CacheMode
from optsched.model.domain import MAX_MACHINES, Name, domain, replace
from optsched.model.errors import InputError, Said, one_of
from optsched.model.instance import Instance
from optsched.model.objectives import Objective, find_objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Badge, Result, Status
from optsched.study.drive import Done, run
from optsched.study.execute import configured
from optsched.study.hypotheses.claim import Claim, read_claim
from optsched.study.hypotheses.interval import Interval, Truth
from optsched.study.runner import Runner
from optsched.study.setups import all_shapes
from optsched.study.store import EVEN_FAILURES, Store
from optsched.study.study_file import read_toml
from optsched.study.trial import Option, Trial, simulating, solving
from optsched.traces.families import Family

CONFIDENCE = 0.95
_FEATURES: Mapping[str, Callable[[Instance], int | float | None]] = {
    "n": lambda instance: len(instance.requests),
    "I": lambda instance: _only({request.input for request in instance.requests}),
    "O": lambda instance: _only({request.output for request in instance.requests}),
    "M": lambda instance: instance.limits.kv_tokens,
    "kappa": lambda instance: instance.kappa,
    "machines": lambda instance: len(instance.machines),
}
"""What a claim may say of an instance: requests, I and O where all requests share them, M, κ, machines."""
_ORDERS: Mapping[str, Callable[[Instance, int], int]] = {
    "input": lambda instance, index: instance.requests[index].input,
    "output": lambda instance, index: instance.requests[index].output,
}
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)]


def _only(numbers: set[int]) -> int | None:
    return numbers.pop() if len(numbers) == 1 else None


class Verdict(StrEnum):
    """What is decided of a hypothesis (see the module)."""

    PROVED = "proved"
    REFUTED = "refuted"
    OPEN = "open"
    SUPPORTED = "supported"
    CONTRADICTED = "contradicted"
    NOT_REFUTED = "not refuted"


@domain
class OptimumSide:
    """The optimum of a class of schedules.

    Parameters
    ----------
    forbid, max_evictions, max_batch
        As in `Restrictions`.
    order
        ``input`` or ``output``: first runs in the order of these lengths, equal ones in the order of the instance.
    """

    forbid: tuple[Name, ...] = ()
    max_evictions: Annotated[int, Field(ge=0)] | None = None
    max_batch: Annotated[int, Field(ge=1)] | None = None
    order: Name | None = None

    def __post_init__(self) -> None:
        if self.order is not None and self.order not in _ORDERS:
            raise InputError("order", self.order, one_of(self.order, _ORDERS))

    def restrictions(self, instance: Instance) -> Restrictions:
        """Return the class of schedules of an instance."""
        order: tuple[int, ...] = ()
        if self.order is not None:
            length = _ORDERS[self.order]
            order = tuple(sorted(range(len(instance.requests)), key=lambda index: (length(instance, index), index)))
        return Restrictions(self.forbid, self.max_evictions, self.max_batch, order)


@domain
class Side:
    """One side of a claim: a policy with its parameters, or an optimum.

    Parameters
    ----------
    policy, options, predictor
        The policy, the fields of it that differ from their defaults, and its predictor.
    router, evictor
        Of several machines, and of caches; None for round robin, and for least recently used.
    optimum
        The class of schedules whose optimum is meant.
    """

    policy: Name | None = None
    options: dict[Name, Option] = field(default_factory=dict)
    predictor: Name | None = None
    router: Name | None = None
    evictor: Name | None = None
    optimum: OptimumSide | None = None

    def __post_init__(self) -> None:
        if (self.policy is None) == (self.optimum is None):
            raise InputError("policy", self.policy, "either a policy or an optimum")
        if self.policy is not None:
            policy_of(configured(self.policy, self.options) if self.options else self.policy, self.predictor)
        if self.router is not None:
            find_router(self.router)
        if self.evictor is not None:
            require_evictor(self.evictor, "evictor")


@domain
class Hypothesis:
    """A claim, and where it is decided.

    Parameters
    ----------
    claim, source
        The claim in words, and where it is made.
    says
        The claim as an expression over the sides (`optsched.study.hypotheses.claim.Claim`).
    sides
        Name → side.
    where, otherwise
        A condition on an instance, and what is claimed where it does not hold; by default nothing.
    instances, first, families
        Names and files, of whose instances only the first requests count; or instances that are drawn.
    machines, caches
        Each of them has each of these numbers of equal machines, and each of these caches; without them its own.
    objective, seeds
        What is minimised, and the seeds that every case has.
    time_limit, workers
        Seconds and threads for each optimum.
    """

    claim: Name
    source: Name
    says: Name
    sides: dict[Name, Side]
    where: Name | None = None
    otherwise: Name | None = None
    instances: tuple[Name, ...] = ()
    first: Annotated[int, Field(ge=1)] | None = None
    families: tuple[Family, ...] = ()
    machines: tuple[Annotated[int, Field(ge=1, le=MAX_MACHINES)], ...] = ()
    caches: tuple[Annotated[CacheMode, Field(strict=False)], ...] = ()
    objective: Name = Objective.MAKESPAN.value
    seeds: Annotated[int, Field(ge=1)] = 1
    time_limit: _Positive = 10.0
    workers: Annotated[int, Field(ge=1, le=1024)] = 1

    def __post_init__(self) -> None:
        if not self.instances and not self.families:
            raise InputError("instances", Said("none"), "instances or families")
        if self.otherwise is not None and self.where is None:
            raise InputError("otherwise", self.otherwise, "where, which says when it holds")
        claims = [("says", self.says), ("where", self.where), ("otherwise", self.otherwise)]
        read = {name: read_claim(name, text, self.sides, tuple(_FEATURES)) for name, text in claims if text is not None}
        if any(claim.mean_of is not None for name, claim in read.items() if name != "says"):
            raise InputError("otherwise", self.otherwise or self.where, "no mean")
        if "where" in read and set(read["where"].uses) - {""}:
            raise InputError("where", self.where, f"only {', '.join(_FEATURES)}")
        find_objective(self.objective)

    def claim_named(self, name: str) -> Claim | None:
        """Return the claim of a field, None if it has none."""
        text = getattr(self, name)
        return None if text is None else read_claim(name, text, self.sides, tuple(_FEATURES))

    @property
    def is_sampled(self) -> bool:
        """Whether the cases are a sample: instances are drawn, or policies are left to chance."""
        return bool(self.families) or self.seeds > 1

    def cases(self) -> Iterator[tuple[Instance, int]]:
        """Yield every instance with every seed."""
        found = [instance for source in self.instances for instance in load_instances(source)]
        found += [instance for family in self.families for instance in family.instances()]
        for instance in all_shapes(found, self.machines, self.caches):
            shortened = instance if self.first is None else replace(instance, requests=instance.requests[: self.first])
            for seed in range(self.seeds):
                yield shortened, seed

    def trial(self, side: Side, instance: Instance, seed: int) -> Trial:
        """Return the trial of a side in a case."""
        objective = find_objective(self.objective)
        if side.optimum is not None:
            restrictions = side.optimum.restrictions(instance)
            return solving(instance, objective, restrictions, time_limit=self.time_limit, workers=self.workers, seed=0)
        assert side.policy is not None, "checked"
        return simulating(
            instance,
            objective,
            policy=side.policy,
            options=side.options,
            predictor=side.predictor,
            router=side.router,
            evictor=side.evictor,
            seed=seed,
        )


@dataclass(frozen=True)
class Case:
    """What the claim is in one case: its truth, or for a mean its quantity; and the results of its sides."""

    instance: Instance
    seed: int
    truth: Truth
    quantity: Interval | None
    results: Mapping[str, Result]

    @cached_property
    def size(self) -> tuple[int, int]:
        """How large it is: requests, then tokens."""
        requests = self.instance.requests
        return len(requests), sum(request.input + request.output for request in requests)


@dataclass(frozen=True)
class Finding:
    """What is decided of a hypothesis.

    Parameters
    ----------
    verdict
        The verdict.
    cases
        The cases that the claim is about.
    failed
        How many cases have no result of a side, because a policy fails.
    badge
        The weakest badge of a bound that the verdict may rest on; None without optima.
    mean
        Of a claim about a mean: the mean's confidence interval.
    """

    verdict: Verdict
    cases: tuple[Case, ...]
    failed: int
    badge: Badge | None
    mean: Interval | None = None

    def count(self, truth: Truth) -> int:
        """Return in how many cases the claim is true, false or open."""
        return sum(case.truth is truth and case.quantity is None for case in self.cases)

    @property
    def counterexample(self) -> Case | None:
        """The smallest case in which the claim is false."""
        return min((case for case in self.cases if case.truth is False), key=lambda case: case.size, default=None)

    @property
    def most_failing(self) -> float:
        """The largest share of cases in which the claim fails that is consistent with the sample, with confidence.

        That is the upper end of the Clopper–Pearson interval (1934): with no failure among n, 1 − (1 − c)^(1/n).
        """
        from scipy.stats import beta  # noqa: PLC0415 - takes a while to load

        count = self.count(True) + self.count(False)
        failing = self.count(False)
        return 1.0 if failing >= count else float(beta.ppf(CONFIDENCE, failing + 1, count - failing))


def decide(hypothesis: Hypothesis, runner: Runner, store: Store | None, watch: Callable[[int, int], None]) -> Finding:
    """Run the sides of a hypothesis in every case and decide it; ``watch`` gets the trials that have ended, and all."""
    says, where, otherwise = (hypothesis.claim_named(name) for name in ("says", "where", "otherwise"))
    assert says is not None, "it is required"
    wanted: list[tuple[Instance, int, Claim, dict[str, Trial]]] = []
    for instance, seed in hypothesis.cases():
        features = {"": _features(instance, where)}
        claim: Claim | None = says if where is None or where.holds(features) else otherwise
        if claim is not None:
            sides = {name: hypothesis.trial(side, instance, seed) for name, side in hypothesis.sides.items()}
            wanted.append((instance, seed, claim, sides))
    trials = [trial for *_, sides in wanted for trial in sides.values()]
    done: dict[int, Done] = {}
    for number, each in enumerate(run(trials, runner, store, wanted=EVEN_FAILURES), 1):
        done[id(each.trial)] = each
        watch(number, len(trials))
    cases, failed = [], 0
    for instance, seed, claim, sides in wanted:
        results = {name: done[id(trial)].required() for name, trial in sides.items()}
        if any(result.status in {Status.FAILED, Status.INFEASIBLE} for result in results.values()):
            failed += 1
            continue
        known = {name: _known(name, hypothesis.sides[name], results[name], claim) for name in results}
        known[""] = _features(instance, claim)
        quantity = None if claim.mean_of is None else claim.quantity(known)
        cases.append(Case(instance, seed, None if quantity is not None else claim.holds(known), quantity, results))
    bounded = [case.results[name] for case in cases for name, side in hypothesis.sides.items() if side.optimum]
    ranks = (Badge.HEURISTIC, Badge.SOLVER_CLAIMED, Badge.CERTIFIED)
    badge = min((result.badge for result in bounded), key=ranks.index, default=None)
    mean = None if says.mean_of is None else _mean([case.quantity for case in cases if case.quantity is not None])
    return Finding(_verdict(hypothesis, says, cases, mean), tuple(cases), failed, badge, mean)


def _features(instance: Instance, claim: Claim | None) -> dict[str, Interval]:
    """Return the features that a claim uses."""
    found = {}
    for name in () if claim is None else claim.uses.get("", ()):
        if name in _FEATURES:
            number = _FEATURES[name](instance)
            if number is None:
                raise InputError(name, Said("several lengths"), f"one length of all requests of {instance.name}")
            found[name] = Interval.of(number)
    return found


def _known(name: str, side: Side, result: Result, claim: Claim) -> dict[str, Interval]:
    """Return what is known of a side: of a policy its metrics, of an optimum only what was minimised."""
    value = None if result.value is None else Fraction(result.value)
    if side.optimum is not None:
        between = Interval(Fraction(result.bound or 0), value)
        found = {"value": between, result.objective.value: between}
    else:
        metrics = {} if result.metrics is None else result.metrics | result.metrics["objectives"]
        numbers = {key: number for key, number in metrics.items() if isinstance(number, int | float)}
        found = {key: Interval.of(number) for key, number in numbers.items()} | {"value": Interval(value, value)}
    for missing in sorted(claim.uses.get(name, frozenset()) - set(found)):
        raise InputError(f"{name}.{missing}", Said("nothing"), f"one of {', '.join(sorted(found))}")
    return found


def _verdict(hypothesis: Hypothesis, says: Claim, cases: Sequence[Case], mean: Interval | None) -> Verdict:
    if mean is not None:
        holds = says.holds_of_mean(mean)
        return Verdict.NOT_REFUTED if holds is None else Verdict.SUPPORTED if holds else Verdict.CONTRADICTED
    truths = [case.truth for case in cases]
    if False in truths:
        return Verdict.REFUTED
    if None in truths or not truths:
        return Verdict.OPEN
    return Verdict.NOT_REFUTED if hypothesis.is_sampled else Verdict.PROVED


def _mean(quantities: Sequence[Interval]) -> Interval:
    """Return a confidence interval of the mean, by Student's t: of the low ends, to that of the high ends."""
    from scipy.stats import t  # noqa: PLC0415 - takes a while to load

    def end(numbers: list[Fraction], sign: int) -> Fraction | None:
        count = len(numbers)
        if count < max(2, len(quantities)):
            return None
        mean = sum(numbers, Fraction(0)) / count
        spread = float(sum((number - mean) ** 2 for number in numbers) / (count - 1))
        half = float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * sqrt(spread / count)
        return mean + sign * Fraction(half)

    lows = [quantity.low for quantity in quantities if quantity.low is not None]
    highs = [quantity.high for quantity in quantities if quantity.high is not None]
    return Interval(end(lows, -1), end(highs, 1))


# Files -----------------------------------------------------------------------------------------------------

_HYPOTHESIS: TypeAdapter[Any] = TypeAdapter(Hypothesis)


def shipped() -> dict[str, Path]:
    """Return the shipped hypotheses by name, and the file of each."""
    return {path.stem: path for path in sorted((instances_directory() / "hypotheses").glob("*.toml"))}


def read_hypothesis(source: str) -> Hypothesis:
    """Return a hypothesis: a shipped one by name, or in a file."""
    if not source.endswith(".toml") and source not in shipped():
        raise InputError("HYPOTHESIS", source, f"a file (.toml), or {one_of(source, shipped())}")
    found: Hypothesis = read_toml(_HYPOTHESIS, shipped().get(source, Path(source)))
    return found
