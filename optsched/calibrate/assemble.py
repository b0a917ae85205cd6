"""From measurements of one model to a cost profile: each part fitted, the parts put together, and how wrong they are.

The cost model's batch time (`optsched.model.cost.CostModel`) is put together of parts that are fitted by themselves::

    non-attention     max_k (base_k + token_k Σ c)
    attention         [call] + decode_kv Σ m + decode_req n
                        + prefill_sq Σ (c² + 2 c m) + prefill_kv Σ m + prefill_req p
    per sequence      base + request (n + p)          LM head and sampler; CPU

with n decode and p prefill steps. What a batch takes once belongs to the cost model's bases, whichever part it comes
from (of the CPU to cpu_batch); what it takes per request belongs to decode_req and to prefill_req, which also counts
the request of a chunk that does not end its prompt, as vLLM does when it computes logits. ``call``, what an attention
call takes however little it does, can be fitted because every batch has one such call; a batch with two of them,
where decode and prefill steps have kernels of their own, takes a call less here than it does.

Where a table has hybrid calls, which are not the sum of their halves, no coefficients fit pure decode, pure prefill
and hybrid calls at once. The fit strikes its compromise where it matters to schedules: it minimises squared errors
relative to the time of the whole batch, and each of the three kinds of batch counts as much as another however many
rows a table has of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from optsched.calibrate.fit import (
    FOLDS,
    Bounds,
    Pieces,
    Predictor,
    batch_bounds,
    evaluate_pieces,
    fit_batches,
    fit_convex_pieces,
    fit_error,
    fit_linear,
    held_out,
    linear_bounds,
    mean_error,
)
from optsched.calibrate.library import (
    PROFILE_FORMAT,
    Check,
    Component,
    FitError,
    Part,
    Profile,
    Range,
    Valid,
)
from optsched.calibrate.timings import Array, Mask, Measurements, Timings, ratio_check
from optsched.model.cost import CostModel
from optsched.model.errors import InputError

_LINEAR = ("decode_kv", "decode_req", "prefill_sq", "prefill_kv", "prefill_req")
_CALL = "call"
_FAR = 0.1
"""Relative error of the non-attention time from which on places are named."""


@dataclass(frozen=True, slots=True)
class Choices:
    """How to fit.

    Parameters
    ----------
    pieces
        Affine pieces of the non-attention time.
    relative
        Minimise relative errors (else absolute ones).
    call
        Fit what an attention call takes once.
    hybrid
        Fit hybrid attention calls too, if there are any.
    whole
        Fit whole batches, if there are any, and not kernels.
    kv_tokens
        The most KV tokens that the GPU holds: attention calls on more are left out. None for no limit.
    """

    pieces: int = 3
    relative: bool = True
    call: bool = True
    hybrid: bool = True
    whole: bool = True
    kv_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Residuals:
    """What was measured of one part, and what the fit says, in ps; rows as in the table."""

    part: Part
    timings: Timings
    predicted: Array
    unseen: Array
    """What a fit that left the row's fold out says."""
    whole: Array | None = None
    """Times of the whole batches to which the rows belong."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A profile, and what it was fitted to."""

    profile: Profile
    residuals: tuple[Residuals, ...]


@dataclass(slots=True)
class _Sum:
    """Coefficients as they are put together."""

    pieces: tuple[tuple[int, int], ...] = ()
    base: int = 0
    others: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*_LINEAR, "cpu_batch"), 0))
    components: dict[str, Component] = field(default_factory=dict)
    residuals: list[Residuals] = field(default_factory=list)

    def cost(self) -> CostModel:
        first, *others = ((base + self.base, token) for base, token in self.pieces)
        return CostModel(first[0], first[1], tuple(others), **self.others)


