"""The independent checker: replays schedules and re-proves bounds from the problem's text alone.

It takes from `optsched.model` only data, none of the behaviour that simulators, formulations and bounds
build on: batch times, block counts, metrics, feasibility and restrictions are written here a second time,
from problem.md. A mistake must then be made twice, in two styles, to go unnoticed.

Batches and requests are numbered from 0, as in documents.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from types import MappingProxyType
from typing import Any

from optsched.model.cost import CostModel
from optsched.model.documents import ClaimedResult, instance_sha256
from optsched.model.instance import Instance, Limits, Request
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Badge, Result, Status
from optsched.model.schedule import Batch, Schedule

_UNRESTRICTED = Restrictions()
_PS_PER_S = 10**12


@dataclass(frozen=True)
class Report:
    """What the checker found wrong.

    Parameters
    ----------
    violations
        One sentence for each violation; empty if everything holds.
    """

    violations: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything holds."""
        return not self.violations


def check_schedule(
    instance: Instance, schedule: Schedule, restrictions: Restrictions = _UNRESTRICTED
) -> tuple[list[str], dict[str, Any] | None]:
    """Replay a schedule batch by batch.

    After a violation the replay goes on with what the schedule states: a request that should not run runs
    all the same, the next batch follows the stated end of the last one. Only what cannot be carried out is
    left out: runs and evictions of requests that do not exist or are finished, runs of no token, and tokens
    that do not exist yet.

    Parameters
    ----------
    instance, schedule
        The problem and the schedule to check.
    restrictions
        The class of schedules that this one has to belong to.

    Returns
    -------
    tuple
        All violations, and the metrics (the dictionary that documents hold), None if there is a violation.
    """
    problem = _problem(instance, restrictions)
    replay = _Replay(problem)
    for number, batch in enumerate(schedule.batches):
        replay.play(number, batch)
    replay.require_completion()
    if replay.violations:
        return replay.violations, None
    return [], _metrics(problem, replay)


def check_result(claimed: ClaimedResult) -> Report:
    """Check everything that a result document states.

    That is: the instance's hash, schedule, value and metrics, bound and gap, status, badge and certificate.
    """
    result = claimed.result
    return Report(
        (
            *_check_hash(claimed),
            *_check_solution(result),
            *_check_gap(result, claimed.gap),
            *_check_status(result),
            *_check_badge(result),
        )
    )


# The problem -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Problem:
    """An instance and what its rules, less the restrictions, still permit."""

    requests: tuple[Request, ...]
    limits: Limits
    cost: CostModel
    hybrid: bool
    chunked: bool
    eviction: bool

    @property
    def blocks(self) -> int:
        """Whole blocks that the KV cache has."""
        return self.limits.kv_tokens // self.limits.kv_block

    def blocks_of(self, tokens: int) -> int:
        """Return the blocks that ``tokens`` cached tokens occupy, the last one perhaps in part."""
        full, rest = divmod(tokens, self.limits.kv_block)
        return full + (1 if rest else 0)


def _problem(instance: Instance, restrictions: Restrictions) -> _Problem:
    forbidden = set(restrictions.forbid)
    return _Problem(
        requests=instance.requests,
        limits=instance.limits,
        cost=instance.cost,
        hybrid=instance.rules.hybrid and "hybrid" not in forbidden,
        chunked=instance.rules.chunked_prefill and "chunked" not in forbidden,
        eviction=instance.rules.eviction and "eviction" not in forbidden,
    )


def _feasible(problem: _Problem) -> bool:
    """Whether each request can be served alone, so that one after another is a schedule."""
    return all(
        problem.blocks_of(request.input + request.output - 1) <= problem.blocks
        and (problem.chunked or request.input <= problem.limits.prefill_tokens)
        for request in problem.requests
    )


def _pieces(cost: CostModel) -> tuple[tuple[int, int], ...]:
    """Return the affine pieces ``(base, token)`` of the non-attention time."""
    return ((cost.base, cost.token), *cost.pieces)


