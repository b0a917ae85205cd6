"""Fits recover what was planted, and the shipped profiles are what the data say."""

from __future__ import annotations

import gzip
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, linprog, minimize

from optsched.calibrate.__main__ import main
from optsched.calibrate.fit import (
    Array,
    Pieces,
    Predictor,
    cross_validated_mape,
    evaluate_pieces,
    fit_convex_pieces,
    fit_error,
    fit_linear,
)
from optsched.calibrate.library import cost_model, load_profile, parse_profile, profile_names, render_profile
from optsched.calibrate.shipped import ATTENTION_FILE, DENSE_FILE, LAYERS
from optsched.calibrate.vidur import (
    LAYER_OPERATORS,
    PS_PER_MS,
    DecodeTimings,
    PrefillTimings,
    read_attention,
    read_dense,
)
from optsched.model.errors import InputError

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
PROFILES = ROOT / "optsched" / "calibrate" / "profiles"
NAMES = ("a100-llama2-7b", "a100-llama2-7b-linear")

TOKENS = np.array([1, 2, 4, *range(8, 520, 8), 512, *range(576, 2049, 64)], dtype=np.float64)
THREE = ((9_024_509_686, 14_383_295), (7_369_265_210, 48_867_555), (1_779_606_249, 64_394_385))


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(20_240_229)


@pytest.fixture
def data() -> Path:
    if not (DATA / DENSE_FILE).exists():
        pytest.skip(f"{DATA} is not here: the measurements are not part of the repository")
    return DATA


def rounded(pieces: Pieces) -> tuple[tuple[int, int], ...]:
    return tuple((round(base), round(token)) for base, token in pieces)


def loss(pieces: Pieces, tokens: Array, times: Array, relative: bool) -> float:
    weights = 1 / times if relative else np.ones_like(times)
    return float(np.sum((weights * (evaluate_pieces(pieces, tokens) - times)) ** 2))


# Planted coefficients


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("planted", [THREE[1:2], THREE[1:], THREE])
def test_planted_pieces_are_recovered_to_the_picosecond(planted: tuple[tuple[int, int], ...], relative: bool) -> None:
    """The knots (48 and 360 tokens and a bit) are not measured counts."""
    times = evaluate_pieces(planted, TOKENS)
    assert rounded(fit_convex_pieces(TOKENS, times, len(planted), relative)) == planted


def test_no_more_pieces_than_help() -> None:
    times = evaluate_pieces(THREE[:1], TOKENS)
    found = fit_convex_pieces(TOKENS, times, 2)
    assert evaluate_pieces(found, TOKENS) == pytest.approx(times, rel=1e-12)


def test_noise_moves_planted_pieces_little(generator: np.random.Generator) -> None:
    exact = evaluate_pieces(THREE, TOKENS)
    times = exact * generator.uniform(0.98, 1.02, len(TOKENS))
    found = fit_convex_pieces(TOKENS, times, 3)
    assert np.max(np.abs(evaluate_pieces(found, TOKENS) / exact - 1)) < 0.02


BATCHES, CACHED = (grid.ravel() for grid in np.meshgrid(np.arange(1.0, 129), np.arange(32.0, 4033, 400)))
CHUNKS, BEFORE = (grid.ravel() for grid in np.meshgrid(np.arange(64.0, 4097, 64), np.arange(0.0, 4033, 320)))
DECODE = DecodeTimings(BATCHES, CACHED, BATCHES * (272_984 * CACHED + 41_748_060))
PREFILL = PrefillTimings(CHUNKS, BEFORE, 3_117 * CHUNKS * (CHUNKS + 2 * BEFORE) + 40_000 * BEFORE + 1_069_660_279)


@pytest.mark.parametrize("relative", [False, True])
def test_planted_attention_is_recovered_to_the_picosecond(relative: bool) -> None:
    def fitted(timings: DecodeTimings | PrefillTimings) -> list[int]:
        weights = 1 / timings.times if relative else None
        return [round(value) for value in fit_linear(timings.features(), timings.times, weights)]

    assert fitted(DECODE) == [272_984, 41_748_060]
    assert fitted(PREFILL) == [3_117, 40_000, 1_069_660_279]


def test_noise_moves_planted_attention_little(generator: np.random.Generator) -> None:
    for timings, planted in (
        (DECODE, [272_984, 41_748_060]),
        (PREFILL, [3_117, 40_000, 1_069_660_279]),
    ):
        times = timings.times * generator.uniform(0.98, 1.02, len(timings.times))
        assert fit_linear(timings.features(), times, 1 / times) == pytest.approx(planted, rel=0.05)


