"""vLLM's scheduler with its prefix cache: every batch, with hits, preemptions, and cached blocks that were taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cluster.outcome import Outcome, Sources, compared, together
from cluster.vllm_engine import Batch, Job, VllmEngine
from optsched.cache.contents import BlockNames

UNIT = "batches"


def recognises(document: Any) -> bool:
    """Whether a document's first line is such a run."""
    return isinstance(document, list) and {"instance", "vllm"} <= document[0].keys()


def outcomes(runs: Sequence[Mapping[str, Any]], _: Sources) -> Iterator[Outcome]:
    """Replay all runs of a file."""
    return together(UNIT, map(_replay, runs))


def _replay(run: Mapping[str, Any]) -> Outcome:
    ours = list(_batches(run["instance"]))
    theirs = [{"preempted": [], "admitted_cached": [], "evicted_cached_blocks": []} | batch for batch in run["vllm"]]
    missing: list[Any] = [None] * (len(theirs) - len(ours))
    pairs = (
        (f"batch {index}", their, our)
        for index, (their, our) in enumerate(zip(theirs, ours[: len(theirs)] + missing, strict=True))
    )
    return compared(run["instance"]["name"], UNIT, pairs)


def _batches(instance: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    size = instance["b"]
    engine = VllmEngine(instance["blocks"], size, instance["C"], instance["N"])
    names = BlockNames(size)
    owners: dict[object, list[int]] = {}
    jobs = []
    for index, row in enumerate(instance["requests"]):
        prompt = [(node, 0, count) for node, count in row["prompt"]]
        tokens = sum(count for _, _, count in prompt)
        contents = names.of([*prompt, (("output", index), 0, row["output"])])
        for place, content in enumerate(contents):
            owners.setdefault(content, [index, place])
        jobs.append((row["arrival_ps"], index, Job(index, tokens, row["output"], contents)))
    pending = sorted(jobs, key=lambda entry: entry[:2])[::-1]
    now = 0
    resumed: set[int] = set()
    while pending or engine.busy:
        if not engine.busy:
            now = max(now, pending[-1][0])
        while pending and pending[-1][0] <= now:
            engine.add(pending.pop()[2])
        batch = engine.schedule()
        if not batch.run:
            if not pending:
                return
            now = pending[-1][0]
            continue
        end = now + instance["base_ps"] + instance["token_ps"] * sum(count for _, count in batch.run)
        yield _entry(batch, now, end, owners, resumed)
        resumed.update(batch.preempted)
        engine.end(batch)
        now = end


def _entry(batch: Batch, start: int, end: int, owners: Mapping[object, list[int]], resumed: set[int]) -> dict[str, Any]:
    # vLLM lists those admitted for the first time before those that were preempted, and these as a set.
    admitted = sorted(batch.admitted, key=lambda pair: pair[0] in resumed)
    return {
        "start_ps": start,
        "end_ps": end,
        "run": [[job.index, count] for job, count in batch.run],
        "preempted": sorted(batch.preempted),
        "admitted_cached": [list(pair) for pair in admitted],
        "evicted_cached_blocks": [owners[content] for content in batch.lost],
        "free_blocks": batch.free,
        "cached_blocks": batch.cached,
    }
