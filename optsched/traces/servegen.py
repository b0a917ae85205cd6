r"""ServeGen's clients: rates and distributions from which requests are drawn.

Source: alibaba/ServeGen (Xiang et al., *ServeGen*). A client has two files in a folder:

- ``chunk-N-trace.csv``, without header: a window's start (s, every 600), rate (requests per s), coefficient of
  variation of the gaps, the name of their distribution (none at rate 0), and its shape and scale;
- ``chunk-N-dataset.json``, perhaps packed: for every 6 hours, by their start in s, ``input_tokens`` and
  ``output_tokens``, each the text of a Python dictionary from lengths to probabilities, empty where the client was
  idle.

The gaps of a client are independent, in units of the mean gap of the moment, so that a window has as many requests as
its rate says, on average. A window gives them their distribution and its shape. The fitted scale is not used: its mean
gap differs from that of the rate, by up to a factor of 3. Inputs and outputs are independent, as nothing is known of
both together.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from itertools import accumulate, islice
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

from optsched.model.csv_text import by_column, read_records
from optsched.model.documents import read_text
from optsched.model.errors import InputError, Said
from optsched.model.json_text import NotJSONError, load_json
from optsched.traces.json_lines import as_entry, member
from optsched.traces.rows import SECOND_PS, Rows, TraceRow, token_count

STEP_S = 600
"""Length of a window."""
_PERIOD_S = 6 * 3600
"""Length of the period of a distribution of lengths."""
_COLUMNS = ("start", "rate", "CV", "distribution", "shape", "scale")
_GAMMA, _WEIBULL = "Gamma", "Weibull"
_LEAST_SHAPE = MappingProxyType({_GAMMA: 0.001, _WEIBULL: 0.01})
"""Below this, gaps exceed the range of floats."""
_TRACE, _DATASET = "-trace.csv", "-dataset.json"


@dataclass(frozen=True)
class Window:
    """Start in s; requests per s; the gaps' distribution and its shape, if the rate is not 0."""

    start_s: int
    rate: float
    distribution: str
    shape: float


@dataclass(frozen=True)
class Lengths:
    """Numbers of tokens, and their probabilities added up."""

    tokens: tuple[int, ...]
    cumulative: tuple[float, ...]

    def draw(self, rng: Random) -> int:
        """Draw a number of tokens."""
        return rng.choices(self.tokens, cum_weights=self.cumulative)[0]


@dataclass(frozen=True)
class Client:
    """A client: its windows, and inputs and outputs by the start of their 6 hours, in s, where it was not idle."""

    name: str
    windows: tuple[Window, ...]
    lengths: Mapping[int, tuple[Lengths, Lengths]]


# Reading ---------------------------------------------------------------------------------------------------


def read_clients(folder: str) -> tuple[Client, ...]:
    """Read the clients in a folder; raise `InputError` for a wrong line: without it the generator would differ."""
    traces = sorted(Path(folder).glob(f"chunk-*{_TRACE}"))
    if not traces:
        raise InputError("", Said(f"no chunk-N{_TRACE}"), "a folder of ServeGen's client files", folder)
    return tuple(_client(path) for path in traces)


def _client(path: Path) -> Client:
    name = path.name.removesuffix(_TRACE)
    dataset = path.with_name(name + _DATASET)
    packed = dataset.with_name(f"{dataset.name}.gz")
    dataset = packed if packed.exists() else dataset
    text = read_text(path)
    try:
        windows = tuple(_windows(text))
    except InputError as error:
        raise error.located(str(path)) from None
    text = read_text(dataset)
    try:
        lengths = _dataset(text)
        for window in windows:
            _require_lengths(window, lengths)
    except InputError as error:
        raise error.located(str(dataset)) from None
    return Client(name, windows, lengths)


def _windows(text: str) -> Iterator[Window]:
    start: int | None = None
    for number, record in read_records(text):
        try:
            window = _window(by_column(_COLUMNS, record))
            if start is not None and window.start_s != start + STEP_S:
                raise InputError("start", window.start_s, f"{start + STEP_S}, {STEP_S} s after the line before")
        except InputError as error:
            raise error.located(f"line {number}") from None
        start = window.start_s
        yield window


