"""A loop of vLLM's V1 scheduler with its prefix cache, for one machine.

Running requests first, in the order of their admission; if blocks run short the last of them is preempted. Then, if
none was, waiting ones: each finds what is cached of it, at most all but its last token, and is admitted if its whole
prompt fits what is free. Blocks count as cached as soon as they are scheduled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from optsched.cache.block_pool import BlockPool


@dataclass(slots=True, eq=False)
class Job:
    """A request at the engine.

    Parameters
    ----------
    index
        What it is called.
    input, output
        I and O, in tokens.
    contents
        The contents of its whole blocks, those of its output included.
    """

    index: int
    input: int
    output: int
    contents: Sequence[Hashable]
    generated: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    cached: int = 0
    """How many of its blocks are named."""

    @property
    def tokens(self) -> int:
        """Tokens that are known: the prompt and what was generated."""
        return self.input + self.generated


@dataclass(frozen=True)
class Batch:
    """What one step runs.

    Parameters
    ----------
    run
        Requests and their tokens, in vLLM's order.
    context
        Tokens computed before the step, for each of `run`.
    decodes
        Whether each of `run` had all but its last token computed.
    preempted
        Requests preempted before it.
    admitted
        Requests admitted, with the tokens found in the cache.
    lost
        Contents that lost a block, in this order.
    dropped
        Those of which no older block is left: the contract's drops.
    free, cached
        Blocks after it was formed.
    """

    run: tuple[tuple[Job, int], ...]
    context: tuple[int, ...]
    decodes: tuple[bool, ...]
    preempted: tuple[int, ...]
    admitted: tuple[tuple[int, int], ...]
    lost: tuple[Hashable, ...]
    dropped: tuple[Hashable, ...]
    free: int
    cached: int


class VllmEngine:
    """One machine.

    Parameters
    ----------
    blocks, block
        How many blocks there are, and b, the tokens of one.
    batch_tokens, batch_requests
        C and N.
    """

    def __init__(self, blocks: int, block: int, batch_tokens: int, batch_requests: int) -> None:
        self.pool = BlockPool(blocks)
        self._block = block
        self._batch_tokens = batch_tokens
        self._batch_requests = batch_requests
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._lost: list[Hashable] = []

    @property
    def busy(self) -> bool:
        """Whether a request has not ended."""
        return bool(self._waiting or self._running)

    def add(self, job: Job) -> None:
        """Let a request wait."""
        self._waiting.append(job)

    def schedule(self) -> Batch:
        """Form the next batch; its `run` is empty if nothing can run."""
        self._lost = []
        self.pool.begin()
        budget = self._batch_tokens
        run: list[tuple[Job, int]] = []
        preempted: list[Job] = []
        place = 0
        while place < len(self._running) and budget:
            job = self._running[place]
            count = min(job.tokens - job.computed, budget)
            while not self._grow(job, count):
                victim = self._running.pop()
                self._release(victim)
                victim.computed = 0
                preempted.append(victim)
                self._waiting.appendleft(victim)
                if victim is job:
                    break
            if place < len(self._running):
                run.append((job, count))
                budget -= count
            place += 1
        admitted: list[tuple[int, int]] = []
        while not preempted and self._waiting and budget and len(self._running) < self._batch_requests:
            job = self._waiting[0]
            found = self.pool.leading(job.contents[: (job.tokens - 1) // self._block])
            needed = -(-job.tokens // self._block) - len(found)
            if needed + self.pool.unused(found) > self.pool.free:
                break
            self.pool.hold(found)
            job.blocks, job.cached, job.computed = list(found), len(found), len(found) * self._block
            count = min(job.tokens - job.computed, budget)
            self._grow(job, count)
            self._waiting.popleft()
            self._running.append(job)
            admitted.append((job.index, job.computed))
            run.append((job, count))
            budget -= count
        return Batch(
            run=tuple(run),
            context=tuple(job.computed for job, _ in run),
            decodes=tuple(job.generated > 0 and job.computed == job.tokens - 1 for job, _ in run),
            preempted=tuple(job.index for job in preempted),
            admitted=tuple(admitted),
            lost=tuple(self._lost),
            dropped=tuple(self.pool.dropped()),
            free=self.pool.free,
            cached=self.pool.cached,
        )

    def end(self, batch: Batch) -> list[Job]:
        """End a batch: generate its tokens; return the requests that got one."""
        generating = []
        for job, count in batch.run:
            job.computed += count
            if job.computed < job.tokens:
                continue
            job.generated += 1
            generating.append(job)
            if job.generated == job.output:
                self._running.remove(job)
                self._release(job)
        return generating

    def _grow(self, job: Job, count: int) -> bool:
        """Give a request the blocks of ``count`` more tokens, and name those that become full, if enough are free."""
        end = job.computed + count
        needed = -(-end // self._block) - len(job.blocks)
        if needed > self.pool.free:
            return False
        taken, lost = self.pool.take(needed)
        job.blocks += taken
        self._lost += lost
        for index in range(job.cached, end // self._block):
            self.pool.name(job.blocks[index], job.contents[index])
        job.cached = max(job.cached, end // self._block)
        return True

    def _release(self, job: Job) -> None:
        self.pool.release(job.blocks)
        job.blocks, job.cached = [], 0