def test_coefficients_never_turn_negative() -> None:
    x = np.array([1.0, 2.0, 3.0])
    features = np.column_stack([np.ones_like(x), x])
    # Through (1, 1), (2, 3), (3, 5) the line is 2 x − 1; from the origin the best is Σ x y / Σ x² = 22 / 14.
    assert fit_linear(features, 2 * x - 1) == pytest.approx([0, 22 / 14])
    # A falling line becomes the mean; weighted, the weighted mean.
    assert fit_linear(features, 4 - x) == pytest.approx([2, 0])
    assert fit_linear(features, 4 - x, np.array([1.0, 0.0, 1.0])) == pytest.approx([2, 0])


# The constrained convex fit is the global optimum


def best_for_partition(matrix: Array, target: Array, above: Array) -> float:
    """Return the least squared norm of ``matrix a − target`` over a ≥ 0 with ``above a ≥ 0``."""

    def squares(a: Array) -> float:
        return float(np.sum((matrix @ a - target) ** 2))

    def gradient(a: Array) -> Array:
        slopes: Array = 2 * matrix.T @ (matrix @ a - target)
        return slopes

    start = np.full(matrix.shape[1], 1.0)
    result = minimize(
        squares,
        start,
        jac=gradient,
        bounds=[(0, None)] * len(start),
        constraints=[LinearConstraint(above, 0, np.inf)] if len(above) else [],
        method="SLSQP",
        options={"ftol": 1e-13, "maxiter": 500},
    )
    return squares(np.maximum(result.x, 0))


def brute_force(tokens: Array, times: Array, pieces: int, relative: bool) -> float:
    """Return the least loss by other means: a quadratic program for every partition of the token counts.

    Its variables are the intercepts and slopes themselves, base_0, token_0, base_1, …; on its own counts a
    piece is at least every other one.
    """
    weights = 1 / times if relative else np.ones_like(times)
    counts = np.unique(tokens)

    def value(piece: int, count: float) -> Array:
        row = np.zeros(2 * pieces)
        row[2 * piece : 2 * piece + 2] = 1, count
        return row

    losses = []
    for cuts in combinations(range(1, len(counts)), pieces - 1):
        owner = {count: sum(index >= cut for cut in cuts) for index, count in enumerate(counts.tolist())}
        matrix = np.array([value(owner[count], count) for count in tokens.tolist()])
        above = [
            value(piece, count) - value(other, count)
            for count, piece in owner.items()
            for other in range(pieces)
            if other != piece
        ]
        losses.append(best_for_partition(matrix * weights[:, None], times * weights, np.array(above)))
    return min(losses)


TINY_TOKENS = np.array([1.0, 2.0, 4.0, 4.0, 7.0, 9.0, 10.0])
TINY = {
    "flat, then steep: the last line would start below zero": [5.0, 5.1, 5.0, 5.2, 12.0, 30.0, 36.0],
    "square: every line but the first would": [1.0, 4.0, 16.0, 16.5, 49.0, 81.0, 100.0],
    "concave": [1.0, 4.0, 6.0, 6.5, 8.0, 8.5, 8.6],
    "falling": [9.0, 8.0, 7.0, 6.5, 5.0, 3.0, 2.0],
    "stairs": [3.0, 3.0, 5.0, 5.1, 5.2, 9.0, 9.1],
}


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("pieces", [1, 2, 3])
@pytest.mark.parametrize("shape", TINY)
def test_convex_fit_is_as_good_as_brute_force(shape: str, pieces: int, relative: bool) -> None:
    times = np.array(TINY[shape])
    found = fit_convex_pieces(TINY_TOKENS, times, pieces, relative)
    assert len(found) <= pieces
    assert all(base >= 0 and token >= 0 for base, token in found)
    assert [token for _, token in found] == sorted(token for _, token in found)
    assert loss(found, TINY_TOKENS, times, relative) == pytest.approx(
        brute_force(TINY_TOKENS, times, pieces, relative), rel=1e-5, abs=1e-8
    )


def test_last_intercept_stops_at_zero() -> None:
    """Without the constraint the second line through these points is 10 x − 60."""
    tokens = np.array([1.0, 3.0, 5.0, 8.0, 10.0, 12.0])
    found = fit_convex_pieces(tokens, np.array([5.0, 5.0, 5.0, 20.0, 40.0, 60.0]), 2)
    assert found[-1][0] == pytest.approx(0, abs=1e-12)


numbers = st.floats(0, 50, allow_subnormal=False)


