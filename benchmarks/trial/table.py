"""The tables of what was tried, and of planted faults, in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tabulate import tabulate

from trial.faults import Fault, Verdict
from trial.store import Done

_FINDINGS = ("false", "traceback", "slow", "unproved")


def trial_table(done: Mapping[str, Done], today: str) -> str:
    """Return what was tried of every kind, and what was found."""
    counts = Counter[str]()
    for entry in done.values():
        counts.update(entry.counts)
    seconds = sum(entry.seconds for entry in done.values())
    parts = [
        _paragraph(counts, seconds, today),
        _table(counts, "optima", "formulation", ("tried", "proved")),
        _table(counts, "alike", "formulation, more requests alike", ("tried", "proved")),
        _table(counts, "bounds", "bound", ("tried", "tight")),
        _table(counts, "many", "bound, 64 requests and more", ("tried",)),
        _table(counts, "certificates", "kind of certificate", ("tried", "accepted", "tight")),
        _table(counts, "malformed", "kind, malformed", ("tried", "accepted")),
        _table(counts, "documents", "documents", ("tried", "read", "accepted", "bounds verified")),
        _table(counts, "climbed", "climbed", ("steps",)),
    ]
    return "\n\n".join(parts)


def total(counts: Counter[str], sort: str, what: str = "tried") -> int:
    """Return how many of a sort there are in all."""
    return sum(number for name, number in counts.items() if name.startswith(f"{sort}/") and name.endswith(f"/{what}"))


def _paragraph(counts: Counter[str], seconds: float, today: str) -> str:
    found = {name: sum(number for key, number in counts.items() if key.startswith(f"{name}/")) for name in _FINDINGS}
    text = (
        f"{total(counts, 'optima'):,} optima, {total(counts, 'bounds') + total(counts, 'many'):,} bounds, "
        f"{total(counts, 'certificates') + total(counts, 'malformed'):,} certificates and "
        f"{total(counts, 'documents'):,} documents in {seconds / 60:.0f} CPU-minutes, {today}: "
        f"{found['false']} false claims, {found['traceback']} tracebacks, {found['slow']} calls that took too long, "
        f"{found['unproved']} bounds that their own certificate does not prove."
    )
    where = sorted(f"{key} ({number})" for key, number in counts.items() if key.split("/")[0] in _FINDINGS)
    return text + (f"\n\nFound: {'; '.join(where)}." if where else "")


def _table(counts: Counter[str], sort: str, title: str, columns: Sequence[str]) -> str:
    """Return a table of what is counted as ``sort/name/column``."""
    names = sorted({key.split("/")[1] for key in counts if key.startswith(f"{sort}/")})
    rows = [[name, *(counts[f"{sort}/{name}/{column}"] for column in columns)] for name in names]
    return tabulate(rows, (title, *columns), tablefmt="github", intfmt=",")


def faults_table(verdicts: Sequence[tuple[Fault, Verdict]]) -> str:
    """Return which planted faults were found."""
    found = sum(verdict.found for _, verdict in verdicts)
    rows = [
        [fault.kind, fault.what, fault.file, f"{verdict.seconds:.0f} s" if verdict.found else "not found"]
        for fault, verdict in verdicts
    ]
    table = tabulate(rows, ("kind", "what is wrong", "file", "found after"), tablefmt="github")
    return f"**Planted faults**\n\n{found} of {len(verdicts)} were found.\n\n{table}"
