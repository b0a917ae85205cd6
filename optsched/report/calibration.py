"""Calibrated profiles in words: what was fitted, how wrong it is, and where its form fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optsched.calibrate.library import FitError, Part, Profile
from optsched.hardware.compare.requests import RunComparison
from optsched.report.formats import simple_table

_PS_PER_US = 10**6
_PARTS = {part: part.value.replace("_", " ") for part in Part}


def _percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.1f}"


def _error_row(part: str, error: FitError) -> list[str]:
    shares = [error.mape, error.cv_mape, error.worst, error.batch_mape]
    return [part, str(error.rows), f"{error.r2:.4f}", *map(_percent, shares)]


def error_table(profile: Profile, width: int) -> str:
    """Return the errors of a profile's parts."""
    rows = [_error_row(_PARTS[part], error) for part, error in profile.fit.items()]
    headers = ["part", "rows", "R²", "MAPE (%)", "held out (%)", "worst (%)", "of the batch (%)"]
    return simple_table(headers, rows, width)


def profile_report(profile: Profile, width: int) -> str:
    """Return all that a profile says of itself: errors, components with their intervals, checks and notes."""
    parts = [
        f"{profile.name}: {profile.model}\n{profile.hardware}\n",
        error_table(profile, width),
        simple_table(["fitted", "µs", "95 % interval"], list(_components(profile)), width),
        _coefficients(profile),
    ]
    if profile.checks:
        headers = ["pairs", "mean ratio", "1 %", "99 %", "off by (%)", "claim"]
        parts.append(simple_table(headers, list(_checks(profile)), width, left=(5,)))
    parts.append("".join(f"- {note}\n" for note in profile.notes))
    return "\n".join(parts)


def _components(profile: Profile) -> Iterator[list[str]]:
    for name, found in profile.components.items():
        interval = "–" if found.low is None or found.high is None else f"{_us(found.low)} to {_us(found.high)}"
        yield [name, _us(found.value), interval]


def _us(ps: int) -> str:
    return f"{ps / _PS_PER_US:.6g}"


def _coefficients(profile: Profile) -> str:
    cost = profile.cost
    pieces = ", ".join(f"{_us(base)} + {_us(token)} Σc" for base, token in cost.affine)
    return (
        f"batch time (µs) = max({pieces})\n"
        f"  + {_us(cost.decode_kv)} m + {_us(cost.decode_req)} per decode step\n"
        f"  + {_us(cost.prefill_sq)} (c² + 2cm) + {_us(cost.prefill_kv)} m + {_us(cost.prefill_req)} per prefill step\n"
    )


def _checks(profile: Profile) -> Iterator[list[str]]:
    for check in profile.checks:
        ratios = [f"{ratio:.2f}" for ratio in (check.mean, check.low, check.high)]
        yield [str(check.rows), *ratios, _percent(check.mape), check.claim]


def batch_report(error: FitError, source: str, width: int) -> str:
    """Say how far a profile is from whole batches that it was not fitted to."""
    row = [str(error.rows), f"{error.r2:.4f}", _percent(error.mape), _percent(error.worst)]
    return f"Against the whole batches of {source}\n" + simple_table(
        ["batches", "R²", "MAPE (%)", "worst (%)"], [row], width
    )


RUN_HEADERS = (
    "",
    "mean (s)",
    "simulated",
    "p50",
    "simulated",
    "p99",
    "simulated",
    "of the mean (%)",
    "per request (%)",
)
"""Columns of `run_rows`."""


def run_rows(found: RunComparison) -> list[list[str]]:
    """Return how far a simulation is from a measured run, a row for each metric."""
    return [
        [
            name,
            *(f"{value:.4g}" for pair in ((a.measured, a.simulated), a.p50[::-1], a.p99[::-1]) for value in pair),
            f"{100 * a.of_mean:+.1f}",
            f"{100 * a.per_request:.1f}",
        ]
        for name, a in found.agreement.items()
    ]


def run_report(found: RunComparison, policy: str, source: str, width: int) -> str:
    """Say how far a simulation is from a measured run."""
    simulated, measured = found.makespan
    return (
        f"Against the requests of {source}, served by {policy}\n"
        + simple_table(list(RUN_HEADERS), run_rows(found), width)
        + f"last token after {measured:.2f} s, simulated {simulated:.2f} s; {found.batches} batches; at most "
        f"{found.peak_kv_tokens:,} KV tokens held\n"
    )


def profile_list(profiles: Sequence[Profile], width: int) -> str:
    """Return a table of profiles: hardware, model, mean errors, and where the measurements come from."""
    rows = []
    for profile in profiles:
        errors = ", ".join(f"{_PARTS[part]} {_percent(error.mape)}" for part, error in profile.fit.items())
        origins = dict.fromkeys(source.repository or source.file for source in profile.sources)
        rows.append([profile.name, profile.hardware, profile.model, errors, ", ".join(origins)])
    return simple_table(["profile", "hardware", "model", "MAPE (%)", "source"], rows, width, left=(0, 1, 2, 3, 4))
