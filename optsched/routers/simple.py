"""Routers that look at no more than one number of each machine, or at none."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from random import Random

from optsched.model.errors import InputError
from optsched.routers.router import MachineView, RoutedRequest, Router, RouterSetting, least

Load = Callable[[MachineView], int]


def requests_there(view: MachineView) -> int:
    """Return the requests of a machine that have not ended."""
    return view.waiting + view.running


def pending_tokens(view: MachineView) -> int:
    """Return the prompt and output tokens that a machine still has to run."""
    return view.pending_tokens


class RoundRobin(Router):
    """One machine after another.

    Parameters
    ----------
    order
        Their order; by index if it is empty.
    """

    def __init__(self, order: Sequence[int] = ()) -> None:
        self._order = tuple(order)
        self._turn = 0

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        order = self._order or [view.machine for view in views]
        chosen = order[self._turn % len(order)]
        self._turn += 1
        return chosen


class AtRandom(Router):
    """Any machine with the same probability."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        return self._rng.choice(views).machine


class Direct(Router):
    """The machine that is given for each request, by its index.

    Parameters
    ----------
    machines
        The machine of each request.
    """

    def __init__(self, machines: Sequence[int]) -> None:
        self._machines = machines

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        return self._machines[request.index]


class TwoChoices(Router):
    """The less loaded of two machines drawn at random, the first of them if they are equal.

    Parameters
    ----------
    load
        What is compared.
    rng
        Random numbers.
    replacement
        The two may be the same machine, as AIBrix draws them.
    """

    def __init__(self, load: Load, rng: Random, replacement: bool = False) -> None:
        self._load = load
        self._rng = rng
        self._replacement = replacement

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        draw = self._rng.choices if self._replacement or len(views) == 1 else self._rng.sample
        pair = draw(views, k=2)
        return min(pair, key=self._load).machine


class Least(Router):
    """The machine whose load is least.

    Parameters
    ----------
    load
        What is compared.
    rng
        Breaks ties at random; without it the first machine wins.
    """

    def __init__(self, load: Load, rng: Random | None = None) -> None:
        self._load = load
        self._rng = rng

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        return views[least([self._load(view) for view in views], self._rng)].machine


class BySession(Router):
    """All turns of a conversation go where the first went; requests without one, and first turns, in turn.

    A turn that does not fit that machine goes to the next one in turn, and so do those after it.

    Source: vLLM's production-stack.
    """

    def __init__(self) -> None:
        self._first: dict[Hashable, int] = {}
        self._others = RoundRobin()

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        if request.session is None:
            return self._others.route(request, views)
        first = self._first.get(request.session)
        if first is None or all(view.machine != first for view in views):
            first = self._first[request.session] = self._others.route(request, views)
        return first


def round_robin(_: RouterSetting) -> Router:
    """Return `RoundRobin`."""
    return RoundRobin()


def direct(setting: RouterSetting) -> Router:
    """Return `Direct` with the machines of the setting.

    Raises
    ------
    InputError
        If it names none for some request.
    """
    if len(setting.chosen) < len(setting.requests):
        raise InputError("router", "direct", "another router: the machine of each request can be given in Python only")
    return Direct(setting.chosen)


def random(setting: RouterSetting) -> Router:
    """Return `AtRandom`."""
    return AtRandom(setting.rng)


def p2c(setting: RouterSetting) -> Router:
    """Return `TwoChoices` by requests."""
    return TwoChoices(requests_there, setting.rng)


def p2c_tokens(setting: RouterSetting) -> Router:
    """Return `TwoChoices` by pending tokens."""
    return TwoChoices(pending_tokens, setting.rng)


def p2c_replacement(setting: RouterSetting) -> Router:
    """Return `TwoChoices` by requests, both drawn from all machines."""
    return TwoChoices(requests_there, setting.rng, replacement=True)


def least_requests(setting: RouterSetting) -> Router:
    """Return `Least` by requests: join the shortest queue, Vidur's LOR."""
    return Least(requests_there)


def least_tokens(setting: RouterSetting) -> Router:
    """Return `Least` by pending tokens: Splitwise's token JSQ."""
    return Least(pending_tokens)


def least_kv(setting: RouterSetting) -> Router:
    """Return `Least` by memory in use."""
    return Least(lambda view: view.kv_used)


def least_work(setting: RouterSetting) -> Router:
    """Return `Least` by work left on the cost model."""
    return Least(lambda view: view.work_ps)


def session(_: RouterSetting) -> Router:
    """Return `BySession`."""
    return BySession()
