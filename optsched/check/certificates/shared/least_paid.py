"""What a request keeps and what its runs are paid, in windows of time that what it keeps opens to them: the least."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled, compiled_part

_Ints = npt.NDArray[np.int64]

_BLOCK = 64
"""Windows that are looked at or left out together."""


class Worths(NamedTuple):
    """What runs are worth in kinds of windows, in 64ths of ps.

    Parameters
    ----------
    factor, token
        By kind, of the squared time of a prompt and of a token of it.
    decode
        By multiple of a number of tokens read, and kind, where no refill takes a decode's place.
    """

    factor: _Ints
    token: _Ints
    decode: _Ints

    def of(self, groups: list[_Ints]) -> Worths:
        """Return the least of groups of kinds."""
        least = [np.stack([values[..., group].min(axis=-1) for group in groups], axis=-1) for values in self]
        return Worths(*map(np.ascontiguousarray, least))

    def later(self) -> Worths:
        """Return the least of each kind and those after it."""
        least = [np.minimum.accumulate(values[..., ::-1], axis=-1)[..., ::-1] for values in self]
        return Worths(*map(np.ascontiguousarray, least))


class Windows(NamedTuple):
    """Equal windows from the first arrival on.

    Parameters
    ----------
    length
        ps.
    kept_by
        What a request that is alive from the first arrival on has kept at their begins, and at the end of the last, in
        64ths of ps.
    kind
        Kinds.
    """

    length: int
    kept_by: _Ints
    kind: _Ints


class Terms(NamedTuple):
    """What runs of all requests have in common.

    Parameters
    ----------
    step
        Tokens read between two points of `Worths.decode`.
    square
        ps for the square of a token of a prompt.
    single
        Least duration of a batch, ps.
    short
        What a request may leave out for each decode, in 64ths of ps.
    grain
        In which Z counts, in 64ths of ps.
    refills
        Whether refills may take the place of decodes.
    """

    step: int
    square: int
    single: int
    short: int
    grain: int
    refills: int


class _Runs(NamedTuple):
    """Of one request: runs are half of its prompt at its first place and half at its last, and its decodes.

    Parameters
    ----------
    earliest
        First window of each.
    best
        What each is paid at least so far.
    """

    earliest: _Ints
    best: _Ints


def least_costs(requests: _Ints, windows: Windows, worths: Worths, terms: Terms) -> _Ints:
    """Return the least Z of every request and what its runs are paid at least in windows that begin by then.

    Parameters
    ----------
    requests
        Arrival, earliest end of the first token, tokens of the prompt, decodes, and `Worths.factor` and ``token`` of
        the prompt in the window in which it arrives, no less than there in general; shape (requests, 6).
    windows, worths, terms
        As above.
    """
    starts = range(0, windows.kind.size, _BLOCK)
    near = worths.of([np.unique(windows.kind[begin : begin + _BLOCK]) for begin in starts])
    return _least_costs(requests, windows, worths, near, near.later(), terms)


@compiled
def _least_costs(  # noqa: PLR0917 - compiled functions take positions
    requests: _Ints, windows: Windows, worths: Worths, near: Worths, later: Worths, terms: Terms
) -> _Ints:
    _, kept_by, kind = windows
    costs = np.empty(len(requests), np.int64)
    most = requests[:, 3].max() + 2
    runs = _Runs(np.empty(most, np.int64), np.empty(most, np.int64))
    falls = np.zeros(kept_by[kind.size - 1] // terms.grain + 1, np.int64)
    for r in range(len(requests)):
        costs[r] = _least_cost(requests[r], windows, worths, near, later, terms, runs, falls)
    return costs


@compiled_part
def _least_cost(  # noqa: PLR0917 - compiled functions take positions
    request: _Ints,
    windows: Windows,
    worths: Worths,
    near: Worths,
    later: Worths,
    terms: Terms,
    runs: _Runs,
    falls: _Ints,
) -> int:
    """Return the least of Z and what runs are paid, for one request.

    What runs are paid falls as Z rises: ``falls`` has by how much at every Z. No Z is of use that is more than all that
    runs could still gain, ``gain``, beyond what the latest of the first windows asks for.
    """
    length, kept_by, kind = windows
    arrival, first, _, decodes, _, _ = request
    last = kind.size - 1
    begin = min(arrival // length, last)
    # Within the last window nothing more is kept that counts.
    rate = (kept_by[begin + 1] - kept_by[begin]) // length
    arrived = kept_by[begin] + rate * (arrival - length * begin)
    least = gain = 0
    for run in range(decodes + 2):
        at = min((first + (run - 2) * terms.single) // length, last) if run > 1 else begin
        runs.earliest[run] = at
        if run < 2:
            runs.best[run] = _half(request[4], request[5], request, run, terms)
        else:
            runs.best[run] = _paid(worths, kind[at], request, run, terms)
        gain += runs.best[run] - _paid(later, at // _BLOCK, request, run, terms)
        least = max(least, _grains(kept_by[at], arrived, run, terms))
    most = min(least + gain // terms.grain + 1, falls.size - 1)
    falls[: most + 1] = 0
    for run in range(decodes + 2):
        at = runs.earliest[run]
        falls[_grains(kept_by[at], arrived, run, terms)] += runs.best[run]
        at += 1
        while at <= last:
            block = at // _BLOCK
            until = min((block + 1) * _BLOCK, last + 1)
            if _paid(later, block, request, run, terms) >= runs.best[run]:
                break
            if _grains(kept_by[at], arrived, run, terms) > most:
                break
            if _paid(near, block, request, run, terms) < runs.best[run]:
                _look(at, until, request, run, windows, worths, terms, (arrived, most), runs.best, falls)
            at = until
    paid, best = 0, 2**62
    for number in range(most + 1):
        paid += falls[number]
        if number >= least:
            best = min(best, paid + terms.grain * number)
    return best


@compiled_part
def _look(  # noqa: PLR0917 - compiled functions take positions
    at: int,
    until: int,
    request: _Ints,
    run: int,
    windows: Windows,
    worths: Worths,
    terms: Terms,
    kept: tuple[int, int],
    best: _Ints,
    falls: _Ints,
) -> None:
    """Note where a run is paid less than in all windows before, in windows of a block."""
    _, kept_by, kind = windows
    arrived, most = kept
    for window in range(at, until):
        cost = _paid(worths, kind[window], request, run, terms)
        if cost < best[run]:
            number = _grains(kept_by[window], arrived, run, terms)
            if number > most:
                return
            falls[number] += cost - best[run]
            best[run] = cost


@compiled_part
def _paid(worths: Worths, kind: int, request: _Ints, run: int, terms: Terms) -> int:
    """Return what a run is paid in a window."""
    size = request[2]
    if run < 2:
        return _half(worths.factor[kind], worths.token[kind], request, run, terms)
    read = size + run - 2
    point, beyond = read // terms.step, read % terms.step
    paid: int = (
        (terms.step - beyond) * worths.decode[point, kind] + beyond * worths.decode[point + 1, kind]
    ) // terms.step
    return min(paid, worths.token[kind] * (read + 1)) if terms.refills else paid


@compiled_part
def _half(factor: int, token: int, request: _Ints, run: int, terms: Terms) -> int:
    """Return what half of a prompt is paid, at its first or its last place."""
    size = request[2]
    place = size if run else 1
    squared = terms.square * (2 * place - 1) * size
    half: int = (token * size + factor * squared) // 2
    return half


@compiled_part
def _grains(kept_by: int, arrived: int, run: int, terms: Terms) -> int:
    """Return the least Z, in grains, with which a run may be in a window before whose begin so much is kept."""
    number: int = max(kept_by - arrived - terms.short * max(run - 1, 0), 0) // terms.grain
    return number
