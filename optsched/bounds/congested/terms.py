"""The constants of a congestion bound, and its windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optsched.bounds.alone import alone
from optsched.model.instance import Instance
from optsched.model.ints import Ints

UNIT = 64
"""Prices and shares are counted in parts of a request: 1/64."""
LARGEST = 2**62
"""Numbers stay below."""
_WINDOW_STEPS, _MOST_WINDOWS = 50, 20_000
_PREFILL_SHARE = 32


@dataclass(frozen=True)
class Terms:
    """The constants of a bound.

    Parameters
    ----------
    window_ps
        Length of every window but the last.
    short_ps
        D.
    kept, prefill_share
        ε and g, in 64ths.
    """

    window_ps: int
    short_ps: int
    kept: int
    prefill_share: int


@dataclass(frozen=True)
class Setting:
    """How to look for prices.

    Parameters
    ----------
    kept
        ε in 64ths.
    short_eighths
        D in eighths of the time of a batch of one token.
    rounds
        How often prices are adjusted.
    """

    kept: int
    short_eighths: int
    rounds: int


SUSTAINED, QUEUED = Setting(16, 14, 14), Setting(48, 24, 12)
"""With a short queue the requests that run decide the bound; with a long one, how long requests wait."""


@dataclass(frozen=True)
class Windows:
    """Prices by window.

    Parameters
    ----------
    price
        θ in 64ths of a request, ≥ 0; in the last window 0.
    slope
        β in ps per token.
    """

    price: Ints
    slope: Ints


def terms_of(instance: Instance, setting: Setting) -> Terms | None:
    """Return the constants of a setting, with windows of some 50 batches; None if numbers are too large."""
    single, limits = instance.cost.linear_ps(1), instance.limits
    if not single:
        return None
    span = max(request.arrival_ps for request in instance.requests) - instance.start_ps
    longest = instance.cost.linear_ps(limits.batch_tokens)
    read = instance.cost.decode_ps(max(request.peak_tokens for request in instance.requests) + UNIT)
    if UNIT * (2 * len(instance.requests) + UNIT) * (longest + read) > LARGEST:
        return None
    output = max(request.output for request in instance.requests)
    if span + max(alone(instance).e2e) + output * setting.short_eighths * single >= LARGEST:
        return None
    window = max(_WINDOW_STEPS * single, -(-span // _MOST_WINDOWS))
    return Terms(window, setting.short_eighths * single // 8, setting.kept, _PREFILL_SHARE)


def alive_at(times: Ints, arrivals: Ints, ends: Ints) -> Ints:
    """Return how many requests have arrived and not ended at some times."""
    begun = np.searchsorted(np.sort(arrivals), times, side="right")
    number: Ints = begun - np.searchsorted(np.sort(ends), times, side="right")
    return number


def least_alive(arrivals: Ints, ends: Ints, window_ps: int, last: int) -> Ints:
    """Return the least number alive at any time of each window, 0 in the last, shape (last + 1,)."""
    least = np.append(alive_at(window_ps * np.arange(last), arrivals, ends), 0)
    # It falls at ends only.
    np.minimum.at(least, np.minimum(ends // window_ps, last), alive_at(ends, arrivals, ends))
    return least
