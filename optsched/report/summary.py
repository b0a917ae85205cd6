"""Results in words and small tables, for the terminal."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from optsched.model.errors import printable
from optsched.model.instance import Instance, Request
from optsched.model.objectives import Objective, gap
from optsched.model.restrictions import Restrictions
from optsched.model.result import Badge, Result, Status
from optsched.report.formats import columns_text, simple_table
from optsched.report.sheet import AT_MOST, NOT_AVAILABLE, Cell, Column, Sheet

if TYPE_CHECKING:
    from optsched.methods.bound import BoundRun
    from optsched.simulator.routed import DecisionRecord

_BADGES = MappingProxyType(
    {
        Badge.CERTIFIED: "certified: optsched check recomputes it",
        Badge.SOLVER_CLAIMED: "claimed by the solver",
        Badge.HEURISTIC: "none proved",
    }
)


def class_texts(restrictions: Restrictions) -> list[str]:
    """Describe a class of schedules, a phrase for each restriction."""
    texts = [f"no {name}" for name in restrictions.forbid]
    if restrictions.max_evictions is not None:
        texts.append(f"at most {restrictions.max_evictions} evictions")
    if restrictions.max_batch is not None:
        texts.append(f"at most {restrictions.max_batch} runs in a batch")
    if restrictions.order:
        texts.append(f"first runs in the order {', '.join(map(str, restrictions.order))}")
    if restrictions.at_most is not None:
        texts.append(f"value at most {restrictions.at_most}")
    return texts


def objective_text(objective: Objective, requests: Sequence[Request], value: int | None) -> str:
    """Write an objective value with its unit: ms, means over ``requests`` as means."""
    if value is None:
        return "–"
    if objective == Objective.SLO_MISSES:
        return f"{value} requests"
    return f"{value / objective.mean_count(requests) / 1e9:.3f} ms"


def solution_lines(result: Result) -> list[str]:
    """Describe a solver's result."""
    lines = _opening(result)
    if result.value is not None:
        lines.append(f"  value  {_shown(result, result.value)}{_by(result, 'schedule')}")
    lines += [*_bound_line(result), *_gap_line(result.gap)]
    if result.metrics is not None:
        lines.append(f"  {result.metrics['batches']} batches, {result.metrics['evictions']} evictions" + _swaps(result))
    if result.message is not None:
        lines.append(f"  {printable(result.message)}")
    return lines


def _swaps(result: Result) -> str:
    """Say how often KV is swapped out, where that is allowed."""
    swaps = (result.metrics or {}).get("swaps")
    return "" if swaps is None else f", {swaps} swaps"


def bound_text(result: Result, runs: Sequence[BoundRun], known: int | None, width: int, *, every: bool) -> str:
    """Describe bounds: the best one, or every one, and the gap of the best known value."""
    lines = [*_opening(result), *_bound_line(result)]
    if known is not None:
        lines += [f"  value  {_shown(result, known)}, the best known (ledger)", *_gap_line(gap(known, result.bound))]
    if result.message is not None:
        lines.append(f"  {printable(result.message)}")
    text = "\n".join(lines) + "\n"
    if not every or not runs:
        return text
    rows = [
        [
            run.name,
            "–" if run.bound is None else _shown(result, run.bound.value),
            f"{run.runtime_s:.2f}",
            "–" if run.bound is None else _shortened(run.bound.certificate),
        ]
        for run in runs
    ]
    return f"{text}\n{simple_table(['bound', 'value', 'time (s)', 'certificate'], rows, width, left=(0, 3))}"


def _opening(result: Result) -> list[str]:
    """Say what was asked, and how it ended."""
    lines = [f"{result.instance.name}: {result.objective.value}, {result.status.value} ({result.runtime_s:.2f} s)"]
    class_ = class_texts(result.restrictions)
    return [*lines, f"  class  {'; '.join(class_)}"] if class_ else lines


def _shown(result: Result, value: int) -> str:
    return objective_text(result.objective, result.instance.requests, value)


def _bound_line(result: Result) -> list[str]:
    if result.bound is None:
        return []
    return [f"  bound  {_shown(result, result.bound)}{_by(result, 'bound')}, {_BADGES[result.badge]}"]


def _gap_line(found: float | None) -> list[str]:
    """Say the gap between a value and a bound; the gap to the optimum, which lies between them, is at most that."""
    return [] if found is None else [f"  gap    {AT_MOST if found else ''}{100 * found:.2f} %"]


def _shortened(certificate: Mapping[str, Any]) -> str:
    """Show a certificate in a few words."""
    return ", ".join(f"{name} {reprlib.repr(part)}" for name, part in certificate.items())


def _by(result: Result, part: str) -> str:
    return f"  ({result.found_by[part]})" if part in result.found_by else ""


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e9:.2f}"


_COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("makespan\n(ms)", lambda m: _ms(m["objectives"]["makespan"])),
    ("batches", lambda m: str(m["batches"])),
    ("evict", lambda m: str(m["evictions"])),
    ("recomp.\ntokens", lambda m: str(m["recomputed_tokens"])),
    ("TTFT ms\nmean", lambda m: _ms(m["ttft_ps"]["mean"])),
    ("TTFT ms\np99", lambda m: _ms(m["ttft_ps"]["p99"])),
    ("TPOT ms\nmean", lambda m: _ms(m["tpot_ps"] and m["tpot_ps"]["mean"])),
    ("e2e ms\nmean", lambda m: _ms(m["e2e_ps"]["mean"])),
    ("e2e ms\np99", lambda m: _ms(m["e2e_ps"]["p99"])),
    ("tokens\nper s", lambda m: "–" if m["output_tokens_per_s"] is None else f"{m['output_tokens_per_s']:.0f}"),
    ("KV\n(%)", lambda m: "–" if m["kv_utilisation"] is None else f"{100 * m['kv_utilisation']:.0f}"),
)


_SWAPS: tuple[str, Callable[[dict[str, Any]], str]] = ("swap", lambda m: str(m["swaps"]))
"""Where the instance allows them, after the evictions."""


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}"


_OF_CLUSTERS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    *_COLUMNS[:10],
    ("hits\n(% tok.)", lambda m: _percent(m["hit_rate"])),
    ("hits\n(% time)", lambda m: _percent(m["hit_time_rate"])),
    ("load max\n/ mean", lambda m: "–" if m["imbalance"] is None else f"{m['imbalance']:.2f}"),
    ("moves", lambda m: str(m["moves"])),
    ("moved\ntokens", lambda m: str(m["moved_tokens"])),
)
"""Of several machines, or one with a cache. Hits are a share of the prompt tokens, found or run, and of batch time."""

_MOVED: tuple[str, Callable[[dict[str, Any]], str]] = ("moved\n(MB)", lambda m: f"{m['moved_bytes'] / 1e6:.1f}")
"""Where the instance says how many bytes a KV token has."""

_OF_DECISIONS: tuple[tuple[str, Callable[[DecisionRecord], str]], ...] = (
    ("decisions\nper s", lambda record: "–" if record.per_second is None else f"{record.per_second:.0f}"),
    ("regret ms\nmean", lambda record: _ms(record.mean_regret_ps)),
    ("regret ms\nmax", lambda record: _ms(record.max_regret_ps)),
    ("no regret\n(%)", lambda record: _percent(record.best_share)),
)


def policy_columns(instance: Instance, recorded: bool = False) -> set[str]:
    """Return every name that a column of a `policy_sheet` of an instance can have, by its header or for machines.

    With ``recorded`` decisions of routers are among them.
    """
    headers = ["router", "evictor", "policy", *(header for header, _ in _metrics_of(instance))]
    headers += [header for header, _ in _OF_DECISIONS] if recorded else []
    return {name for header in headers for name in (" ".join(header.split()), _for_machines(header))}


def _metrics_of(instance: Instance) -> Sequence[tuple[str, Callable[[dict[str, Any]], str]]]:
    if instance.is_cluster:
        return (*_OF_CLUSTERS, *([] if instance.links.kv_bytes is None else [_MOVED]))
    return (*_COLUMNS[:3], *([_SWAPS] if instance.rules.swap else []), *_COLUMNS[3:])


def _for_machines(header: str) -> str:
    return "_".join(header.lower().replace("(", "").replace(")", "").split())


def policy_sheet(results: Sequence[Result], records: Sequence[DecisionRecord] = ()) -> Sheet:
    """Compare policies on one instance, as a sheet; failures are below, each with its reason.

    Parameters
    ----------
    results
        What the policies do.
    records
        The decisions of the routers of each, if they were recorded.
    """

    def column(header: str, cells: Iterable[str], key: bool = False) -> Column:
        return Column(header, _for_machines(header), tuple(Cell(text, text) for text in cells), key=key, left=key)

    columns = [
        # One that crashed has none, nor has one that routes by itself.
        column(option, [result.options.get(option, NOT_AVAILABLE) for result in results], key=True)
        for option in ("router", "evictor")
        if any(option in result.options for result in results)
    ]
    columns.append(column("policy", [result.method for result in results], key=True))
    columns += [
        column(header, [NOT_AVAILABLE if result.metrics is None else show(result.metrics) for result in results])
        for header, show in _metrics_of(results[0].instance)
    ]
    if records:
        columns += [column(header, [show(record) for record in records]) for header, show in _OF_DECISIONS]
    failures = (f"n/a: {printable(result.message or '')}" for result in results if result.status == Status.FAILED)
    return Sheet(results[0].instance.name, "", tuple(columns), tuple(failures))


def policy_comparison(results: Sequence[Result], width: int, records: Sequence[DecisionRecord] = ()) -> str:
    """Return a `policy_sheet` for the terminal."""
    sheet = policy_sheet(results, records)
    failures = "".join(f"{note}\n" for note in sheet.notes)
    return f"{sheet.title}\n\n{columns_text(sheet.columns, width)}" + (f"\n{failures}" if failures else "")
