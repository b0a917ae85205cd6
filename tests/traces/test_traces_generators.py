"""Generators beside closed forms: arrival processes, distributions of lengths, the papers' workloads."""

from __future__ import annotations

from itertools import islice, pairwise
from random import Random

import numpy as np
import pytest
from checkout import ROOT
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from shared_data import HERE, SHARED

from optsched.model.errors import InputError
from optsched.traces.arrivals import PROCESSES, Gamma, Mmpp, Poisson, Process, process_forms, read_process
from optsched.traces.infermax import GROUPS, MIXES
from optsched.traces.lengths import geometric, lognormal
from optsched.traces.sources import read_rows
from optsched.traces.workloads import WORKLOADS, draw_workload

COUNT = 40_000
Array = NDArray[np.float64]


def gaps(process: Process, count: int = COUNT, seed: int = 1) -> Array:
    """Return gaps in s."""
    times = list(islice(process.times(Random(seed)), count + 1))
    return np.diff(np.array(times, dtype=object)).astype(float) / 1e12


# Arrivals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("process", [Poisson(2.5), Gamma(2.5, 3), Mmpp(1, 60, 20, 5)])
def test_times_are_whole_ps_and_the_seed_decides(process: Process) -> None:
    first, again, other = (list(islice(process.times(Random(seed)), 1000)) for seed in (3, 3, 4))
    assert first == again
    assert first != other
    assert first[0] == 0
    assert all(type(time) is int for time in first)
    assert all(earlier <= later for earlier, later in pairwise(first))


def test_a_poisson_process() -> None:
    found = gaps(Poisson(2.5))
    assert found.mean() == pytest.approx(1 / 2.5, rel=0.02)
    assert stats.kstest(found, stats.expon(scale=1 / 2.5).cdf).pvalue > 0.01


@pytest.mark.parametrize("cv", [0.3, 1, 2])
def test_a_gamma_process(cv: float) -> None:
    found = gaps(Gamma(2.5, cv))
    assert found.mean() == pytest.approx(1 / 2.5, rel=0.02 * max(cv, 1))
    assert found.std() / found.mean() == pytest.approx(cv, rel=0.04)
    assert stats.kstest(found, stats.gamma(cv**-2, scale=cv**2 / 2.5).cdf).pvalue > 0.01


def mmpp_gaps(process: Mmpp) -> tuple[float, float, float]:
    """Return mean, variation and lag-1 correlation of the gaps, from the process's two matrices.

    With hidden transitions A and arrivals B, a gap from states p has k-th moment k! p (-A)^-k 1, and after it the
    states are p (-A)^-1 B.
    """
    leave, burst_leave = 1 / process.stay, 1 / process.burst_stay
    hidden = np.array([[-process.rate - leave, leave], [burst_leave, -process.burst_rate - burst_leave]])
    arrivals = np.diag([process.rate, process.burst_rate])
    inverse = np.linalg.inv(-hidden)
    seen = np.array([process.rate * process.stay, process.burst_rate * process.burst_stay])
    seen /= seen.sum()
    ones = np.ones(2)
    mean = float(seen @ inverse @ ones)
    variance = float(2 * seen @ inverse @ inverse @ ones) - mean**2
    both = float(seen @ inverse @ inverse @ arrivals @ inverse @ ones)
    return mean, variance**0.5 / mean, (both - mean**2) / variance


@pytest.mark.parametrize("process", [Mmpp(1, 10, 20, 2), Mmpp(0.1, 3, 5, 1), Mmpp(4, 2, 4, 9)])
def test_an_mmpp(process: Mmpp) -> None:
    found = gaps(process)
    mean, cv, lag = mmpp_gaps(process)
    total = process.stay + process.burst_stay
    assert 1 / mean == pytest.approx((process.rate * process.stay + process.burst_rate * process.burst_stay) / total)
    assert found.mean() == pytest.approx(mean, rel=0.05)
    assert found.std() / found.mean() == pytest.approx(cv, rel=0.05)
    assert np.corrcoef(found[:-1], found[1:])[0, 1] == pytest.approx(lag, abs=0.02)


def test_an_mmpp_is_steady_from_the_first_gap_on() -> None:
    process = Mmpp(0.5, 10, 20, 2)
    first = [next(islice(process.times(Random(seed)), 1, None)) / 1e12 for seed in range(4000)]
    mean, cv, _ = mmpp_gaps(process)
    assert np.mean(first) == pytest.approx(mean, abs=4 * cv * mean / 4000**0.5)


