"""Worst cases: instances on which a policy is as far as possible from what another schedule reaches.

The gap of a policy on an instance is 1 − (value of another schedule) / (value of the policy). Any schedule witnesses
it, because the optimum is no larger: so other policies are cheap witnesses, and only the last instance is solved.
Elitist evolution looks for a large gap: a population of the best instances found, from known constructions (a long
request before short ones, requests of which two just do not fit together) and random ones; a child is a mutant of a
good one, or the head of one and the tail of another. Then a shrinker makes the instance smaller as long as the gap
stays above a threshold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

from optsched.methods.simulate import simulate
from optsched.methods.solve import solve
from optsched.model.cost import CostModel
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.objectives import Objective
from optsched.model.result import Result, Status

WITNESSES = ("rank_i", "svf", "econoserve", "sjf", "vllm_ef")
"""Quick policies whose schedules show what is possible."""
_ELITE = 12
_RANDOM_FIRST = 40
_LARGEST = 64
"""The largest length of a random request."""
_FULL = 256
"""M, and the prompts that fill it, of head-of-line chains."""
_SECOND = 10**12


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
        return Instance(f"worst-{self.policy}-{self.objective.value}", limits, self.rules, self.cost, requests)

    def gap(self, instance: Instance) -> float:
        """Return the gap that the best witness shows; 0 if the policy fails, or is the best itself."""
        own = simulate(instance, self.policy, self.objective).value
        if not own:
            return 0.0
        values = (simulate(instance, name, self.objective).value for name in WITNESSES if name != self.policy)
        return max(0.0, 1 - min((value for value in values if value is not None), default=own) / own)

    def random(self, chance: Random) -> Genome:
        """Draw an instance."""
        count = chance.randint(2, self.most_requests)
        lengths = tuple(2**power for power in range(_LARGEST.bit_length()))
        requests = tuple((chance.choice(lengths), chance.choice(lengths), self._arrival(chance)) for _ in range(count))
        peaks = [size + length - 1 for size, length, _ in requests]
        return Genome(chance.randint(max(peaks), sum(peaks)), requests)

    def _arrival(self, chance: Random) -> int:
        return chance.choice((0, chance.randint(0, _SECOND))) if self.online else 0

    def constructions(self) -> Iterator[Genome]:
        """Yield constructions that are known to be hard for some policies."""
        count = self.most_requests
        for length in (4, 16):
            # Head-of-line chains: a prompt that fills the cache waits for one long output, and the next long output
            # waits behind it, in order of arrival.
            yield Genome(_FULL, (((1, length, 0), (_FULL, 1, 0)) * count)[:count])
        for length in (4, 16, _LARGEST):
            # One long request between short ones, in a cache that holds little more than it.
            short = ((1, 2, 0),) * (count - 1)
            yield Genome(length, (short[0], (length, 1, 0), *short[1:]))
            yield Genome(length + 1, ((1, length, 0), *short))
            # Two requests that are admitted together and evict each other.
            yield Genome(2 * length, ((length, length, 0),) * count)

    def mutant(self, parent: Genome, chance: Random) -> Genome:
        """Return a genome with one thing changed."""
        requests = list(parent.requests)
        place = chance.randrange(len(requests))
        size, length, arrival = requests[place]
        match chance.randrange(7):
            case 0:
                requests[place] = (_changed(size, chance), length, arrival)
            case 1:
                requests[place] = (size, _changed(length, chance), arrival)
            case 2 if len(requests) < self.most_requests:
                requests.insert(place, requests[place])
            case 3 if len(requests) > 2:
                del requests[place]
            case 4:
                chance.shuffle(requests)
            case 5 if self.online:
                requests[place] = (size, length, self._arrival(chance))
            case _:
                return replace(parent, kv_tokens=_changed(parent.kv_tokens, chance))
        return replace(parent, requests=tuple(requests))

    def evolve(self, seconds: float, seed: int, watch: Callable[[int, float], None]) -> Genome:
        """Return the genome with the largest gap found in a time; ``watch`` gets how many were tried, and the gap."""
        chance, end = Random(seed), time.monotonic() + seconds
        elite: list[tuple[float, int, Genome]] = []
        seen: set[Genome] = set()
        first = self.constructions()
        while time.monotonic() < end or not elite:
            genome = next(first, None)
            if genome is None:
                genome = self._child(elite, len(seen), chance)
            if genome in seen or not genome.is_servable or len(genome.requests) > self.most_requests:
                continue
            seen.add(genome)
            elite.append((self.gap(self.instance(genome)), -len(genome.requests), genome))
            elite.sort(key=lambda entry: entry[:2], reverse=True)
            del elite[_ELITE:]
            watch(len(seen), elite[0][0])
        return elite[0][2]

    def _child(self, elite: list[tuple[float, int, Genome]], tried: int, chance: Random) -> Genome:
        if tried < _RANDOM_FIRST or chance.random() < 0.08:
            return self.random(chance)
        if len(elite) > 1 and chance.random() < 0.15:
            (_, _, mother), (_, _, father) = chance.sample(elite, 2)
            head = mother.requests[: chance.randint(1, len(mother.requests))]
            tail = father.requests[-chance.randint(1, len(father.requests)) :]
            return Genome(chance.choice((mother, father)).kv_tokens, head + tail)
        place = min(int(chance.expovariate(0.5)), len(elite) - 1)
        return self.mutant(elite[place][2], chance)

    def shrunk(self, genome: Genome, least: float) -> Genome:
        """Return the genome made smaller, step by step, as long as the gap is at least ``least``."""
        smaller: Genome | None = genome
        while smaller is not None:
            genome = smaller
            tries = (each for each in _smaller(genome) if each.is_servable)
            smaller = next((each for each in tries if self.gap(self.instance(each)) >= least), None)
        return genome


def _changed(number: int, chance: Random) -> int:
    return max(1, chance.choice((number - 1, number + 1, number // 2, number * 2)))


def _smaller(genome: Genome) -> Iterator[Genome]:
    """Yield what is smaller by a step: without a request, with shorter lengths, without arrivals, all halved."""
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
    halved = tuple((max(1, size // 2), length, arrival) for size, length, arrival in genome.requests)
    if halved != genome.requests:
        yield Genome(max(1, genome.kv_tokens // 2), halved)


@dataclass(frozen=True)
class WorstCase:
    """An instance on which a policy is bad.

    Parameters
    ----------
    instance, policy, best
        The instance, the policy's result, and the best schedule and bound that are known.
    binding
        The limit or rule without which the gap is smallest, and the gap then.
    """

    instance: Instance
    policy: Result
    best: Result
    binding: tuple[str, float]

    @property
    def gap(self) -> float:
        """The gap that is proved: by the best schedule."""
        assert self.policy.value is not None, "the search has run it"
        assert self.best.value is not None, "the policy's schedule at least"
        return 1 - self.best.value / self.policy.value

    @property
    def explanation(self) -> str:
        """A sentence that says which limit binds."""
        what, gap = self.binding
        proof = "optimal" if self.best.status == Status.OPTIMAL else "not proved optimal"
        return f"Another schedule ({proof}) is {self.gap:.1%} better; {what} the gap is {gap:.1%}."


def worst_case(search: Search, genome: Genome, time_limit: float) -> WorstCase:
    """Solve the instance of a genome, and find the limit that binds: relaxed alone, it makes the gap smallest."""
    instance = search.instance(genome)
    own = simulate(instance, search.policy, search.objective)
    best = solve(instance, search.objective, time_limit=time_limit, workers=1)
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
    return WorstCase(instance, own, best, min(gaps.items(), key=lambda pair: pair[1]))
