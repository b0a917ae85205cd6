"""The constants of a congestion bound, and its windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optsched.bounds.alone import alone
from optsched.model.instance import Instance

Ints = npt.NDArray[np.int64]

UNIT = 64
"""Prices and shares are counted in parts of a request: 1/64."""
LARGEST = 2**62
"""Numbers stay below."""
_WINDOW_STEPS, _MOST_WINDOWS = 50, 20_000
_SHORT_EIGHTHS = 14
_KEPT, _PREFILL_SHARE = 16, 32


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
class Windows:
    """Prices by window.

    Parameters
    ----------
    price
        θ in 64ths of a request, ≥ 0; in the last window 0.
    slope
        β in ps per token.
    step
        G in 64ths of ps.
    """

    price: Ints
    slope: Ints
    step: Ints


def terms_of(instance: Instance) -> Terms | None:
    """Return constants that suit an instance: windows of some 50 batches; None if its numbers are too large."""
    single, limits = instance.cost.linear_ps(1), instance.limits
    if not single:
        return None
    span = max(request.arrival_ps for request in instance.requests) - instance.start_ps
    longest = instance.cost.linear_ps(limits.batch_tokens)
    if UNIT * (2 * len(instance.requests) + UNIT) * longest > LARGEST:
        return None
    window = max(_WINDOW_STEPS * single, -(-span // _MOST_WINDOWS))
    return Terms(window, _SHORT_EIGHTHS * single // 8, _KEPT, _PREFILL_SHARE)


def surely_alive(instance: Instance, window_ps: int, last: int) -> Ints:
    """Return the least number of requests in each window that cannot have ended, 0 in the last, shape (last + 1,)."""
    arrivals = np.array([request.arrival_ps for request in instance.requests], np.int64) - instance.start_ps
    ends = arrivals + np.array(alone(instance).e2e, np.int64)
    arrivals, ends = np.sort(arrivals), np.sort(ends)
    begins = window_ps * np.arange(last, dtype=np.int64)

    def alive(times: Ints) -> Ints:
        return np.searchsorted(arrivals, times, side="right") - np.searchsorted(ends, times, side="right")

    # The number falls at ends only.
    least = np.append(alive(begins), 0)
    np.minimum.at(least, np.minimum(ends // window_ps, last), alive(ends))
    return least