@settings(max_examples=200, deadline=None)
@given(
    times=st.lists(st.floats(0.5, 100), min_size=6, max_size=6),
    rival=st.lists(st.tuples(numbers, numbers), min_size=2, max_size=2),
)
def test_no_maximum_of_two_lines_is_better(times: list[float], rival: list[tuple[float, float]]) -> None:
    tokens, measured = np.array([1.0, 2.0, 3.0, 5.0, 8.0, 13.0]), np.array(times)
    found = fit_convex_pieces(tokens, measured, 2)
    assert loss(found, tokens, measured, True) <= loss(tuple(rival), tokens, measured, True) + 1e-9


def test_too_many_pieces_are_refused() -> None:
    with pytest.raises(InputError, match="pieces: got 4, expected 1 to 3, the number of distinct token counts"):
        fit_convex_pieces(np.array([1.0, 1.0, 2.0, 3.0]), np.ones(4), 4)


# Errors


def test_error_summary_by_hand() -> None:
    """Errors 10 %, 10 %, 25 %; squares 0.01 + 0.04 + 1 about a spread of 14/3 around the mean 7/3."""
    error = fit_error(np.array([1.1, 1.8, 5.0]), np.array([1.0, 2.0, 4.0]), 0.5)
    assert error.rows == 3
    assert error.mape == pytest.approx(0.15)
    assert error.worst == pytest.approx(0.25)
    assert error.r2 == pytest.approx(1 - 1.05 * 3 / 14)
    assert error.cv_mape == 0.5


def test_cross_validation_by_hand() -> None:
    """Two folds, the mean as model: rows 1, 3 are predicted as 3 (errors 2, 0), rows 2, 4 as 2 (0, 1/2)."""

    def fit_mean(_: Array, times: Array) -> Predictor:
        return lambda others: np.full(len(others), times.mean())

    times = np.array([1.0, 2.0, 3.0, 4.0])
    assert cross_validated_mape(fit_mean, times, times, 2) == pytest.approx(2.5 / 4)
    with pytest.raises(InputError, match="folds: got 5, expected 2 to 4"):
        cross_validated_mape(fit_mean, times, times, 5)


def test_constant_times_have_no_r2() -> None:
    with pytest.raises(InputError, match="at least two different times"):
        fit_error(np.ones(2), np.ones(2), 0.0)


# Reading tables

DENSE_COLUMNS = [f"time_stats.{name}.median" for name in ("emb", *LAYER_OPERATORS)]
DENSE_HEADER = ",".join([*DENSE_COLUMNS, "num_tokens", "num_tensor_parallel_workers"])
SELECTED_HEADER = "batch_size,prefill_chunk_size,kv_cache_size,is_prefill,time_ms_median"


def table(path: Path, *lines: str) -> Path:
    text = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def test_dense_times_are_of_the_whole_model_in_ps(tmp_path: Path) -> None:
    """emb 100 ms once, operators 1 + 2 + … + 9 = 45 ms a layer; another number of GPUs is left out."""
    operators = ",".join(str(number) for number in range(1, 10))
    path = table(
        tmp_path / "mlp.csv.gz",
        DENSE_HEADER,
        f"100,{operators},8,1",
        f"7,{operators},8,2",
        f"50,{operators},4,1",
    )
    timings = read_dense(path, layers=2)
    assert timings.tokens.tolist() == [4, 8]
    assert timings.times.tolist() == [140 * PS_PER_MS, 190 * PS_PER_MS]