# The replay ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _State:
    """One request during the replay: g, m, whether it is filling, and when its tokens came."""

    request: Request
    generated: int = 0
    cached: int = 0
    filling: bool = True
    first_token_ps: int = 0
    last_token_ps: int = 0

    @property
    def finished(self) -> bool:
        return self.generated == self.request.output

    @property
    def missing(self) -> int:
        """Tokens that exist and are not cached, S − m."""
        return self.request.input + self.generated - self.cached


@dataclass(slots=True)
class _Tally:
    """What one batch runs."""

    prefills: int = 0
    decodes: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    attention_ps: int = 0
    finished: list[_State] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decode_tokens


@dataclass(frozen=True, slots=True)
class _Record:
    """What is remembered of one batch for the metrics."""

    start_ps: int
    end_ps: int
    tokens: int
    runs: int
    evictions: int
    resident_requests: int
    kv_blocks: int


class _Replay:
    """Follows a schedule and notes what breaks a rule.

    The sums over all requests that hold KV are kept up to date run by run, so that a batch costs the time of
    its own runs and evictions however many requests keep their KV in it.
    """

    def __init__(self, problem: _Problem) -> None:
        self.problem = problem
        self.states = [_State(request) for request in problem.requests]
        self.violations: list[str] = []
        self.records: list[_Record] = []
        self._kv_blocks = 0
        self._resident = 0
        self._free_at = 0

    def play(self, number: int, batch: Batch) -> None:
        """Replay one batch."""
        self._check_shape(number, batch)
        for index in dict.fromkeys(batch.evict):
            self._evict(number, index)
        tally = _Tally()
        for index, count in batch.run:
            self._run(number, batch, index, count, tally)
        self._check_limits(number, batch, tally)
        self._check_end(number, batch, tally)
        self.records.append(
            _Record(
                start_ps=batch.start_ps,
                end_ps=batch.end_ps,
                tokens=tally.tokens,
                runs=tally.prefills + tally.decodes,
                evictions=len(batch.evict),
                resident_requests=self._resident,
                kv_blocks=self._kv_blocks,
            )
        )
        self._free_at = batch.end_ps
        for state in tally.finished:  # only now: a finished request counts in its last batch
            self._hold(state, 0)

    def require_completion(self) -> None:
        """Note every request that is unfinished after the last batch."""
        for index, state in enumerate(self.states):
            if not state.finished:
                self.violations.append(
                    f"request {index} is unfinished at the end of the schedule: it has generated "
                    f"{state.generated} tokens and must generate {state.request.output}"
                )

    def _note(self, number: int, text: str) -> None:
        self.violations.append(f"batch {number}: {text}")

    def _hold(self, state: _State, tokens: int) -> None:
        """Let a request hold ``tokens`` cached tokens from now on."""
        self._kv_blocks += self.problem.blocks_of(tokens) - self.problem.blocks_of(state.cached)
        self._resident += (tokens > 0) - (state.cached > 0)
        state.cached = tokens

    def _check_shape(self, number: int, batch: Batch) -> None:
        """Check what can be seen without any request's state."""
        if batch.replica != 0:
            self._note(number, f"runs on replica {batch.replica}, the only replica is 0")
        if batch.start_ps < self._free_at:
            self._note(
                number,
                f"starts at {batch.start_ps} ps, before the previous batch has ended at {self._free_at} ps",
            )
        if not batch.run:
            self._note(number, "has 0 runs, at least 1 is required")
        running = Counter(index for index, _ in batch.run)
        evicted = Counter(batch.evict)
        for index, times in running.items():
            if times > 1:
                self._note(number, f"request {index} runs {times} times, at most 1 is allowed")
        for index, times in evicted.items():
            if times > 1:
                self._note(number, f"request {index} is evicted {times} times, at most 1 is allowed")
            if index in running:
                self._note(number, f"request {index} is evicted and runs, only 1 of both is allowed")

    def _unfinished(self, number: int, index: int, deed: str) -> _State | None:
        """Return the state of a request that something can be done to; else note why nothing can."""
        if not 0 <= index < len(self.states):
            self._note(
                number,
                f"request {index} {deed}, but requests are numbered from 0 to {len(self.states) - 1}",
            )
            return None
        state = self.states[index]
        if state.finished:
            self._note(
                number,
                f"request {index} {deed}, but it is finished: it has generated {state.generated} of "
                f"{state.request.output} tokens",
            )
            return None
        return state

    def _evict(self, number: int, index: int) -> None:
        state = self._unfinished(number, index, "is evicted")
        if state is None:
            return
        if not self.problem.eviction:
            self._note(number, f"request {index} is evicted, but eviction is forbidden")
        if state.cached < 1:
            self._note(
                number,
                f"request {index} is evicted with {state.cached} cached tokens, at least 1 is required",
            )
        self._hold(state, 0)
        state.filling = True

    def _run(self, number: int, batch: Batch, index: int, count: int, tally: _Tally) -> None:
        state = self._unfinished(number, index, "runs")
        if state is None:
            return
        if count < 1:
            self._note(number, f"request {index} runs {count} tokens, at least 1 is required")
            return
        if state.request.arrival_ps > batch.start_ps:
            self._note(
                number,
                f"request {index} runs before it arrives: the batch starts at {batch.start_ps} ps, the "
                f"request arrives at {state.request.arrival_ps} ps",
            )
        if state.filling:
            self._prefill(number, index, count, tally)
        else:
            self._decode(number, index, count, tally)
        missing = state.missing
        self._hold(state, state.cached + min(count, missing))
        if count >= missing:
            self._generate(state, batch.end_ps, tally)

    def _prefill(self, number: int, index: int, count: int, tally: _Tally) -> None:
        """Check and tally a prefill step; also the last missing token of a filling request is one."""
        state, cost = self.states[index], self.problem.cost
        if count > state.missing:
            self._note(
                number,
                f"request {index} runs {count} tokens in a prefill step, at most the {state.missing} tokens "
                f"that exist and are not cached are allowed",
            )
        elif count < state.missing and not self.problem.chunked:
            self._note(
                number,
                f"request {index} runs {count} tokens in a prefill step, but without chunked prefill all "
                f"{state.missing} missing tokens must run",
            )
        tally.prefills += 1
        tally.prefill_tokens += count
        tally.attention_ps += (
            cost.prefill_sq * (count**2 + 2 * state.cached * count) + cost.prefill_kv * state.cached + cost.prefill_req
        )

    def _decode(self, number: int, index: int, count: int, tally: _Tally) -> None:
        state, cost = self.states[index], self.problem.cost
        if count != 1:
            self._note(number, f"request {index} runs {count} tokens in a decode step, exactly 1 is allowed")
        tally.decodes += 1
        tally.decode_tokens += count
        tally.attention_ps += cost.decode_kv * state.cached + cost.decode_req

    def _generate(self, state: _State, end_ps: int, tally: _Tally) -> None:
        """Give a request whose tokens are all cached one more token, at the batch's end."""
        state.generated += 1
        state.filling = False
        if state.generated == 1:
            state.first_token_ps = end_ps
        if state.finished:
            state.last_token_ps = end_ps
            tally.finished.append(state)

    def _check_limits(self, number: int, batch: Batch, tally: _Tally) -> None:
        limits = self.problem.limits
        if tally.tokens > limits.batch_tokens:
            self._note(number, f"runs {tally.tokens} tokens, at most {limits.batch_tokens} are allowed")
        if tally.prefill_tokens > limits.prefill_tokens:
            self._note(
                number,
                f"runs {tally.prefill_tokens} tokens in prefill steps, at most {limits.prefill_tokens} are allowed",
            )
        if limits.batch_requests is not None and len(batch.run) > limits.batch_requests:
            self._note(number, f"has {len(batch.run)} runs, at most {limits.batch_requests} are allowed")
        if self._kv_blocks > self.problem.blocks:
            self._note(
                number,
                f"{self._kv_blocks * limits.kv_block} KV tokens are occupied, at most "
                f"{self.problem.blocks * limits.kv_block} are allowed (blocks of {limits.kv_block} in "
                f"{limits.kv_tokens})",
            )
        if not self.problem.hybrid and tally.prefills and tally.decodes:
            self._note(
                number,
                f"mixes {tally.prefills} prefill and {tally.decodes} decode steps, but hybrid batches are forbidden",
            )

    def _check_end(self, number: int, batch: Batch, tally: _Tally) -> None:
        linear_ps = max(base + token * tally.tokens for base, token in _pieces(self.problem.cost))
        duration_ps = linear_ps + tally.attention_ps
        if batch.end_ps != batch.start_ps + duration_ps:
            self._note(
                number,
                f"ends at {batch.end_ps} ps, but it starts at {batch.start_ps} ps and its runs take "
                f"{duration_ps} ps, so it must end at {batch.start_ps + duration_ps} ps",
            )