def calibrate(
    measured: Measurements, name: str, description: str, choices: Choices, notes: tuple[str, ...] = ()
) -> Calibration:
    """Fit a cost profile.

    Parameters
    ----------
    measured
        What a reader found.
    name, description
        What to call the profile, and what it is for.
    choices
        How to fit.
    notes
        Said besides what is found here.
    """
    total = _Sum()
    method: dict[Part, str] = {}
    kind = "relative" if choices.relative else "ordinary"
    if measured.batches is not None and choices.whole:
        _fit_whole(total, measured.batches, choices)
        method[Part.BATCH] = (
            f"whole batches: a maximum of at most {choices.pieces} affine pieces of the tokens and the attention terms "
            "together, coefficients ≥ 0, relative least squares"
        )
        rows = measured.batches, measured.batches
    elif measured.dense is not None and measured.attention is not None:
        _fit_dense(total, measured.dense, choices)
        method[Part.NON_ATTENTION] = (
            f"a maximum of at most {choices.pieces} affine pieces with coefficients ≥ 0 and the best knots, by tokens "
            f"of the batch, {kind} least squares"
        )
        for part, timings in measured.per_sequence.items():
            _fit_per_sequence(total, part, timings)
            method[part] = "once a batch and per request, coefficients ≥ 0, relative least squares"
        attention = _held(measured.attention, choices.kv_tokens)
        method |= _fit_attention(total, attention, choices, kind)
        rows = measured.dense, attention
    else:
        raise InputError("fit", "kernels" if not choices.whole else "batches", "what the source has times of")
    for part, timings in measured.swaps.items():
        _fit_swap(total, part, timings)
        method[part] = "per KV token moved, no intercept, ordinary least squares: large moves count"
    checks = [*measured.checks]
    if measured.attention is not None:
        checks += additivity(measured.attention)
    profile = Profile(
        format=PROFILE_FORMAT,
        name=name,
        description=description,
        coefficients=total.cost(),
        hardware=measured.hardware,
        model=measured.model,
        method=method,
        sources=measured.sources,
        fit={found.part: residual_error(found) for found in total.residuals},
        valid=_valid(*rows),
        notes=(*measured.notes, *_steps(total.residuals), _ERRORS, *notes),
        components=total.components,
        checks=tuple(checks),
    )
    return Calibration(profile, tuple(total.residuals))


_ERRORS = (
    f"Errors are fractions and belong to the rounded coefficients; cv_mape is over {FOLDS} folds (row number modulo "
    f"{FOLDS}; of whole "
    "batches every shape is a fold), so it tests interpolation only."
)


def _held(attention: Timings, kv_tokens: int | None) -> Timings:
    if kv_tokens is None:
        return attention
    return attention[attention.decode_kv + attention.prefill_kv + attention.tokens <= kv_tokens]


# Parts ----------------------------------------------------------------------------------------------------


def _fit_dense(total: _Sum, dense: Timings, choices: Choices) -> None:
    """Fit the non-attention time."""

    def fitter(tokens: Array, times: Array) -> Predictor:
        pieces = fit_convex_pieces(tokens, times, choices.pieces, choices.relative)
        return lambda others: evaluate_pieces(pieces, others)

    pieces = fit_convex_pieces(dense.tokens, dense.times, choices.pieces, choices.relative)
    weights = 1 / dense.times if choices.relative else np.ones(len(dense))
    none = np.empty((len(dense), 0))
    _add_pieces(total, pieces, batch_bounds((pieces, np.empty(0)), dense.tokens, none, dense.times, weights))
    predicted = evaluate_pieces(total.pieces, dense.tokens)
    total.residuals.append(Residuals(Part.NON_ATTENTION, dense, predicted, held_out(fitter, dense.tokens, dense.times)))


def _add_pieces(total: _Sum, pieces: Pieces, bounds: list[Bounds]) -> None:
    total.pieces = tuple((round(base), round(token)) for base, token in pieces)
    intervals = iter(bounds)
    for place, piece in enumerate(pieces):
        for name, value in zip(("base", "token"), piece, strict=True):
            total.components[f"non_attention[{place}].{name}"] = _component(value, next(intervals))


def _component(value: float, bounds: Bounds) -> Component:
    return Component(round(value)) if bounds is None else Component(round(value), *map(round, bounds))


def _fit_per_sequence(total: _Sum, part: Part, timings: Timings) -> None:
    features = np.column_stack([np.ones(len(timings)), timings.decodes])
    weights = 1 / timings.times
    found = fit_linear(features, timings.times, weights)
    base, request = _rounded(found)
    bounds = linear_bounds(features, timings.times, weights, found)
    for name, value, interval in zip(("base", "request"), found.tolist(), bounds, strict=True):
        total.components[f"{part}.{name}"] = _component(value, interval)
    if part == Part.CPU_OVERHEAD:
        total.others["cpu_batch"] = base
    else:
        total.base += base
    total.others["decode_req"] += request
    total.others["prefill_req"] += request
    total.residuals.append(
        Residuals(part, timings, features @ np.array([base, request]), held_out(_relative, features, timings.times))
    )


def _relative(features: Array, times: Array) -> Predictor:
    found = fit_linear(features, times, 1 / times)
    return lambda others: others @ found


def _fit_swap(total: _Sum, part: Part, timings: Timings) -> None:
    """Fit what the link takes per token.

    A move also takes something however little it moves, for which the cost model has no place; absolute errors keep
    that out of the coefficient.
    """

    def fitter(tokens: Array, times: Array) -> Predictor:
        found = fit_linear(tokens, times)
        return lambda others: others @ found

    features = timings.tokens[:, None]
    found = fit_linear(features, timings.times)
    bounds = linear_bounds(features, timings.times, np.ones(len(timings)), found)
    total.others[f"{part}_kv"] = round(found[0])
    total.components[f"{part}.kv"] = _component(float(found[0]), bounds[0])
    predicted = features @ found.round()
    total.residuals.append(Residuals(part, timings, predicted, held_out(fitter, features, timings.times)))


