"""Stand-ins have the statistics of their traces; how they are measured and drawn is worked by hand."""

from __future__ import annotations

import subprocess
import sys
from bisect import bisect_right
from collections import Counter
from fractions import Fraction
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from statistics import fmean, pstdev

import pytest
from checkout import ROOT
from commands import optsched
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp, spearmanr
from shared_data import HERE, SHARED

from optsched import Limits, Request, Rules, load_instance, replace
from optsched.bounds.volume import volume_bound
from optsched.calibrate.library import Source
from optsched.library import load_suite
from optsched.model.objectives import percentile
from optsched.traces.__main__ import main
from optsched.traces.standin import draw, stand_in
from optsched.traces.statistics import BANDS, LEVELS, measure, parts, quantiles, shipped_statistics, spread
from optsched.traces.trace import Trace, read_trace

FITTED = ROOT / "optsched/traces/fitted"
NAMES = ("azure-conv", "azure-code")
LOADS = ("0.5", "1", "2")
SOURCE = Source(file="f", repository="r", commit="c", licence="l", sha256="0" * 64)


def gaps(requests: tuple[Request, ...]) -> list[int]:
    return [later.arrival_ps - earlier.arrival_ps for earlier, later in pairwise(requests)]


# Tables ----------------------------------------------------------------------------------------------------


def test_quantiles_worked() -> None:
    """Of 1 … 2048 the L-th smallest is L. Of three values the second begins after 1/3, the third after 2/3."""
    assert LEVELS[:3] == (0, 64, 128)
    assert LEVELS[-3:] == (2046, 2047, 2048)
    assert quantiles(range(2048, 0, -1)) == (1, *LEVELS[1:])
    table = dict(zip(LEVELS, quantiles([30, 10, 20]), strict=True))
    # 2048/3 = 682.67 lies between 640 and 704, 4096/3 = 1365.33 between 1344 and 1408.
    assert [table[level] for level in (0, 640, 704, 1344, 1408, 2048)] == [10, 10, 20, 20, 30, 30]


def test_spread_worked() -> None:
    """Where the value is the level: 1/4 and 3/4 of 2048; the middles of 2048 parts, half up."""
    assert spread(LEVELS, 2) == [512, 1536]
    assert spread(LEVELS, 2048) == list(range(1, 2049))
    # Levels 1/6, 1/2, 5/6 are 341.33, 1024 and 1706.67; thrice that is 1024, 3072 and 5120.
    assert spread([3 * level for level in LEVELS], 3) == [1024, 3072, 5120]


@given(st.lists(st.integers(1, 10**13), min_size=1, max_size=50), st.integers(1, 200))
def test_spread_is_linear_between_levels(values: list[int], count: int) -> None:
    table = quantiles(values)
    found = spread(table, count)
    for k, value in enumerate(found):
        level = Fraction(2 * k + 1, 2 * count) * 2048
        at = min(bisect_right(LEVELS, level), len(LEVELS) - 1)
        share = (level - LEVELS[at - 1]) / (LEVELS[at] - LEVELS[at - 1])
        assert abs(value - (table[at - 1] + share * (table[at] - table[at - 1]))) <= Fraction(1, 2)
    assert found == sorted(found)
    assert min(values) <= found[0] <= found[-1] <= max(values)


# Measuring and drawing -------------------------------------------------------------------------------------


def test_parts_worked() -> None:
    """The cuts are at 0, 5/3, 10/3 and 5, rounded down."""
    assert parts([3, 1, 4, 1, 5], 3) == [[3], [1, 4], [1, 5]]
    assert parts([7], 2) == [[], [7]]


def test_drawing_returns_what_was_measured() -> None:
    """Sixteen kinds of requests, one for each band: prompts of 10 b tokens go with b tokens of output.

    4001 requests have 32 blocks of 125 times between arrivals, two of each length; so has every band of blocks one.
    """
    kinds = [(10 * b, b) for b in range(1, BANDS + 1) for _ in range(250)] + [(160, 16)]
    paces = [pace for pace in range(1, BANDS + 1) for _ in range(2)]
    Random(5).shuffle(kinds)
    Random(6).shuffle(paces)
    arrivals = accumulate((pace for pace in paces for _ in range(125)), initial=0)
    requests = tuple(Request(*kind, arrival_ps=at) for kind, at in zip(kinds, arrivals, strict=True))
    statistics = measure("kinds", "kinds", SOURCE, requests)
    assert statistics.rows == 4001
    assert [set(table) for table in statistics.gap_ps] == [{pace} for pace in range(1, BANDS + 1)]
    drawn = draw(statistics, 161, Random(1))
    assert (len(drawn.requests), drawn.bad) == (161, ())
    # 160 times between arrivals are ten for each band, in a row.
    between = gaps(drawn.requests)
    assert sorted(between) == [pace for pace in range(1, BANDS + 1) for _ in range(10)]
    assert all(len(set(between[start : start + 10])) == 1 for start in range(0, 160, 10))
    # Every band draws ten requests, the last eleven. Between two levels a prompt may lie between two kinds.
    outputs = Counter(request.output for request in drawn.requests)
    assert outputs == dict.fromkeys(range(1, BANDS), 10) | {BANDS: 11}
    for request in drawn.requests:
        assert 10 * (request.output - 1) <= request.input <= 10 * (request.output + 1)
    other = draw(statistics, 161, Random(2))
    assert other != drawn
    assert sorted(r.input for r in other.requests) == sorted(r.input for r in drawn.requests)
    assert draw(statistics, 161, Random(1)) == drawn


