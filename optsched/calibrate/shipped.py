"""How the shipped profiles are made from the public tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from optsched.calibrate.fit import (
    FOLDS,
    Array,
    Fitter,
    Pieces,
    Predictor,
    cross_validated_mape,
    evaluate_pieces,
    fit_convex_pieces,
    fit_error,
    fit_linear,
)
from optsched.calibrate.library import (
    PROFILE_FORMAT,
    FitError,
    FitErrors,
    Methods,
    Profile,
    Source,
    Valid,
    file_source,
)
from optsched.calibrate.vidur import DecodeTimings, DenseTimings, PrefillTimings, read_attention, read_dense
from optsched.model.cost import CostModel

LAYERS = 32
"""Of Llama-2-7B."""

DENSE_FILE = "vidur/profiling/compute/a100/meta-llama/Llama-2-7b-hf/mlp.csv.gz"
ATTENTION_FILE = "vidur/profiling/a100/attention_llama2_7b_tp1_selected_rows.csv"
CHECK_FILE = "frontier/profiling/compute/a800/meta-llama/Llama-2-7b-hf/attention.csv.gz"
_VIDUR = ("microsoft/vidur", "7d47513363ec447a741ac5e47241580b47724fbf", "MIT")
_FRONTIER = ("NetX-lab/Frontier", "a4b22df82118", "MIT")


@dataclass(frozen=True, slots=True)
class _Attention:
    decode: DecodeTimings
    prefill: PrefillTimings


@dataclass(frozen=True, slots=True)
class _Tables:
    """What is fitted, and the attention timings that the fit is compared with."""

    dense: DenseTimings
    attention: _Attention
    check: _Attention
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class _Recipe:
    name: str
    description: str
    pieces: int
    relative: bool
    dense_method: str
    note: str

    def fit_dense(self, tokens: Array, times: Array) -> Pieces:
        return fit_convex_pieces(tokens, times, self.pieces, self.relative)

    def fit_attention(self, features: Array, times: Array) -> Array:
        return fit_linear(features, times, 1 / times if self.relative else None)

    def dense_predictor(self, tokens: Array, times: Array) -> Predictor:
        pieces = self.fit_dense(tokens, times)
        return lambda others: evaluate_pieces(pieces, others)

    def attention_predictor(self, features: Array, times: Array) -> Predictor:
        coefficients = self.fit_attention(features, times)
        return lambda others: others @ coefficients


RECIPES = (
    _Recipe(
        name="a100-llama2-7b",
        description="Llama-2-7B on one A100 80 GB: three affine pieces, small relative errors at any size.",
        pieces=3,
        relative=True,
        dense_method="a maximum of at most three affine pieces with coefficients ≥ 0 and the best knots",
        note=(
            "Non-attention time is a staircase in the tokens (tiles of the matrix kernels), which no convex "
            "function follows: the errors above 10 % are at its steps, near 140, 250, 390 and 770 tokens."
        ),
    ),
    _Recipe(
        name="a100-llama2-7b-linear",
        description="Llama-2-7B on one A100 80 GB: InferMax's linear model, one affine piece.",
        pieces=1,
        relative=False,
        dense_method="one affine function with coefficients ≥ 0",
        note=(
            "Ordinary least squares follow the large batches: small ones take up to 2.6 times as long as "
            "this profile says, and its base lies below the time of reading the weights once. Use "
            "a100-llama2-7b where decode batches matter."
        ),
    ),
)


def build_profiles(data: Path) -> tuple[Profile, ...]:
    """Fit the shipped profiles to the tables in the folder ``data``."""
    tables = _Tables(
        dense=read_dense(data / DENSE_FILE, LAYERS),
        attention=_Attention(*read_attention(data / ATTENTION_FILE, LAYERS)),
        check=_Attention(*read_attention(data / CHECK_FILE, LAYERS)),
        sources=(
            file_source(data, DENSE_FILE, _VIDUR),
            file_source(data, ATTENTION_FILE, _VIDUR),
            file_source(data, CHECK_FILE, _FRONTIER),
        ),
    )
    return tuple(_build(recipe, tables) for recipe in RECIPES)


def _build(recipe: _Recipe, tables: _Tables) -> Profile:
    dense, decode, prefill = tables.dense, tables.attention.decode, tables.attention.prefill
    cost = _cost(recipe, dense, tables.attention)
    return Profile(
        format=PROFILE_FORMAT,
        name=recipe.name,
        description=recipe.description,
        coefficients=cost,
        hardware="NVIDIA A100 80 GB, tensor parallel 1",
        model="meta-llama/Llama-2-7b-hf, 32 layers, 16 bit",
        method=_methods(recipe),
        sources=tables.sources,
        fit=FitErrors(
            non_attention=_error(
                (cost.linear_ps(tokens) for tokens in _integers(dense.tokens)),
                dense.times,
                recipe.dense_predictor,
                dense.tokens,
            ),
            decode_attention=_error(
                (
                    batch * cost.decode_ps(cached)
                    for batch, cached in zip(_integers(decode.batch), _integers(decode.kv), strict=True)
                ),
                decode.times,
                recipe.attention_predictor,
                decode.features(),
            ),
            prefill_attention=_error(
                map(cost.prefill_ps, _integers(prefill.chunk), _integers(prefill.kv)),
                prefill.times,
                recipe.attention_predictor,
                prefill.features(),
            ),
        ),
        valid=Valid(
            tokens=_range(dense.tokens),
            decode_batch=_range(decode.batch),
            decode_kv=_range(decode.kv),
            prefill_chunk=_range(prefill.chunk),
            prefill_kv=_range(prefill.kv),
        ),
        notes=(
            "LM head, sampling, writing the KV cache and CPU time are not in the tables, nor in the profile.",
            f"Errors are fractions and belong to the rounded coefficients; cv_mape is over {FOLDS} folds "
            f"(row number modulo {FOLDS}), so it tests interpolation only.",
            recipe.note,
            "Decode attention was measured at 32 and 1216 cached tokens only, all requests of a batch alike. "
            "The kernel has a fixed cost of about 0.2 ms per batch, for which the cost model's form has no "
            "place: one to three requests at 32 tokens take 1.9 to 5.9 times as long as this profile says, "
            "and no coefficients bring the mean error below 6.8 %.",
            "Prefill attention of this kernel is about (5.7 c² + 4.2 c m) ns + 1.2 ms (mean error 5.7 %). "
            "The form c² + 2 c m, whose sum does not depend on how a prompt is cut, ties the two terms: no "
            "coefficients bring the mean error below 19.9 %, and prefill_kv is 0. Prefills on an empty cache "
            "are underestimated, late chunks overestimated, both by up to 60 %.",
            _comparison(recipe, cost, tables.attention, tables.check),
        ),
    )


def _cost(recipe: _Recipe, dense: DenseTimings, attention: _Attention) -> CostModel:
    pieces = [(round(base), round(token)) for base, token in recipe.fit_dense(dense.tokens, dense.times)]
    return CostModel(
        base=pieces[0][0],
        token=pieces[0][1],
        pieces=tuple(pieces[1:]),
        **_attention_coefficients(recipe, attention),
    )


def _attention_coefficients(recipe: _Recipe, attention: _Attention) -> dict[str, int]:
    decode, prefill = attention.decode, attention.prefill
    names = ("decode_kv", "decode_req", "prefill_sq", "prefill_kv", "prefill_req")
    values = (
        *recipe.fit_attention(decode.features(), decode.times).tolist(),
        *recipe.fit_attention(prefill.features(), prefill.times).tolist(),
    )
    return {name: round(value) for name, value in zip(names, values, strict=True)}


def _methods(recipe: _Recipe) -> Methods:
    kind = "relative" if recipe.relative else "ordinary"
    return Methods(
        non_attention=(
            f"{recipe.dense_method}, fitted by {kind} least squares, by tokens of the batch, to {LAYERS} "
            "times the sum of a layer's median operator times (`add` once) plus the embedding once"
        ),
        decode_attention=(
            f"KV tokens read and requests, coefficients ≥ 0, no intercept, fitted by {kind} least squares to "
            f"{LAYERS} times a layer's median attention time"
        ),
        prefill_attention=(
            f"c² + 2 c m, m and 1 per request, coefficients ≥ 0, fitted by {kind} least squares to {LAYERS} "
            "times a layer's median attention time"
        ),
    )


def _error(predicted: Iterable[int], times: Array, fitter: Fitter, inputs: Array) -> FitError:
    """Return the error of what the cost model predicts, without digits in which platforms may differ."""
    error = fit_error(np.array(list(predicted), dtype=np.float64), times, cross_validated_mape(fitter, inputs, times))
    return FitError(
        rows=error.rows,
        r2=round(error.r2, 5),
        mape=round(error.mape, 5),
        worst=round(error.worst, 5),
        cv_mape=round(error.cv_mape, 5),
    )


def _comparison(recipe: _Recipe, cost: CostModel, ours: _Attention, check: _Attention) -> str:
    """Say how far the A800's attention times, and the same fit to them, are from ours."""
    coefficients = []
    for name, other in _attention_coefficients(recipe, check).items():
        own = getattr(cost, name)
        coefficients.append(f"{name} {other} ({f'{other / own:.2f} of ours' if own else 'ours is 0'})")
    decode, decodes = _median_ratio(
        (ours.decode.batch, ours.decode.kv, ours.decode.times),
        (check.decode.batch, check.decode.kv, check.decode.times),
    )
    prefill, prefills = _median_ratio(
        (ours.prefill.chunk, ours.prefill.kv, ours.prefill.times),
        (check.prefill.chunk, check.prefill.kv, check.prefill.times),
    )
    rows = len(check.decode.times) + len(check.prefill.times)
    return (
        f"Cross-check with {rows} attention times of FlashInfer's kernels on an A800 (an A100 with slower "
        f"NVLink): at shapes in both tables they take {decode:.2f} (decode, {decodes} shapes) and "
        f"{prefill:.2f} (prefill, {prefills} shapes) of our time in the median; the same fit gives "
        f"{', '.join(coefficients)}."
    )


def _median_ratio(ours: tuple[Array, Array, Array], others: tuple[Array, Array, Array]) -> tuple[float, int]:
    """Return the median of (their time / our time) over the shapes in both tables, and their number."""
    known = {(a, b): time for a, b, time in zip(*(column.tolist() for column in ours), strict=True)}
    theirs = {(a, b): time for a, b, time in zip(*(column.tolist() for column in others), strict=True)}
    ratios = [theirs[shape] / time for shape, time in known.items() if shape in theirs]
    return median(ratios), len(ratios)


def _integers(values: Array) -> list[int]:
    return [int(value) for value in values.tolist()]


def _range(values: Array) -> tuple[int, int]:
    return int(values.min()), int(values.max())
