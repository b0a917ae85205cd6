"""Worst cases: instances on which a policy is as far as possible from what another schedule reaches.

The gap of a policy on an instance is 1 − (value of another schedule) / (value of the policy). Any schedule witnesses
it, because the optimum is no larger: so other policies are cheap witnesses, and only the last instances are solved.
Elitist evolution looks for a large gap: the best instances found, from known constructions (a long request before short
ones, requests of which two just do not fit together) and random ones; a child is a mutant of a good one, or the head of
one and the tail of another. Where a bound says that the gap cannot be among the best, no witness is asked. Several
processes evolve side by side and exchange what they have found. Then a second evolution with at most four requests
begins at parts of the worst instance, and a shrinker makes lengths and limits smaller.
"""

from __future__ import annotations

import math
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations, count
from random import Random

from optsched.bounds.alone import alone_bound
from optsched.bounds.volume import makespan_bound
from optsched.methods.policies import policy_of, ready_policy
from optsched.methods.simulate import simulate
from optsched.methods.solve import solve
from optsched.model.cost import CostModel
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.metrics import evaluate
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Result
from optsched.simulator.engine import run_policy
from optsched.simulator.replica import PolicyFailureError

WITNESSES = ("rank_i", "svf", "econoserve", "sjf", "vllm_ef", "planner")
"""Quick policies whose schedules show what is possible."""
FEW = 4
"""The most requests of an instance that shows at a glance what is wrong."""
_ELITE = 12
_ROUND_S = 5.0
"""After so long processes exchange their best instances."""
_LARGEST = 512, 16
"""The largest input and output of a random request."""
_FULL = 256
"""M, and the prompts that fill it, of head-of-line chains."""
_LATEST = 3 * 10**11
"""The latest random arrival, in ps."""
_MS = 10**9
_TICK = _MS // 10
"""Arrivals are multiples of this, in ps."""


@dataclass(frozen=True)
class Genome:
    """What evolution changes of an instance: M, and for each request input, output and arrival in ps."""

    kv_tokens: int
    requests: tuple[tuple[int, int, int], ...]

    @property
    def is_servable(self) -> bool:
        """Whether each request alone fits M."""
        return bool(self.requests) and self.kv_tokens >= max(size + length - 1 for size, length, _ in self.requests)