def _fit_attention(total: _Sum, attention: Timings, choices: Choices, kind: str) -> dict[Part, str]:
    """Fit attention calls: pure ones relative to their own time, or all relative to their batch's (see above)."""
    mixed = choices.hybrid and bool(attention.hybrid.any())
    used = np.ones(len(attention), dtype=np.bool_) if mixed else ~attention.hybrid
    rows, whole = attention[used], _others(total, attention) + attention.times
    if mixed:
        weights = 1 / whole
        for mask in _kinds(rows).values():
            weights[mask] /= np.sqrt(mask.sum())
    else:
        weights = 1 / rows.times if choices.relative else np.ones(len(rows))
    names = (*_LINEAR, _CALL) if choices.call else _LINEAR

    def fitter(inputs: Array, times: Array) -> Predictor:
        found = fit_linear(inputs[:, :-1], times, inputs[:, -1])
        return lambda others: others[:, :-1] @ found

    features = rows.attention_features(choices.call)
    found = fit_linear(features, rows.times, weights)
    for name, value, bounds in zip(
        names, found.tolist(), linear_bounds(features, rows.times, weights, found), strict=True
    ):
        total.components[f"attention.{name}"] = _component(value, bounds)
        if name == _CALL:
            total.base += round(value)
        else:
            total.others[name] += round(value)
    rounded = np.array(_rounded(found), dtype=np.float64)
    fold = np.empty(len(rows))
    for mask in _kinds(rows).values():
        fold[mask] = np.arange(mask.sum()) % FOLDS
    unseen = held_out(fitter, np.column_stack([features, weights]), rows.times, fold)
    everything = attention.attention_features(choices.call) @ rounded
    all_unseen = everything.copy()
    all_unseen[used] = unseen
    method: dict[Part, str] = {}
    for part, mask in _kinds(attention).items():
        if mask.any():
            residuals = Residuals(part, attention[mask], everything[mask], all_unseen[mask], whole[mask])
            total.residuals.append(residuals)
            method[part] = _attention_method(part, mixed, choices, kind)
    return method


def _kinds(rows: Timings) -> dict[Part, Mask]:
    return {
        Part.DECODE_ATTENTION: rows.only_decodes,
        Part.PREFILL_ATTENTION: rows.only_prefills,
        Part.HYBRID_ATTENTION: rows.hybrid,
    }


def _attention_method(part: Part, mixed: bool, choices: Choices, kind: str) -> str:
    if part == Part.HYBRID_ATTENTION and not mixed:
        return "not fitted, only compared"
    terms = {
        Part.DECODE_ATTENTION: "KV tokens read and requests",
        Part.PREFILL_ATTENTION: "c² + 2 c m, m and 1 per request",
        Part.HYBRID_ATTENTION: "both sums",
    }[part]
    call = "what a call takes once" if choices.call else "no intercept"
    how = (
        "least squares of errors relative to the time of the whole batch, all kinds of call together, each kind with "
        "the same weight"
        if mixed
        else f"{kind} least squares"
    )
    return f"{terms}, {call}, coefficients ≥ 0, {how}"


def _others(total: _Sum, rows: Timings) -> Array:
    """Return the time of the other parts, as fitted so far, of the batches to which these attention calls belong."""
    requests = total.others["decode_req"] * (rows.decodes + rows.prefills)
    once = total.base + total.others["cpu_batch"]
    others: Array = evaluate_pieces(total.pieces, rows.tokens) + once + requests
    return others


def _fit_whole(total: _Sum, batches: Timings, choices: Choices) -> None:
    """Fit whole batches; every shape is a fold of the cross-validation."""
    features, weights = batches.attention_features(call=False), 1 / batches.times
    inputs = np.column_stack([batches.tokens, features])
    counts = len(np.unique(batches.tokens))
    if not 1 <= choices.pieces < counts:
        raise InputError("pieces", choices.pieces, f"1 to {counts - 1}, less than the number of distinct token counts")

    def fitter(others: Array, times: Array) -> Predictor:
        pieces, linear = fit_batches(others[:, 0], others[:, 1:], times, choices.pieces, 1 / times)
        return lambda more: evaluate_pieces(pieces, more[:, 0]) + more[:, 1:] @ linear

    pieces, linear = fit_batches(batches.tokens, features, batches.times, choices.pieces, weights)
    bounds = batch_bounds((pieces, linear), batches.tokens, features, batches.times, weights)
    _add_pieces(total, pieces, bounds)
    for name, value, interval in zip(_LINEAR, linear.tolist(), bounds[2 * len(pieces) :], strict=True):
        total.components[f"attention.{name}"] = _component(value, interval)
        total.others[name] += round(value)
    _, shape = np.unique(inputs, axis=0, return_inverse=True)
    unseen = held_out(fitter, inputs, batches.times, shape.reshape(-1).astype(np.float64))
    total.residuals.append(Residuals(Part.BATCH, batches, batch_times(total.cost(), batches), unseen))