def test_attention_times_are_of_the_whole_model_in_ps(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", SELECTED_HEADER, "3,0,32,False,0.5", "1,64,128,True,0.25")
    decode, prefill = read_attention(path, layers=4)
    assert decode.features().tolist() == [[96, 3]]
    assert decode.times.tolist() == [2 * PS_PER_MS]
    assert prefill.features().tolist() == [[64 * (64 + 256), 128, 1]]
    assert prefill.times.tolist() == [PS_PER_MS]


def test_full_attention_tables_name_their_columns_and_gpus(tmp_path: Path) -> None:
    header = (
        "time_stats.attn_prefill.median,time_stats.attn_decode.median,batch_size,prefill_chunk_size,"
        "kv_cache_size,is_prefill,num_tensor_parallel_workers"
    )
    path = table(tmp_path / "a.csv", header, ",0.5,3,0,32,False,1", ",9,3,0,32,False,2", "0.25,,1,64,0,True,1")
    decode, prefill = read_attention(path, layers=2)
    assert decode.times.tolist() == [PS_PER_MS]
    assert prefill.times.tolist() == [PS_PER_MS / 2]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "rows: got none, expected a decode row"),
        ([SELECTED_HEADER, "1,0,32,False,0.5"], "rows: got none, expected a prefill row"),
        ([SELECTED_HEADER, "1,0,32,no,0.5"], "line 2.is_prefill: got 'no', expected True or False"),
        (
            [SELECTED_HEADER, "1,0,32,False,nan"],
            "line 2.time_ms_median: got 'nan', expected a time > 0 in ms",
        ),
        ([SELECTED_HEADER, "1,0,32,False,"], "line 2.time_ms_median: got '', expected a time > 0 in ms"),
        ([SELECTED_HEADER, "1,0,32,False,0"], "line 2.time_ms_median: got '0', expected a time > 0 in ms"),
        ([SELECTED_HEADER, "0,0,32,False,1"], "line 2.batch_size: got '0', expected an integer ≥ 1"),
        ([SELECTED_HEADER, "1,0,3.5,False,1"], "line 2.kv_cache_size: got '3.5', expected an integer ≥ 0"),
        ([SELECTED_HEADER, "1,0,32"], "line 2: got 3 fields, expected 5"),
        ([SELECTED_HEADER, '1,0,32,False,"1'], "line 2: got unexpected end of data, expected CSV"),
        (
            ["is_prefill,kv_cache_size,time_ms_median", "False,1,1"],
            "batch_size: got nothing, expected a column",
        ),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    path = table(tmp_path / "a.csv", *lines)
    with pytest.raises(InputError) as error:
        read_attention(path, LAYERS)
    assert str(error.value).startswith(f"{path}: {message}")


def test_unreadable_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"No such file or directory, expected a readable \.csv"):
        read_dense(tmp_path / "none.csv", LAYERS)
    broken = tmp_path / "broken.csv.gz"
    broken.write_bytes(gzip.compress(b"num_tokens\n")[:-6])
    with pytest.raises(InputError, match=r"broken\.csv\.gz: got .*, expected a readable"):
        read_dense(broken, LAYERS)
    with pytest.raises(InputError, match="rows: got none, expected a row of this many GPUs"):
        read_dense(table(tmp_path / "mlp.csv", DENSE_HEADER), LAYERS)


# The shipped profiles


def test_shipped_names() -> None:
    assert profile_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_shipped_documents_round_trip(name: str) -> None:
    text = (PROFILES / f"{name}.json").read_text(encoding="utf-8")
    profile = load_profile(name)
    assert profile.name == name
    assert cost_model(name) == profile.coefficients
    assert render_profile(profile) == text
    assert parse_profile(text) == profile


def test_unknown_profile() -> None:
    with pytest.raises(InputError) as error:
        cost_model("h100")
    assert str(error.value) == "profile: got 'h100', expected one of a100-llama2-7b, a100-llama2-7b-linear"


def test_a_bad_document_names_file_and_field() -> None:
    text = render_profile(load_profile(NAMES[0]))
    with pytest.raises(InputError) as error:
        parse_profile(text.replace('"token": ', '"token": -'), "mine.json")
    assert str(error.value).startswith("mine.json: coefficients.token: got -14383295, expected an integer ≥ 0")
    with pytest.raises(InputError, match="invalid JSON"):
        parse_profile("{")


