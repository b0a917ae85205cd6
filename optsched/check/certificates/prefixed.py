"""Certificates of kind ``prefixed``: what machines have to do at least if every shared prefix is computed once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, inf
from typing import Any

from optsched.check.certificates.assignment import ends_at_speed
from optsched.check.problem import percentile_of
from optsched.check.reading import UnprovedError, shown
from optsched.model.cluster import CacheMode
from optsched.model.instance import Instance
from optsched.model.objectives import Latency, Objective

_MOST_BLOCKS = 20_000_000
"""Blocks of all paths that the checker is ready to list."""

Block = tuple[str, int]
"""A block of a path: the node of its last position, and its number."""


@dataclass(frozen=True)
class _Least:
    """The least of all machines' costs by one affine piece, and the most of their limits."""

    base: int
    token: int
    square: int
    step: int
    decode_kv: int
    decode: int
    evicts: bool
    block: int
    memory: int
    tokens: int
    prompt: float
    runs: float

    def prefill(self, place: int) -> int:
        """Return what a prefill of one position takes."""
        return self.token + self.square * (2 * place + 1)

    def prefills(self, places: range) -> int:
        """Return what prefills of positions in a row take."""
        return len(places) * self.token + self.square * (places.stop**2 - places.start**2) if places else 0

    def generating(self, prompt: int, number: int) -> int:
        """Return what the step takes that generates token ``number``, counted from 0."""
        place = prompt - 1 + number
        fill = self.prefill(place) + self.step
        if not number:
            return fill
        decode = self.token + self.decode_kv * place + self.decode
        return min(fill, decode) if self.evicts else decode


