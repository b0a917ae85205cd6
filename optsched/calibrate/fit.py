"""Least-squares fits whose coefficients may become a cost model, and their errors.

A cost model's coefficients are all ≥ 0 (`optsched.model.cost.CostModel`), so every fit here is a
non-negative least-squares problem::

    minimise  Σ_i (w_i ((F a)_i − y_i))²   subject to  a ≥ 0                                          (1)

with weights w = 1 (ordinary) or w = 1/y (relative: the mean squared *relative* error is minimised, so a
decode batch of 10 ms counts as much as a prefill of 200 ms; where times have a random error of a share σ, this lowers
coefficients by some 2 σ²). (1) is convex and solved exactly by the
active-set method of Lawson and Hanson [1]_.

Confidence intervals come from linear theory at the solution: coefficients that are 0 are left out, errors are
independent but of any size each, and the covariance is MacKinnon and White's HC3 [2]_, with Student's t on n − k
degrees of freedom. The best maximum of affine functions is, piece by piece, the least-squares line through the rows
at which the piece is the maximum, and in the limit of many rows its knots do not widen the intervals of its lines
[3]_.

References
----------
.. [1] C. L. Lawson and R. J. Hanson, Solving Least Squares Problems, Prentice-Hall, 1974, chapter 23.
.. [2] J. G. MacKinnon and H. White, Some heteroskedasticity-consistent covariance matrix estimators with improved
finite
   sample properties, Journal of Econometrics 29, 1985.
.. [3] P. I. Feder, On asymptotic distribution theory in segmented regression problems, Annals of Statistics 3, 1975.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import inf

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls
from scipy.stats import t as student

from optsched.calibrate.library import FitError
from optsched.calibrate.timings import Array
from optsched.model.errors import InputError

Predictor = Callable[[Array], Array]
Fitter = Callable[[Array, Array], Predictor]
"""Fits measured times to rows of inputs and returns what predicts the times of other rows."""

Pieces = tuple[tuple[float, float], ...]
"""``(base, token)`` pairs, by ascending slope; the maximum counts."""

Bounds = tuple[float, float] | None
"""A confidence interval; None if the data do not tell."""

FOLDS = 5
_AT_A_TIME = 4096
_ROUNDING = 1e-9
"""Of a squared norm."""
CONFIDENCE = 0.95


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
    2 K coefficients. All choices are tried, but for those that not even coefficients of any sign would make better than
    the best, and the result is the global optimum. Their number is a binomial coefficient, (distinct counts − 1) over
    (K − 1): 33,000 for three pieces and 260 counts.

    Parameters
    ----------
    tokens, times
        The measurements; counts may repeat.
    pieces
        K ≥ 1. Fewer are returned if more do not help.
    relative
        Minimise the squared relative errors (else the squared errors).
    """
    weights = 1 / times if relative else np.ones_like(times)
    return fit_batches(tokens, np.empty((len(tokens), 0)), times, pieces, weights)[0]


def fit_batches(tokens: Array, features: Array, times: Array, pieces: int, weights: Array) -> tuple[Pieces, Array]:
    """Return the best sum of such a maximum and a linear function of other features, coefficients ≥ 0 too.

    Parameters
    ----------
    tokens, times, pieces
        As in `fit_convex_pieces`; the same argument holds with more columns.
    features, weights
        As in `fit_linear`.
    """
    counts = np.unique(tokens)
    if not 1 <= pieces <= len(counts):
        raise InputError("pieces", pieces, f"1 to {len(counts)}, the number of distinct token counts")
    columns = [np.ones_like(tokens), tokens, *(np.maximum(tokens, count) for count in counts), *features.T]
    basis, target = np.column_stack(columns) * weights[:, None], times * weights
    choices = list(combinations(range(len(counts) - 1), pieces - 1))
    gaps = np.array(choices, dtype=np.intp).reshape(len(choices), pieces - 1, 1)
    always = np.array([0, 1, *range(2 + len(counts), basis.shape[1])], dtype=np.intp)
    first, last = (np.tile(some, (len(choices), 1)) for some in (always[:2], always[2:]))
    used = np.hstack([first, (2 + gaps + np.arange(2)).reshape(len(choices), -1), last])
    floors = _least_norms(basis, target, used)
    least, best = inf, np.zeros(used.shape[1])
    chosen: tuple[int, ...] = ()
    for place in np.argsort(floors, kind="stable").tolist():
        if floors[place] > least:
            break
        coefficients, residual = _nonnegative(basis[:, used[place]], target)
        if residual < least:
            least, best, chosen = residual, coefficients, choices[place]
    hinges, linear = np.split(best, [2 * pieces])
    last, slope, *mixtures = hinges.tolist()
    rises = [
        (left + right, left * float(counts[gap]) + right * float(counts[gap + 1]))
        for gap, left, right in zip(chosen, mixtures[::2], mixtures[1::2], strict=True)
        if left + right > 0
    ]
    # Summed from the last piece back, and never subtracted, the intercepts stay ≥ 0 in floating point too.
    lines = tuple(
        (last + sum(drop for _, drop in rises[k:]), slope + sum(rise for rise, _ in rises[:k]))
        for k in range(len(rises) + 1)
    )
    return lines, linear


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