def test_how_processes_are_written() -> None:
    assert process_forms() == ["poisson:RATE", "gamma:RATE,CV", "mmpp:RATE,STAY,BURST_RATE,BURST_STAY"]
    assert read_process("poisson:2.5") == Poisson(2.5)
    assert read_process("gamma:2.5, 3") == Gamma(2.5, 3)
    assert read_process("mmpp:1,60,20,5") == Mmpp(rate=1, stay=60, burst_rate=20, burst_stay=5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("poisson", "poisson:RATE"),
        ("poisson:fast", "poisson:RATE"),
        ("poisson:1,2", "poisson:RATE"),
        ("poisson:0", "poisson:RATE, RATE a number ≥ 1e-06"),
        ("poisson:nan", "poisson:RATE, RATE"),
        ("poisson:inf", "poisson:RATE, RATE a number ≤ 1000000.0"),
        ("gamma:1", "gamma:RATE,CV"),
        ("gamma:1,0", "gamma:RATE,CV, CV a number ≥ 0.01"),
        (
            "mmpp:1e-5,1,1e-5,1",
            "mmpp:RATE,STAY,BURST_RATE,BURST_STAY, RATE higher: two successive states have 2e-05 requests",
        ),
        ("mmpp:1,1,1,0", "mmpp:RATE,STAY,BURST_RATE,BURST_STAY, BURST_STAY a number ≥ 0.001"),
    ],
)
def test_wrong_processes(text: str, expected: str) -> None:
    with pytest.raises(InputError) as raised:
        read_process(text)
    assert str(raised.value).startswith(f"arrivals: got '{text}', expected {expected}")


def test_every_process_can_be_written() -> None:
    for name, kind in PROCESSES.items():
        assert isinstance(read_process(f"{name}:{','.join(['2'] * len(kind.__dataclass_fields__))}"), kind)


# Lengths ---------------------------------------------------------------------------------------------------


@given(st.integers(1, 400), st.integers(0, 600), st.floats(0, 1), st.integers(0, 2**32))
def test_geometric_lengths_have_the_mean_that_is_asked_for(low: int, span: int, part: float, seed: int) -> None:
    """Mean and range are kept; only the extreme means leave no choice."""
    high = low + span
    mean = low + part * span
    draw, rng = geometric(low, mean, high), Random(seed)
    drawn = np.array([draw(rng) for _ in range(400)])
    assert drawn.min() >= low
    assert drawn.max() <= high
    assert abs(drawn.mean() - mean) <= 5 * max(drawn.std(), 1) / 400**0.5 + 1e-9


@pytest.mark.parametrize(("low", "mean", "high"), [(9, 19.31, 2470), (32, 681.2, 1041), (3, 5, 8), (1, 4.5, 8)])
def test_geometric_lengths_are_geometric(low: int, mean: float, high: int) -> None:
    """Counts follow p(k) ∝ r^k, whose r is found here from the mean by a search of its own."""
    values = np.arange(low, high + 1)

    def chances(log_ratio: float) -> Array:
        weights = np.exp(log_ratio * (values - (low if log_ratio < 0 else high)))
        found: Array = weights / weights.sum()
        return found

    least, most = -5.0, 5.0
    for _ in range(100):
        middle = (least + most) / 2
        least, most = (middle, most) if chances(middle) @ values < mean else (least, middle)
    draw, rng = geometric(low, mean, high), Random(5)
    drawn = np.array([draw(rng) for _ in range(COUNT)])
    expected = np.cumsum(chances(least))
    counts = np.searchsorted(np.sort(drawn), values, side="right") / COUNT
    assert np.abs(counts - expected).max() < 1.63 / COUNT**0.5  # the 1 % level of Kolmogorov and Smirnov


@pytest.mark.parametrize(("mean", "std"), [(1835, 742), (190, 343), (16, 13)])
def test_lognormal_lengths(mean: float, std: float) -> None:
    draw, rng = lognormal(mean, std), Random(2)
    drawn = np.array([draw(rng) for _ in range(COUNT)])
    assert drawn.min() >= 1
    assert drawn.mean() == pytest.approx(mean, rel=0.03)
    assert drawn.std() == pytest.approx(std, rel=0.08)
    logs = np.log(drawn)
    assert logs.mean() == pytest.approx(np.log(mean) - np.log1p((std / mean) ** 2) / 2, abs=0.02)


# Workloads -------------------------------------------------------------------------------------------------

ECONOSERVE = {
    "alpaca": ((9, 19.31, 2470), (13, 58.41, 292)),
    "sharegpt": ((16, 161.31, 3200), (19, 337.99, 991)),
}
PREBLE = {
    "toolbench": ((1835, 742), (43, 16)),
    "embodied-agent": ((2285, 471), (16, 13)),
    "programming": ((3871, 1656), (190, 343)),
    "video-qa": ((9865, 5976), (4, 1.5)),
    "loogle": ((23474, 6105), (16, 9.9)),
}


def drawn(name: str, count: int = 20_000, seed: int = 1) -> tuple[Array, Array]:
    rows = draw_workload(name, count, seed).rows
    assert len(rows) == count
    return np.array([row.input for row in rows]), np.array([row.output for row in rows])


@pytest.mark.parametrize("name", ECONOSERVE)
def test_econoserves_table_2(name: str) -> None:
    for lengths, (low, mean, high) in zip(drawn(f"econoserve-{name}"), ECONOSERVE[name], strict=True):
        assert lengths.mean() == pytest.approx(mean, rel=0.03)
        assert low <= lengths.min() <= low + 2
        assert lengths.max() <= high