def _rounded(values: Array) -> list[int]:
    return [round(value) for value in values.tolist()]


# Errors and checks ----------------------------------------------------------------------------------------


def batch_times(cost: CostModel, batches: Timings) -> Array:
    """Return what a cost model says of whole batches, in ps."""
    linear = np.array([getattr(cost, name) for name in _LINEAR], dtype=np.float64)
    return evaluate_pieces(cost.affine, batches.tokens) + batches.attention_features(call=False) @ linear


def residual_error(found: Residuals) -> FitError:
    """Return the error of a part, without digits in which platforms may differ."""
    times = found.timings.times
    error = fit_error(found.predicted, times, mean_error(found.unseen, times))
    apart = None if found.whole is None else float(np.mean(np.abs(found.predicted - times) / found.whole))
    return FitError(
        rows=error.rows,
        r2=round(error.r2, 5),
        mape=round(error.mape, 5),
        worst=round(error.worst, 5),
        cv_mape=round(error.cv_mape, 5),
        batch_mape=None if apart is None else round(apart, 5),
    )


def errors_of(cost: CostModel, batches: Timings) -> FitError:
    """Return how far a cost model is from measured whole batches that no fit has seen."""
    predicted = batch_times(cost, batches)
    return residual_error(Residuals(Part.BATCH, batches, predicted, predicted))


def additivity(attention: Timings) -> Iterator[Check]:
    """Compare hybrid calls with the sum of the pure decode and the pure prefill call of the same sizes."""
    decode, prefill = attention[attention.only_decodes], attention[attention.only_prefills]
    decodes = dict(zip(zip(decode.decodes, decode.decode_kv, strict=True), decode.times, strict=True))
    prefills = dict(zip(zip(prefill.chunk, prefill.prefill_kv, strict=True), prefill.times, strict=True))
    hybrid = attention[attention.hybrid]
    halves = [
        (decodes.get(ours), prefills.get(theirs))
        for ours, theirs in zip(
            zip(hybrid.decodes, hybrid.decode_kv, strict=True),
            zip(hybrid.chunk, hybrid.prefill_kv, strict=True),
            strict=True,
        )
    ]
    both = np.array([None not in pair for pair in halves], dtype=np.bool_)
    if both.any():
        sums = np.array([a + b for a, b in halves if a is not None and b is not None])
        claim = (
            "Attention of a hybrid batch is the sum of its halves: measured decode + prefill call / the measured "
            "hybrid call"
        )
        yield ratio_check(claim, sums, hybrid.times[both])


def _steps(residuals: list[Residuals]) -> Iterator[str]:
    """Name the token counts where the non-attention time is far from the fit: the steps of its staircase."""
    for found in residuals:
        if found.part == Part.NON_ATTENTION:
            counts = np.unique(found.timings.tokens)
            far = set(found.timings.tokens[np.abs(found.predicted / found.timings.times - 1) > _FAR].tolist())
            places = _spans([count in far for count in counts.tolist()], counts.tolist())
            where = f"at {', '.join(places)} tokens" if places else "nowhere"
            yield (
                f"Non-attention time is off by more than {100 * _FAR:.0f} % {where}. It is a staircase in the tokens "
                "(tiles of the "
                "matrix kernels), which no convex function follows."
            )


def _spans(chosen: list[bool], counts: list[float]) -> list[str]:
    """Write the chosen counts, with neighbours as a range."""
    spans: list[list[float]] = []
    last = False
    for choose, count in zip(chosen, counts, strict=True):
        if choose and last:
            spans[-1].append(count)
        elif choose:
            spans.append([count])
        last = choose
    return [f"{span[0]:.0f}" if len(span) == 1 else f"{span[0]:.0f} to {span[-1]:.0f}" for span in spans]


def _valid(dense: Timings, attention: Timings) -> Valid:
    decode, prefill = attention[attention.decodes > 0], attention[attention.prefills > 0]
    return Valid(
        tokens=_range(dense.tokens),
        decode_batch=_range(decode.decodes),
        decode_kv=_range(decode.decode_kv / decode.decodes),
        prefill_chunk=_range(prefill.chunk / prefill.prefills),
        prefill_kv=_range(prefill.prefill_kv / prefill.prefills),
    )


def _range(values: Array) -> Range:
    return int(values.min()), int(values.max())
