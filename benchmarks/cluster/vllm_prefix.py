"""vLLM's scheduler with its prefix cache: every batch, with hits, preemptions, and cached blocks that were taken.

The cache of the contract goes along: by its rules, too, every request has to find what it finds in vLLM, every drop has
to be legal, and every batch has to fit into the blocks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.outcome import Outcome, Sources, compared, together
from cluster.vllm_engine import Batch, Job, VllmEngine
from optsched.cache.contents import BlockNames
from optsched.cache.evictors import lru
from optsched.cache.machine import BlockSequence, MachineCache
from optsched.model.cluster import CacheMode

UNITS = ("batches", "batches legal by the contract")


def recognises(document: Any) -> bool:
    """Whether a document's first line is such a run."""
    return isinstance(document, list) and {"instance", "vllm"} <= document[0].keys()


def outcomes(runs: Sequence[Mapping[str, Any]], _: Sources) -> Iterator[Outcome]:
    """Replay all runs of a file."""
    found = [outcome for run in runs for outcome in _replay(run)]
    for unit in UNITS:
        yield from together(unit, found)


def _replay(run: Mapping[str, Any]) -> Iterator[Outcome]:
    instance = run["instance"]
    served = list(_batches(instance))
    theirs = [{"preempted": [], "admitted_cached": [], "evicted_cached_blocks": []} | batch for batch in run["vllm"]]
    ours: list[Any] = [entry for entry, _ in served[: len(theirs)]]
    ours += [None] * (len(theirs) - len(ours))
    pairs = [(f"batch {index}", *pair) for index, pair in enumerate(zip(theirs, ours, strict=True))]
    yield compared(instance["name"], UNITS[0], pairs)
    legal = [(f"batch {index}", "legal", found) for index, (_, found) in enumerate(served)]
    yield compared(instance["name"], UNITS[1], legal)


def _batches(instance: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Serve an instance; return each batch, and what the contract finds wrong with it, or ``legal``."""
    size = instance["b"]
    engine = VllmEngine(instance["blocks"], size, instance["C"], instance["N"])
    names = BlockNames(size)
    owners: dict[Hashable, tuple[int, int]] = {}
    jobs = []
    for index, row in enumerate(instance["requests"]):
        prompt = [(node, 0, count) for node, count in row["prompt"]]
        tokens = sum(count for _, _, count in prompt)
        contents = names.of([*prompt, (("output", index), 0, row["output"])])
        for place, content in enumerate(contents):
            owners.setdefault(content, (index, place))
        jobs.append(Job(index, tokens, row["output"], contents))
    contract = _Contract(MachineCache(size, CacheMode.ALL, lru, share_in_batch=True), jobs, owners, instance["blocks"])
    arrivals = [row["arrival_ps"] for row in instance["requests"]]
    pending = sorted(range(len(jobs)), key=lambda index: (arrivals[index], index))[::-1]
    now = 0
    resumed: set[int] = set()
    while pending or engine.busy:
        if not engine.busy:
            now = max(now, arrivals[pending[-1]])
        while pending and arrivals[pending[-1]] <= now:
            engine.add(jobs[pending.pop()])
        batch = engine.schedule()
        if not batch.run:
            if not pending:
                return
            now = arrivals[pending[-1]]
            continue
        end = now + instance["base_ps"] + instance["token_ps"] * sum(count for _, count in batch.run)
        yield _entry(batch, now, end, owners, resumed), contract.check(batch)
        resumed.update(batch.preempted)
        contract.end(engine.end(batch))
        now = end


@dataclass(frozen=True)
class _Contract:
    """The contract's cache beside vLLM's batches."""

    cache: MachineCache
    jobs: Sequence[Job]
    owners: Mapping[Hashable, tuple[int, int]]
    """The first request with a content, and its place there."""
    blocks: int

    def check(self, batch: Batch) -> str:
        """Carry a batch out; return what is wrong with it, or ``legal``."""
        wrong = []
        for index in batch.preempted:
            self.cache.release(index)
        # The drops of a batch are a set: those behind others come first.
        for content in sorted(batch.dropped, key=lambda each: self.owners[each][1], reverse=True):
            index, place = self.owners[content]
            if not self.cache.drop_block(BlockSequence(self.jobs[index].contents), place):
                wrong.append(f"the drop of block {place} of {index}")
        hits = dict(batch.admitted)
        for job, count in batch.run:
            if job.index in hits:
                found = self.cache.match(job.index, BlockSequence(job.contents), job.tokens)
                if found != hits[job.index]:
                    wrong.append(f"{job.index} finds {found}, not {hits[job.index]}")
            self.cache.step(job.index, count)
        if self.cache.used > self.blocks:
            wrong.append(f"{self.cache.used} blocks of {self.blocks}")
        return "; ".join(wrong) or "legal"

    def end(self, generating: Sequence[Job]) -> None:
        """End the batch."""
        self.cache.end()
        for job in generating:
            if job.generated == job.output:
                self.cache.release(job.index)


def _entry(
    batch: Batch, start: int, end: int, owners: Mapping[Hashable, tuple[int, int]], resumed: set[int]
) -> dict[str, Any]:
    # vLLM lists those admitted for the first time before those that were preempted, and these as a set.
    admitted = sorted(batch.admitted, key=lambda pair: pair[0] in resumed)
    return {
        "start_ps": start,
        "end_ps": end,
        "run": [[job.index, count] for job, count in batch.run],
        "preempted": sorted(batch.preempted),
        "admitted_cached": [list(pair) for pair in admitted],
        "evicted_cached_blocks": [list(owners[content]) for content in batch.lost],
        "free_blocks": batch.free,
        "cached_blocks": batch.cached,
    }
