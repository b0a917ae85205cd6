"""Formats of measurements, one reader each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from optsched.calibrate.llmservingsim import read_llmservingsim
from optsched.calibrate.measurements import read_measurements
from optsched.calibrate.splitwise import read_splitwise
from optsched.calibrate.times import read_times
from optsched.calibrate.timings import Measurements, SourceOptions
from optsched.calibrate.vidur import read_vidur

READERS: Mapping[str, Callable[[str, SourceOptions], Measurements]] = MappingProxyType(
    {
        "measurements": read_measurements,
        "vidur": read_vidur,
        "llmservingsim": read_llmservingsim,
        "splitwise": read_splitwise,
        "times": read_times,
    }
)
"""Format → what reads a source of it."""
