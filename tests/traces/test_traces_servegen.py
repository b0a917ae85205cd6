"""ServeGen's clients: what can be wrong with their files; requests have their rates, gaps and lengths."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from shared_data import HERE, SHARED

from optsched.model.domain import MAX_TOKENS
from optsched.model.errors import InputError
from optsched.traces.servegen import Client, Lengths, Window, draw_clients, read_clients

CLIENTS = SHARED / "servegen/deepseek-r1"
IDLE = {"input_tokens": "{}", "output_tokens": "{}", "reason_ratio": "{}"}
BUSY = {"input_tokens": "{10: 0.25, 30: 0.75}", "output_tokens": "{7: 1.0}", "reason_ratio": "{0.5: 1.0}"}
TRACE = "20400,0,0,,0,0\n21000,0.5,1.2,Gamma,0.7,2.9\n21600,2,3.0,Weibull,0.5,0.3\n"
DATASET = {"0": BUSY, "21600": BUSY | {"output_tokens": "{9: 0.5, 8: 0.5}"}, "43200": IDLE}


def write(folder: Path, trace: str = TRACE, dataset: object = DATASET, name: str = "chunk-7") -> str:
    (folder / f"{name}-trace.csv").write_text(trace)
    (folder / f"{name}-dataset.json").write_text(dataset if isinstance(dataset, str) else json.dumps(dataset))
    return str(folder)


# Reading ---------------------------------------------------------------------------------------------------


def test_worked_client(tmp_path: Path) -> None:
    (client,) = read_clients(write(tmp_path))
    inputs = Lengths((10, 30), (0.25, 1.0))
    assert client == Client(
        "chunk-7",
        (Window(20400, 0, "", 0), Window(21000, 0.5, "Gamma", 0.7), Window(21600, 2, "Weibull", 0.5)),
        {0: (inputs, Lengths((7,), (1.0,))), 21600: (inputs, Lengths((9, 8), (0.5, 1.0)))},
    )


def test_datasets_may_be_packed_and_lines_end_in_cr_lf(tmp_path: Path) -> None:
    (plain,) = read_clients(write(tmp_path))
    (tmp_path / "chunk-7-dataset.json").unlink()
    (tmp_path / "chunk-7-dataset.json.gz").write_bytes(gzip.compress(json.dumps(DATASET).encode()))
    (tmp_path / "chunk-7-trace.csv").write_bytes(TRACE.replace("\n", "\r\n").encode())
    assert read_clients(str(tmp_path)) == (plain,)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("22200,1,1,Gamma,1", "line 4: got '22200,1,1,Gamma,1', expected 6 columns"),
        ("", "line 4: got '', expected 6 columns"),
        ("soon,1,1,Gamma,1,1", "line 4: start: got 'soon', expected a number from 0 to 1e+09"),
        ("22200.5,1,1,Gamma,1,1", "line 4: start: got '22200.5', expected whole seconds"),
        ("22800,1,1,Gamma,1,1", "line 4: start: got 22800, expected 22200, 600 s after the line before"),
        ("22200,-1,1,Gamma,1,1", "line 4: rate: got '-1', expected a number from 0 to 1e+06"),
        ("22200,nan,1,Gamma,1,1", "line 4: rate: got 'nan', expected a number from 0 to 1e+06"),
        ("22200,1,-1,Gamma,1,1", "line 4: CV: got '-1', expected a number from 0 to 1e+06"),
        ("22200,1,1,,1,1", "line 4: distribution: got '', expected Gamma or Weibull"),
        ("22200,1,1,Pareto,1,1", "line 4: distribution: got 'Pareto', expected Gamma or Weibull"),
        ("22200,1,1,Gamma,0,1", "line 4: shape: got '0', expected a number from 0.001 to 1e+06"),
        ("22200,1,1,Weibull,0.001,1", "line 4: shape: got '0.001', expected a number from 0.01 to 1e+06"),
    ],
)
def test_wrong_windows(line: str, complaint: str, tmp_path: Path) -> None:
    folder = write(tmp_path, f"{TRACE}{line}\n")
    with pytest.raises(InputError) as raised:
        read_clients(folder)
    assert str(raised.value) == f"{tmp_path}/chunk-7-trace.csv: {complaint}"


DICTIONARY = "the text of a dictionary from numbers of tokens to probabilities"


@pytest.mark.parametrize(
    ("dataset", "complaint"),
    [
        ("{", "got '{', expected a JSON object"),
        ([], "got [], expected a JSON object"),
        ({"0": []}, "0: got [], expected a JSON object"),
        ({"noon": BUSY}, "got 'noon', expected seconds, a multiple of 21600"),
        ({"600": BUSY}, "got '600', expected seconds, a multiple of 21600"),
        ({"0": {"input_tokens": "{}"}}, "0.output_tokens: got nothing, expected this field"),
        ({"0": BUSY | {"input_tokens": {}}}, f"0.input_tokens: got {{}}, expected {DICTIONARY}"),
        ({"0": BUSY | {"input_tokens": "[1]"}}, f"0.input_tokens: got '[1]', expected {DICTIONARY}"),
        ({"0": BUSY | {"input_tokens": "{1: exit()}"}}, f"0.input_tokens: got '{{1: exit()}}', expected {DICTIONARY}"),
        ({"0": BUSY | {"input_tokens": "{[]: 1}"}}, f"0.input_tokens: got '{{[]: 1}}', expected {DICTIONARY}"),
        (
            {"0": BUSY | {"input_tokens": "{0: 1}"}},
            f"0.input_tokens: got 0, expected an integer from 1 to {MAX_TOKENS}",
        ),
        ({"0": BUSY | {"input_tokens": "{5: 2}"}}, "0.input_tokens[5]: got 2, expected a probability"),
        ({"0": BUSY | {"input_tokens": "{5: True}"}}, "0.input_tokens[5]: got true, expected a probability"),
        ({"0": BUSY | {"input_tokens": "{5: 0}"}}, "0.input_tokens: got '{5: 0}', expected a probability > 0"),
        ({"0": BUSY}, "21600: got no lengths, expected some, as requests arrive from 21600 s on"),
        ({"0": IDLE, "21600": BUSY}, "0: got no lengths, expected some, as requests arrive from 21000 s on"),
    ],
)
def test_wrong_datasets(dataset: object, complaint: str, tmp_path: Path) -> None:
    folder = write(tmp_path, dataset=dataset)
    with pytest.raises(InputError) as raised:
        read_clients(folder)
    assert str(raised.value) == f"{tmp_path}/chunk-7-dataset.json: {complaint}"


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    for folder in (str(tmp_path), str(tmp_path / "gone")):
        with pytest.raises(InputError) as raised:
            read_clients(folder)
        expected = "a folder of ServeGen's client files"
        assert str(raised.value) == f"{folder}: got no chunk-N-trace.csv, expected {expected}"
    (tmp_path / "chunk-7-trace.csv").write_text(TRACE)
    dataset = tmp_path / "chunk-7-dataset.json"
    with pytest.raises(InputError) as raised:
        read_clients(str(tmp_path))
    assert str(raised.value) == f"{dataset}: got No such file or directory, expected a readable file"
    dataset.write_bytes(b"\xff")
    with pytest.raises(InputError) as raised:
        read_clients(str(tmp_path))
    assert str(raised.value) == f"{dataset}: got invalid start byte, expected text in UTF-8"


# Drawing ---------------------------------------------------------------------------------------------------

ONE = (Lengths((1,), (1.0,)), Lengths((1,), (1.0,)))


def steady(rate: float, distribution: str, shape: float, windows: int = 60) -> Client:
    """Return a client of windows that are all alike."""
    alike = tuple(Window(600 * k, rate, distribution, shape) for k in range(windows))
    return Client("chunk-0", alike, {21600 * k: ONE for k in range(windows // 36 + 1)})


@pytest.mark.parametrize(
    ("distribution", "shape", "expected"),
    [
        ("Gamma", 0.5, stats.gamma(0.5, scale=2).cdf),
        ("Gamma", 9.6, stats.gamma(9.6, scale=1 / 9.6).cdf),
        ("Weibull", 0.7, stats.weibull_min(0.7, scale=1 / math.gamma(1 + 1 / 0.7)).cdf),
        ("Weibull", 2, stats.weibull_min(2, scale=1 / math.gamma(1.5)).cdf),
    ],
)
def test_gaps_have_the_windows_distribution(
    distribution: str, shape: float, expected: Callable[[float], float]
) -> None:
    """With mean 1/rate, across the borders of windows."""
    rows = draw_clients([steady(0.5, distribution, shape)], 0, None, 1).rows
    gaps = np.diff([row.arrival_ps for row in rows]) / 1e12 * 0.5
    assert stats.kstest(gaps, expected).pvalue > 0.01


def test_gaps_reach_across_windows() -> None:
    """They are longer than a window here as often as not."""
    rows = draw_clients([steady(0.002, "Gamma", 0.5, windows=5000)], 0, None, 1).rows
    gaps = np.diff([row.arrival_ps for row in rows]) / 1e12 * 0.002
    assert len(gaps) > 5000
    assert stats.kstest(gaps, stats.gamma(0.5, scale=2).cdf).pvalue > 0.01


@pytest.mark.parametrize(("distribution", "shape"), [("Gamma", 0.2), ("Weibull", 0.5), ("Gamma", 20)])
def test_the_first_window_is_as_busy_as_any(distribution: str, shape: float) -> None:
    """The mean number of requests is rate × time from the first moment on, whatever the bursts."""
    client = steady(0.01, distribution, shape, windows=1)
    counts = [len(draw_clients([client], 0, None, seed).rows) for seed in range(4000)]
    error = float(np.std(counts)) / len(counts) ** 0.5
    assert np.mean(counts) == pytest.approx(6, abs=4 * error)
    assert error < 0.25


def test_requests_keep_to_their_windows_and_lengths(tmp_path: Path) -> None:
    clients = read_clients(write(tmp_path))
    rows = [row for seed in range(40) for row in draw_clients(clients, 0, None, seed).rows]
    assert all(21000 * 10**12 <= row.arrival_ps < 22200 * 10**12 for row in rows)
    late = [row.arrival_ps >= 21600 * 10**12 for row in rows]
    assert len(late) - sum(late) == pytest.approx(40 * 300, rel=0.05)
    assert sum(late) == pytest.approx(40 * 1200, rel=0.05)
    assert {row.output for row, second in zip(rows, late, strict=True) if not second} == {7}
    assert {row.output for row, second in zip(rows, late, strict=True) if second} == {8, 9}
    assert np.mean([row.input == 10 for row in rows]) == pytest.approx(0.25, abs=0.01)


def test_clients_do_not_change_each_other(tmp_path: Path) -> None:
    write(tmp_path)
    (one,) = read_clients(str(tmp_path))
    both = read_clients(write(tmp_path, name="chunk-8"))
    alone = draw_clients([one], 0, None, 5).rows
    together = draw_clients(both, 0, None, 5).rows
    assert set(alone) < set(together)
    assert [row.arrival_ps for row in together] == sorted(row.arrival_ps for row in together)
    assert draw_clients(both, 0, 20, 5).rows == together[:20]
    assert draw_clients(both, 0, 20, 6).rows != together[:20]
    assert together != tuple(sorted(2 * alone, key=lambda row: row.arrival_ps))  # nor are they alike


def test_a_later_start(tmp_path: Path) -> None:
    clients = read_clients(write(tmp_path))
    rows = draw_clients(clients, 21900, None, 1).rows
    assert rows[0].arrival_ps >= 21900 * 10**12
    assert len(rows) == pytest.approx(600, rel=0.4)
    assert draw_clients(clients, 90000, None, 1).rows == ()


# The real files --------------------------------------------------------------------------------------------

TABLE = {
    "chunk-35": (4.578, 11.53, 116, [(52, 1484), (138, 4491), (678, 3003), (607, 758)]),
    "chunk-48": (1.258, 5.07, 62, [(425, 476), (271, 671), (266, 630)]),
    "chunk-3": (1.070, 13.37, 13, [(130, 992)]),
    "chunk-13": (0.788, 16.77, 11, [(131, 1010)]),
    "chunk-12": (0.708, 12.26, 27, [(572, 531), (553, 364)]),
    "chunk-54": (0.650, 12.52, 51, [(362, 426), (390, 432), (366, 388)]),
}
"""Client → mean rate, highest rate, windows with traffic, mean input and output of every 6 hours with traffic."""


def mean(lengths: Lengths) -> float:
    weights = np.diff([0, *lengths.cumulative])
    return float(weights @ np.array(lengths.tokens) / weights.sum())


@HERE
def test_figures_of_the_clients() -> None:
    clients = {client.name: client for client in read_clients(str(CLIENTS))}
    assert set(clients) == set(TABLE)
    for name, (rate, highest, busy, lengths) in TABLE.items():
        client = clients[name]
        rates = [window.rate for window in client.windows]
        assert len(rates) == 144
        assert sum(rates) / 144 == pytest.approx(rate, abs=0.0006)
        assert max(rates) == pytest.approx(highest, abs=0.006)
        assert sum(rate > 0 for rate in rates) == busy
        assert [tuple(round(mean(table)) for table in pair) for _, pair in sorted(client.lengths.items())] == lengths


@pytest.mark.slow
@HERE
@pytest.mark.parametrize("name", ["chunk-12", "chunk-54"])
def test_a_day_of_a_client(name: str) -> None:
    """Rates, by hour, and lengths are those of the files."""
    (client,) = (client for client in read_clients(str(CLIENTS)) if client.name == name)
    rows = draw_clients([client], 0, None, 1).rows
    assert len(rows) / 86400 == pytest.approx(TABLE[name][0], rel=0.03)
    hours = np.bincount([row.arrival_ps // (3600 * 10**12) for row in rows], minlength=24)
    expected = np.array([sum(w.rate * 600 for w in client.windows if w.start_s // 3600 == hour) for hour in range(24)])
    assert (hours[expected == 0] == 0).all()
    assert hours == pytest.approx(expected, rel=0.25, abs=150)
    evening = [row for row in rows if row.arrival_ps >= 64800 * 10**12]
    for drawn, table in zip(
        zip(*((r.input, r.output) for r in evening), strict=True), client.lengths[64800], strict=True
    ):
        assert np.mean(drawn) == pytest.approx(mean(table), rel=0.03)
