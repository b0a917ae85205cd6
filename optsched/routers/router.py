"""What a router is, and what it sees.

A router is one method, `Router.route`. It sees a `RoutedRequest` and a sequence of `MachineView`, one for each machine
that the request may be routed to. The simulator decides how old these views are: exact, polled at intervals, or
delayed. A router may remember what it has sent itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from optsched.cache.contents import Piece
from optsched.model.cost import CostModel

__all__ = (
    "MachineSetting",
    "MachineView",
    "Piece",
    "RoutedRequest",
    "Router",
    "RouterFactory",
    "RouterSetting",
    "UnsuitableError",
    "least",
    "prefill_time",
)


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """A request as a router sees it.

    Parameters
    ----------
    index
        Its index in the instance.
    input
        I, prompt tokens.
    output
        Output tokens, as far as they are known: a prediction, or the maximum that it may generate.
    prompt
        The prompt in pieces, all I tokens. Two prompts share exactly the leading tokens whose pieces agree.
    session
        The conversation that it belongs to; None if it is alone.
    arrival_ps
        T, arrival time in ps.
    """

    index: int
    input: int
    output: int
    prompt: tuple[Piece, ...]
    session: Hashable = None
    arrival_ps: int = 0


class MachineView(Protocol):
    """What a router sees of one machine, as of some moment. Times in ps, sizes in tokens."""

    @property
    def machine(self) -> int:
        """Index of the machine."""

    @property
    def waiting(self) -> int:
        """Requests there without KV."""

    @property
    def running(self) -> int:
        """Requests there with KV."""

    @property
    def queued_tokens(self) -> int:
        """Tokens that waiting requests still have to prefill."""

    @property
    def filling_tokens(self) -> int:
        """Tokens that requests with KV still have to prefill."""

    @property
    def pending_tokens(self) -> int:
        """Prompt tokens and output tokens that all requests there still have to run."""

    @property
    def kv_used(self) -> int:
        """Tokens of memory in use."""

    @property
    def kv_capacity(self) -> int:
        """M, tokens of memory."""

    @property
    def work_ps(self) -> int:
        """Work left on the cost model."""

    def cached(self, request: RoutedRequest) -> int:
        """Return the leading prompt tokens of ``request`` that are cached there."""


class Router(ABC):
    """Decides on the machine of each request; subclasses define `route`, and the notifications that they need."""

    @abstractmethod
    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""

    def move(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` moves when it has its first token: the one with the fewest requests.

        Only a request on a ``prefill`` machine is asked about; the views are of the machines that it can move to.
        """
        return min(views, key=lambda view: view.waiting + view.running).machine

    @property
    def rebalance_ps(self) -> int:
        """How often `rebalance` is asked, in ps: at multiples of this; 0 for never."""
        return 0

    def rebalance(self, views: Sequence[MachineView]) -> Sequence[tuple[int, int]]:
        """Return pairs of machines: from each first one the shortest decoding request moves to the second."""
        raise NotImplementedError

    def first_token(self, request: RoutedRequest, machine: int, now_ps: int, hit: int) -> None:  # noqa: B027 - may stay empty
        """Take note that a request has generated its first token, and that ``hit`` tokens of its prompt were cached."""

    def finished(self, request: RoutedRequest, machine: int, now_ps: int, ttft_ps: int, tpot_ps: int | None) -> None:  # noqa: B027 - may stay empty
        """Take note that a request has ended; its TPOT is None if it had one output token."""

    def dropped(self, machine: int, prompt: Sequence[Piece], kept: int, now_ps: int) -> None:  # noqa: B027 - may stay empty
        """Take note that a machine has dropped what it cached behind the first ``kept`` tokens of a sequence.

        All routers are told. The sequence is a prompt with the output that follows it, as later prompts may repeat it.
        """


def _no_time(_new: int, _context: int) -> int:
    return 0


class UnsuitableError(Exception):
    """A router cannot serve the machines that it is to be made for; the message says why."""


@dataclass(frozen=True)
class MachineSetting:
    """What a router knows of one machine that is unlike others; the fields are those of `RouterSetting`."""

    capacity: int
    batch_tokens: int
    prefill_ps: Callable[[int, int], int]
    decode_ps: int
    block: int


@dataclass(frozen=True)
class RouterSetting:
    """What a router is made for.

    Parameters
    ----------
    machines
        How many machines there are.
    rng
        The run's random numbers, for choices and ties.
    capacity
        M of each machine, in tokens. Where machines are unlike, this and the next four are those of the first one.
    batch_tokens
        C of each machine, in tokens.
    prefill_ps
        The time of prefilling ``new`` tokens whose last one ends a context of ``context`` tokens.
    decode_ps
        The time of one token of a decode in a batch, as a router estimates it before it has seen any.
    block
        b, tokens of one cached block.
    requests
        All requests, for routers that know the future.
    chosen
        The machine of each request, for a router that follows them.
    each
        Of every machine, where they are unlike; empty where they are equal.
    """

    machines: int
    rng: Random = field(default_factory=lambda: Random(0))
    capacity: int = 0
    batch_tokens: int = 1024
    prefill_ps: Callable[[int, int], int] = _no_time
    decode_ps: int = 0
    block: int = 1
    requests: Sequence[RoutedRequest] = ()
    chosen: Sequence[int] = ()
    each: Sequence[MachineSetting] = ()

    def of(self, machine: int) -> MachineSetting:
        """Return what is known of one machine."""
        if self.each:
            return self.each[machine]
        return MachineSetting(self.capacity, self.batch_tokens, self.prefill_ps, self.decode_ps, self.block)

    def of_all(self) -> list[MachineSetting]:
        """Return what is known of every machine."""
        return [self.of(machine) for machine in range(self.machines)]


def prefill_time(cost: CostModel) -> Callable[[int, int], int]:
    """Return the time of a batch that prefills ``new`` tokens up to a context of ``context`` tokens, alone."""

    def time_ps(new: int, context: int) -> int:
        return cost.batch_ps(new, 0, 0, ((new, context - new),))

    return time_ps


RouterFactory = Callable[[RouterSetting], Router]
"""Makes a router; the registry has one for each name."""


def least(costs: Sequence[int | float], rng: Random | None = None) -> int:
    """Return the index of the least cost: the lowest of equals, or with ``rng`` a random one of them."""
    smallest = min(costs)
    if rng is None:
        return costs.index(smallest)
    ties = [index for index, cost in enumerate(costs) if cost == smallest]
    return ties[0] if len(ties) == 1 else rng.choice(ties)
