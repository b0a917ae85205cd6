"""A machine's cache as policies and the engine use it: a batch is formed on it, carried out, and repeated."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from optsched.cache.blocks import CacheSetting, blocks_of, uses_of
from optsched.cache.foresight import BlockUses, Foresight
from optsched.cache.sequences import BlockSequences
from optsched.model.instance import Instance
from optsched.model.schedule import Assignment
from optsched.model.state import Step

if TYPE_CHECKING:
    from optsched.simulator.replica import Job


class BatchCache:
    """The cache of the machine on which a batch is formed.

    A policy that knows of caches forms its batch here: `evict` and `run` do what they say, at once and for good, in the
    order of the calls; then it answers the `Assignment` of just these. Others do not call these; the engine then
    does, with what they answer.

    Parameters
    ----------
    instance
        The machine's.
    setting
        How it keeps its cache.
    uses
        What `uses_of` returns, if machines share it.
    """

    def __init__(self, instance: Instance, setting: CacheSetting, uses: BlockUses | None = None) -> None:
        if uses is None:
            (uses,) = uses_of([instance], setting)
        self._block = instance.limits.kv_block
        self._sequences = BlockSequences(instance) if uses is None else uses.sequences
        self._foresight = None if uses is None else Foresight(uses)
        self.blocks = blocks_of(instance, setting, self._foresight)
        self._tokens: dict[int, int] = {}
        """Requests with KV, and m."""
        self._run: dict[int, int] = {}
        self._evicted: list[int] = []
        self._hits: list[Step] = []
        self._open = False
        self.published: Collection[Hashable] = ()
        """What the latest batch has completed."""

    # What routers use ---------------------------------------------------------------------------------------

    def known(self, index: int, tokens: int, *, under_way: bool) -> int:
        """Return how many of the first ``tokens`` tokens of any request are cached; nothing changes.

        What the latest batch completes is not, while it is under way.
        """
        sequence = self._sequences.of(index)
        found = self.blocks.found(sequence, tokens)
        if not (under_way and self.published):
            return found
        published = set(self.published)
        names = sequence.names[: found // self._block]
        return self._block * next((place for place, name in enumerate(names) if name in published), len(names))

    def leading(self, cached: Collection[Hashable], index: int, tokens: int) -> int:
        """Return how many of the first ``tokens`` tokens of a request are in given blocks, as `known` counts them."""
        names = self._sequences.of(index).names[: (tokens - 1) // self._block]
        return self._block * next((place for place, name in enumerate(names) if name not in cached), len(names))

    @property
    def dropped(self) -> Collection[Hashable]:
        """What the latest batch has dropped."""
        return self.blocks.dropped

    # What policies use --------------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """Blocks that runs may still take in this batch: empty ones, and cached ones that can be dropped."""
        return self.blocks.free

    def found(self, job: Job) -> int:
        """Return how many tokens a waiting request would find if it ran now; whole blocks, and never its last token."""
        return self.blocks.found(self._sequences.of(job.index), job.request.input + job.generated)

    def needed(self, job: Job, tokens: int) -> int:
        """Return how many of the `free` blocks a request takes if it runs ``tokens`` tokens now.

        One that waits also takes those that it finds and no other request pins.
        """
        held = self._tokens.get(job.index)
        if held is None:
            return self.blocks.takes(self._sequences.of(job.index), self.found(job), tokens)
        return -(-(held + tokens) // self._block) + -held // self._block

    def owners(self, names: Sequence[Hashable]) -> list[Step]:
        """Return for each block a request that has it, and the block's number there, from 0."""
        # It is this cache that has numbered the blocks.
        return self._sequences.owners(cast("Sequence[int]", names)) if names else []

    def evict(self, job: Job) -> None:
        """Evict a request that holds KV and does not run in this batch. What is cached of it stays."""
        index = job.index
        if index not in self._tokens or index in self._run:
            state = "runs in this batch" if index in self._run else "holds no KV"
            raise ValueError(f"request {index} is to be evicted, and {state}")
        if self._foresight is not None:
            self._foresight.again(index, job.request.input + job.generated)
        del self._tokens[index]
        self.blocks.release(index)
        self._evicted.append(index)

    def run(self, job: Job, tokens: int) -> bool:
        """Run ``tokens`` tokens of a request; False, and nothing changes, if memory does not suffice.

        One that waits first finds what is cached: ``tokens`` are those that run besides. What memory is short of is
        dropped.
        """
        index, block = job.index, self._block
        held = self._tokens.get(index)
        if held is None:
            return self._start(job, tokens)
        if index in self._run or not 1 <= tokens <= job.missing:
            state = "runs in this batch" if index in self._run else f"has {job.missing} to run"
            raise ValueError(f"{tokens} tokens of request {index} are to run, and it {state}")
        if -(-(held + tokens) // block) + -held // block > self.blocks.free:
            return False
        self._reach(index, held + tokens)
        self._tokens[index] = held + tokens
        self._run[index] = tokens
        return True

    def decode(self, jobs: Iterable[Job]) -> int:
        """Run a decode step of each of these requests in turn, up to the first for which memory does not suffice.

        The same as `run` of one token for each of them; returns how many ran.
        """
        tokens, ran, block, blocks = self._tokens, self._run, self._block, self.blocks
        before = len(ran)
        for job in jobs:
            index = job.index
            if index in ran or not job.decoding:
                break
            held = tokens[index]
            rest = held % block
            if rest == 0 and not blocks.free:
                break
            tokens[index] = held + 1
            ran[index] = 1
            # Blocks need only know of it where one begins or ends.
            if rest in (0, block - 1):
                self._reach(index, held + 1)
        return len(ran) - before

    def _reach(self, index: int, tokens: int) -> None:
        """Let the blocks know how many tokens a request with KV holds now."""
        self.blocks.step(index, tokens - self.blocks.tokens(index))

    def _start(self, job: Job, tokens: int) -> bool:
        index, sequence = job.index, self._sequences.of(job.index)
        total = job.request.input + job.generated
        found = self.blocks.found(sequence, total)
        if index in self._evicted or not 1 <= tokens <= total - found:
            state = "is evicted for this batch" if index in self._evicted else f"has {total - found} to run"
            raise ValueError(f"{tokens} tokens of request {index} are to run, and it {state}")
        if self.blocks.takes(sequence, found, tokens) > self.blocks.free:
            return False
        if self._foresight is not None:
            self._foresight.starts(index)
        self.blocks.match(index, sequence, total)
        self.blocks.step(index, tokens)
        self._tokens[index] = found + tokens
        self._run[index] = tokens
        if found:
            self._hits.append((index, found))
        return True

    # What the engine uses -----------------------------------------------------------------------------------

    @property
    def formed(self) -> Assignment | None:
        """What has been done in this batch; None if nothing."""
        if not (self._run or self._evicted):
            return None
        drop = self.owners(self.blocks.dropped)
        return Assignment(list(self._run.items()), self._evicted, hits=self._hits, drop=drop)

    def begin(self) -> None:
        """Begin a batch."""
        self._run, self._evicted, self._hits, self._open = {}, [], [], True
        self.blocks.begin()

    def apply(self, assignment: Assignment, jobs: Mapping[int, Job]) -> int | None:
        """Form the batch that a policy answers which knows of no cache; return a request for which memory is short.

        The first run of a fill is cut to what is left of its request behind what it finds.
        """
        for index in assignment.evict:
            self.evict(jobs[index])
        for index, tokens in assignment.run:
            job = jobs[index]
            count = tokens
            if index not in self._tokens and tokens <= job.missing:
                count = min(tokens, job.missing - self.found(job))
            if not self.run(job, count):
                return index
        return None

    def end(self) -> None:
        """End a batch: cache what it completed."""
        self._publish()

    def _publish(self) -> None:
        if self._open:
            self.published = self.blocks.end()
            self._open = False

    def finish(self, index: int) -> None:
        """Free what a request held that has ended; what is cached of it stays."""
        del self._tokens[index]
        self.blocks.release(index)
        self._sequences.forget(index)

    def lasts(self, run: Sequence[Step], most: int) -> int:
        """Return how many of ``most`` batches of these decode steps, the one just formed included, drop nothing."""
        held, block, blank = [self._tokens[index] for index, _ in run], self._block, self.blocks.blank
        if not blank:
            return min(most, 1 + min(-tokens % block for tokens in held))
        now = sum(-(-tokens // block) for tokens in held)
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            if sum(-(-(tokens + middle - 1) // block) for tokens in held) - now <= blank:
                low = middle
            else:
                high = middle - 1
        return low

    def repeat(self, run: Sequence[Step], times: int) -> None:
        """Carry out ``times`` batches of these decode steps, the first of which may have been formed."""
        if self._open:
            times -= 1
            if not times:
                self.end()
                return
            self._publish()
        tokens, block = self._tokens, self._block
        # Blocks are completed batch by batch, and in each in the order of the runs.
        completions = sorted(
            (batch, place, index)
            for place, (index, _) in enumerate(run)
            for batch in range(block - tokens[index] % block, times + 1, block)
        )
        ends = {index: tokens[index] + times for index, _ in run}
        at = 0
        last = completions[-1][0] if completions else 0
        for batch, _, index in completions:
            if batch != at:
                self.blocks.end()
                at = batch
            whole = tokens[index] // block * block + block
            self._reach(index, whole)
            tokens[index] = whole
        self._open = True
        if last == times:
            self.end()
        else:
            self._publish()
            self.published = ()
        for index, end in ends.items():
            if end > tokens[index] and tokens[index] % block == 0:
                self._reach(index, end)
            tokens[index] = end


class MovingCache(BatchCache):
    """The cache of a machine to and from which requests move.

    They may come and go during a batch, when nothing that it completes is cached, and what ends with it still holds
    what it held. So a batch ends with `settle`, before the next one begins, and not when it has been carried out.
    """

    def __init__(self, instance: Instance, setting: CacheSetting, uses: BlockUses | None = None) -> None:
        super().__init__(instance, setting, uses)
        self._ended: list[int] = []

    def known(self, index: int, tokens: int, *, under_way: bool) -> int:
        """Return how many of the first ``tokens`` tokens of any request are cached (`BatchCache.known`).

        Whether a batch is under way `settle` has said.
        """
        return self.blocks.held(self._sequences.of(index), tokens - 1)

    def end(self) -> None:
        """Have carried out a batch, which may not have ended yet."""

    def finish(self, index: int) -> None:
        """Note a request that ends with the batch."""
        self._ended.append(index)

    def settle(self) -> bool:
        """End the batch that was carried out last; return whether it had not ended yet."""
        was_open = self._open
        self._publish()
        for index in self._ended:
            self.leave(index)
        self._ended.clear()
        return was_open

    def leave(self, index: int) -> None:
        """Free what a request held that has moved away, or ended; what is cached of it stays."""
        super().finish(index)

    def has_room(self, job: Job, tokens: int) -> bool:
        """Whether a request can come with its KV, and hold ``tokens`` tokens."""
        sequence = self._sequences.of(job.index)
        held = self.blocks.held(sequence, job.cached)
        return self.blocks.takes(sequence, held, tokens - held) <= self.blocks.free

    def expect(self, job: Job) -> tuple[int, list[Hashable]]:
        """Begin the move of a request to here; return how many tokens of it are cached here, and what it drops."""
        if self._foresight is not None:
            self._foresight.starts(job.index)
        return self.blocks.expect(job.index, self._sequences.of(job.index), job.cached)

    def land(self, job: Job) -> Collection[Hashable]:
        """Let a request have come with its KV; return what of it was not cached."""
        self._tokens[job.index] = job.cached
        return self.blocks.land(job.index)
