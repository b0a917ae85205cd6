"""The rules of one machine with a block cache, told once more from docs/problem.md: block by block, batch by batch."""

from __future__ import annotations

import random
from collections.abc import Hashable

from playing import COST

from optsched.model.cluster import CacheMode, CacheRules
from optsched.model.domain import replace
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.prefixes import PrefixNode, PrefixTree
from optsched.model.schedule import Batch, Schedule


class Replay:
    """Follows a schedule, and asserts that each of its batches is legal."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.size = instance.limits.kv_block
        self.nodes = instance.prefixes.by_name()
        count = len(instance.requests)
        self.held, self.generated, self.decoding = [0] * count, [0] * count, [False] * count
        self.cached: set[Hashable] = set()
        self.contents = [self._contents(index) for index in range(count)]
        self.before = {each: names[at - 1] for names in self.contents for at, each in enumerate(names) if at}
        self.found_tokens = 0
        self.copies = 0
        self.dropped = 0

    def _contents(self, index: int) -> list[Hashable]:
        request = self.instance.requests[index]
        tokens: list[Hashable] = []
        for name in request.prefix:
            tokens += [name] * self.nodes[name].tokens
        tokens += [index] * (request.input + request.output - len(tokens))
        return [(tokens[end - 1], end) for end in range(self.size, len(tokens) + 1, self.size)]

    def cacheable(self, index: int, tokens: int) -> list[Hashable]:
        """Blocks of the first tokens that are cached once they are whole."""
        whole = self.contents[index][: tokens // self.size]
        match self.instance.cache.mode:
            case CacheMode.NONE:
                return []
            case CacheMode.PREFIX:
                return [each for each in whole if isinstance(each, tuple) and isinstance(each[0], str)]
            case CacheMode.ALL:
                return whole

    def follow(self, schedule: Schedule) -> None:
        now = 0
        for batch in schedule.batches:
            assert batch.start_ps >= now
            now = batch.start_ps
            for number in range(batch.repeat):
                if batch.repeat > 1:
                    assert (batch.evict, batch.drop, batch.hits) == ((), (), ())
                    assert all(self.decoding[index] for index, _ in batch.run)
                now += self._play(batch, last=number == batch.repeat - 1)
            assert batch.end_ps == now
        for request, generated in zip(self.instance.requests, self.generated, strict=True):
            assert generated == request.output

    def _play(self, batch: Batch, *, last: bool) -> int:
        instance, size = self.instance, self.size
        requests, limits, rules = instance.requests, instance.limits, instance.rules
        assert rules.eviction or not batch.evict
        for index in batch.evict:
            assert self.held[index] >= 1
            self.held[index], self.decoding[index] = 0, False
        pinned = {each for index, held in enumerate(self.held) for each in self.cacheable(index, held)}
        gone = {self.contents[index][number] for index, number in batch.drop}
        assert gone <= self.cached - pinned
        assert len(gone) == len(batch.drop)
        self.dropped += len(gone)
        self.cached -= gone
        assert all(self.before.get(each, each) in self.cached for each in self.cached)
        hits, completed, copies = [], set[Hashable](), 0
        prefills, decodes, read = [], 0, 0
        for index, count in batch.run:
            assert requests[index].arrival_ps <= batch.start_ps
            assert index not in batch.evict
            total = requests[index].input + self.generated[index]
            if self.held[index] == 0:
                visible = self.cached | completed if instance.cache.share_in_batch else self.cached
                most = self.cacheable(index, total)[: (total - 1) // size]
                found = next((at for at, each in enumerate(most) if each not in visible), len(most)) * size
                self.held[index] = found
                hits += [(index, found)] if found else []
            held = self.held[index]
            assert 1 <= count <= total - held
            if self.decoding[index]:
                decodes, read = decodes + 1, read + held
            else:
                prefills.append((count, held))
                assert rules.chunked_prefill or count == total - held
            old = len(self.cacheable(index, held))
            for each in self.cacheable(index, held + count)[old:]:
                copies += each in self.cached or each in completed
                completed.add(each)
            self.held[index] = held + count
        assert hits == list(batch.hits)
        self.found_tokens += sum(found for _, found in hits)
        self.copies += copies
        runs = [index for index, _ in batch.run]
        assert len(runs) == len(set(runs)) > 0
        assert limits.batch_requests is None or len(runs) <= limits.batch_requests
        tokens = sum(count for _, count in batch.run)
        assert tokens <= limits.batch_tokens
        assert sum(count for count, _ in prefills) <= limits.prefill_tokens
        assert rules.hybrid or not (prefills and decodes)
        own = sum(-(-held // size) - len(self.cacheable(index, held)) for index, held in enumerate(self.held))
        assert len(self.cached | completed) + copies + own <= limits.kv_tokens // size
        self.cached |= completed
        for index in runs:
            request = requests[index]
            if self.held[index] == request.input + self.generated[index]:
                self.generated[index] += 1
                self.decoding[index] = True
                if self.generated[index] == request.output:
                    assert last
                    self.held[index] = 0
        steps = instance.cost.batch_ps(tokens, decodes, read, prefills)
        return steps + instance.cost.overhead_ps(steps, 0, 0, batch.considered)


def followed(instance: Instance, schedule: Schedule) -> Replay:
    """Assert that a schedule is legal, and return what was counted."""
    replay = Replay(instance)
    replay.follow(schedule)
    return replay


def random_cached(rng: random.Random) -> Instance:
    """Return a small instance whose requests share prefixes, with little memory."""
    nodes = [PrefixNode("n0", rng.randint(1, 9))]
    for number in range(1, rng.randint(1, 6)):
        parent = rng.choice([None, *nodes])
        nodes.append(PrefixNode(f"n{number}", rng.randint(1, 7), parent.name if parent else None))
    tree = PrefixTree(tuple(nodes))
    by_name = tree.by_name()
    requests = []
    for _ in range(rng.randint(1, 9)):
        path: list[str] = []
        name: str | None = rng.choice(nodes).name if rng.random() < 0.85 else None
        while name is not None:
            path.insert(0, name)
            name = by_name[name].parent
        on_path = sum(by_name[each].tokens for each in path)
        prompt = max(1, on_path + rng.choice([-3, -1, 0, 0, 1, 2, 5]))
        output = max(rng.randint(1, 8), on_path - prompt)
        slo = rng.choice([None, rng.randint(0, 4000)])
        arrival = rng.choice([0, rng.randint(0, 3000)])
        requests.append(Request(prompt, output, arrival, slo_ttft_ps=slo, prefix=tuple(path)))
    block = rng.randint(1, 4)
    most = max(-(-request.peak_tokens // block) * block for request in requests)
    prefill = rng.randint(2, 20)
    chunked = rng.random() < 0.8
    if not chunked:
        prefill = max(prefill, most)
    kv = most + rng.choice([0, block, rng.randint(0, 2 * most)])
    limits = Limits(kv, prefill + rng.choice([0, 0, 5]), prefill, rng.choice([None, rng.randint(1, 5)]), block)
    rules = Rules(rng.random() < 0.8, chunked, rng.random() < 0.85)
    cost = replace(COST, cpu_request=rng.choice([0, 0, 2]))
    mode = rng.choice([CacheMode.PREFIX, CacheMode.ALL])
    cache = CacheRules(mode, share_in_batch=rng.random() < 0.5)
    return Instance("test", limits, rules, cost, tuple(requests), prefixes=tree, cache=cache)