def prefixed_bound(machines: Sequence[Instance], objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return the bound of a ``prefixed`` certificate; ``machines`` are their problems with all requests each.

    All machines count as one kind that has the least of every cost, by the affine ``piece`` of their batch times, and
    the most of every limit. A block of a path that several requests have is shared. A request runs what it has for
    itself, and the position before each token that it generates, in a batch each; a shared position that no request
    runs in this way is run by some request that has it.

    With ``release_ps`` the makespan, or the largest load, is bounded by all of that which cannot have been run before:
    time and bases of as many batches as tokens, runs and memory need, divided by the number of machines. With
    ``memory_share``, integers [a, b], sums of latencies are bounded: a / b of a base is shared by the blocks that
    requests have for themselves, the rest by the tokens that they run. With neither, each request takes as long as
    alone with all shared blocks in the cache; and sums of TTFT or e2e latencies are longer by every position that some
    request has to run before its first token and that none runs beside such a cache.
    """
    if certificate.get("kind") != "prefixed":
        raise UnprovedError(f"kind is {shown(certificate.get('kind'))}, expected prefixed")
    if not machines or any(machine.requests != machines[0].requests for machine in machines):
        raise UnprovedError("the machines are not of one problem")
    pieces, piece = max(1 + len(machine.cost.pieces) for machine in machines), certificate.get("piece")
    if type(piece) is not int or not 0 <= piece < pieces:
        raise UnprovedError(f"piece is {shown(piece)}, expected one of {pieces}")
    served = _Served(machines, _least(machines, piece))
    if "release_ps" in certificate:
        release = certificate["release_ps"]
        start = min(served.arrivals)
        if type(release) is not int or release not in served.arrivals:
            raise UnprovedError(f"release_ps is {shown(release)}, expected the arrival time of a request")
        if objective is not Objective.MAKESPAN and (objective is not Objective.MAX_LOAD or release != start):
            raise UnprovedError(f"kind prefixed with release_ps does not bound {objective.value}")
        return release - start + served.load(release)
    if "memory_share" in certificate:
        if objective not in {Objective.MEAN_E2E, Objective.MEAN_TTFT}:
            raise UnprovedError(f"kind prefixed with memory_share does not bound {objective.value}")
        return served.latencies(objective is Objective.MEAN_TTFT, _share(certificate["memory_share"]))
    bound = _of_latencies(machines[0], objective, *served.alone())
    return bound + served.cold() if objective in {Objective.MEAN_E2E, Objective.MEAN_TTFT} else bound


def _share(stated: object) -> Fraction:
    if not isinstance(stated, list) or len(stated) != 2 or any(type(part) is not int for part in stated):
        raise UnprovedError(f"memory_share is {shown(stated)}, expected two integers")
    by_memory, whole = stated
    if not 0 <= by_memory <= whole or not whole:
        raise UnprovedError(f"memory_share is {shown(stated)}, expected a part and a whole > 0")
    return Fraction(by_memory, whole)


def _least(machines: Sequence[Instance], piece: int) -> _Least:
    costs, limits = [each.cost for each in machines], [each.limits for each in machines]
    rules = [each.rules for each in machines]
    affine = []
    for cost in costs:
        pieces = [(cost.base, cost.token), *cost.pieces]
        base, token = pieces[min(piece, len(pieces) - 1)]
        affine.append((base + cost.cpu_batch, token))
    block = limits[0].kv_block if len({each.kv_block for each in limits}) == 1 else 1
    return _Least(
        base=min(base for base, _ in affine),
        token=min(token for _, token in affine),
        square=min(cost.prefill_sq for cost in costs),
        step=min(cost.prefill_req for cost in costs),
        decode_kv=min(cost.decode_kv for cost in costs),
        decode=min(cost.decode_req for cost in costs),
        evicts=any(each.eviction for each in rules),
        block=block,
        memory=max(each.kv_tokens // block for each in limits),
        tokens=max(each.batch_tokens for each in limits),
        prompt=max(
            each.prefill_tokens if rule.chunked_prefill else inf for each, rule in zip(limits, rules, strict=True)
        ),
        runs=max(inf if each.batch_requests is None else each.batch_requests for each in limits),
    )


class _Served:
    """The requests, the blocks of their paths that several have, and what is theirs alone."""

    def __init__(self, machines: Sequence[Instance], least: _Least) -> None:
        self.number, self.least = len(machines), least
        self.requests = machines[0].requests
        self.arrivals = [request.arrival_ps for request in self.requests]
        self.paths = _shared_blocks(machines, least.block)
        self.users: defaultdict[Block, list[int]] = defaultdict(list)
        for index, path in enumerate(self.paths):
            for block in path:
                self.users[block].append(index)

    def own_places(self, index: int) -> range:
        """Return the positions that a request runs for itself and before the one that generates its first token."""
        return range(len(self.paths[index]) * self.least.block, self.requests[index].input - 1)

    def own_blocks(self, index: int, number: int) -> int:
        """Return the blocks that are a request's alone when it generates token ``number``, from 0."""
        tokens, block = self.requests[index].input + number, self.least.block
        return ceil(Fraction(tokens, block)) - min(len(self.paths[index]), tokens // block)

    def work(self, index: int, tokens: int) -> int:
        """Return what a request takes by itself, bases aside, for that many tokens."""
        steps = (self.least.generating(self.requests[index].input, number) for number in range(tokens))
        return self.least.prefills(self.own_places(index)) + sum(steps)

    def load(self, release: int) -> int:
        least = self.least
        late = [index for index, arrival in enumerate(self.arrivals) if arrival >= release]
        outputs = {index: self.requests[index].output for index in late}
        work = sum(self.work(index, output) for index, output in outputs.items())
        tokens = sum(len(self.own_places(index)) + output for index, output in outputs.items())
        held = sum(self.own_blocks(index, number) for index, output in outputs.items() for number in range(output))
        # Blocks with the same requests at the same place among those they share are alike but for their number.
        alone = {
            index: min(self.own_blocks(index, number) for number in range(min(output, least.block + 1)))
            for index, output in outputs.items()
        }
        for block, users in self.users.items():
            held += self._batches_of(block, [user for user in users if user in outputs], alone)
            if all(user in outputs for user in users):
                once = self._once(block, users)
                work += sum(map(least.prefill, once))
                tokens += len(once)
        batches = max(ceil(Fraction(tokens, least.tokens)), ceil(Fraction(held, least.memory)))
        if least.runs is not inf:
            batches = max(batches, ceil(Fraction(sum(outputs.values()), int(least.runs))))
        return ceil(Fraction(least.base * batches + work, self.number))

    def _once(self, block: Block, users: Sequence[int]) -> list[int]:
        """Return the positions of a block that a request needs before its first token, and none runs anyway."""
        size = self.least.block
        places = range(block[1] * size, (block[1] + 1) * size)
        prompts = [self.requests[user].input for user in users]
        if places.stop < min(prompts):
            return list(places)
        anyway = [
            range(request.input - 1, request.input + request.output - 1)
            for request in (self.requests[user] for user in users)
        ]
        return [place for place in places if place < max(prompts) - 1 and not any(place in forced for forced in anyway)]

    def _batches_of(self, block: Block, users: Sequence[int], alone: Mapping[int, int]) -> int:
        """Return in how many batches a block is at least, as requests that have it generate tokens."""
        end = (block[1] + 1) * self.least.block
        generated = [max(0, self.requests[user].output - max(0, end - self.requests[user].input)) for user in users]
        if not any(generated):
            return 0
        together = min(len(users), self.least.runs)
        own = min(alone[user] for user in users)
        if own:
            together = min(together, max(1, (self.least.memory - block[1] - 1) // own))
        return max(*generated, ceil(Fraction(sum(generated), int(together))))

    def alone(self) -> tuple[list[int], list[int]]:
        """Return TTFT and e2e latency of each request, by itself beside a cache that holds all shared blocks."""
        least, first, last = self.least, [], []
        for path, request in zip(self.paths, self.requests, strict=True):
            found = least.block * min(len(path), (request.input - 1) // least.block)
            fills = 1 if least.prompt is inf else ceil(Fraction(request.input - found, int(least.prompt)))
            time = fills * (least.base + least.step) + least.prefills(range(found, request.input))
            first.append(time)
            rest = (least.base + least.generating(request.input, number) for number in range(1, request.output))
            last.append(time + sum(rest))
        return first, last

    def cold(self) -> int:
        """Return the time of positions of shared blocks whose first run comes before the first token of a request.

        A request that has had its first token fills again what was there before. Beside a cache with all shared blocks
        it runs none of these positions: not the last block of a prompt, nor what it generates.
        """
        least, size, total = self.least, self.least.block, 0
        for block, users in self.users.items():
            found = [(self.requests[user].input - 1) // size for user in users]
            if block[1] < min(found):
                total += least.prefills(range(block[1] * size, (block[1] + 1) * size))
                continue
            last = [self.requests[user].input + self.requests[user].output - 1 for user in users]
            for place in range(block[1] * size, (block[1] + 1) * size):
                kept = [place < size * until for until in found]
                beyond = [place >= end for end in last]
                if any(kept) and all(one or other for one, other in zip(kept, beyond, strict=True)):
                    total += least.prefill(place)
        return total

    def latencies(self, first: bool, share: Fraction) -> int:
        least, jobs = self.least, []
        start = min(self.arrivals)
        for index, request in enumerate(self.requests):
            output = 1 if first else request.output
            held = sum(self.own_blocks(index, number) for number in range(output))
            run = len(self.own_places(index)) + output
            bases = least.base * (share * Fraction(held, least.memory) + (1 - share) * Fraction(run, least.tokens))
            # Whole ps: the bound is as exact as the certificate's.
            jobs.append((self.arrivals[index] - start, self.work(index, output) + int(bases)))
        alone = sorted(
            arrival + latency for (arrival, _), latency in zip(jobs, self.alone()[0 if first else 1], strict=True)
        )
        fast = ends_at_speed(sorted(jobs), self.number)
        waited = sum(arrival for arrival, _ in jobs)
        bound = sum(ceil(max(Fraction(one), other)) for one, other in zip(alone, fast, strict=True)) - waited
        if not waited:
            needs = sorted((need for _, need in jobs), reverse=True)
            bound = max(bound, sum((place // self.number + 1) * need for place, need in enumerate(needs)))
        return bound


def _shared_blocks(machines: Sequence[Instance], size: int) -> list[list[Block]]:
    """Return the leading blocks of every request's path that several requests have; none if no machine caches."""
    requests = machines[0].requests
    if all(machine.cache.mode is CacheMode.NONE for machine in machines):
        return [[] for _ in requests]
    nodes = machines[0].prefixes.by_name()
    paths: list[list[Block]] = []
    known: dict[tuple[str, ...], list[Block]] = {}
    for request in requests:
        if request.prefix not in known:
            found: list[Block] = []
            end = 0
            for name in request.prefix:
                end += nodes[name].tokens
                found += ((name, number) for number in range(len(found), end // size))
            known[request.prefix] = found
        paths.append(known[request.prefix])
        if sum(map(len, paths)) > _MOST_BLOCKS:
            raise UnprovedError(f"the paths have more than {_MOST_BLOCKS} blocks")
    uses = Counter(block for path in paths for block in path)
    return [[block for block in path if uses[block] > 1] for path in paths]


def _of_latencies(problem: Instance, objective: Objective, first: Sequence[int], last: Sequence[int]) -> int:
    """Return the objective of latencies that are all at least these."""
    requests = problem.requests
    match objective:
        case Objective.MAKESPAN:
            ends = (request.arrival_ps + latency for request, latency in zip(requests, last, strict=True))
            return max(ends) - min(request.arrival_ps for request in requests)
        case Objective.WEIGHTED_E2E:
            return sum(request.weight * latency for request, latency in zip(requests, last, strict=True))
        case Objective.SLO_MISSES:
            return sum(
                (request.slo_ttft_ps is not None and soon > request.slo_ttft_ps)
                or (request.slo_e2e_ps is not None and late > request.slo_e2e_ps)
                for request, soon, late in zip(requests, first, last, strict=True)
            )
        case Objective.MEAN_TTFT | Objective.MAX_TTFT:
            values = first
        case Objective.MEAN_E2E | Objective.MAX_E2E:
            values = last
        case Objective(latency=Latency(), percentile=int(q)):
            return percentile_of(first if objective.latency is Latency.TTFT else last, q)
        case _:
            raise UnprovedError(f"kind prefixed does not bound {objective.value}")
    return sum(values) if objective in {Objective.MEAN_TTFT, Objective.MEAN_E2E} else max(values)
