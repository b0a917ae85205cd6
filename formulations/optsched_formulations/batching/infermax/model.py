"""InferMax' programme written out for one task; its mathematics is in `infermax_milp`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pulp

from optsched.model.domain import MAX_PS
from optsched.model.objectives import Latency, Objective
from optsched.model.schedule import Assignment, Schedule, timed
from optsched.model.state import RequestState, initial
from optsched.solvers.claims import FloatReading, Tolerance, admits, claim, most_slack
from optsched.solvers.deadline import Deadline
from optsched.solvers.formulation import Outcome, Task, UnsupportedError, require_monotone
from optsched.solvers.milp import MilpAnswer
from optsched_formulations.batching.infermax.plan import Plan

Expression = Any
"""A PuLP expression, a variable, or a number."""
_SMALLEST = 1e-6
"""Factors of times in rows are larger, in units of time."""
_MOST_PAIRS = 50_000
"""Requests times batches up to which the model is built: some million rows."""


class Model:
    """Variables, constraints and objective of one task, for a solver of some tolerance, built before a deadline."""

    def __init__(self, task: Task, tolerance: Tolerance, deadline: Deadline) -> None:
        require_monotone(task.objective)
        if task.objective.percentile is not None:
            raise UnsupportedError(f"objective {task.objective.value}, it minimises no percentile")
        self.task = task
        self._instance = instance = task.instance
        self._everyone = range(len(instance.requests))
        # Any schedule has as many batches as an output has tokens; how many are enough takes a while to say.
        self._require_size(max(request.output for request in instance.requests))
        self.plan = plan = Plan(task)
        if task.instance.start_ps + plan.end > MAX_PS:
            raise UnsupportedError("times beyond 64 bits")
        self._batches = range(1, plan.batches + 1)
        self._require_size(plan.batches)
        self._var: dict[tuple[str, int, int], Any] = {}
        self._timed = not instance.offline or task.objective != Objective.MAKESPAN
        name = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in instance.name)
        self.problem = pulp.LpProblem(f"{name}_{task.objective.value}_unit_{plan.unit}_ps", pulp.LpMinimize)
        self._add_variables()
        for j in self._batches:
            for i in self._everyone:
                deadline.require()
                self._add_paper_rows(i, j)
                self._add_phase(i, j)
            self._add_batch(j)
            self._add_time(j)
        self._add_policy_class()
        self._objective = self._add_objective()
        self.problem.setObjective(self._objective)
        self.reading = self._reading(tolerance)
        if task.restrictions.at_most is not None:
            self._row(self._objective <= self.reading.limit(task.restrictions.at_most), "at_most")
        self._add_start()

    def _require_size(self, batches: int) -> None:
        """Refuse models that are too large with some batches, or more."""
        pairs = len(self._everyone) * batches
        if pairs > _MOST_PAIRS:
            raise UnsupportedError(f"a model of {pairs} requests × batches, it builds up to {_MOST_PAIRS}")

    # Variables ------------------------------------------------------------------------------------------

    def _new(self, name: str, i: int, j: int, most: float | None, *, integer: bool = True) -> Any:
        """Add a variable from 0 to ``most``; None is the last end, which no time exceeds."""
        kind = pulp.LpInteger if integer else pulp.LpContinuous
        if most is None:
            # Rounded up, so that rounding shuts out no schedule.
            most = 1 + self.plan.end // self.plan.unit
        label = "_".join([name, *(str(index) for index in (i, j) if index >= 0)])
        variable = self._var[name, i, j] = self.problem.add_variable(label, 0, most, kind)
        return variable

    def _add_variables(self) -> None:
        limits, rules = self._instance.limits, self._instance.rules
        for j in self._batches:
            self._new("u", -1, j, 1)
            self._new("t", -1, j, None, integer=False)
            if self._timed:
                self._new("E", -1, j, None, integer=False)
            if not rules.hybrid:
                self._new("w", -1, j, 1)
            for i, request in enumerate(self._instance.requests):
                self._new("S", i, j, request.input + request.output)
                self._new("m", i, j, self.plan.peaks[i])
                self._new("c", i, j, min(self.plan.peaks[i], limits.batch_tokens))
                self._new("e", i, j, int(rules.eviction))
                for name in "gpqdf":
                    self._new(name, i, j, 1)
                if self._needs_first(i):
                    self._new("a", i, j, 1)
                if limits.kv_block > 1:
                    self._new("n", i, j, limits.kv_blocks)

    def _needs_first(self, i: int) -> bool:
        """Whether the objective asks when request i gets its first token."""
        if self.task.objective == Objective.SLO_MISSES:
            return self._instance.requests[i].slo_ttft_ps is not None
        return self.task.objective.latency is Latency.TTFT

    def _at(self, name: str, i: int, j: int) -> Expression:
        """Return a variable, or its value in the initial state."""
        if j == 0:
            return self._instance.requests[i].input if name == "S" else 0
        return self._var[name, i, j]

    def _runs(self, i: int, j: int) -> Expression:
        """1 if request i runs in batch j."""
        return self._var["p", i, j] + self._var["q", i, j]

    def _prefilled(self, i: int, j: int) -> Expression:
        """Tokens of a prefill step: c, less the one of a decode step."""
        return self._var["c", i, j] - self._var["q", i, j]

    def _row(self, row: Any, name: str, *index: int) -> None:
        self.problem.addConstraint(row, "_".join([name, *map(str, index)]))

    # Constraints ----------------------------------------------------------------------------------------

    def _add_paper_rows(self, i: int, j: int) -> None:
        """Sequence length and (1) to (3); termination in the last batch."""
        request, peak = self._instance.requests[i], self.plan.peaks[i]
        length, cached, run = (self._var[name, i, j] for name in "Smc")
        generates, evicts = self._var["g", i, j], self._var["e", i, j]
        length_before, cached_before, finished = (self._at(name, i, j - 1) for name in "Smf")
        missing = length_before - cached_before
        self._row(length == length_before + generates, "length", i, j)
        self._row(cached <= peak * (1 - evicts), "kv_evicted", i, j)
        self._row(cached <= peak * (1 - finished), "kv_freed", i, j)
        self._row(cached <= cached_before + run + peak * evicts, "kv_most", i, j)
        self._row(cached >= cached_before + run - peak * (evicts + finished), "kv_least", i, j)
        self._row(run <= peak * (1 - evicts), "run_evicted", i, j)
        self._row(run <= missing, "run_most", i, j)
        self._row(run <= peak * self._runs(i, j), "runs", i, j)
        self._row(run >= self._runs(i, j), "runs_some", i, j)
        self._row(self._runs(i, j) <= 1 - finished, "runs_unfinished", i, j)
        self._row(run >= missing - (request.input + request.output) * (1 - generates), "token_only_if", i, j)
        self._row(run <= missing - 1 + generates, "token_if", i, j)
        if j == self.plan.batches:
            self._row(pulp.lpSum(self._var["g", i, k] for k in self._batches) == request.output, "termination", i)

    def _add_phase(self, i: int, j: int) -> None:
        """Say which requests are filling or decoding, which are finished, and what may be evicted."""
        request = self._instance.requests[i]
        generates, evicts, decoding, finished = (self._var[name, i, j] for name in "gedf")
        before = self._at("d", i, j - 1)
        generated = self._var["S", i, j] - request.input
        self._row(decoding >= generates, "decoding_if", i, j)
        self._row(decoding >= before - evicts, "decoding_stays", i, j)
        self._row(decoding <= 1 - evicts, "filling_if", i, j)
        self._row(decoding <= before + generates, "filling_stays", i, j)
        self._row(self._var["q", i, j] <= before, "decode_step", i, j)
        self._row(self._var["p", i, j] <= 1 - before, "prefill_step", i, j)
        self._row(request.output * finished <= generated, "finished_only_if", i, j)
        self._row(generated <= request.output - 1 + finished, "finished_if", i, j)
        self._row(evicts <= self._at("m", i, j - 1), "evict_cached", i, j)
        self._row(evicts <= 1 - self._at("f", i, j - 1), "evict_unfinished", i, j)
        if self._needs_first(i):
            self._row(self._var["a", i, j] <= generated, "first_only_if", i, j)
        if not self._instance.rules.chunked_prefill:
            self._row(self._var["p", i, j] <= generates, "whole_prefill", i, j)

    def _add_batch(self, j: int) -> None:
        """(4), the other budgets, and used batches before unused ones."""
        limits, used = self._instance.limits, self._var["u", -1, j]
        runs = [self._runs(i, j) for i in self._everyone]
        self._row(pulp.lpSum(self._var["c", i, j] for i in self._everyone) <= limits.batch_tokens, "tokens", j)
        self._row(pulp.lpSum(self._prefilled(i, j) for i in self._everyone) <= limits.prefill_tokens, "prefill", j)
        if limits.batch_requests is not None:
            self._row(pulp.lpSum(runs) <= limits.batch_requests, "requests", j)
        if limits.kv_block == 1:
            self._row(pulp.lpSum(self._var["m", i, j] for i in self._everyone) <= limits.kv_tokens, "memory", j)
        else:
            for i in self._everyone:
                self._row(self._var["m", i, j] <= limits.kv_block * self._var["n", i, j], "blocks", i, j)
            blocks = pulp.lpSum(self._var["n", i, j] for i in self._everyone)
            self._row(blocks <= limits.kv_blocks, "memory", j)
        self._row(used <= pulp.lpSum(runs), "not_empty", j)
        for i in self._everyone:
            self._row(runs[i] + self._var["e", i, j] <= used, "used", i, j)
            if not self._instance.rules.hybrid:
                self._row(self._var["p", i, j] <= self._var["w", -1, j], "all_prefills", i, j)
                self._row(self._var["q", i, j] <= 1 - self._var["w", -1, j], "all_decodes", i, j)
        if j > 1:
            self._row(used <= self._var["u", -1, j - 1], "used_first", j)

    def _add_policy_class(self) -> None:
        """At most q evictions; first runs in order."""
        restrictions = self.task.restrictions
        if restrictions.max_evictions is not None:
            evictions = pulp.lpSum(self._var["e", i, j] for i in self._everyone for j in self._batches)
            self._row(evictions <= restrictions.max_evictions, "evictions")
        for a, b in pairwise(restrictions.first_runs(self._instance)):
            for j in self._batches:
                ran = pulp.lpSum(self._runs(a, k) for k in range(1, j + 1))
                self._row(self._runs(b, j) <= ran, "order", a, b, j)

    # Time and objective ---------------------------------------------------------------------------------

    def _units(self, ps: int) -> float:
        """Picoseconds in units of time."""
        return ps / self.plan.unit

    def _factor(self, ps: int) -> float:
        """Units of time as a factor of a batch's time, at most the last end; 0 if solvers take it for that.

        Both lower bounds only, and the former loses nothing: what takes that long is in no schedule better than one
        that is known. Beside large factors, CBC makes false cuts of very small ones, and HiGHS calls optimal what is
        not (found by benchmarks/soundness.py: 10⁹ beside a last end of 320).
        """
        units = min(self._units(ps), self._units(self.plan.end))
        return units if units > _SMALLEST else 0.0

    def _add_time(self, j: int) -> None:
        """Batch j takes at least what every piece says, and ends after the one before and after arrivals."""
        cost = self._instance.cost
        own = pulp.lpSum(self._attention(i, j) for i in self._everyone)
        tokens = pulp.lpSum(self._var["c", i, j] for i in self._everyone)
        duration = self._var["t", -1, j]
        for number, (base, token) in enumerate(cost.affine):
            least = self._factor(base) * self._var["u", -1, j] + self._factor(token) * tokens + own
            self._row(duration >= least, "time", number, j)
        if self._timed:
            end = self._var["E", -1, j]
            self._row(end >= (self._var["E", -1, j - 1] if j > 1 else 0) + duration, "end", j)
            for i, arrival in enumerate(self.plan.arrivals):
                if arrival:
                    self._row(end >= self._units(arrival) * self._runs(i, j) + duration, "arrived", i, j)

    def _attention(self, i: int, j: int) -> Expression:
        """Return what the steps of request i take of batch j, in units of time."""
        cost, peak = self._instance.cost, self.plan.peaks[i]
        cached_before = self._at("m", i, j - 1)
        chunked = self._instance.rules.chunked_prefill
        total = self._factor(cost.decode_req) * self._var["q", i, j]
        total += self._factor(cost.prefill_req) * self._var["p", i, j]
        products = [("x", "q", cost.decode_kv), ("y", "p", cost.prefill_kv if chunked else 0)]
        for name, step, coefficient in products:
            if coefficient:
                read = self._new(name, i, j, peak, integer=False)
                self._row(read >= cached_before - peak * (1 - self._var[step, i, j]), f"read_{name}", i, j)
                total += self._factor(coefficient) * read
        if cost.prefill_sq:
            total += self._factor(cost.prefill_sq) * (self._chunk_square(i, j) if chunked else self._square(i, j))
        return total

    def _square(self, i: int, j: int) -> Expression:
        """c² of a whole prefill, which runs 0 or I, …, D tokens: the convex function through these points."""
        least, peak = self._instance.requests[i].input, self.plan.peaks[i]
        square, run = self._new("z", i, j, peak**2, integer=False), self._prefilled(i, j)
        self._row(square >= least * run, "square", i, j)
        for v in range(least, peak):
            self._row(square >= (2 * v + 1) * run - v * (v + 1), "square", i, j, v)
        return square

    def _chunk_square(self, i: int, j: int) -> Expression:
        """c² + 2mc of a chunk: the bits of c, each times c + 2m."""
        run, most = self._prefilled(i, j), 2 * self.plan.peaks[i]
        factor = run + 2 * self._at("m", i, j - 1)
        powers = range(self.plan.peaks[i].bit_length())
        bits = [self._new(f"bit{power}", i, j, 1) for power in powers]
        self._row(run == pulp.lpSum(2**power * bit for power, bit in enumerate(bits)), "bits", i, j)
        total = []
        for power, bit in enumerate(bits):
            product = self._new(f"z{power}", i, j, 3 * self.plan.peaks[i], integer=False)
            self._row(product >= factor - most * (1 - bit), "chunk", i, j, power)
            total.append(2**power * product)
        return pulp.lpSum(total)

    def _reached(self, i: int, name: str, least: Expression) -> None:
        """Make ``least`` no less than the time from arrival to the first token (``a``) or the last (``f``)."""
        arrival, horizon = self._units(self.plan.arrivals[i]), self._units(self.plan.end)
        for j in self._batches:
            wait = self._var["E", -1, j] - arrival - horizon * self._at(name, i, j - 1)
            self._row(least >= wait, f"reached_{name}", i, j)

    def _add_objective(self) -> Expression:
        """Return the objective: units of time, or requests that miss an SLO."""
        requests, objective = self._instance.requests, self.task.objective
        if objective == Objective.MAKESPAN:
            if self._timed:
                return 1 * self._var["E", -1, self.plan.batches]
            return pulp.lpSum(self._var["t", -1, j] for j in self._batches)
        name = "a" if objective.latency is Latency.TTFT else "f"
        if objective in {Objective.MAX_TTFT, Objective.MAX_E2E}:
            largest = self._new("largest", -1, -1, None, integer=False)
            for i in self._everyone:
                self._reached(i, name, largest)
            return 1 * largest
        if objective == Objective.SLO_MISSES:
            for i, request in enumerate(requests):
                miss = self._new("miss", i, -1, 1)
                for reached, slo in (("a", request.slo_ttft_ps), ("f", request.slo_e2e_ps)):
                    if slo is not None:
                        self._reached(i, reached, self._units(slo) + self._units(self.plan.end) * miss)
            return pulp.lpSum(self._var["miss", i, -1] for i in self._everyone)
        if objective not in {Objective.MEAN_TTFT, Objective.MEAN_E2E, Objective.WEIGHTED_E2E}:
            raise UnsupportedError(f"objective {objective.value}, there is no model of it")
        total = []
        for i, request in enumerate(requests):
            wait = self._new("F", i, -1, None, integer=False)
            self._reached(i, name, wait)
            total.append((request.weight if objective == Objective.WEIGHTED_E2E else 1) * wait)
        return pulp.lpSum(total)

    def _reading(self, tolerance: Tolerance) -> FloatReading:
        """Say how the solver's objective is read."""
        limits = {variable: (float(variable.lowBound), float(variable.upBound)) for variable in self._var.values()}
        slacks = (
            most_slack(
                ((float(factor), *limits[variable]) for variable, factor in row.items()),
                None if row.sense < 0 else -row.constant,
                None if row.sense > 0 else -row.constant,
            )
            for row in self.problem.constraints()
        )
        costs = ((float(factor), *limits[variable]) for variable, factor in self._objective.items())
        unit = 1 if self.task.objective == Objective.SLO_MISSES else self.plan.unit
        return FloatReading(0, unit, tolerance.margin(costs, limits.values(), slacks), self.plan.values)

    # Schedules in and out -------------------------------------------------------------------------------

    def _add_start(self) -> None:
        """Set the integer variables' first values from the best schedule known, if the model admits it."""
        value, schedule = self.plan.start
        most = self.task.restrictions.at_most
        if schedule.length > self.plan.batches or (most is not None and value > most):
            return
        batches = timed(self._instance, schedule.assignments()).batches
        states = initial(self._instance)
        for j in self._batches:
            batch = batches[j - 1] if j <= len(batches) else None
            run = dict(batch.run) if batch else {}
            steps = set()
            for i, state in enumerate(states):
                evicted = batch is not None and i in batch.evict
                if evicted:
                    state.evict()
                count, decode, generated = run.get(i, 0), state.decoding, False
                cached = state.cached + count
                if count:
                    steps.add(decode)
                    generated = state.run(count)
                if batch is not None and generated and self._late(state, batch.end_ps):
                    self._begin(i, -1, {"miss": True})
                prefill = 0 if decode else count
                values = {
                    "S": state.request.input + state.generated,
                    "m": cached,
                    "c": count,
                    "g": generated,
                    "e": evicted,
                    "p": prefill > 0,
                    "q": count > prefill,
                    "d": state.decoding,
                    "f": state.finished,
                    "a": state.generated > 0,
                    "n": -(-cached // self._instance.limits.kv_block),
                }
                values |= {f"bit{power}": prefill >> power & 1 for power in range(prefill.bit_length())}
                self._begin(i, j, values)
            self._begin(-1, j, {"u": batch is not None, "w": False in steps})
        for variable in self._var.values():
            if variable.cat == pulp.LpInteger and variable.varValue is None:
                variable.setInitialValue(0)

    def _begin(self, i: int, j: int, values: dict[str, int | bool]) -> None:
        for name, value in values.items():
            if (name, i, j) in self._var:
                self._var[name, i, j].setInitialValue(int(value))

    @staticmethod
    def _late(state: RequestState, now: int) -> bool:
        """Whether the token that the request has just got comes after an SLO."""
        request = state.request
        slos = [request.slo_ttft_ps] if state.generated == 1 else []
        slos += [request.slo_e2e_ps] if state.finished else []
        return any(slo is not None and now - request.arrival_ps > slo for slo in slos)

    def _read(self) -> Schedule:
        """Read the solution, rounded, and time it exactly."""

        def read(name: str, i: int, j: int) -> int:
            value: float = self._var[name, i, j].varValue
            return round(value)

        assignments = []
        for j in self._batches:
            run = [(i, read("c", i, j)) for i in self._everyone]
            run = [(i, count) for i, count in run if count]
            if run:
                assignments.append(Assignment(run, [i for i in self._everyone if read("e", i, j)]))
        return timed(self._instance, assignments)

    def _admits(self) -> bool:
        """Whether the solution, rounded, satisfies the rows of whole numbers: then its schedule is legal."""
        number = {variable: position for position, variable in enumerate(self._var.values())}
        whole = {variable for variable in number if variable.cat == pulp.LpInteger}
        rows = (
            (
                [(int(factor), number[variable]) for variable, factor in row.items()],
                None if row.sense < 0 else -int(row.constant),
                None if row.sense > 0 else -int(row.constant),
            )
            for row in self.problem.constraints()
            if whole.issuperset(row.keys())
        )
        return admits(rows, [round(variable.varValue) if variable in whole else 0 for variable in number])

    def outcome(self, answer: MilpAnswer) -> Outcome:
        """Value the solution exactly, and say what the solver's bound proves."""
        found = self._read() if answer.found and self._admits() else None
        bound = None if answer.bound is None else self.reading.proved(answer.bound)
        return claim(self.task, [self.task.incumbent, found], bound)
