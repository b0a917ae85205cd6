"""Least-squares fits whose coefficients may become a cost model, and their errors.

A cost model's coefficients are all ≥ 0 (`optsched.model.cost.CostModel`), so every fit here is a
non-negative least-squares problem::

    minimise  Σ_i (w_i ((F a)_i − y_i))²   subject to  a ≥ 0                                          (1)

with weights w = 1 (ordinary) or w = 1/y (relative: the mean squared *relative* error is minimised, so a
decode batch of 10 ms counts as much as a prefill of 200 ms). (1) is convex and solved exactly by the
active-set method of Lawson and Hanson [1]_.

References
----------
.. [1] C. L. Lawson and R. J. Hanson, Solving Least Squares Problems, Prentice-Hall, 1974, chapter 23.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import inf

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from optsched.calibrate.library import FitError
from optsched.model.errors import InputError

Array = npt.NDArray[np.float64]
Predictor = Callable[[Array], Array]
Fitter = Callable[[Array, Array], Predictor]
"""Fits measured times to rows of inputs and returns what predicts the times of other rows."""

Pieces = tuple[tuple[float, float], ...]
"""``(base, token)`` pairs, by ascending slope; the maximum counts."""

FOLDS = 5


def fit_linear(features: Array, times: Array, weights: Array | None = None) -> Array:
    """Return the coefficients a ≥ 0 that minimise (1).

    Parameters
    ----------
    features
        F: a row per measurement, a column per coefficient.
    times
        y.
    weights
        w, of the residuals: 1/y for relative least squares; all 1 if left out.
    """
    scale = np.ones_like(times) if weights is None else weights
    return _nonnegative(features * scale[:, None], times * scale)[0]


def fit_convex_pieces(tokens: Array, times: Array, pieces: int, relative: bool = True) -> Pieces:
    """Return the best maximum of at most ``pieces`` affine functions with coefficients ≥ 0.

    Let f be such a maximum, with slopes a_1 < … < a_K, intercepts b_1 > … > b_K ≥ 0 and knots
    u_1 < … < u_(K-1) where neighbours cross. With d_k = a_(k+1) − a_k the intercepts are
    b_k = b_K + Σ_(i≥k) d_i u_i, and so::

        f(x) = b_K + a_1 x + Σ_i d_i max(u_i, x),   b_K, a_1, d_i ≥ 0.                                (2)

    Conversely every (2) is a maximum of affine functions whose coefficients are ≥ 0: unlike the usual
    hinges ``max(0, x − u)``, these need no further constraint to keep later intercepts from turning
    negative.

    A knot between neighbouring measured counts l ≤ u ≤ r is, at the measured counts, a mixture:
    ``d max(u, x) = d' max(l, x) + d'' max(r, x)`` with d' + d'' = d and d' l + d'' r = d u. So for a given
    choice of the K − 1 gaps between measured counts in which the knots lie, the best f is a problem (1) with
    2 K coefficients. All choices are tried and the result is the global optimum. Their number is a binomial
    coefficient, (distinct counts − 1) over (K − 1): 33,000, or 1.5 s, for three pieces and 260 counts.

    Parameters
    ----------
    tokens, times
        The measurements; counts may repeat.
    pieces
        K ≥ 1. Fewer are returned if more do not help.
    relative
        Minimise the squared relative errors (else the squared errors).
    """
    counts = np.unique(tokens)
    if not 1 <= pieces <= len(counts):
        raise InputError("pieces", pieces, f"1 to {len(counts)}, the number of distinct token counts")
    weights = 1 / times if relative else np.ones_like(times)
    columns = [np.ones_like(tokens), tokens, *(np.maximum(tokens, count) for count in counts)]
    basis, target = np.column_stack(columns) * weights[:, None], times * weights
    least, best = inf, np.zeros(2)
    chosen: tuple[int, ...] = ()
    for gaps in combinations(range(len(counts) - 1), pieces - 1):
        used = [0, 1, *(2 + gap + side for gap in gaps for side in (0, 1))]
        coefficients, residual = _nonnegative(basis[:, used], target)
        if residual < least:
            least, best, chosen = residual, coefficients, gaps
    last, slope, *mixtures = best.tolist()
    rises = [
        (left + right, left * float(counts[gap]) + right * float(counts[gap + 1]))
        for gap, left, right in zip(chosen, mixtures[::2], mixtures[1::2], strict=True)
        if left + right > 0
    ]
    # Summed from the last piece back, and never subtracted, the intercepts stay ≥ 0 in floating point too.
    return tuple(
        (last + sum(drop for _, drop in rises[k:]), slope + sum(rise for rise, _ in rises[:k]))
        for k in range(len(rises) + 1)
    )


def evaluate_pieces(pieces: Pieces, tokens: Array) -> Array:
    """Return the maximum over ``pieces`` at each of ``tokens``."""
    bases, slopes = np.array(pieces, dtype=np.float64).T
    highest: Array = (bases + slopes * tokens[:, None]).max(axis=1)
    return highest


def fit_error(predicted: Array, times: Array, cv_mape: float) -> FitError:
    """Summarise the error of a fit (`FitError` gives the formulas)."""
    relative = np.abs(predicted - times) / times
    spread = float(np.sum((times - times.mean()) ** 2))
    if spread == 0:
        raise InputError("times", float(times[0]), "at least two different times")
    return FitError(
        rows=len(times),
        r2=1 - float(np.sum((predicted - times) ** 2)) / spread,
        mape=float(relative.mean()),
        worst=float(relative.max()),
        cv_mape=cv_mape,
    )


def cross_validated_mape(fitter: Fitter, inputs: Array, times: Array, folds: int = FOLDS) -> float:
    """Return the mean relative error over all rows, each predicted by a fit that left out its fold.

    Row i is in fold ``i mod folds``: no random numbers, and neighbours in a table are in different folds.
    """
    if not 2 <= folds <= len(times):
        raise InputError("folds", folds, f"2 to {len(times)}, the number of rows")
    fold = np.arange(len(times)) % folds
    predicted = np.empty_like(times)
    for held_out in range(folds):
        test = fold == held_out
        predicted[test] = fitter(inputs[~test], times[~test])(inputs[test])
    return float(np.mean(np.abs(predicted - times) / times))


def _nonnegative(matrix: Array, target: Array) -> tuple[Array, float]:
    """Return the a ≥ 0 that minimises the norm of ``matrix a − target``, and that norm over the target's.

    Columns differ by many orders of magnitude (1 against c² + 2 c m), so they are brought to norm 1 first.
    """
    size = float(np.linalg.norm(target))
    norms = np.linalg.norm(matrix, axis=0)
    norms[norms == 0] = 1
    solution, residual = nnls(matrix / norms, target / size)
    return solution * size / norms, float(residual)