def _window(fields: Mapping[str, str]) -> Window:
    start, rate = _number(fields, "start", 0, 1e9), _number(fields, "rate", 0, 1e6)
    if start % 1:
        raise InputError("start", fields["start"], "whole seconds")
    _number(fields, "CV", 0, 1e6)
    if not rate:
        return Window(int(start), rate, "", 0)
    if fields["distribution"] not in _LEAST_SHAPE:
        raise InputError("distribution", fields["distribution"], " or ".join(_LEAST_SHAPE))
    shape = _number(fields, "shape", _LEAST_SHAPE[fields["distribution"]], 1e6)
    return Window(int(start), rate, fields["distribution"], shape)


def _number(fields: Mapping[str, str], name: str, least: float, most: float) -> float:
    try:
        number = float(fields[name])
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise InputError(name, fields[name], f"a number from {least:g} to {most:g}")
    return number


def _dataset(text: str) -> dict[int, tuple[Lengths, Lengths]]:
    try:
        document = load_json(text)
    except NotJSONError:
        raise InputError("", text, "a JSON object") from None
    found = {}
    for key, value in as_entry(document, "").items():
        if not key.isdecimal() or len(key) > 9 or int(key) % _PERIOD_S:
            raise InputError("", key, f"seconds, a multiple of {_PERIOD_S}")
        try:
            period = as_entry(value, "")
            inputs, outputs = (_lengths(period, field) for field in ("input_tokens", "output_tokens"))
        except InputError as error:
            raise error.within(key) from None
        if inputs.tokens and outputs.tokens:
            found[int(key)] = inputs, outputs
    return found


def _lengths(period: Mapping[str, Any], field: str) -> Lengths:
    text = member(dict(period), field)
    expected = "the text of a dictionary from numbers of tokens to probabilities"
    try:
        table = ast.literal_eval(text) if isinstance(text, str) else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        table = None
    if not isinstance(table, dict):
        raise InputError(field, text, expected)
    for number, probability in table.items():
        token_count(number, field)
        if type(probability) not in {int, float} or not 0 <= probability <= 1:
            raise InputError(f"{field}[{number}]", probability, "a probability")
    if table and not sum(table.values()):
        raise InputError(field, text, "a probability > 0")
    return Lengths(tuple(table), tuple(accumulate(table.values())))


def _require_lengths(window: Window, lengths: Mapping[int, object]) -> None:
    period = _period(window)
    if window.rate and period not in lengths:
        raise InputError(str(period), Said("no lengths"), f"some, as requests arrive from {window.start_s} s on")


def _period(window: Window) -> int:
    return window.start_s // _PERIOD_S * _PERIOD_S


# Drawing ---------------------------------------------------------------------------------------------------


def draw_clients(clients: Iterable[Client], start_s: int, limit: int | None, seed: int) -> Rows:
    """Draw the requests of clients together.

    Parameters
    ----------
    clients
        Each has its own random stream, so that its requests do not depend on the other clients.
    start_s
        First second of the day.
    limit
        Number of requests, the first to arrive; None for all to the end of the day.
    seed
        Seed of the random streams.
    """
    streams = (_requests(client, start_s, Random(f"{seed} {client.name}")) for client in clients)
    return Rows(tuple(TraceRow(*request) for request in islice(merge(*streams), limit)), bad=())


def _requests(client: Client, start_s: int, rng: Random) -> Iterator[tuple[int, int, int]]:
    """Yield arrival (ps), input and output."""
    wait: float | None = None  # to the next request, in mean gaps
    for window in client.windows:
        begin = max(window.start_s, start_s)
        expected = window.rate * (window.start_s + STEP_S - begin)
        if expected <= 0:
            continue
        if wait is None:
            wait = _first_wait(window, rng)
        inputs, outputs = client.lengths[_period(window)]
        passed = wait
        while passed < expected:
            arrival = begin * SECOND_PS + round(passed / window.rate * SECOND_PS)
            yield arrival, inputs.draw(rng), outputs.draw(rng)
            passed += _gap(window, rng)
        wait = passed - expected


def _gap(window: Window, rng: Random) -> float:
    """Draw a gap, the mean gap being 1."""
    if window.distribution == _GAMMA:
        return rng.gammavariate(window.shape, 1 / window.shape)
    return rng.weibullvariate(1 / math.gamma(1 + 1 / window.shape), window.shape)


def _first_wait(window: Window, rng: Random) -> float:
    """Draw the rest of a gap from a random moment on: a uniform part of a gap, drawn by its length."""
    if window.distribution == _GAMMA:
        met = rng.gammavariate(window.shape + 1, 1 / window.shape)
    else:
        power = 1 / window.shape
        met = rng.gammavariate(1 + power, 1) ** power / math.gamma(1 + power)
    return met * rng.random()