# Metrics ---------------------------------------------------------------------------------------------------


def _metrics(problem: _Problem, replay: _Replay) -> dict[str, Any]:
    """Return all objectives and metrics of a complete legal replay, each ratio rounded once.

    For the meaning of each see `optsched.model.objectives.evaluate`, of which this is the second writing.
    """
    requests, limits, records, states = problem.requests, problem.limits, replay.records, replay.states
    waits = [state.first_token_ps - state.request.arrival_ps for state in states]
    stays = [state.last_token_ps - state.request.arrival_ps for state in states]
    makespan = records[-1].end_ps - min(request.arrival_ps for request in requests)
    missed = sum(map(_misses_slo, requests, waits, stays))
    tokens = sum(record.tokens for record in records)
    durations = [record.end_ps - record.start_ps for record in records]
    kv_time = sum(
        record.kv_blocks * limits.kv_block * duration for record, duration in zip(records, durations, strict=True)
    )
    return {
        "objectives": {
            "makespan": makespan,
            "mean_ttft": sum(waits),
            "max_ttft": max(waits),
            "mean_e2e": sum(stays),
            "max_e2e": max(stays),
            "weighted_e2e": sum(r.weight * stay for r, stay in zip(requests, stays, strict=True)),
            "slo_misses": missed,
        },
        "batches": len(records),
        "evictions": sum(record.evictions for record in records),
        "recomputed_tokens": tokens - sum(r.input + r.output - 1 for r in requests),
        "peak_kv_tokens": max(record.kv_blocks for record in records) * limits.kv_block,
        "ttft_ps": _distribution(waits),
        "tpot_ps": _distribution(
            [
                Fraction(stay - wait, r.output - 1)
                for r, wait, stay in zip(requests, waits, stays, strict=True)
                if r.output > 1
            ]
        ),
        "e2e_ps": _distribution(stays),
        "ttft_per_input_ps": _distribution([Fraction(wait, r.input) for r, wait in zip(requests, waits, strict=True)]),
        "e2e_per_output_ps": _distribution([Fraction(stay, r.output) for r, stay in zip(requests, stays, strict=True)]),
        "output_tokens_per_s": _ratio(sum(r.output for r in requests) * _PS_PER_S, makespan),
        "requests_per_s": _ratio(len(requests) * _PS_PER_S, makespan),
        "goodput_requests_per_s": _ratio((len(requests) - missed) * _PS_PER_S, makespan),
        "slo_attainment": _ratio(len(requests) - missed, len(requests)),
        "kv_utilisation": _ratio(kv_time, limits.kv_tokens * sum(durations)),
        "token_utilisation": _ratio(tokens, limits.batch_tokens * len(records)),
        "mean_resident_requests": _ratio(sum(record.resident_requests for record in records), len(records)),
        "mean_batch_requests": _ratio(sum(record.runs for record in records), len(records)),
    }


