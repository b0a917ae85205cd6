"""Preble (Srivatsa et al.): its study of workloads.

Its policies place prefixes on several GPUs. One machine without a prefix cache can produce the study of Azure's traces
(section 3.6) on the published rows, of the code trace the first two thirds; the ratios of its workloads (section 3),
whose lengths are drawn from the means and deviations of Table 1, so that these rows say whether the paper's numbers
agree with each other; and the shape of prefill times (Figure 1), on Llama-2-7B on one A100 (paper: Mistral 7B on an
A6000). A number counts as met within 10 %, one that is "approximately" within 20 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import numpy as np

from optsched.traces.sources import read_rows
from optsched.traces.workloads import draw_workload
from papers.finding import Finding
from papers.infermax import determination
from papers.serving import COST, SEEDS

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "azure_llm_2023"
"""Azure's traces."""

_MEDIAN = "The paper's number is near the median of the published rows, and not their mean (the next row)."
_BUSY = "Over the seconds in which any request arrives it is 10, their median 8 (the next rows); over all it is 3."
_LONGEST = (
    "We find no statistic of the published rows with this number: the mean of these is 47, that of the fifth with the "
    "largest ratios 49 (the next row)."
)
_ROUNDED = "Table 1 rounds mean outputs to whole tokens."


@dataclass(frozen=True)
class Usage:
    """A trace of Azure's.

    Parameters
    ----------
    gaps
        Between arrivals, in ms.
    seconds
        How many arrive in each second.
    inputs, ratios
        Prompt of each request, and how many times its output it is.
    """

    gaps: tuple[float, ...]
    seconds: tuple[int, ...]
    inputs: tuple[int, ...]
    ratios: tuple[float, ...]


def usage(file: str) -> Usage:
    """Read a trace."""
    rows = read_rows(str(DATA / file), "azure").rows
    times = sorted(row.arrival_ps for row in rows)
    gaps = tuple((after - before) / 1e9 for before, after in pairwise(times))
    seconds = np.bincount([(time - times[0]) // 10**12 for time in times])
    return Usage(
        gaps,
        tuple(int(count) for count in seconds),
        tuple(row.input for row in rows),
        tuple(row.input / row.output for row in rows),
    )


def near(claim: str, source: str, number: float, values: tuple[float, ...], cause: str, share: float = 0.1) -> Finding:
    """Return a finding that agrees if it is near the paper's number."""
    return Finding(claim, source, f"{number:g}", values, (1 - share) * number, (1 + share) * number, cause)


def findings() -> Iterator[Finding]:
    """Go through the paper."""
    yield from in_the_wild()
    yield from workloads()
    yield from prefills()


def in_the_wild() -> Iterator[Finding]:
    """Section 3.6."""
    source = "section 3.6"
    chat, code = usage("AzureLLMInferenceTrace_conv.csv"), usage("AzureLLMInferenceTrace_code_rows1-5879.csv")
    for name, trace, rate, gap, ratio in (("conversations", chat, 5, 118, 4), ("code", code, 7, 63, 92)):
        arriving = mean(trace.seconds)
        yield near(f"Azure's {name}: requests/s", source, rate, (arriving,), _BUSY, 0.2)
        busy = [count for count in trace.seconds if count]
        for label, value in (("mean", mean(busy)), ("median", median(busy))):
            claim = f"Azure's {name}: requests/s, {label} of the seconds in which any arrives"
            yield Finding(claim, source, "not reported", (value,))
        for what, values, number in (
            ("ms between arrivals", trace.gaps, gap),
            ("prompt, times the output", trace.ratios, ratio),
        ):
            yield near(f"Azure's {name}: {what}, mean", source, number, (mean(values),), _MEDIAN)
            yield Finding(f"Azure's {name}: {what}, median", source, "not reported", (median(values),))
    most = len(chat.inputs) // 5
    long = sorted(zip(chat.inputs, chat.ratios, strict=True))[-most:]
    claim = "Azure's conversations: prompt, times the output, mean of the longest fifth of the prompts"
    yield near(claim, source, 175, (mean(ratio for _, ratio in long),), _LONGEST)
    claim = "Azure's conversations: prompt, times the output, mean of the fifth with the largest"
    yield Finding(claim, source, "not reported", (mean(sorted(chat.ratios)[-most:]),))


def workloads() -> Iterator[Finding]:
    """Section 3, Table 1."""
    for name, label, number in (
        ("toolbench", "Toolbench", 43),
        ("embodied-agent", "Embodied Agent", 157),
        ("programming", "Programming", 20),
        ("video-qa", "Video QA", 2494),
    ):
        values = []
        for seed in SEEDS:
            rows = draw_workload(f"preble-{name}", 20_000, seed).rows
            values.append(mean(row.input for row in rows) / mean(row.output for row in rows))
        claim = f"{label}: mean prompt, times the mean output"
        yield near(claim, "section 3, Table 1", number, tuple(values), _ROUNDED)


def prefills() -> Iterator[Finding]:
    """Section 2.1, Figure 1: the time of one prompt alone."""
    lengths = np.arange(512, 8193, 512)
    times = np.array([COST.batch_ps(int(tokens), 0, 0, [(int(tokens), 0)]) for tokens in lengths], dtype=float)
    claim = "R² of a prompt's prefill time, affine in its length, 512 to 8,192 tokens"
    yield Finding(claim, "Figure 1", "overall linear", (determination(lengths.astype(float), times),), 0.98)
    share = COST.linear_ps(8192) / times[-1]
    claim = "Share of the linear layers in the prefill time of 8,192 tokens"
    yield Finding(claim, "Figure 1", "dominates", (float(share),), 0.5)
