"""DistServe's simulator: prefill and decode workers apart, or vLLM's way together; every start, worker and end.

A worker prefills whole prompts, first come, first served, up to a number of tokens; else it decodes what waits for it
in turn, up to 50,000 context tokens in a batch. A request goes to the prefill worker with the fewest requests, running
and waiting, and then to the decode worker with the fewest *waiting*. No transfer takes time. Its output is our O − 1:
the first token comes with the prefill and is not counted.
"""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from cluster.outcome import Outcome, Sources, compared
from optsched.model.errors import InputError

_CONTEXT = 50_000
"""Most context tokens of a decode batch."""
_SAME_MS = 0.1


def recognises(document: Any) -> bool:
    """Whether a document is such a run."""
    return isinstance(document, dict) and {"runs", "requests", "time_model_ms"} <= document.keys()


def outcomes(document: Mapping[str, Any], _: Sources) -> Iterator[Outcome]:
    """Replay all runs of a file."""
    for name, run in document["runs"].items():
        engine = name.split("-")[0]
        times = _times(document[f"profile_{engine}"])
        prefills, decodes = _workers(name, run["max_tokens"], times)
        jobs = [_Job(*row) for row in document["requests"]]
        _serve(jobs, prefills, decodes)
        pairs = [(job, row) for job, row in zip(jobs, run["requests"], strict=True)]
        workers = [
            (f"request {index}", (str(row["prefill_worker"]), str(row["decode_worker"])), job.workers)
            for index, (job, row) in enumerate(pairs)
        ]
        yield compared(name, "workers", workers)
        yield compared(name, "requests", _starts(pairs))


@dataclass(eq=False)
class _Job:
    """A request: arrival in ms, prompt and decoded tokens; and when its parts started and ended."""

    arrival: float
    prompt: int
    output: int
    decoded: int = 0
    prefill: tuple[float, float] = (-1.0, -1.0)
    starts: list[float] = field(default_factory=list)
    end: float = -1.0
    workers: tuple[str, str] = ("", "")

    @property
    def context(self) -> int:
        return self.prompt + self.decoded


@dataclass(frozen=True)
class _Times:
    """Times of batches in ms, from the requests in them."""

    prefill: Callable[[Sequence[_Job]], float]
    decode: Callable[[Sequence[_Job]], float]


@dataclass(eq=False)
class _Worker:
    """A worker with its queues; ``together``: it decodes what it prefilled."""

    name: str
    most_tokens: int
    times: _Times
    together: bool
    prefills: deque[_Job] = field(default_factory=deque)
    decodes: deque[_Job] = field(default_factory=deque)
    prefilling: int = 0
    busy: bool = False


def _times(profile: Mapping[str, Any]) -> _Times:
    """Return the times of a profile, with the simulator's overhead: 2 ms and 0.0001 ms for each context token."""
    base, token, square = profile["prefill"]

    def prefill(jobs: Sequence[_Job]) -> float:
        prompts = [job.prompt for job in jobs]
        delay = base + token * sum(prompts) + square * sum(prompt**2 for prompt in prompts)
        return float(delay + 1 + (2 + sum(prompts) * 0.0001))

    def decode(jobs: Sequence[_Job]) -> float:
        small = len(jobs) < profile["decoding_large_small_bs_threshold"]
        first, each_token, each = profile["decoding_smallbs" if small else "decoding_largebs"]
        contexts = sum(job.context for job in jobs)
        return float(first + each_token * (contexts + len(jobs)) + each * len(jobs) + (2 + contexts * 0.0001))

    return _Times(prefill, decode)


def _workers(name: str, most_tokens: int, times: _Times) -> tuple[list[_Worker], list[_Worker]]:
    if match := re.fullmatch(r"vllm-(\d+)", name):
        together = [_Worker(str(index), most_tokens, times, together=True) for index in range(int(match[1]))]
        return together, together
    if not (match := re.fullmatch(r"distserve-(\d+)P(\d+)D", name)):
        raise InputError("runs", name, "vllm-N or distserve-NPMD")
    first, second = int(match[1]), int(match[2])
    apart = [_Worker(str(index), most_tokens, times, together=False) for index in range(first + second)]
    return apart[:first], apart[first:]


def _serve(jobs: Sequence[_Job], prefills: Sequence[_Worker], decodes: Sequence[_Worker]) -> None:
    """Run all events in the order of time; arrivals come before ends of the same time, and these before starts."""
    numbers = count()
    events: list[tuple[float, int, int, Callable[[float], None]]] = []

    def at(time: float, stage: int, action: Callable[[float], None]) -> None:
        heapq.heappush(events, (time, stage, next(numbers), action))

    def wake(worker: _Worker, now: float) -> None:
        if not worker.busy:
            worker.busy = True
            at(now, 2, lambda time: start(worker, time))

    def arrive(job: _Job, now: float) -> None:
        worker = min(prefills, key=lambda each: each.prefilling + len(each.prefills))
        worker.prefills.append(job)
        wake(worker, now)

    def start(worker: _Worker, now: float) -> None:
        if worker.prefills:
            batch = _whole_prompts(worker)
            end = now + worker.times.prefill(batch)
            for job in batch:
                job.prefill = now, end
            worker.prefilling = len(batch)
            at(end, 1, lambda time: end_prefill(worker, batch, time))
        elif worker.decodes:
            batch = _in_turn(worker)
            for job in batch:
                job.starts.append(now)
            at(now + worker.times.decode(batch), 1, lambda time: end_decode(worker, batch, time))
        else:
            worker.busy = False

    def end_prefill(worker: _Worker, batch: Sequence[_Job], now: float) -> None:
        worker.prefilling = 0
        for job in batch:
            target = worker if worker.together else min(decodes, key=lambda each: len(each.decodes))
            job.workers = worker.name, target.name
            target.decodes.append(job)
            wake(target, now)
        at(now, 2, lambda time: start(worker, time))

    def end_decode(worker: _Worker, batch: Sequence[_Job], now: float) -> None:
        for job in batch:
            job.decoded += 1
            if job.decoded < job.output:
                worker.decodes.append(job)
            else:
                job.end = now
        at(now, 2, lambda time: start(worker, time))

    for job in jobs:
        at(job.arrival, 0, partial(arrive, job))
    while events:
        time, _, _, action = heapq.heappop(events)
        action(time)


def _whole_prompts(worker: _Worker) -> list[_Job]:
    left, batch = worker.most_tokens, list[_Job]()
    while worker.prefills and worker.prefills[0].prompt <= left:
        left -= worker.prefills[0].prompt
        batch.append(worker.prefills.popleft())
    return batch


def _in_turn(worker: _Worker) -> list[_Job]:
    left, batch = _CONTEXT, list[_Job]()
    while worker.decodes and worker.decodes[0].context < left:
        left -= worker.decodes[0].context + 1
        batch.append(worker.decodes.popleft())
    return batch


def _starts(pairs: Sequence[tuple[_Job, Mapping[str, Any]]]) -> Iterator[tuple[str, object, object]]:
    """Compare all starts and the end of each request, which are equal within 0.1 ms."""
    for index, (job, row) in enumerate(pairs):
        theirs = [row["prefill_start"], row["prefill_end"], *row["decode_starts"], row["end"]]
        ours = [*job.prefill, *job.starts, job.end]
        same = len(theirs) == len(ours) and all(
            abs(their - mine) <= _SAME_MS for their, mine in zip(theirs, ours, strict=True)
        )
        yield f"request {index}, prefill, decodes and end", theirs, theirs if same else ours
