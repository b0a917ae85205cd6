"""vLLM's scheduler with its prefix cache: every batch, with hits, preemptions, and cached blocks that were taken.

What is compared is our simulator's machine with the policy ``vllm_v1`` and the evictor ``vllm``. The contract's own
cache goes along: by its rules, too, every request has to find what it finds in vLLM, every drop has to be legal, and
every batch has to fit into the blocks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster.outcome import Outcome, Sources, compared, together
from cluster.prompts import prefix_tree
from optsched.cache.blocks import CacheSetting
from optsched.cache.contents import BlockNames
from optsched.cache.evictors import lru
from optsched.cache.machine import BlockSequence, MachineCache
from optsched.cache.vllm import VllmCache
from optsched.model.cluster import CacheMode, CacheRules
from optsched.model.cost import CostModel
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.schedule import Assignment, Batch
from optsched.model.state import Step
from optsched.policies.vllm import VLLM_V1
from optsched.simulator.caching import BatchCache
from optsched.simulator.engine import run_policy
from optsched.simulator.replica import Replica

UNITS = ("batches", "batches legal by the contract")
VLLM_CACHE = CacheRules(CacheMode.ALL, share_in_batch=True)
"""As vLLM caches."""


def recognises(document: Any) -> bool:
    """Whether a document's first line is such a run."""
    return isinstance(document, list) and {"instance", "vllm"} <= document[0].keys()


def outcomes(runs: Sequence[Mapping[str, Any]], _: Sources) -> Iterator[Outcome]:
    """Replay all runs of a file."""
    found = [outcome for run in runs for outcome in _replay(run)]
    for unit in UNITS:
        yield from together(unit, found)


def _replay(run: Mapping[str, Any]) -> Iterator[Outcome]:
    served = list(_batches(run["instance"]))
    theirs = [{"preempted": [], "admitted_cached": [], "evicted_cached_blocks": []} | batch for batch in run["vllm"]]
    ours: list[Any] = [entry for entry, _ in served[: len(theirs)]]
    ours += [None] * (len(theirs) - len(ours))
    pairs = [(f"batch {index}", *pair) for index, pair in enumerate(zip(theirs, ours, strict=True))]
    yield compared(run["instance"]["name"], UNITS[0], pairs)
    legal = [(f"batch {index}", "legal", found) for index, (_, found) in enumerate(served)]
    yield compared(run["instance"]["name"], UNITS[1], legal)


@dataclass
class _Watched:
    """``vllm_v1``, and what its batches leave in the block pool, which schedules do not say."""

    pools: list[tuple[int, int, list[Step]]] = field(default_factory=list)
    """Free and cached blocks after each batch was formed, and what lost a block: a request that has it, and where."""

    def next_batch(self, replica: Replica) -> Assignment:
        """Form the next batch."""
        found = VLLM_V1.next_batch(replica)
        cache = replica.cache
        assert isinstance(cache, BatchCache)
        assert isinstance(cache.blocks, VllmCache)
        pool = cache.blocks.pool
        self.pools.append((pool.free, pool.cached, cache.owners(cache.blocks.lost)))
        return found


def _instance(document: Mapping[str, Any]) -> Instance:
    """Return a run's instance as ours; its prompts are paths."""
    prompts = [[(node, 0, count) for node, count in row["prompt"]] for row in document["requests"]]
    tree, paths = prefix_tree(prompts)
    requests = tuple(
        Request(sum(count for _, _, count in prompt), row["output"], row["arrival_ps"], prefix=path)
        for row, prompt, path in zip(document["requests"], prompts, paths, strict=True)
    )
    size, budget = document["b"], document["C"]
    limits = Limits(document["blocks"] * size, budget, budget, document["N"], size)
    cost = CostModel(base=document["base_ps"], token=document["token_ps"])
    return Instance(document["name"], limits, Rules(), cost, requests, prefixes=tree, cache=VLLM_CACHE)


def _batches(document: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Serve an instance; return each batch, and what the contract finds wrong with it, or ``legal``."""
    instance, watched = _instance(document), _Watched()
    schedule = run_policy(instance, watched, setting=CacheSetting("vllm"))
    contract = _Contract(instance)
    resumed: set[int] = set()
    for batch, (free, cached, lost) in zip(schedule.batches, watched.pools, strict=True):
        starting = [index for index, _ in batch.run if not contract.cache.tokens(index)]
        hits = dict(batch.hits)
        yield (
            {
                "start_ps": batch.start_ps,
                "end_ps": batch.end_ps,
                "run": [list(step) for step in batch.run],
                "preempted": sorted(batch.evict),
                # vLLM lists those admitted for the first time before those that were preempted, and these as a set.
                "admitted_cached": [
                    [index, hits.get(index, 0)] for index in sorted(starting, key=lambda each: each in resumed)
                ],
                "evicted_cached_blocks": [list(contract.first_owner(*step)) for step in lost],
                "free_blocks": free,
                "cached_blocks": cached,
            },
            contract.check(batch),
        )
        resumed.update(batch.evict)


class _Contract:
    """The contract's cache beside vLLM's batches."""

    def __init__(self, instance: Instance) -> None:
        self._size, self._blocks = instance.limits.kv_block, instance.limits.kv_blocks
        self.cache = MachineCache(self._size, CacheMode.ALL, lru, share_in_batch=True)
        self._requests, self._generated = instance.requests, [0] * len(instance.requests)
        names, nodes = BlockNames(self._size), instance.prefixes.by_name()
        self._sequences: list[BlockSequence] = []
        self._owners: dict[Hashable, Step] = {}
        for index, request in enumerate(instance.requests):
            path = [(node, 0, nodes[node].tokens) for node in request.prefix]
            contents = names.of([*path, (("output", index), 0, request.output)])
            self._sequences.append(BlockSequence(contents))
            for place, content in enumerate(contents):
                self._owners.setdefault(content, (index, place))

    def first_owner(self, index: int, place: int) -> Step:
        """Return the first request that has a block, and the block's number there."""
        return self._owners[self._sequences[index].names[place]]

    def check(self, batch: Batch) -> str:
        """Carry a batch out; return what is wrong with it, or ``legal``."""
        cache, sequences, wrong = self.cache, self._sequences, []
        for index in batch.evict:
            cache.release(index)
        # The drops of a batch are a set: those behind others come first.
        for index, place in sorted(batch.drop, key=lambda each: each[1], reverse=True):
            if not cache.drop_block(sequences[index], place):
                wrong.append(f"the drop of block {place} of {index}")
        hits = dict(batch.hits)
        generating = []
        for index, count in batch.run:
            total = self._requests[index].input + self._generated[index]
            if not cache.tokens(index):
                found = cache.match(index, sequences[index], total)
                if found != hits.get(index, 0):
                    wrong.append(f"{index} finds {found}, not {hits.get(index, 0)}")
            cache.step(index, count)
            if cache.tokens(index) == total:
                generating.append(index)
        if cache.used > self._blocks:
            wrong.append(f"{cache.used} blocks of {self._blocks}")
        cache.end()
        for index in generating:
            self._generated[index] += 1
            if self._generated[index] == self._requests[index].output:
                cache.release(index)
        return "; ".join(wrong) or "legal"