@dataclass(frozen=True)
class Search:
    """What is looked for.

    Parameters
    ----------
    policy, objective
        Whose gap is to be large, in what.
    most_requests
        The most requests of an instance.
    cost
        The cost model.
    rules
        The rules.
    budget
        C, and P.
    online
        Whether requests may arrive later than at 0.
    """

    policy: str
    objective: Objective
    most_requests: int
    cost: CostModel
    rules: Rules
    budget: int = 4096
    online: bool = False

    def instance(self, genome: Genome) -> Instance:
        """Return the instance of a genome."""
        requests = tuple(Request(size, length, arrival) for size, length, arrival in genome.requests)
        limits = Limits(genome.kv_tokens, self.budget, self.budget)
        name = f"worst-{self.policy}-{self.objective.value}-{len(requests)}"
        return Instance(name, limits, self.rules, self.cost, requests)

    def gap(self, instance: Instance, least: float = 0.0) -> float:
        """Return the gap that the best witness shows; 0 if the policy fails, is the best itself, or misses ``least``.

        A bound says whether any schedule could show a gap above ``least``.
        """
        own = simulate(instance, self.policy, self.objective).value
        if not own or 1 - quick_bound(instance, self.objective) / own <= least:
            return 0.0
        return max(0.0, 1 - min(self._witnesses(instance), default=own) / own)

    def _witnesses(self, instance: Instance) -> Iterator[int]:
        """Yield the values of our policies that have a schedule, one run after the other."""
        values = (self._witnessed(instance, name) for name in WITNESSES if name != self.policy)
        return (value for value in values if value is not None)

    def _witnessed(self, instance: Instance, name: str) -> int | None:
        """Return the value of one of our policies, whose schedule the engine accepts; nothing else checks it here."""
        runner, _ = policy_of(name, None)
        try:
            schedule = run_policy(instance, ready_policy(runner, instance, self.objective, Restrictions(), 0))
        except PolicyFailureError:
            return None
        value: int | None = evaluate(instance, schedule)["objectives"][self.objective.value]
        return value

    # Instances ---------------------------------------------------------------------------------------------

    def random(self, chance: Random) -> Genome:
        """Draw an instance, of a few kinds of requests."""
        number = chance.randint(2, self.most_requests)
        largest, longest = _LARGEST
        kinds = [(_drawn(chance, largest), _drawn(chance, longest)) for _ in range(chance.randint(1, number))]
        requests = tuple((*chance.choice(kinds), self._arrival(chance)) for _ in range(number))
        peaks = [size + length - 1 for size, length, _ in requests]
        return Genome(chance.randint(max(peaks), sum(peaks)), requests)

    def _arrival(self, chance: Random) -> int:
        if not self.online or chance.random() < 0.4:
            return 0
        return _drawn(chance, _LATEST // _TICK) * _TICK

    def constructions(self) -> Iterator[Genome]:
        """Yield constructions that are known to be hard for some policies."""
        most = self.most_requests
        for length in (4, 16):
            # Head-of-line chains: a prompt that fills the cache waits for one long output, and the next long output
            # waits behind it, in order of arrival.
            yield Genome(_FULL, (((1, length, 0), (_FULL, 1, 0)) * most)[:most])
        for size, length in ((_FULL, 2), (4 * _FULL, 3)):
            # A large prompt, which fits beside a short request but for its last token, is computed twice.
            yield Genome(size + length, ((1, length, 0), (size, length, 0)))
        for length in (4, 16, 64):
            # One long request between short ones, in a cache that holds little more than it.
            short = ((1, 2, 0),) * (most - 1)
            yield Genome(length, (short[0], (length, 1, 0), *short[1:]))
            yield Genome(length + 1, ((1, length, 0), *short))
            # Two requests that are admitted together and evict each other.
            yield Genome(2 * length, ((length, length, 0),) * most)
            # One long request first, beside which none of the short ones fits.
            yield Genome(2 * length - 2, ((length - 1, length, 0), *((length, 1, 0),) * (most - 1)))
            if self.online and most > 2:
                # While a long output runs, a prompt that fills the cache for one token comes before the next long one.
                yield Genome(4 * length, ((1, length, 0), (4 * length, 1, _TICK), (1, length - 1, _TICK)))

    def mutant(self, parent: Genome, chance: Random) -> Genome:
        """Return a genome with one to three things changed."""
        for _ in range(chance.choice((1, 1, 2, 3))):
            parent = self._changed(parent, chance)
        return parent

    def _changed(self, parent: Genome, chance: Random) -> Genome:
        requests = list(parent.requests)
        place, other = chance.randrange(len(requests)), chance.randrange(len(requests))
        size, length, arrival = requests[place]
        match chance.randrange(10):
            case 0 | 1:
                requests[place] = (_near(size, chance), length, arrival)
            case 2:
                requests[place] = (size, _near(length, chance), arrival)
            case 3:
                requests[place] = (*requests[other][:2], arrival)
            case 4 if len(requests) < self.most_requests:
                requests.insert(other, requests[place])
            case 5 if len(requests) > 2:
                del requests[place]
            case 6 if self.online:
                arrivals = (0, self._arrival(chance), requests[other][2], _near(arrival // _TICK, chance) * _TICK)
                requests[place] = (size, length, chance.choice(arrivals))
            case 7:
                some = chance.sample(requests, chance.randint(1, len(requests)))
                tokens = sum(size + length - 1 for size, length, _ in some) + chance.choice((-1, 0, 1))
                return replace(parent, kv_tokens=max(1, tokens))
            case 8:
                return replace(parent, kv_tokens=_near(parent.kv_tokens, chance))
            case 9:
                return _scaled(parent, chance)
            case _:
                requests[place], requests[other] = requests[other], requests[place]
        return replace(parent, requests=tuple(requests))

    # Evolution ---------------------------------------------------------------------------------------------

    def evolve(self, seconds: float, seed: str, elite: Elite = ()) -> Elite:
        """Return the best instances after a time, beginning with ``elite``; without it with all constructions."""
        chance, end = Random(seed), time.monotonic() + seconds
        first = [] if elite else list(self.constructions())
        best, seen = elite, {genome for _, genome in elite}
        while first or time.monotonic() < end or not best:
            genome = first.pop() if first else self._child(best, chance)
            if genome in seen or not genome.is_servable or len(genome.requests) > self.most_requests:
                continue
            seen.add(genome)
            least = best[-1][0] if len(best) == _ELITE else 0.0
            gap = self.gap(self.instance(genome), least)
            if gap > least or len(best) < _ELITE:
                best = elite_of([(gap, genome), *best])
        return best

    def _child(self, elite: Sequence[tuple[float, Genome]], chance: Random) -> Genome:
        if len(elite) < _ELITE or chance.random() < 0.08:
            return self.random(chance)
        if chance.random() < 0.15:
            (_, mother), (_, father) = chance.sample(list(elite), 2)
            head = mother.requests[: chance.randint(1, len(mother.requests))]
            tail = father.requests[-chance.randint(1, len(father.requests)) :]
            return Genome(chance.choice((mother, father)).kv_tokens, head + tail)
        place = min(int(chance.expovariate(0.5)), len(elite) - 1)
        return self.mutant(elite[place][1], chance)

    def shrunk(self, genome: Genome, least: float) -> Genome:
        """Return the genome made smaller, step by step, as long as the gap is at least ``least``."""
        tries, place, failed = list(_smaller(genome)), 0, 0
        while failed < len(tries):
            smaller = tries[place % len(tries)]
            if smaller.is_servable and self._shows(self.instance(smaller), least):
                genome, tries, failed = smaller, list(_smaller(smaller)), 0
            else:
                # What fails is not tried again at once: after a step most of the others fail as before.
                place, failed = place + 1, failed + 1
        return genome

    def _shows(self, instance: Instance, least: float) -> bool:
        """Whether some witness shows a gap of at least ``least``."""
        own = simulate(instance, self.policy, self.objective).value
        if not own or 1 - quick_bound(instance, self.objective) / own < least:
            return False
        return any(1 - value / own >= least for value in self._witnesses(instance))

    def parts(self, genome: Genome) -> Elite:
        """Return the best instances that have only some of the requests, at most as many as this search allows."""
        number = min(self.most_requests, len(genome.requests))
        found = {replace(genome, requests=chosen) for chosen in combinations(genome.requests, number)}
        return elite_of([(self.gap(self.instance(each)), each) for each in found if each.is_servable])


Elite = tuple[tuple[float, Genome], ...]
"""Gaps and their instances, the largest first."""


def elite_of(found: Sequence[tuple[float, Genome]]) -> Elite:
    """Return the best of some instances; of those with one gap only the first with the fewest requests."""
    ranked = sorted(found, key=lambda entry: (-entry[0], len(entry[1].requests)))
    different = dict(reversed(ranked))
    return tuple(sorted(different.items(), key=lambda entry: -entry[0])[:_ELITE])


Evolve = Callable[[Search, float, str, Elite], Elite]
"""Evolves the instances of a search for some seconds, with a seed."""


def here(search: Search, seconds: float, seed: str, elite: Elite) -> Elite:
    """Evolve in this process."""
    return search.evolve(seconds, seed, elite)


@contextmanager
def side_by_side(slots: int) -> Iterator[Evolve]:
    """Evolve in several processes, which begin at the same instances."""
    if slots == 1:
        yield here
        return
    context = multiprocessing.get_context("spawn")  # a fork of what has threads may hang
    with ProcessPoolExecutor(slots, context, _leave_interrupts) as pool:

        def evolve(search: Search, seconds: float, seed: str, elite: Elite) -> Elite:
            rounds = [pool.submit(here, search, seconds, f"{seed} {slot}", elite) for slot in range(slots)]
            return elite_of([entry for found in rounds for entry in found.result()])

        yield evolve


def _leave_interrupts() -> None:
    """Leave Ctrl-C to the process that has started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def rounds(search: Search, seconds: float, seed: int, evolve: Evolve, elite: Elite = ()) -> Iterator[Elite]:
    """Yield the best instances after each round, until time is up.

    The time begins with the constructions done, and so with all at hand that has to be compiled.
    """
    elite = elite or evolve(search, 0.0, f"{seed} first", ())
    end = time.monotonic() + seconds
    for number in count():
        left = end - time.monotonic()
        if left <= 0 and number:
            return
        elite = evolve(search, min(_ROUND_S, max(left, 0.0)), f"{seed} {number}", elite)
        yield elite


def quick_bound(instance: Instance, objective: Objective) -> int:
    """Return the best of the two bounds that take no time."""
    found = (bound(instance, objective) for bound in (makespan_bound, alone_bound))
    return max((bound.value for bound in found if bound is not None), default=0)


def _drawn(chance: Random, most: int) -> int:
    """Draw an integer from 1 on, its logarithm about uniform."""
    return min(most, int(math.exp(chance.uniform(0, math.log(most + 1)))))


def _near(number: int, chance: Random) -> int:
    if chance.random() < 0.4:
        return max(1, number + chance.choice((-3, -2, -1, 1, 2, 3)))
    return max(1, round(number * 2 ** chance.uniform(-1.2, 1.2)))


def _scaled(genome: Genome, chance: Random) -> Genome:
    """Return a genome with all inputs and M, all outputs or all arrivals by one factor larger or smaller."""
    factors = [1.0, 1.0, 1.0]
    factors[chance.randrange(3)] = 2 ** chance.uniform(-1, 1)
    sizes, lengths, arrivals = factors
    requests = tuple(
        (max(1, round(size * sizes)), max(1, round(length * lengths)), round(arrival // _TICK * arrivals) * _TICK)
        for size, length, arrival in genome.requests
    )
    return Genome(max(1, round(genome.kv_tokens * sizes)), requests)


def _smaller(genome: Genome) -> Iterator[Genome]:
    """Yield what is smaller by a step: all halved, without a request, with shorter lengths, without arrivals."""
    halved = tuple((max(1, size // 2), length, arrival) for size, length, arrival in genome.requests)
    if halved != genome.requests:
        yield Genome(max(1, genome.kv_tokens // 2), halved)
    for place, (size, length, arrival) in enumerate(genome.requests):
        before, after = genome.requests[:place], genome.requests[place + 1 :]
        yield replace(genome, requests=before + after)
        for less in sorted({1, size // 4, size // 2, size - 1} - {0}):
            if less < size:
                changed = (*before, (less, length, arrival), *after)
                yield replace(genome, requests=changed)
                yield Genome(genome.kv_tokens - (size - less), changed)
        for less in sorted({1, length // 2, length - 1} - {0}):
            if less < length:
                changed = (*before, (size, less, arrival), *after)
                yield replace(genome, requests=changed)
                yield Genome(genome.kv_tokens - (length - less), changed)
        if arrival:
            yield replace(genome, requests=(*before, (size, length, 0), *after))


@dataclass(frozen=True)
class WorstCase:
    """An instance on which a policy is bad.

    Parameters
    ----------
    instance, policy, best
        The instance, the policy's result, and what the exact search says.
    value
        The least value of a schedule that the checker has replayed, of the search or of a witness.
    binding
        The limit or rule without which the gap is smallest, and the gap then.
    """

    instance: Instance
    policy: Result
    best: Result
    value: int
    binding: tuple[str, float]

    @property
    def gap(self) -> float:
        """The gap that is proved: by a schedule."""
        assert self.policy.value is not None, "the search has run it"
        return 1 - self.value / self.policy.value

    @property
    def explanation(self) -> str:
        """A sentence that says which limit binds."""
        what, gap = self.binding
        proof = "optimal" if self.value == self.best.bound else "not proved optimal"
        return f"Another schedule ({proof}) is {self.gap:.1%} better; {what} the gap is {gap:.1%}."


def requests_text(instance: Instance) -> str:
    """Return the requests as (I, O), with arrivals in ms."""
    shown = []
    for request in instance.requests:
        arrival = f" at {request.arrival_ps / _MS:g} ms" if request.arrival_ps else ""
        shown.append(f"({request.input}, {request.output}){arrival}")
    return ", ".join(shown)


def worst_case(search: Search, instance: Instance, time_limit: float) -> WorstCase:
    """Solve an instance, and find the limit that binds: relaxed alone, it makes the gap smallest."""
    own = simulate(instance, search.policy, search.objective)
    best = solve(instance, search.objective, time_limit=time_limit, workers=1)
    values = [simulate(instance, name, search.objective).value for name in (search.policy, *WITNESSES)]
    limits = instance.limits
    everything = sum(request.input + request.output for request in instance.requests)
    relaxed = {
        f"with a KV cache for all requests instead of M = {limits.kv_tokens}": replace(
            instance, limits=replace(limits, kv_tokens=everything)
        ),
        "without evictions": replace(instance, rules=replace(instance.rules, eviction=False)),
        "with chunked prefills": replace(instance, rules=replace(instance.rules, chunked_prefill=True)),
        "with all requests at 0": replace(
            instance, requests=tuple(replace(request, arrival_ps=0) for request in instance.requests)
        ),
    }
    gaps = {what: search.gap(other) for what, other in relaxed.items() if other != instance}
    least = min(value for value in (best.value, *values) if value is not None)
    return WorstCase(instance, own, best, least, min(gaps.items(), key=lambda pair: pair[1]))
