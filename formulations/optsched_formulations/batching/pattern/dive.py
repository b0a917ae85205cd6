"""Diving: fix patterns of the master's fractional solution one after the other, and price anew in between.

Patterns that fit to what is fixed are generated on the way, which an integer programme over the patterns at hand cannot
do. If the pattern that was fixed last leaves no solution, it is fixed to one time less; there is no other way back. It
needs hybrid batches, so
that all that is fractional are patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor

from optsched.stopwatch import now_s
from optsched_formulations.batching.pattern.master import Duals, LinearMaster
from optsched_formulations.batching.pattern.network import Pattern

_ROUNDS = 10
"""Rounds of pricing between two fixings."""
_STEPS_A_REQUEST = 3
"""Fixings for each request after which a dive is given up."""
_WHOLE = 1e-6


def dive(
    master: LinearMaster,
    start: Sequence[Pattern],
    offered: Callable[[Duals, set[Pattern]], list[Pattern]],
    requests: int,
    deadline: float,
) -> list[Pattern]:
    """Return patterns of all requests that batches can take together; empty if the dive fails.

    Parameters
    ----------
    master
        The programme, without patterns, for a fixed number of batches.
    start
        Patterns to begin with.
    offered
        Returns new patterns that are worth adding to those known.
    requests
        Number of requests.
    deadline
        When to give up, on the clock of `optsched.stopwatch`.
    """
    patterns = list(start)
    master.add(patterns)
    fixed: dict[int, int] = {}
    raised: int | None = None
    for _ in range(_STEPS_A_REQUEST * requests):
        duals = _priced(master, patterns, offered, deadline)
        if now_s() > deadline:
            break
        if duals is None or duals.times.sum() < requests - _WHOLE:
            if raised is None:
                break
            # So the pattern that was raised last must not be.
            fixed[raised] -= 1
            master.fix(raised, fixed[raised], fixed[raised])
            raised = None
            continue
        fractional = []
        for p, times in enumerate(duals.times.tolist()):
            least = floor(times + _WHOLE)
            if least > fixed.get(p, 0):
                fixed[p] = least
                master.fix(p, least)
            if times - least > _WHOLE:
                fractional.append((times - least, p))
        if not fractional:
            return [pattern for pattern, times in zip(patterns, duals.times, strict=False) for _ in range(round(times))]
        _, raised = max(fractional)
        fixed[raised] = fixed.get(raised, 0) + 1
        master.fix(raised, fixed[raised])
    return []


def _priced(
    master: LinearMaster,
    patterns: list[Pattern],
    offered: Callable[[Duals, set[Pattern]], list[Pattern]],
    deadline: float,
) -> Duals | None:
    """Solve the master after some rounds of pricing; None if there is no solution."""
    duals = None
    for _ in range(_ROUNDS):
        duals = master.solve(deadline - now_s())
        new = [] if duals is None else offered(duals, set(patterns))
        if not new:
            break
        master.add(new)
        patterns += new
    return duals