def test_library_needs_no_numpy() -> None:
    code = (
        "import sys; from optsched.calibrate.library import cost_model; "
        f"cost_model({NAMES[0]!r}); sys.exit(bool({{'numpy', 'scipy'}} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0


@pytest.mark.parametrize("name", NAMES)
def test_units_are_right(name: str) -> None:
    """A mistake of ms against µs, or of a layer against the model, leaves these ranges.

    An A100 80 GB moves 2.04 TB/s and does 312 TFLOP/s. Llama-2-7B reads 32 layers × 2 (K, V) × 4096 × 2 bytes
    of KV per token, and its layers' 6.48e9 weights (13 GB, 6.4 ms) per batch; a token takes 2 operations per
    weight, a prefill 2 × 4096 × 32 per token² when causal, twice that when not.
    """
    cost = cost_model(name)
    kv_ps = 32 * 2 * 4096 * 2 / 2.04
    token_ps = 2 * 6.48e9 / 312
    square_ps = 2 * 4096 * 32 / 312
    assert 1 * PS_PER_MS <= cost.base <= 100 * PS_PER_MS
    assert 0.95 * kv_ps <= cost.decode_kv <= 2 * kv_ps
    assert token_ps <= cost.affine[-1][1] <= 2 * token_ps
    assert square_ps <= cost.prefill_sq <= 10 * square_ps
    assert cost.decode_req < cost.prefill_req < cost.base


def test_small_batches_take_as_long_as_reading_the_weights() -> None:
    weights_ps = 6.48e9 * 2 / 2.04
    assert 1 < cost_model("a100-llama2-7b").linear_ps(1) / weights_ps < 2


def test_linear_profile_against_the_paper() -> None:
    """InferMax, figure 3, has R² of 0.999, 0.997 and 0.961 on its own measurements of the same model and GPU.

    Prefill falls short: nearly all of our rows are chunks on a cache, and this kernel's c² and c m terms are
    not in the ratio 1 : 2 of c² + 2 c m (see the profile's notes).
    """
    fit = load_profile("a100-llama2-7b-linear").fit
    assert fit.non_attention.r2 == pytest.approx(0.999, abs=0.001)
    assert fit.decode_attention.r2 == pytest.approx(0.997, abs=0.001)
    assert fit.prefill_attention.r2 == pytest.approx(0.961, abs=0.04)


def test_default_profile_errors() -> None:
    """The targets are 4 % and 5 %; decode misses its own for want of a cost per batch (see the notes)."""
    fit = load_profile("a100-llama2-7b").fit
    assert fit.non_attention.mape <= 0.04
    assert fit.non_attention.cv_mape <= 0.04
    assert fit.decode_attention.mape <= 0.08
    assert fit.prefill_attention.mape <= 0.21
    linear = load_profile("a100-llama2-7b-linear").fit
    assert fit.non_attention.mape < linear.non_attention.mape
    assert fit.non_attention.worst < linear.non_attention.worst / 3


# Against the data


def test_refitting_reproduces_the_shipped_profiles(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["calibrate", str(data), str(tmp_path)])
    main()
    assert sorted(path.stem for path in tmp_path.iterdir()) == list(NAMES)
    for name in NAMES:
        assert (tmp_path / f"{name}.json").read_bytes() == (PROFILES / f"{name}.json").read_bytes()


def test_missing_data_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["calibrate", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    assert "No such file or directory, expected a readable" in capsys.readouterr().err


def least_mape(features: Array, times: Array) -> float:
    """Return the least mean relative error of any coefficients ≥ 0, by linear programming."""
    ratios, unit = features / times[:, None], np.eye(len(times))
    ratios /= ratios.max(axis=0)
    result = linprog(
        np.concatenate([np.zeros(features.shape[1]), np.full(len(times), 1 / len(times))]),
        A_ub=np.block([[ratios, -unit], [-ratios, -unit]]),
        b_ub=np.concatenate([np.ones(len(times)), -np.ones(len(times))]),
    )
    assert result.fun is not None
    return float(result.fun)


def test_notes_say_what_the_data_say(data: Path) -> None:
    decode, prefill = read_attention(data / ATTENTION_FILE, LAYERS)
    chunk, kv, ones = prefill.chunk, prefill.kv, np.ones_like(prefill.kv)
    assert least_mape(decode.features(), decode.times) == pytest.approx(0.068, abs=0.0005)
    assert least_mape(prefill.features(), prefill.times) == pytest.approx(0.199, abs=0.0005)

    with_batch = np.column_stack([decode.features(), np.ones_like(decode.kv)])
    per_batch = fit_linear(with_batch, decode.times, 1 / decode.times)
    assert per_batch[2] == pytest.approx(0.2 * PS_PER_MS, rel=0.1)

    separate = np.column_stack([chunk**2, chunk * kv, kv, ones])
    found = fit_linear(separate, prefill.times, 1 / prefill.times)
    assert found == pytest.approx([5_700, 4_200, 0, 1.2 * PS_PER_MS], rel=0.01)
    assert fit_error(separate @ found, prefill.times, 0.0).mape == pytest.approx(0.057, abs=0.0005)

    few = (decode.kv == 32) & (decode.batch <= 3)
    for cost in map(cost_model, NAMES):
        ratios = decode.times[few] / (decode.batch * cost.decode_ps(32))[few]
        assert 1.85 < ratios.min() < ratios.max() < 5.95
        predicted = cost.prefill_sq * chunk * (chunk + 2 * kv) + cost.prefill_req
        assert np.all(predicted[kv == 0] < prefill.times[kv == 0])
        assert np.max(np.abs(predicted / prefill.times - 1)) < 0.605

    dense = read_dense(data / DENSE_FILE, LAYERS)
    default, linear = (
        np.array([cost.linear_ps(int(tokens)) for tokens in dense.tokens]) / dense.times
        for cost in map(cost_model, NAMES)
    )
    assert 1 / linear.min() == pytest.approx(2.6, abs=0.01)
    steps = dense.tokens[np.abs(default - 1) > 0.1]
    assert all(min(abs(tokens - step) for step in (140, 250, 390, 770)) <= 20 for tokens in steps)