# The suites ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_three_loads(name: str) -> None:
    """Arrivals span the volume bound of all requests at time 0, over the load."""
    instances = load_suite(name).instances
    assert [instance.name for instance in instances] == [f"{name}-{load}" for load in LOADS]
    sizes = [[(request.input, request.output) for request in instance.requests] for instance in instances]
    assert sizes[0] == sizes[1] == sizes[2]
    together = replace(instances[0], requests=tuple(replace(r, arrival_ps=0) for r in instances[0].requests))
    bound = volume_bound(together).value
    for instance, load in zip(instances, LOADS, strict=True):
        assert len(instance.requests) == 2000
        assert (instance.limits, instance.rules) == (Limits(100_000, 16_384, 16_384), Rules())
        assert instance.cost == load_instance("infermax-b1024-I1-O1").cost
        assert instance.infeasibilities() == ()
        assert instance.requests[0].arrival_ps == 0
        assert instance.requests[-1].arrival_ps == int(bound / Fraction(load))


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "variation"),
    [
        # Of the traces: mean, median, 99th percentile, least, most; coefficient of variation between arrivals.
        ("azure-conv", (1154.7, 1020, 4142, 2, 14050), (211.1, 129, 601, 7, 1000), 1.09),
        ("azure-code", (2021.2, 1439, 7436, 3, 7437), (27.2, 13, 244, 6, 1899), 13.2),
    ],
)
def test_figures_of_the_traces(
    name: str, inputs: tuple[float, ...], outputs: tuple[float, ...], variation: float
) -> None:
    requests = load_instance(f"{name}-1").requests
    for found, published in (([r.input for r in requests], inputs), ([r.output for r in requests], outputs)):
        mean, median, high, least, most = published
        assert fmean(found) == pytest.approx(mean, rel=0.02)
        assert percentile(sorted(found), 50) == pytest.approx(median, rel=0.02)
        assert percentile(sorted(found), 99) == pytest.approx(high, rel=0.1)
        assert least <= min(found) < max(found) <= most
    between = gaps(requests)
    assert pstdev(between) / fmean(between) == pytest.approx(variation, rel=0.05)


def test_a_stand_in_is_found_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    ended = optsched(capsys, "bound", "azure-code-0.5", "--objective", "mean_e2e", "--method", "alone")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("azure-code-0.5: mean_e2e, bound_only")


# Beside the traces -----------------------------------------------------------------------------------------


def real(name: str) -> Trace:
    return read_trace((SHARED / shipped_statistics(name).source.file).read_text(), "azure")


@HERE
@pytest.mark.parametrize("name", NAMES)
def test_a_stand_in_beside_its_trace(name: str) -> None:
    trace, drawn = real(name).requests, stand_in(name).requests
    for of in (
        lambda requests: [request.input for request in requests],
        lambda requests: [request.output for request in requests],
        lambda requests: [request.kv_volume for request in requests],
        gaps,
    ):
        assert ks_2samp(of(trace), of(drawn)).statistic < 0.025
    ranks = [spearmanr([r.input for r in some], [r.output for r in some]).statistic for some in (trace, drawn)]
    assert ranks[1] == pytest.approx(ranks[0], abs=0.02)


@HERE
def test_measuring_reproduces_the_shipped_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["traces", str(SHARED), str(tmp_path)])
    main()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        path.name: path.read_bytes() for path in FITTED.iterdir()
    }


def test_missing_traces_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["traces", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    assert "No such file or directory, expected a readable file" in capsys.readouterr().err


@pytest.mark.slow
def test_the_script_says_on_one_line_what_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks/standins.py"), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(
        f"standins.py: {tmp_path}/azure_llm_2023/AzureLLMInferenceTrace_conv.csv: got No such"
    )
    assert len(ended.stderr.splitlines()) == 1
