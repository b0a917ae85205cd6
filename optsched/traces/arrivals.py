"""Random arrivals: Poisson, Gamma and Markov-modulated Poisson processes.

The first request arrives at 0. Gaps are rounded to whole ps and then added up, so that times are exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import accumulate, repeat
from random import Random
from types import MappingProxyType
from typing import Annotated, Protocol

from pydantic import Field

from optsched.model.domain import domain
from optsched.model.errors import InputError
from optsched.traces.rows import SECOND_PS

Rate = Annotated[float, Field(ge=1e-6, le=1e6)]
"""Requests per s."""
Seconds = Annotated[float, Field(ge=1e-3, le=1e6)]
_LEAST_REQUESTS = 1e-3
"""Least mean number of requests in two successive states of an `Mmpp`."""


class Process(Protocol):
    """An arrival process."""

    def times(self, rng: Random) -> Iterator[int]:
        """Yield arrival times in ps, ascending from 0, without end."""
        ...


@domain
class Poisson:
    """Gaps are exponential.

    Parameters
    ----------
    rate
        Mean requests per s.
    """

    rate: Rate

    def times(self, rng: Random) -> Iterator[int]:
        """Yield arrival times in ps."""
        return _times(rng.expovariate(self.rate) for _ in repeat(None))


@domain
class Gamma:
    """Gaps are independent, of a Gamma distribution.

    Parameters
    ----------
    rate
        Mean requests per s.
    cv
        Standard deviation of the gaps over their mean: 1 makes a Poisson process, more makes bursts.
    """

    rate: Rate
    cv: Annotated[float, Field(ge=0.01, le=100)]

    def times(self, rng: Random) -> Iterator[int]:
        """Yield arrival times in ps."""
        shape = self.cv**-2
        return _times(rng.gammavariate(shape, 1 / (shape * self.rate)) for _ in repeat(None))


@domain
class Mmpp:
    """A Poisson process of two states, quiet and burst, that lasts an exponential time in each.

    Parameters
    ----------
    rate, burst_rate
        Mean requests per s in either state.
    stay, burst_stay
        Mean time in that state, in s.
    """

    rate: Rate
    stay: Seconds
    burst_rate: Rate
    burst_stay: Seconds

    def __post_init__(self) -> None:
        requests = self.rate * self.stay + self.burst_rate * self.burst_stay
        if requests < _LEAST_REQUESTS:  # changes of state without a request take time to draw
            raise InputError(
                "rate", self.rate, f"higher: two successive states have {requests:.2g} requests, < {_LEAST_REQUESTS}"
            )

    def times(self, rng: Random) -> Iterator[int]:
        """Yield arrival times in ps."""
        return _times(self._gaps(rng))

    def _gaps(self, rng: Random) -> Iterator[float]:
        rates, stays = (self.rate, self.burst_rate), (self.stay, self.burst_stay)
        # A request finds the process in a state in proportion to the state's requests.
        quiet, burst = (rate * stay for rate, stay in zip(rates, stays, strict=True))
        state = int(rng.random() * (quiet + burst) < burst)
        gap = 0.0
        while True:
            arrive, leave = rates[state], 1 / stays[state]
            gap += rng.expovariate(arrive + leave)
            if rng.random() * (arrive + leave) < arrive:
                yield gap
                gap = 0.0
            else:
                state = 1 - state


PROCESSES: Mapping[str, type[Poisson | Gamma | Mmpp]] = MappingProxyType(
    {"poisson": Poisson, "gamma": Gamma, "mmpp": Mmpp}
)
"""Name → process."""


def process_forms() -> list[str]:
    """Return the forms in which processes are written, such as ``gamma:RATE,CV``."""
    return [_form(name) for name in PROCESSES]


def read_process(text: str) -> Process:
    """Read a process in a form of `process_forms`, its name known; raise `InputError` for a wrong one."""
    name, _, numbers = text.partition(":")
    kind = PROCESSES[name]
    fields = dataclasses.fields(kind)
    try:
        values = [float(number) for number in numbers.split(",")]
    except ValueError:
        values = []
    if len(values) != len(fields):
        raise InputError("arrivals", text, _form(name))
    try:
        return kind(*values)
    except InputError as error:
        raise InputError("arrivals", text, f"{_form(name)}, {error.field.upper()} {error.expected}") from None


def _form(name: str) -> str:
    return f"{name}:{','.join(field.name.upper() for field in dataclasses.fields(PROCESSES[name]))}"


def _times(gaps: Iterator[float]) -> Iterator[int]:
    return accumulate((round(gap * SECOND_PS) for gap in gaps), initial=0)
