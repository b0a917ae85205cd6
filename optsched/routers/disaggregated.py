"""Routers for prefill and decode on different machines: one for arrivals, one for moves."""

from __future__ import annotations

from collections.abc import Sequence

from optsched.routers.router import MachineView, RoutedRequest, Router, RouterSetting
from optsched.routers.simple import Least, pending_tokens, requests_there


class Disaggregated(Router):
    """A pair of routers.

    Parameters
    ----------
    prefill
        Decides where a request is prefilled, when it arrives.
    decode
        Decides where it moves, when it has its first token.
    """

    def __init__(self, prefill: Router, decode: Router) -> None:
        self._prefill = prefill
        self._decode = decode

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        return self._prefill.route(request, views)

    def move(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` moves."""
        return self._decode.route(request, views)

    def first_token(self, request: RoutedRequest, machine: int, now_ps: int, hit: int) -> None:
        """Notify the first router."""
        self._prefill.first_token(request, machine, now_ps, hit)

    def finished(self, request: RoutedRequest, machine: int, now_ps: int, ttft_ps: int, tpot_ps: int | None) -> None:
        """Notify the second router."""
        self._decode.finished(request, machine, now_ps, ttft_ps, tpot_ps)


def disaggregated(_: RouterSetting) -> Router:
    """Return simdistserve's pair: fewest requests at a prefill machine, fewest waiting at a decode machine."""
    return Disaggregated(Least(requests_there), Least(lambda view: view.waiting))


def splitwise(_: RouterSetting) -> Router:
    """Return Splitwise's pair: token JSQ in both pools."""
    return Disaggregated(Least(pending_tokens), Least(pending_tokens))