def test_bookcorpus_is_cut_into_pieces_of_2048_tokens() -> None:
    """Section 2.1. Prompts have 1,934 tokens more than 18 in the mean, geometrically: n of them make Σ ceil(I / 2048)
    pieces, whose mean is 1952.11 / (1 + q^2031 / (1 - q^2048)) with q = 1934.11 / 1935.11, up to the maximum of 461K.
    """
    inputs, outputs = drawn("econoserve-bookcorpus")
    q = 1934.11 / 1935.11
    assert inputs.mean() == pytest.approx(1952.11 / (1 + q**2031 / (1 - q**2048)), rel=0.02)
    assert inputs.max() == 2048
    # All pieces of a prompt but the last have 2,048: more than one prompt of three is longer.
    assert (inputs == 2048).mean() == pytest.approx(q**2031 / (1 - q**2048) / (1 + q**2031 / (1 - q**2048)), rel=0.05)
    assert (outputs.min(), outputs.max()) == (32, 1041)
    assert outputs.mean() == pytest.approx(681.2, rel=0.03)


@pytest.mark.parametrize("name", PREBLE)
def test_prebles_table_1(name: str) -> None:
    for lengths, (mean, std) in zip(drawn(f"preble-{name}"), PREBLE[name], strict=True):
        assert lengths.mean() == pytest.approx(mean, rel=0.03)
        assert lengths.std() == pytest.approx(std, rel=0.1)


@pytest.mark.parametrize(("name", "inputs", "outputs"), [("sw-chat", 1154, 211), ("sw-code", 2047, 27)])
def test_means_of_kossmann_et_al(name: str, inputs: float, outputs: float) -> None:
    """β = 1365/211 and 2074/27 are the sum of the means over that of outputs; of code we have two thirds."""
    found_inputs, found_outputs = drawn(name)
    assert found_inputs.mean() == pytest.approx(inputs, rel=0.03)
    assert found_outputs.mean() == pytest.approx(outputs, rel=0.06)


@HERE
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("sw-chat", "AzureLLMInferenceTrace_conv.csv"),
        ("sw-code", "AzureLLMInferenceTrace_code_rows1-5879.csv"),
    ],
)
def test_shapes_of_kossmann_et_al(name: str, file: str) -> None:
    rows = read_rows(str(SHARED / "azure_llm_2023" / file), "azure").rows
    inputs, outputs = drawn(name)
    assert stats.ks_2samp(inputs, [row.input for row in rows]).statistic < 0.03
    assert stats.ks_2samp(outputs, [row.output for row in rows]).statistic < 0.03
    real = stats.spearmanr([row.input for row in rows], [row.output for row in rows]).statistic
    assert stats.spearmanr(inputs, outputs).statistic == pytest.approx(real, abs=0.03)


def test_rr_sjf_cuts_half_of_its_outputs() -> None:
    inputs, outputs = drawn("rr-sjf")
    assert (outputs.min(), outputs.max()) == (4, 1024)
    assert (outputs == 1024).mean() == pytest.approx(0.5, abs=0.02)
    assert outputs[outputs < 1024].mean() == pytest.approx((4 + 1023) / 2, rel=0.02)
    assert inputs.mean() == pytest.approx(64, rel=0.03)
    assert all(row.predicted is None for row in draw_workload("rr-sjf", 10, 1).rows)


def test_rr_sjfs_fitted_outputs_are_shorter() -> None:
    _, outputs = drawn("rr-sjf-fitted")
    assert (outputs.min(), outputs.max()) == (4, 1024)
    assert (outputs == 1024).mean() == pytest.approx(0.5, abs=0.02)
    assert outputs[outputs < 1024].mean() == pytest.approx(190, rel=0.03)


def test_rr_sjfs_noise() -> None:
    rows = draw_workload("rr-sjf-noise25", 20_000, 1).rows
    pairs = np.array([(row.output, row.predicted) for row in rows], dtype=float)
    assert pairs[:, 1].min() >= 1
    assert pairs[:, 1].max() <= 1024
    inner = pairs[(pairs[:, 0] > 150) & (pairs[:, 0] < 870)]
    errors = inner[:, 1] - inner[:, 0]
    assert abs(errors.mean()) < 1
    assert errors.std() == pytest.approx(25, rel=0.03)


@pytest.mark.parametrize("mix", MIXES)
def test_infermaxs_mixes(mix: tuple[str, str]) -> None:
    rows = draw_workload(f"infermax-mix-{'+'.join(mix)}", 1001, 1).rows
    assert len(rows) == 1001
    found = []
    for name in mix:
        inputs, outputs = GROUPS[name]
        found.append(sum(row.input in inputs and row.output in outputs for row in rows))
    assert sorted(found) == [500, 501]


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_seed_decides(name: str) -> None:
    first, again, other = (draw_workload(name, 40, seed).rows for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert {row.arrival_ps for row in first} == {0}


def test_the_page_lists_every_workload() -> None:
    page = (ROOT / "docs/traces.md").read_text()
    for name, workload in WORKLOADS.items():
        assert f"| `{name}` | {workload.source} |" in page
