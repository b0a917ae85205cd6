"""``sal``: the load balancer of Kossmann et al. (section 4.2, equation 2).

The load of machine s after request r is max(β (mem(r) − free(s)), queued(s, r) / C): mem(r) is its prompt in tokens,
queued(s, r) are the tokens still to be prefilled at s, of prompts begun as well as waiting, and those of r, and
β = (μ_in + μ_out) / μ_out from running means of all requests. The first term is negative while memory is free. Machines
are polled at intervals; between two polls the router adds what it has sent, and assumes that nothing ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from optsched.routers.router import MachineView, RoutedRequest, Router, RouterSetting


class Sal(Router):
    """The router.

    Parameters
    ----------
    batch_tokens
        C, tokens of one batch; or those of each machine, where they are unlike.
    poll_ps
        Time between two polls, in ps; a tenth of a second there.
    """

    def __init__(self, batch_tokens: int | Sequence[int] = 1024, poll_ps: int = 10**11) -> None:
        budgets = [batch_tokens] if isinstance(batch_tokens, int) else batch_tokens
        self._batch_tokens = lcm(*budgets)
        # Of C, how many times it is in that of all of them.
        self._shares = [self._batch_tokens // budget for budget in budgets]
        self._poll_ps = poll_ps
        self._next_poll_ps = 0
        self._state: dict[int, tuple[int, int]] = {}
        """Machine → (free, queued) tokens, when it was first shown since the last poll, with what was sent since."""
        self._inputs = self._routed = 0
        self._outputs = self._ended = 0

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        if request.arrival_ps >= self._next_poll_ps:
            self._next_poll_ps = request.arrival_ps - request.arrival_ps % self._poll_ps + self._poll_ps
            self._state = {}
        # Where machines are unequal not every request may go to all of them: others are shown later.
        for view in views:
            if view.machine not in self._state:
                queued = view.queued_tokens + view.filling_tokens
                self._state[view.machine] = view.kv_capacity - view.kv_used, queued
        self._inputs += request.input
        self._routed += 1
        # Before any request has ended this one's own output is the mean.
        outputs, ended = (self._outputs, self._ended) if self._ended else (request.output, 1)
        # Times C and the denominator of β both terms are integers.
        below = outputs * self._routed
        above = (self._inputs * ended + below) * self._batch_tokens
        prompt = request.input
        shares = self._shares
        best, best_load = -1, 0
        for view in views:
            machine = view.machine
            free, queued = self._state[machine]
            share = shares[machine] if len(shares) > 1 else 1
            load = max(above * (prompt - free), below * (queued + prompt) * share)
            if best < 0 or load < best_load:
                best, best_load = machine, load
        free, queued = self._state[best]
        self._state[best] = free - prompt, queued + prompt
        return best

    def finished(self, request: RoutedRequest, machine: int, now_ps: int, ttft_ps: int, tpot_ps: int | None) -> None:
        """Take note of a request's output."""
        self._outputs += request.output
        self._ended += 1


def sal(setting: RouterSetting) -> Sal:
    """Return the router for machines of these token budgets."""
    return Sal([each.batch_tokens for each in setting.each] or setting.batch_tokens)