def _misses_slo(request: Request, wait: int, stay: int) -> bool:
    """Whether a request violates any SLO that it has."""
    late_start = request.slo_ttft_ps is not None and wait > request.slo_ttft_ps
    late_end = request.slo_e2e_ps is not None and stay > request.slo_e2e_ps
    return late_start or late_end


def _ratio(numerator: int, denominator: int) -> float | None:
    """Return the quotient, rounded once; None if it is undefined."""
    return float(Fraction(numerator, denominator)) if denominator else None


def _distribution(values: Sequence[int | Fraction]) -> dict[str, int | float] | None:
    """Return mean, percentiles and maximum; None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    exact: dict[str, int | Fraction] = {"mean": Fraction(sum(ordered)) / len(ordered)}
    for q in (50, 90, 95, 99):
        # the least rank that is at least q percent of all ranks, which is ceil(q n / 100)
        exact[f"p{q}"] = next(v for rank, v in enumerate(ordered, 1) if 100 * rank >= q * len(ordered))
    exact["max"] = ordered[-1]
    return {name: value if isinstance(value, int) else float(value) for name, value in exact.items()}


# The document ----------------------------------------------------------------------------------------------


def _check_hash(claimed: ClaimedResult) -> Iterator[str]:
    expected = instance_sha256(claimed.result.instance)
    if claimed.instance_sha256 != expected:
        yield f"instance_sha256 is {_shown(claimed.instance_sha256)}, the instance has {expected}"


def _check_solution(result: Result) -> Iterator[str]:
    """Check schedule, value and metrics, which only stand together."""
    if result.schedule is None:
        if result.value is not None:
            yield f"value is {result.value}, but there is no schedule that has it"
        if result.metrics is not None:
            yield "metrics are stated, but there is no schedule that has them"
        return
    violations, metrics = check_schedule(result.instance, result.schedule, result.restrictions)
    yield from violations
    if result.value is None:
        yield "value is null, but there is a schedule"
    if result.metrics is None:
        yield "metrics is null, but there is a schedule"
    if metrics is None:
        return
    value = metrics["objectives"][result.objective.value]
    if result.value is not None and result.value != value:
        yield f"value is {result.value}, but {result.objective.value} of the schedule is {value}"
    if result.metrics is not None:
        yield from _differences("metrics", result.metrics, metrics)


def _differences(path: str, claimed: object, expected: object) -> Iterator[str]:
    """Say where claimed metrics differ from the expected ones."""
    if not isinstance(expected, dict):
        # True equals 1 for Python, not for a reader of the document
        if isinstance(claimed, bool) or claimed != expected:
            yield f"{path} is {_shown(claimed)}, of the schedule it is {expected}"
    elif not isinstance(claimed, dict):
        yield f"{path} is {_shown(claimed)}, expected an object"
    else:
        for key, value in expected.items():
            if key in claimed:
                yield from _differences(f"{path}.{key}", claimed[key], value)
            else:
                yield f"{path}.{key} is missing, of the schedule it is {value}"
        for key in claimed:
            if key not in expected:
                yield f"{path}.{_shown(key)} is stated, but there is no such metric"


def _check_gap(result: Result, gap: float | None) -> Iterator[str]:
    """Check that the bound is not above the value, and the gap between them."""
    value, bound = result.value, result.bound
    if value is None or bound is None:
        if gap is not None:
            yield f"gap is {gap}, but without both value and bound it must be null"
    elif bound > value:
        yield f"bound is {bound}, at most the value {value} is possible"
    else:
        expected = float(Fraction(value - bound, value)) if bound < value else 0.0
        if gap != expected:
            yield f"gap is {gap}, expected (value - bound) / value = {expected}"


def _check_status(result: Result) -> Iterator[str]:
    """Check that the status says what value, bound, schedule and instance say."""
    status, value, bound = result.status, result.value, result.bound
    proved = value is not None and value == bound
    match status:
        case Status.OPTIMAL if not proved:
            yield f"status is optimal, but value {value} and bound {bound} are not two equal numbers"
        case Status.FEASIBLE if value is None or result.schedule is None:
            yield "status is feasible, but value or schedule is null"
        case Status.BOUND_ONLY if bound is None or result.schedule is not None:
            yield "status is bound_only, but the bound is null or there is a schedule"
        case Status.INFEASIBLE if _feasible(_problem(result.instance, result.restrictions)):
            yield "status is infeasible, but each request can be served, so one after another is a schedule"
        case Status.UNKNOWN if bound is not None:
            yield f"status is unknown, but there is a bound of {bound}"
    if proved and status is not Status.OPTIMAL:
        yield f"status is {status.value}, but value and bound are both {value}, which is optimal"
    if value is not None and status in {Status.INFEASIBLE, Status.FAILED, Status.UNKNOWN}:
        yield f"status is {status.value}, but there is a value of {value}"


def _check_badge(result: Result) -> Iterator[str]:
    """Check what backs the bound; a certificate is looked at only if the badge points to it."""
    if (result.bound is None) != (result.badge is Badge.HEURISTIC):
        yield f"badge is {result.badge.value}, but the bound is {result.bound}; heuristic means no bound"
    elif result.badge is Badge.CERTIFIED and result.bound is not None:
        try:
            proved = _proved_bound(result)
        except _UnprovedError as error:
            yield f"certificate: {error}"
        else:
            if proved < result.bound:
                yield f"certificate: it proves a bound of {proved}, less than the stated {result.bound}"


def _shown(value: object) -> str:
    """Show anything that a document may hold, shortened."""
    return reprlib.repr(value)


# Certificates ----------------------------------------------------------------------------------------------


class _UnprovedError(Exception):
    """A certificate proves nothing; the message says why."""


def _proved_bound(result: Result) -> int:
    """Return the bound that the certificate proves."""
    certificate = result.certificate
    if certificate is None:
        raise _UnprovedError("there is none, but the badge is certified")
    kind = certificate.get("kind")
    if not isinstance(kind, str) or kind not in _PROOFS:
        raise _UnprovedError(f"kind is {_shown(kind)}, expected one of {', '.join(_PROOFS)}")
    return _PROOFS[kind](_problem(result.instance, result.restrictions), result.objective, certificate)


def _volume_bound(problem: _Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    r"""Return the makespan bound of a ``volume`` certificate.

    The certificate has ``piece_weights``, one integer ≥ 0 for each affine piece of the batch time and not all
    0, and ``release_ps``, the arrival time t0 of some request. Let S be the requests with T_r ≥ t0, W the sum
    of the weights, and (base, token) the convex combination Σ (w_i / W) (base_i, token_i) of the pieces::

        makespan ≥ ceil(t0 + J base + own) - earliest arrival

    with J from `_fewest_batches` and own the sum of `_own_ps` over S, which are bounds for S alone.

    Proof sketch. No batch that runs a request of S starts before t0, and batches do not overlap, so the last
    batch ends at t0 plus the durations of these batches or later. The non-attention time of a batch is the
    maximum of the pieces, thus at least their combination, base + token Σ c. There are at least J such
    batches, which gives J base. What remains of their durations, token and attention time, adds up over
    steps; each step of S contributes to one token of its request, the next one that it generates, and each
    token takes at least its cheapest way. Steps of other requests, and of refills that are dropped again,
    only add. The end is an integer, so the sum may be rounded up.
    """
    if objective is not Objective.MAKESPAN:
        raise _UnprovedError(f"kind volume bounds the makespan, the objective is {objective.value}")
    if problem.blocks == 0:
        raise _UnprovedError("the KV cache does not hold a single block, so no request can be served")
    pieces = _pieces(problem.cost)
    weights = _piece_weights(certificate.get("piece_weights"), len(pieces))
    arrivals = [request.arrival_ps for request in problem.requests]
    release = certificate.get("release_ps")
    if type(release) is not int or release not in arrivals:
        raise _UnprovedError(f"release_ps is {_shown(release)}, expected the arrival time of a request")
    shapes = Counter((r.input, r.output) for r in problem.requests if r.arrival_ps >= release)
    # Times are multiplied by W, so that they are integers.
    scale = sum(weights)
    base = sum(weight * piece_base for weight, (piece_base, _) in zip(weights, pieces, strict=True))
    token = sum(weight * piece_token for weight, (_, piece_token) in zip(weights, pieces, strict=True))
    own = sum(number * _own_ps(problem, *shape, token, scale) for shape, number in shapes.items())
    busy = Fraction(_fewest_batches(problem, shapes) * base + own, scale)
    return ceil(release + busy) - min(arrivals)


def _piece_weights(stated: object, pieces: int) -> list[int]:
    if (
        isinstance(stated, list)
        and len(stated) == pieces
        and all(type(weight) is int and weight >= 0 for weight in stated)
        and any(stated)
    ):
        return stated
    raise _UnprovedError(
        f"piece_weights is {_shown(stated)}, expected {pieces} integers ≥ 0, one for each piece, not all 0"
    )


def _fewest_batches(problem: _Problem, shapes: Mapping[tuple[int, int], int]) -> int:
    """Return a lower bound on the number of batches that run requests of the given shapes.

    ``shapes`` says how many requests there are of each (I, O). The largest of these counts:

    - memory: the batch in which a request generates its k-th token holds I + k − 1 of its tokens, in whole
      blocks, and no batch holds more than all blocks;
    - tokens: each request runs I + O − 1 tokens at least, and no batch more than C;
    - one request alone: ceil(I / P) batches until its first token, 1 if prompts run whole, and a batch for
      each later one;
    - runs: each of the Σ O tokens is generated by a run of its own, and no batch has more than N.
    """
    limits = problem.limits
    blocks = sum(
        number * sum(problem.blocks_of(prompt + k - 1) for k in range(1, output + 1))
        for (prompt, output), number in shapes.items()
    )
    tokens = sum(number * (prompt + output - 1) for (prompt, output), number in shapes.items())
    counts = [ceil(Fraction(blocks, problem.blocks)), ceil(Fraction(tokens, limits.batch_tokens))]
    for prompt, output in shapes:
        steps = ceil(Fraction(prompt, limits.prefill_tokens)) if problem.chunked else 1
        counts.append(steps + output - 1)
    if limits.batch_requests is not None:
        generated = sum(number * output for (_, output), number in shapes.items())
        counts.append(ceil(Fraction(generated, limits.batch_requests)))
    return max(counts)


def _own_ps(problem: _Problem, prompt: int, output: int, token: int, scale: int) -> int:
    """Return the least token and attention time that a request takes, multiplied by ``scale``.

    ``token``, the time per token, comes already multiplied. The first token takes a fill of the prompt, each
    later one a decode or, if the request may be evicted and refilled at once or in chunks, a fill of all
    I + k − 1 tokens. However a fill of n tokens is cut, its steps run n tokens, their quadratic terms
    c² + 2 m c add up to n², and there is at least one of them.
    """
    cost = problem.cost

    def fill(tokens: int) -> int:
        return token * tokens + scale * (cost.prefill_sq * tokens**2 + cost.prefill_req)

    total = fill(prompt)
    for exist in range(prompt + 1, prompt + output):
        cheapest = token + scale * (cost.decode_kv * (exist - 1) + cost.decode_req)
        if problem.eviction and (problem.chunked or exist <= problem.limits.prefill_tokens):
            cheapest = min(cheapest, fill(exist))
        total += cheapest
    return total


_Proof = Callable[[_Problem, Objective, Mapping[str, Any]], int]
"""Returns the bound that a certificate proves for a problem; raises `_UnprovedError` if it proves none."""

_PROOFS: Mapping[str, _Proof] = MappingProxyType({"volume": _volume_bound})
"""The kinds of certificates; a new kind is one more function here."""
