"""Routers that hash the beginning of a prompt onto a ring of machines, and bound the load of each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from hashlib import blake2b

from optsched.routers.router import MachineView, Piece, RoutedRequest, Router, RouterSetting
from optsched.routers.simple import requests_there

_POINTS = 64
"""Points of each machine on the ring."""


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def beginning(prompt: Sequence[Piece], tokens: int) -> tuple[Piece, ...]:
    """Return the first ``tokens`` tokens of a prompt."""
    pieces: list[Piece] = []
    for node, first, count in prompt:
        if tokens <= 0:
            break
        pieces.append((node, first, min(count, tokens)))
        tokens -= count
    return tuple(pieces)


class Ring:
    """A ring of machines.

    Parameters
    ----------
    machines
        How many there are.
    """

    def __init__(self, machines: int) -> None:
        self._points = sorted(
            (_hash(f"{machine} {point}"), machine) for machine in range(machines) for point in range(_POINTS)
        )
        self._machines = machines

    def clockwise(self, key: Hashable) -> Iterator[int]:
        """Iterate over all machines, each once, in the order in which a key comes to them."""
        start = bisect_right(self._points, (_hash(repr(key)), self._machines))
        seen: set[int] = set()
        for _, machine in (*self._points[start:], *self._points[:start]):
            if machine not in seen:
                seen.add(machine)
                yield machine


class HashingRouter(Router):
    """A router that looks for a machine clockwise from the hash of a prompt's beginning, and bounds loads.

    Parameters
    ----------
    machines
        R, how many there are.
    tokens
        Length of the beginning.
    bound
        Factor by which a load may exceed the mean, as (numerator, denominator).
    """

    def __init__(self, machines: int, tokens: int, bound: tuple[int, int]) -> None:
        self._ring = Ring(machines)
        self._tokens = tokens
        self._bound = bound


class PrefixHash(HashingRouter):
    """sglang-router's ``prefix_hash``.

    A request goes where the hash of its first `tokens` tokens falls if the load there is at most `bound` (Σ + 1) / R,
    else to the least loaded machine within that bound, else where the hash falls.
    """

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        loads = {view.machine: requests_there(view) for view in views}
        times, of = self._bound
        most = times * (sum(loads.values()) + 1)
        fitting = [machine for machine, load in loads.items() if load * of * len(loads) <= most]
        machine = next(each for each in self._ring.clockwise(beginning(request.prompt, self._tokens)) if each in loads)
        if machine in fitting or not fitting:
            return machine
        return min(fitting, key=lambda each: loads[each])


class BoundedConsistent(HashingRouter):
    """Consistent hashing with bounded loads (Mirrokni et al., SODA 2018).

    A request goes to the first machine clockwise from its hash whose load, with this request, is at most `bound` times
    the mean, this request included. Its hash is that of its session, or of its first `tokens` tokens.
    """

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        loads = {view.machine: requests_there(view) for view in views}
        times, of = self._bound
        # At most ⌈bound × mean⌉ requests: some machine always has room.
        most = -(-times * (sum(loads.values()) + 1) // (of * len(loads)))
        key = beginning(request.prompt, self._tokens) if request.session is None else request.session
        return next(each for each in self._ring.clockwise(key) if each in loads and loads[each] < most)


def prefix_hash(setting: RouterSetting) -> Router:
    """Return `PrefixHash` with the program's 256 tokens and bound of 1.25."""
    return PrefixHash(setting.machines, 256, (5, 4))


def bounded_consistent(setting: RouterSetting) -> Router:
    """Return `BoundedConsistent` with 256 tokens and a bound of 1.5."""
    return BoundedConsistent(setting.machines, 256, (3, 2))
