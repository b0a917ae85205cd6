"""The constants of a congestion bound, and its windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optsched.bounds.alone import alone
from optsched.bounds.volume import busy_ps
from optsched.model.instance import Instance
from optsched.model.ints import Ints

UNIT = 64
"""Prices and shares are counted in parts of a request: 1/64."""
GRAINS = 256
"""Parts of a window, in which what requests keep is counted."""
LARGEST = 2**62
"""Numbers stay below."""
LONGEST_SHORT = 32
"""The most that decodes are granted, in batches of one token."""
_SHORTEST, _LONGEST, _LIFE = 4, 50, 25
"""Least and greatest length of a window, in batches of one token, and windows while a request is alive, about."""
_WINDOWS = 300, 8, 20_000
"""Most windows: the larger of a number and a multiple of the requests, but not more than a third number."""


@dataclass(frozen=True)
class Windows:
    """Prices by window, and what decodes are granted.

    Parameters
    ----------
    price
        θ in 64ths of a request, ≥ 0; in the last window 0.
    slope
        β in ps per token.
    kept
        ε in 64ths.
    short
        δ in ps.
    """

    price: Ints
    slope: Ints
    kept: Ints
    short: int


def end_of(instance: Instance, machines: int) -> int:
    """Return when the last window begins at the latest, in ps from the first arrival on: when all may have ended."""
    span = max(request.arrival_ps for request in instance.requests) - instance.start_ps
    return max(span + max(alone(instance).e2e), busy_ps(instance) * 11 // (10 * machines))


def window_of(instance: Instance, end_ps: int, latency_ps: int) -> int | None:
    """Return the length of windows in ps for a mean latency of about as much; None if numbers are too large.

    The last one is to begin at ``end_ps`` (`end_of`).
    """
    single, limits = instance.cost.linear_ps(1), instance.limits
    if not single:
        return None
    longest = instance.cost.linear_ps(limits.batch_tokens) + instance.cost.prefill_req
    read = instance.cost.decode_ps(2 * max(request.peak_tokens for request in instance.requests))
    if UNIT * (2 * len(instance.requests) + UNIT) * (longest + read) > LARGEST:
        return None
    output = max(request.output for request in instance.requests)
    if UNIT * (2 * end_ps + output * LONGEST_SHORT * single) >= LARGEST:
        return None
    least_most, each, most = _WINDOWS
    wanted = min(max(latency_ps // _LIFE, _SHORTEST * single), _LONGEST * single)
    return max(wanted, -(-end_ps // min(max(least_most, each * len(instance.requests)), most)), GRAINS)


def alive_at(times: Ints, arrivals: Ints, ends: Ints) -> Ints:
    """Return how many requests have arrived and not ended at some times."""
    begun = np.searchsorted(np.sort(arrivals), times, side="right")
    number: Ints = begun - np.searchsorted(np.sort(ends), times, side="right")
    return number
