"""One batch, once: what a step does to a request and a batch to a machine, what it costs, and what memory then holds.

Whatever plays batches does it with `MachineState`: timing and following a schedule (`optsched.model.schedule`), and so
metrics and the timeline; the simulator's engine (`optsched.simulator.engine`); and the engine that runs a real model
(`optsched.hardware.run.engine`), whose memory is its cache. The rules are in docs/problem.md, "One batch".

Some code says the same a second time on purpose, with a table of what corresponds to what: compiled loops, for speed
(`optsched.simulator.kernel`); the checker (`optsched.check.schedule.replay`) and the exhaustive search of the benchmark
(``benchmarks/trial/exhaustive.py``), so that a mistake here is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, NamedTuple, TypeVar

from optsched.model.cost import BatchCost, CostModel
from optsched.model.instance import Instance, Request
from optsched.model.memory import Holding

Step = tuple[int, int]
"""``(request index, tokens)``: one run of a batch."""


class Place(Enum):
    """Where the KV of a request may be."""

    MACHINE = auto()
    HOST = auto()
    NOWHERE = auto()


class Action(NamedTuple):
    """What happens to the KV of a request before a batch: it leaves for the host, comes back, or is lost."""

    request: int
    to: Place


class RequestState:
    """State of one request between two batches (docs/problem.md, One batch).

    Attributes
    ----------
    generated, cached
        g, tokens generated, and m, tokens cached.
    swapped
        Tokens whose KV is on the host; then none are cached.
    decoding
        Whether the KV that it holds, or has on the host, has generated a token; if not, its runs are prefill steps.
    """

    __slots__ = ("cached", "decoding", "generated", "request", "swapped")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.generated = 0
        self.cached = 0
        self.swapped = 0
        self.decoding = False

    @property
    def missing(self) -> int:
        """Tokens that exist and have no KV: S − m. That many runs generate the next token."""
        return self.request.input + self.generated - self.cached - self.swapped

    @property
    def finished(self) -> bool:
        """Whether all output tokens are generated."""
        return self.generated == self.request.output

    def evict(self) -> None:
        """Lose the KV cache."""
        self.cached = 0
        self.decoding = False

    def swap_out(self) -> None:
        """Send the KV cache to the host."""
        self.swapped, self.cached = self.cached, 0

    def swap_in(self) -> None:
        """Take the KV cache back."""
        self.cached, self.swapped = self.swapped, 0

    def run(self, tokens: int) -> bool:
        """Run ``tokens`` tokens; return whether that generated an output token."""
        request = self.request
        self.cached += tokens
        if self.cached < request.input + self.generated:
            return False
        self.generated += 1
        self.decoding = True
        if self.generated == request.output:
            self.cached = 0
        return True

    def decode(self, times: int = 1) -> bool:
        """Run ``times`` decode steps, of which only the last may finish the request; return whether it does."""
        self.generated += times
        if self.generated == self.request.output:
            self.cached = 0
            return True
        self.cached += times
        return False


@dataclass(slots=True)
class Work:
    """What a batch does.

    Parameters
    ----------
    tokens, decodes, decode_kv_tokens, prefills
        As a cost model sees it (`optsched.model.cost.BatchCost`).
    out, back
        KV tokens that leave for the host, and that come back.
    started, generated, finished
        Requests that had no KV before, that get a token, and that get their last one; in the order of the runs.
    """

    tokens: int = 0
    decodes: int = 0
    decode_kv_tokens: int = 0
    prefills: list[tuple[int, int]] = field(default_factory=list)
    out: int = 0
    back: int = 0
    started: list[int] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)

    def duration_ps(self, cost: BatchCost, overheads: CostModel, considered: int = 0) -> int:
        """Return how long it takes.

        Parameters
        ----------
        cost
            What the steps cost.
        overheads
            What the link to the host and the scheduler cost.
        considered
            Queued requests that the scheduler has considered.
        """
        steps = cost.batch_ps(self.tokens, self.decodes, self.decode_kv_tokens, self.prefills)
        return steps + overheads.overhead_ps(steps, self.out, self.back, considered)

    def pace_ps(self, cost: CostModel, considered: int) -> tuple[int, int]:
        """Return the duration of the first of several batches of these decode steps, and by how much it then grows."""
        return self.duration_ps(cost, cost, considered), cost.decode_kv * self.decodes


def decode_work(cached: Sequence[int]) -> Work:
    """Return the work of decode steps that read these numbers of KV tokens; none finishes its request."""
    return Work(len(cached), len(cached), sum(cached))


_State = TypeVar("_State", bound=RequestState)


class MachineState(Generic[_State]):
    """One machine while batches are played on it one after the other.

    A batch is `carry_out`, and `finish` at its end: a request that ends still counts in its last batch. Batches
    have to be legal; limits of a batch are not checked here, and `require` can check runs that may not be possible.

    Parameters
    ----------
    states
        The requests, by index.
    holding
        Where they hold KV; None if nothing asks for that.
    """

    def __init__(self, states: Mapping[int, _State] | Sequence[_State], holding: Holding | None = None) -> None:
        self.states, self._holding = states, holding

    def act(self, actions: Iterable[Action]) -> tuple[int, int]:
        """Do what comes before the runs of a batch; return the KV tokens that go to the host, and that come back."""
        states, holding = self.states, self._holding
        out = back = 0
        for index, place in actions:
            state = states[index]
            if place is Place.MACHINE:
                state.swap_in()
                back += state.cached
                if holding is not None:
                    holding.hold(index, state.cached)
                continue
            if place is Place.HOST:
                out += state.cached
                state.swap_out()
            else:
                state.evict()
            if holding is not None:
                holding.release(index)
        return out, back

    def carry_out(
        self,
        actions: Iterable[Action],
        run: Iterable[Step],
        require: Callable[[int, int], None] | None = None,
        hits: Iterable[Step] = (),
    ) -> Work:
        """Do what one batch does: the actions, and then the runs in turn.

        Parameters
        ----------
        actions, run
            What it does.
        require
            Called with request and tokens before each run but decode steps of requests that hold KV.
        hits
            Requests that find tokens of theirs in a cache, and how many: their first runs begin behind these.
        """
        states, work = self.states, Work()
        hold = None if self._holding is None else self._holding.hold
        if actions:
            work.out, work.back = self.act(actions)
        for index, found in hits:
            states[index].cached = found
            work.started.append(index)
        prefills, generated, finished = work.prefills, work.generated, work.finished
        tokens = decodes = read = 0
        for index, count in run:
            state = states[index]
            cached = state.cached
            tokens += count
            if hold is not None:
                hold(index, cached + count)
            if cached and state.decoding and count == 1:
                # As `RequestState.decode`, without a call for the step that is by far the most common.
                decodes += 1
                read += cached
                generated.append(index)
                state.generated += 1
                if state.generated == state.request.output:
                    state.cached = 0
                    finished.append(index)
                else:
                    state.cached = cached + 1
                continue
            if require is not None:
                require(index, count)
            if state.decoding:
                decodes += 1
                read += cached
            else:
                prefills.append((count, cached))
                if not cached:
                    work.started.append(index)
            if state.run(count):
                generated.append(index)
                if state.finished:
                    finished.append(index)
        work.tokens, work.decodes, work.decode_kv_tokens = tokens, decodes, read
        return work

    def repeat(self, run: Iterable[Step], times: int) -> list[int]:
        """Do what ``times`` batches of the same decode steps do; return what finishes, which only the last may do."""
        states, holding = self.states, self._holding
        finished = []
        for index, _ in run:
            state = states[index]
            if holding is not None:
                holding.hold(index, state.cached + times)
            if state.decode(times):
                finished.append(index)
        return finished

    def finish(self, finished: Iterable[int]) -> None:
        """Free the KV of requests that have ended."""
        if self._holding is not None:
            for index in finished:
                self._holding.release(index)


def initial(instance: Instance) -> list[RequestState]:
    """Return the state of all requests before the first batch."""
    return [RequestState(request) for request in instance.requests]
