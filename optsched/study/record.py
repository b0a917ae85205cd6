"""Records: what is known of one attempt at a trial, for tables and data frames; the document itself is in the store."""

from __future__ import annotations

import datetime
import os
import platform
import re
from enum import StrEnum
from functools import cache
from math import inf
from pathlib import Path
from typing import Annotated

from pydantic import Field

from optsched.model.domain import domain
from optsched.model.errors import InputError
from optsched.model.objectives import Objective, gap
from optsched.model.result import Badge, Status


class Ended(StrEnum):
    """How an attempt ended.

    ``finished``: with a result. ``overran``: it had to be interrupted or killed after its time limit. ``failed``: it
    ended without a result; the message says why. ``interrupted``: Ctrl-C cut it short, with what there was. ``lost``:
    its process ended without a word, and the trial was tried again. ``imported``: it comes from a folder of documents.
    """

    FINISHED = "finished"
    OVERRAN = "overran"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    LOST = "lost"
    IMPORTED = "imported"


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Point = tuple[Seconds, int | None, int | None]
"""Time since the start in s, incumbent, bound."""


@domain
class Record:
    """One attempt at a trial.

    Parameters
    ----------
    suite, instance, instance_sha256, requests, kappa
        The problem, and what describes it in tables; the suite is the study that the trial is part of.
    objective, method, time_limit_s, workers, seed
        What was asked of which method, its parameters included.
    ended, message
        How the attempt ended, and why if it gave no result.
    status, badge, value, bound
        The result's; without one, what was last reported, and a bound that nothing backs (``heuristic``).
    runtime_s
        The method's own time.
    points
        Incumbent and bound over time, at every improvement.
    versions, commit, machine, date
        How, where and when it was made.
    """

    suite: str
    instance: str
    instance_sha256: str
    requests: Annotated[int, Field(ge=1)]
    kappa: Seconds
    objective: Objective
    method: str
    time_limit_s: Seconds | None
    workers: Annotated[int, Field(ge=1)] | None
    seed: int
    ended: Ended
    message: str | None
    status: Status
    badge: Badge
    value: int | None
    bound: int | None
    runtime_s: Seconds
    points: tuple[Point, ...]
    versions: dict[str, str]
    commit: str
    machine: str
    date: str

    def __post_init__(self) -> None:
        # A record has no schedule and no certificate, so that no checker can say more of one that is read back.
        if self.status == Status.OPTIMAL and (self.value is None or self.value != self.bound):
            raise InputError("bound", self.bound, f"the value {self.value} of an optimum")
        if self.value is None or self.bound is None or self.badge == Badge.HEURISTIC:
            return
        if self.bound > self.value:
            raise InputError("bound", self.bound, f"at most the value {self.value}")

    @property
    def limit_s(self) -> float:
        """The time limit; infinite if there was none."""
        return inf if self.time_limit_s is None else self.time_limit_s

    @property
    def solved_s(self) -> float | None:
        """Seconds to the proved optimum; None if it was not proved within the limit."""
        ended = self.ended in {Ended.FINISHED, Ended.IMPORTED}
        proved = ended and self.status == Status.OPTIMAL and self.runtime_s <= self.limit_s
        return self.runtime_s if proved else None

    @property
    def gap(self) -> float | None:
        """``(value - bound) / value``; None if either is missing or nothing backs the bound."""
        return None if self.badge == Badge.HEURISTIC else gap(self.value, self.bound)


def now() -> str:
    """Return the time, such as 2026-11-21T12:34:56+00:00."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@cache
def machine() -> str:
    """Describe this machine: cores and processor."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    model = re.search(r"^model name\s*: (.+)$", text, flags=re.MULTILINE)
    return f"{cores} cores, {model[1].strip() if model else platform.processor() or platform.machine()}"