def held_out(fitter: Fitter, inputs: Array, times: Array, fold: Array | None = None) -> Array:
    """Return what is predicted of every row by a fit that left out its fold.

    Without ``fold`` row i is in fold ``i mod folds``: no random numbers, and neighbours in a table are in different
    folds.
    """
    if len(times) < 2:
        raise InputError("rows", len(times), "at least 2 to be predicted from one another")
    places = np.arange(len(times)) % min(FOLDS, len(times)) if fold is None else fold
    predicted = np.empty_like(times)
    for place in np.unique(places):
        test = places == place
        predicted[test] = fitter(inputs[~test], times[~test])(inputs[test])
    return predicted


def mean_error(predicted: Array, times: Array) -> float:
    """Return the mean relative error."""
    return float(np.mean(np.abs(predicted - times) / times))


def linear_bounds(features: Array, times: Array, weights: Array, coefficients: Array) -> list[Bounds]:
    """Return confidence intervals of coefficients that `fit_linear` has found.

    Of a coefficient that is 0 the interval reaches up to where it would without the constraint.
    """
    matrix, target = features * weights[:, None], times * weights
    kept = coefficients > 0
    restricted = _least_squares_bounds(matrix[:, kept], target)
    known = np.any(matrix != 0, axis=0)
    full = dict(zip(np.flatnonzero(known).tolist(), _least_squares_bounds(matrix[:, known], target), strict=True))
    found: list[Bounds] = []
    position = iter(restricted)
    for index, keep in enumerate(kept.tolist()):
        bounds = next(position) if keep else full.get(index)
        found.append(None if bounds is None else (max(bounds[0], 0.0) if keep else 0.0, max(bounds[1], 0.0)))
    return found


def batch_bounds(
    found: tuple[Pieces, Array], tokens: Array, features: Array, times: Array, weights: Array
) -> list[Bounds]:
    """Return confidence intervals of what `fit_batches` has found: base and token of every piece, then the others."""
    pieces, linear = found
    bases, slopes = np.array(pieces, dtype=np.float64).T
    owner = (bases + slopes * tokens[:, None]).argmax(axis=1)
    lines = [column * (owner == place) for place in range(len(pieces)) for column in (np.ones_like(tokens), tokens)]
    coefficients = np.concatenate([np.array(pieces).ravel(), linear])
    return linear_bounds(np.column_stack([*lines, features]), times, weights, coefficients)


def _least_squares_bounds(matrix: Array, target: Array) -> list[Bounds]:
    """Return intervals of ordinary least squares with HC3's covariance; None for all if they are not determined."""
    rows, columns = matrix.shape
    norms = np.linalg.norm(matrix, axis=0)
    if rows <= columns or np.any(norms == 0) or np.linalg.matrix_rank(matrix / norms) < columns:
        return [None] * columns
    orthogonal, triangle = np.linalg.qr(matrix / norms)
    solution = np.linalg.solve(triangle, orthogonal.T @ target)
    leverage = np.minimum(np.sum(orthogonal**2, axis=1), 1 - 1e-6)
    errors = (target - matrix / norms @ solution) / (1 - leverage)
    spread = np.linalg.solve(triangle, orthogonal.T * errors)
    half = student.ppf((1 + CONFIDENCE) / 2, rows - columns) * np.sqrt(np.sum(spread**2, axis=1))
    return [
        (float(low), float(high))
        for low, high in zip((solution - half) / norms, (solution + half) / norms, strict=True)
    ]


def _least_norms(basis: Array, target: Array, used: npt.NDArray[np.intp]) -> Array:
    """Return, for each choice of columns, no more than the norm of the residual over the target's, whatever the signs.

    From the normal equations, many at a time; 0 where they are singular, and rounding errors taken off.
    """
    norms = np.linalg.norm(basis, axis=0)
    norms[norms == 0] = 1
    scaled, size = basis / norms, float(np.linalg.norm(target))
    gram, right = scaled.T @ scaled, scaled.T @ (target / size)
    floors = np.zeros(len(used))
    for start in range(0, len(used), _AT_A_TIME):
        columns = used[start : start + _AT_A_TIME]
        matrices, sides = gram[columns[:, :, None], columns[:, None, :]], right[columns]
        # Neighbouring gaps share a column, which is then there twice.
        regular = np.linalg.matrix_rank(matrices, hermitian=True) == columns.shape[1]
        solutions = np.linalg.solve(matrices[regular], sides[regular][:, :, None])[:, :, 0]
        explained = np.einsum("ij,ij->i", solutions, 2 * sides[regular] - _products(matrices[regular], solutions))
        floors[start + np.flatnonzero(regular)] = np.sqrt(np.maximum(1 - explained - _ROUNDING, 0))
    return floors


def _products(matrices: Array, vectors: Array) -> Array:
    products: Array = np.einsum("ijk,ik->ij", matrices, vectors)
    return products


def _nonnegative(matrix: Array, target: Array) -> tuple[Array, float]:
    """Return the a ≥ 0 that minimises the norm of ``matrix a − target``, and that norm over the target's.

    Columns differ by many orders of magnitude (1 against c² + 2 c m), so they are brought to norm 1 first.
    """
    size = float(np.linalg.norm(target))
    norms = np.linalg.norm(matrix, axis=0)
    norms[norms == 0] = 1
    solution, residual = nnls(matrix / norms, target / size)
    return solution * size / norms, float(residual)
