"""The commands: read the arguments, call the package, print."""

from __future__ import annotations

import datetime
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import click

from optsched import library
from optsched.calibrate.library import find_profile
from optsched.check import check_result
from optsched.cli.completion import complete_profiles, complete_suites
from optsched.cli.group import cli
from optsched.cli.layout import CSV as CSV_TABLE
from optsched.cli.layout import DEFAULT_LAYOUT, TEXT, Layout, layout_options
from optsched.cli.live import LiveLine
from optsched.cli.options import (
    arrivals_option,
    blaming,
    cache_option,
    decision_options,
    decisions_option,
    deterministic_limit_option,
    fraction_option,
    history_option,
    instance_argument,
    integer_option,
    json_option,
    ledger_option,
    limit_option,
    load_option,
    machines_option,
    method_option,
    naming_options,
    objective_option,
    on_profile,
    out_option,
    policies_option,
    profile_option,
    read_evictors,
    read_objective,
    read_policies,
    read_routers,
    read_turns,
    refuse_options,
    requests_option,
    require_method,
    restriction_options,
    results_option,
    router_option,
    seed_option,
    start_option,
    suite_argument,
    time_limit_option,
    timeline_option,
    token_option,
    workers_option,
    write_out,
)
from optsched.cli.step_bar import Line
from optsched.cli.stores import results_store
from optsched.cli.types import FILE, OneOf
from optsched.methods.bound import ALL, BEST, BoundRun, best_bound, bound_names
from optsched.methods.checked import DefectFoundError
from optsched.methods.export import MODELS, export_model
from optsched.methods.formulations import require_options
from optsched.methods.solve import solve as run_solver
from optsched.methods.solve import was_interrupted
from optsched.model.cluster import CacheMode, CacheRules
from optsched.model.cost import CostModel
from optsched.model.documents import (
    Suite,
    dump,
    instance_document,
    instance_sha256,
    result_document,
    suite_document,
    write_text,
)
from optsched.model.domain import MAX_PS, MAX_TOKENS, replace
from optsched.model.errors import (
    DefectError,
    InfeasibleInstanceError,
    InputError,
    Said,
    did_you_mean,
    one_of,
    printable,
)
from optsched.model.feasibility import infeasibility
from optsched.model.instance import Instance, Limits, Rules
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Result, Status
from optsched.report.decisions import decision_rates, decisions_csv
from optsched.report.formats import FORMATS, as_text, simple_table
from optsched.report.requests import requests_csv
from optsched.report.results_csv import results_csv
from optsched.report.sheet import Sheet, make_sheet
from optsched.report.summary import (
    bound_text,
    objective_text,
    policy_columns,
    policy_comparison,
    policy_sheet,
    solution_lines,
)
from optsched.report.timeline import timeline_csv
from optsched.simulator.routed import DecisionRecord
from optsched.solvers.formulation import ModelFormat
from optsched.solvers.history import History
from optsched.study import ledger as ledgers
from optsched.study.bound_table import Row, TableTask, finish, table_rows
from optsched.study.ledger import Ledger
from optsched.study.setups import shaped
from optsched.study.simulations import simulate_each
from optsched.traces.arrivals import PROCESSES, process_forms, read_process
from optsched.traces.families import Family, Generator
from optsched.traces.infermax import GROUPS
from optsched.traces.own_table import ISO, UNITS, read_form
from optsched.traces.sources import CSV, PREFIXED, SERVEGEN, SOURCES, read_prefixed_rows, read_rows
from optsched.traces.suites import SUITES
from optsched.traces.summary import summarise
from optsched.traces.trace import DEFAULT_LIMITS, READERS, Trace, make_trace, trace_instance, with_deadlines

_WIDE = 120
"""Columns of a table that is not printed to a terminal."""
_MOST_BAD = 20
"""Maximum number of rejected rows that are named one by one."""


def terminal_width() -> int:
    """Return the columns that a table may have: those of the terminal, or what COLUMNS says."""
    told = sys.stdout.isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size((_WIDE, 24)).columns if told else _WIDE


@cli.command()
@instance_argument
@objective_option
@profile_option
@method_option
@click.option("--solver", metavar="NAME", help="Solver, for a method that has a choice (infermax_milp).")
@click.option(
    "--export",
    type=OneOf(tuple(ModelFormat)),
    metavar="FORMAT",
    help=f"Write the method's model ({' or '.join(ModelFormat)}) to --out or standard output instead of solving it; "
    f"also of {', '.join(MODELS)}.",
)
@time_limit_option
@deterministic_limit_option
@decision_options
@workers_option
@seed_option
@out_option
@history_option
@json_option
def solve(
    instance: str,
    objective: str,
    profile: str | None,
    method: str,
    solver: str | None,
    export: str | None,
    time_limit: float,
    deterministic_limit: float | None,
    restrictions: Restrictions,
    workers: int | None,
    seed: int,
    out: str | None,
    history: str | None,
    as_json: bool,
) -> None:
    """Find the best schedule and a proved bound on it."""
    if export is None or method not in MODELS:
        require_method(method)
    goal = read_objective(objective)
    if export is not None:
        write_out(out, _model_text(instance, profile, goal, method, export, restrictions, seed))
        return
    options = {} if solver is None else {"solver": solver}
    with naming_options():
        require_options(method, options)
    problem = on_profile(library.load_instance(instance), profile)
    events = History()
    defect = None
    with LiveLine(problem.name, goal) as live, blaming(source=instance), naming_options():
        try:
            result = run_solver(
                problem,
                goal,
                method=method,
                options=options,
                time_limit=time_limit,
                deterministic_limit=deterministic_limit,
                restrictions=restrictions,
                workers=workers,
                seed=seed,
                progress=events.then(live.watch(problem)),
            )
        except DefectFoundError as found:
            defect, result = found, found.result
    if history is not None:
        events.end(result)
        with blaming("--history"):
            write_text(history, events.csv())
    _deliver([result], out, as_json, "\n".join(solution_lines(result)) + "\n")
    if defect is not None:
        raise defect
    if result.status == Status.INFEASIBLE:
        raise InfeasibleInstanceError((result.message or problem.name,))
    if was_interrupted(result):
        raise KeyboardInterrupt
    _warn(result)


def _warn(result: Result) -> None:
    """Print a result's message on stderr, such as the methods whose code raised."""
    if result.message is not None:
        click.echo(printable(f"optsched: {result.instance.name}: {result.message}"), err=True)


_OF_A_SEARCH = ("solver", "time_limit", "deterministic_limit", "workers", "history", "as_json")
"""Parameters of `solve` that do not shape the model."""


def _model_text(
    source: str,
    profile: str | None,
    objective: Objective,
    method: str,
    style: str,
    restrictions: Restrictions,
    seed: int,
) -> str:
    """Return what ``--export`` asks for."""
    refuse_options("--export", _OF_A_SEARCH, "only options that shape the model: it is written, not solved")
    problem = on_profile(library.load_instance(source), profile)
    with blaming(source=source), naming_options():
        return export_model(problem, objective, method=method, style=style, restrictions=restrictions, seed=seed)


@cli.command()
@instance_argument
@objective_option
@profile_option
@click.option(
    "--method",
    type=OneOf(bound_names()),
    default=BEST,
    show_default=True,
    metavar="NAME",
    help=f"One of {', '.join(bound_names())}.",
)
@restriction_options
@ledger_option
@out_option
@json_option
def bound(
    instance: str,
    objective: str,
    profile: str | None,
    method: str,
    restrictions: Restrictions,
    ledger: str | None,
    out: str | None,
    as_json: bool,
) -> None:
    """Prove a lower bound alone, at any size."""
    goal = read_objective(objective)
    problem = on_profile(library.load_instance(instance), profile)
    known = ledgers.shipped()
    if ledger is not None:
        with blaming("--ledger"):
            known = Ledger([*known.rows, *ledgers.read_if_there(Path(ledger)).rows])
    defect: DefectFoundError | None = None
    runs: list[BoundRun] = []
    with blaming(source=instance), naming_options():
        try:
            result, runs = best_bound(problem, goal, restrictions, method)
        except DefectFoundError as found:
            defect, result = found, found.result
    value = known.best(instance_sha256(problem), goal, restrictions).value
    refuted = value is not None and result.bound is not None and result.bound > value
    best = None if refuted else value
    _deliver([result], out, as_json, bound_text(result, runs, best, terminal_width(), every=method == ALL))
    if defect is not None:
        raise defect
    if refuted:
        claim = f"a ledger has the value {value}, below the bound {result.bound}, which the checker proves"
        raise DefectError(f"{problem.name}: {claim}")
    if ledger is not None:
        with blaming("--ledger"):
            ledgers.record(Path(ledger), [result], datetime.datetime.now(datetime.UTC).date())
    if result.status == Status.INFEASIBLE:
        raise InfeasibleInstanceError((result.message or problem.name,))
    if any(run.failure is not None for run in runs):
        _warn(result)


@cli.command()
@instance_argument
@policies_option()
@router_option
@machines_option
@cache_option
@objective_option
@profile_option
@restriction_options
@click.option(
    "--predictor", metavar="SPEC", help="Predictor of output lengths: truth, gaussian:25, … (docs/policies.md)."
)
@workers_option
@seed_option
@out_option
@timeline_option
@requests_option
@decisions_option
@layout_options
@json_option
def simulate(
    instance: str,
    policies: tuple[str, ...],
    routers: tuple[str, ...],
    machines: int | None,
    caches: tuple[str, ...],
    objective: str,
    profile: str | None,
    restrictions: Restrictions,
    predictor: str | None,
    workers: int | None,
    seed: int,
    out: str | None,
    timeline: str | None,
    requests: str | None,
    decisions: str | None,
    layout: Layout,
    as_json: bool,
) -> None:
    """Run policies on the cost-model simulator; INSTANCE may also be a suite.

    Of several routers, policies or caches each is run with each of the others.
    """
    tables_out = {"--timeline": timeline, "--requests": requests, "--decisions": decisions}
    to_stdout = [option for option, file in tables_out.items() if file == "-"]
    if to_stdout and (as_json or out == "-" or len(to_stdout) > 1):
        other = "the result document" if as_json or out == "-" else to_stdout[0]
        raise InputError(to_stdout[-1], "-", f"a file, as {other} goes to standard output")
    names, goal = read_policies(policies), read_objective(objective)
    given, evictors = read_routers(routers), read_evictors(caches)
    loaded = (on_profile(problem, profile) for problem in library.load_instances(instance))
    problems = [_shaped(problem, machines, caches) for problem in loaded]
    for problem in problems:
        layout.require(policy_columns(problem, recorded=decisions is not None))
    results: list[Result] = []
    tables: list[str] = []
    records: list[DecisionRecord] = []
    processes = workers or os.cpu_count() or 1
    setups = len(given) * len(names) * len(evictors)
    with Line(instance, len(problems) * setups) as live, blaming(source=instance), naming_options():
        runs = simulate_each(
            problems,
            names,
            goal,
            restrictions=restrictions,
            predictor=predictor,
            routers=given,
            evictors=evictors,
            seed=seed,
            workers=processes,
            schedules=as_json or any(file is not None for file in (out, timeline, requests)),
            records=None if decisions is None else records,
        )
        for result in runs:
            results.append(result)
            live.advance()
            if len(results) % setups == 0:
                tables.append(_policy_table(results[-setups:], layout, records[-setups:]))
    if timeline is not None:
        with blaming("--timeline"):
            write_text(timeline, timeline_csv(results))
    if requests is not None:
        with blaming("--requests"):
            write_text(requests, requests_csv(results))
    if decisions is not None:
        recorded = list(zip(results, records, strict=True))
        with blaming("--decisions"):
            write_text(decisions, decisions_csv(recorded))
        click.echo(decision_rates(recorded), err=True, nl=False)
    text = results_csv(results) if layout.style == CSV_TABLE else "\n".join(tables)
    _deliver(results, out, as_json, "" if to_stdout else text)


def _shaped(instance: Instance, machines: int | None, caches: Sequence[str]) -> Instance:
    """Return an instance with ``machines`` equal machines, which cache all blocks if evictors need some cache."""
    return shaped(instance, machines, CacheMode.ALL if caches and not instance.is_cached else None)


def _policy_table(results: Sequence[Result], layout: Layout, records: Sequence[DecisionRecord]) -> str:
    """Compare policies on one instance as ``--format`` says; of CSV there is one table of all instances."""
    if layout.style == CSV_TABLE:
        return ""
    if layout == DEFAULT_LAYOUT:
        return policy_comparison(results, terminal_width(), records)
    return layout.render(policy_sheet(results, records), terminal_width())


def _deliver(results: list[Result], out: str | None, as_json: bool, text: str) -> None:
    """Write the documents to --out if given, else print the text; print it too where --out cannot be written."""
    failure: InputError | None = None
    if as_json or out is not None:
        documents = [result_document(result) for result in results]
        document = dump(documents[0] if len(documents) == 1 else documents)
        if out is not None:
            try:
                write_out(out, document)
            except InputError as error:
                failure = error
        if as_json and out != "-":
            click.echo(document, nl=False)
    if not as_json and out != "-":
        click.echo(text, nl=False)
    if failure is not None:
        raise failure


@cli.command()
@click.argument("source", type=FILE)
@click.option(
    "--format",
    "style",
    type=OneOf(tuple(SOURCES)),
    default="azure",
    show_default=True,
    metavar="FORMAT",
    help=f"One of {', '.join(SOURCES)}.",
)
@click.option(
    "--columns",
    metavar="FIELDS",
    help="Of csv: arrival=NAME,input=NAME,output=NAME,predicted=NAME.  [default: columns of these names]",
)
@click.option("--unit", type=OneOf((*UNITS, ISO)), help="Of csv; iso for dates.  [default: s]")
@limit_option
@arrivals_option
@load_option
@start_option
@seed_option
@click.option(
    "--profile",
    default="a100-llama2-7b",
    show_default=True,
    metavar="PROFILE",
    shell_complete=complete_profiles,
    help="The cost profile: a name, or a .json file.",
)
@token_option("--kv-tokens", DEFAULT_LIMITS.kv_tokens, "M, the KV cache.")
@token_option("--batch-tokens", DEFAULT_LIMITS.batch_tokens, "C, the token budget of a batch.")
@token_option("--prefill-tokens", DEFAULT_LIMITS.prefill_tokens, "P, the prefill tokens of a batch.")
@integer_option("--batch-requests", 1, MAX_TOKENS, None, "N, the requests of a batch.  [default: no limit]")
@integer_option("--kv-block", 1, MAX_TOKENS, 1, "b, the tokens of a KV block.")
@click.option(
    "--swap",
    metavar="PS",
    help="Allow swapping KV to the host: ps per token that the link moves in either direction, or `profile` for the "
    "profile's times.",
)
@fraction_option(
    "--slo-scale",
    "Give each request a deadline for its e2e latency: this multiple of its time alone (docs/traces.md).",
)
@click.option("--name", help="Name of the instance.  [default: the source's name]")
@click.option(
    "--prefixes",
    type=OneOf([mode.value for mode in CacheMode]),
    metavar="MODE",
    help=f"Keep the prefixes that requests share ({', '.join(PREFIXED)}): machines cache none, the blocks of prefixes "
    "(prefix), or all.",
)
@click.option(
    "--turns",
    default="4,30",
    show_default=True,
    metavar="MEAN,SECONDS",
    help="Of sharegpt with prefixes: mean turns of the conversations that are made, and mean time between two.",
)
@machines_option
@out_option
def trace(
    source: str,
    style: str,
    columns: str | None,
    unit: str | None,
    limit: int | None,
    arrivals: str | None,
    load: Fraction | None,
    start: int,
    seed: int,
    profile: str,
    kv_tokens: int,
    batch_tokens: int,
    prefill_tokens: int,
    batch_requests: int | None,
    kv_block: int,
    swap: str | None,
    slo_scale: Fraction | None,
    name: str | None,
    prefixes: str | None,
    turns: str,
    machines: int | None,
    out: str | None,
) -> None:
    """Make an instance of a request trace; rejected rows are named on stderr with the reason.

    SOURCE is the trace's file; with --format servegen a folder of client files, with --format workload the name of a
    paper's workload (docs/traces.md), of which --limit requests are drawn.
    """
    if style != SERVEGEN:
        refuse_options("--format", ("start",), f"{SERVEGEN} with --start")
    if style != CSV:
        refuse_options("--format", ("columns", "unit"), f"{CSV} with --columns and --unit")
    if prefixes is None or style != "sharegpt":
        refuse_options("--prefixes" if style == "sharegpt" else "--format", ("turns",), "sharegpt with --prefixes")
    if prefixes is not None and style not in PREFIXED:
        raise InputError(
            "--prefixes", Said(f"--format {style}"), f"a format of which prefixes are known: {', '.join(PREFIXED)}"
        )
    with naming_options():
        form, talks = read_form(columns, unit or "s"), read_turns(turns)
        cost = find_profile(profile).cost
        if swap is not None:
            cost = _swapping(cost, swap)
        limits = Limits(kv_tokens, batch_tokens, prefill_tokens, batch_requests, kv_block)
        starts, replayed = (None, None) if arrivals is None else _arrival_times(arrivals, seed)
    with blaming(source=source), naming_options():
        if prefixes is None:
            rows = read_rows(source, style, limit, start, seed, form=form)
        else:
            rows = read_prefixed_rows(source, style, limit, seed, talks)
        found = make_trace(rows, limit, starts)
        cache = CacheRules(CacheMode(prefixes or "none"))
        called = name or Path(source).name.partition(".")[0] or "trace"
        instance = trace_instance(found, called, cost, limits, load, cache=cache)
        if swap is not None:
            instance = replace(instance, rules=Rules(swap=True))
        if slo_scale is not None:
            instance = with_deadlines(instance, slo_scale)
        instance = shaped(instance, machines)
    if replayed is not None:
        _report_bad(*replayed)
    _report_bad(source, found)
    if style == CSV or sys.stderr.isatty():
        numbers = style == CSV and form.unit != ISO and arrivals is None
        for line in summarise(instance, rows if numbers else None).lines():
            click.echo(printable(line), err=True)
    write_out(out, dump(instance_document(instance)))


def _swapping(cost: CostModel, given: str) -> CostModel:
    """Return what ``--swap`` asks for: the cost model with times of the link."""
    if given == "profile":
        if not cost.swap_out_kv or not cost.swap_in_kv:
            raise InputError("--swap", given, "a profile with the times of a link, or ps for each token")
        return cost
    try:
        time = int(given)
    except ValueError:
        time = 0
    if not 1 <= time <= MAX_PS:
        raise InputError("--swap", given, f"an integer from 1 to {MAX_PS}, or profile")
    return replace(cost, swap_out_kv=time, swap_in_kv=time)


def _arrival_times(arrivals: str, seed: int) -> tuple[Iterable[int], tuple[str, Trace] | None]:
    """Return the arrival times that ``--arrivals`` asks for, in ps; if they are a trace's, its file and the trace."""
    kind, _, file = arrivals.partition(":")
    if kind in PROCESSES:
        return read_process(arrivals).times(Random(f"{seed} arrivals")), None
    if kind not in READERS or not file:
        forms = ", ".join(process_forms())
        expected = f"one of {forms}, or FORMAT:FILE with FORMAT one of {', '.join(READERS)}"
        raise InputError("arrivals", arrivals, expected + did_you_mean(kind, (*PROCESSES, *READERS)))
    with blaming(source=file):
        replayed = make_trace(read_rows(file, kind))
    times = [request.arrival_ps for request in replayed.requests]
    if not times[-1]:
        raise InputError("", Said("no arrival times"), "a trace whose requests do not all arrive together", file)
    return times, (file, replayed)


def _report_bad(source: str, found: Trace) -> None:
    """Print the rejected rows of a trace (the first ones), and their number."""
    for wrong in found.bad[:_MOST_BAD]:
        click.echo(f"optsched: {wrong.located(source)}", err=True)
    if found.bad:
        counts = f"{len(found.bad)} rows left out, {len(found.requests)} requests"
        click.echo(printable(f"optsched: {source}: {counts}"), err=True)


@cli.command()
@click.argument("result", type=FILE)
def check(result: str) -> int:
    """Verify schedules, values and certificates of a result document, independently of what made them."""
    failed = False
    documents = library.load_results(result)
    for position, claimed in enumerate(documents):
        report = check_result(claimed)
        content = claimed.result
        name = f"{result}[{position}]" if len(documents) > 1 else result
        for violation in report.violations:
            click.echo(printable(f"{name}: {violation}"))
        verdict = "every claim holds" if report.ok else f"{len(report.violations)} violations"
        what = f"{content.method} on {content.instance.name}, {content.status.value}, bound {content.badge.value}"
        click.echo(printable(f"{name}: {what}: {verdict}"))
        failed |= not report.ok
    return int(failed)


@cli.command()
@suite_argument
@policies_option("standard")
@router_option
@machines_option
@cache_option
@objective_option
@profile_option
@method_option
@layout_options
@time_limit_option
@restriction_options
@workers_option
@seed_option
@out_option
@results_option
@ledger_option
@click.option(
    "--resume",
    is_flag=True,
    help="Take finished results from --results instead of computing them again, if made with the same versions and "
    "seed and, where nothing is proved, the same time limit.",
)
def table(
    suite: str,
    policies: tuple[str, ...],
    routers: tuple[str, ...],
    machines: int | None,
    caches: tuple[str, ...],
    objective: str,
    profile: str | None,
    method: str,
    layout: Layout,
    time_limit: float,
    restrictions: Restrictions,
    workers: int | None,
    seed: int,
    out: str | None,
    results: str | None,
    ledger: str | None,
    resume: bool,
) -> None:
    """Print a bound table: optimum or bound of every instance, and each policy's gap to it.

    Of several routers, policies or caches each is run with each of the others.
    """
    require_method(method)
    if resume and results is None:
        raise InputError("--resume", Said("no --results"), "--results FOLDER to resume from")
    task = TableTask(
        suite=_suite_on_profile(suite, profile, machines, caches),
        policies=read_policies(policies),
        routers=read_routers(routers),
        evictors=read_evictors(caches),
        objective=read_objective(objective),
        restrictions=restrictions,
        method=method,
        time_limit=time_limit,
        workers=workers,
        seed=seed,
    )
    layout.require(name for column in make_sheet(finish(task, ())).columns for name in column.names)
    _require_feasible(task, suite)
    if ledger is not None:
        with blaming("--ledger"):
            ledgers.read_if_there(Path(ledger))
    with blaming("--results"):
        store = results_store(Path(results), resume, workers) if results is not None else None
    rows: list[Row] = []
    defects: list[str] = []
    with (
        store or nullcontext(),
        LiveLine(task.suite.name, task.objective, steps=len(task.suite.instances)) as live,
        blaming("--results", suite),
        naming_options(),
    ):
        for row in table_rows(task, store, live.watch, resume=resume):
            rows.append(row)
            defects += [f"{row.instance.name}: {defect}" for defect in row.defects]
            if ledger is not None and not row.defects:
                found = (row.best, *row.policies)
                try:
                    with blaming("--ledger"):
                        ledgers.record(Path(ledger), found, datetime.datetime.now(datetime.UTC).date())
                except DefectError as defect:
                    defects.append(str(defect))
            live.advance()
            _warn(row.best)
    sheet = make_sheet(finish(task, rows))
    if store is not None:
        with blaming("--results"):
            for name, render in FORMATS.items():
                write_text(store.path.with_name(f"table.{_SUFFIXES[name]}"), render(sheet))
    _print_table(sheet, layout, out)
    if store is not None and out != "-" and layout.style == TEXT:
        files = ", ".join(f"table.{suffix}" for suffix in _SUFFIXES.values())
        click.echo(f"\n{store.path.name} with all results, {files}: {printable(str(store.path.parent))}/")
    if defects:
        raise DefectError("; ".join(defects))


def _suite_on_profile(suite: str, profile: str | None, machines: int | None, caches: tuple[str, ...]) -> Suite:
    """Return a suite on the machines that ``--profile``, ``--machines`` and ``--cache`` name; without them as it is."""
    found = library.load_suite(suite)
    shaped = (_shaped(on_profile(each, profile), machines, caches) for each in found.instances)
    return replace(found, instances=tuple(shaped))


def _print_table(sheet: Sheet, layout: Layout, out: str | None) -> None:
    """Print a table, or write it to ``--out``; what took long to compute is also printed if that fails."""
    width = terminal_width() if out is None else _WIDE
    text = as_text(sheet, width)
    try:
        text = layout.render(sheet, width)
        if out is not None:
            write_out(out, text)
            return
    except InputError:
        click.echo(text, nl=False)
        raise
    click.echo(text, nl=False)


def _require_feasible(task: TableTask, source: str) -> None:
    for instance in task.suite.instances:
        with blaming(source=f"{source}: {instance.name}"), naming_options():
            found = infeasibility(instance, task.restrictions)
        if found is not None:
            raise InfeasibleInstanceError(tuple(f"{instance.name}: {text}" for text in found.reasons), found.remedy)


_SUFFIXES = {"text": "txt", "md": "md", "csv": "csv", "latex": "tex"}


@cli.group()
def instances() -> None:
    """Look into the instance library."""


@instances.command("list")
@click.argument("suite", required=False, shell_complete=complete_suites)
@objective_option
def list_instances(suite: str | None, objective: str) -> None:
    """List the suites, or the instances of one with the best value and bound of the shipped ledger."""
    goal = read_objective(objective)
    if suite is None:
        rows = [[name, str(number), about] for name, (number, about) in library.suite_overview().items()]
        click.echo(simple_table(["suite", "instances", "what it is"], rows, terminal_width(), left=(0, 1, 2)), nl=False)
        return
    known = ledgers.shipped()
    rows = []
    for entry in library.load_suite(suite).instances:
        summary = known.best(instance_sha256(entry), goal)
        gap = "–" if summary.gap is None else f"{100 * summary.gap:.2f}"
        best = [objective_text(goal, entry.requests, value) for value in (summary.value, summary.bound)]
        about = [entry.name, str(len(entry.requests)), str(entry.limits.kv_tokens), f"{entry.kappa:.2f}"]
        rows.append([*about, *best, gap, summary.status.value, summary.difficulty.value])
    headers = ["instance", "requests", "M", "κ", f"best {goal.value}", "bound", "gap (%)", "status", "proof"]
    click.echo(simple_table(headers, rows, terminal_width()), nl=False)


@instances.command("show")
@instance_argument
@out_option
def show_instance(instance: str, out: str | None) -> None:
    """Print an instance document, its cost coefficients spelled out."""
    write_out(out, dump(instance_document(library.load_instance(instance))))


def _two_groups(given: str) -> tuple[str, ...]:
    names = tuple(given.split(","))
    if len(names) != 2:
        raise InputError("--groups", given, f"two of {', '.join(GROUPS)}, joined by a comma")
    return names


@instances.command("make")
@suite_argument
@integer_option("--n", 1, 1_000_000, None, "Instances to draw, of random and mix.  [default: 100]")
@integer_option("--requests", 1, 100_000, None, "Requests of each.  [default: 4]")
@integer_option("--max-input", 1, MAX_TOKENS, None, "Largest input of random.  [default: 16]")
@integer_option("--max-output", 1, MAX_TOKENS, None, "Largest output of random.  [default: 8]")
@click.option("--groups", metavar="LILO,SISO", help="The two groups of mix.")
@integer_option("--kv-tokens", 1, MAX_TOKENS, None, "M.  [default: drawn, so that memory is scarce]")
@integer_option("--seed", 0, 2**31 - 1, None, "Random seed of random and mix.  [default: 0]")
@click.option(
    "--profile",
    metavar="PROFILE",
    shell_complete=complete_profiles,
    help="The cost profile of random and mix: a name, or a .json file.  [default: a100-llama2-7b-nocall]",
)
@out_option
def make_suite(suite: str, out: str | None, groups: str | None, **drawn: Any) -> None:
    """Generate a suite of the library anew, or draw instances (docs/study.md)."""
    if suite in set(Generator):
        given = {name: value for name, value in drawn.items() if value is not None}
        with naming_options():
            family = Family(Generator(suite), **given | ({"groups": _two_groups(groups)} if groups else {}))
            write_out(out, dump(suite_document(family.suite(), family.profile)))
        return
    refuse_options("SUITE", ("groups", *drawn), f"{' or '.join(Generator)} with it")
    if suite not in SUITES:
        raise InputError("SUITE", suite, one_of(suite, (*SUITES, *Generator)))
    found = SUITES[suite]
    write_out(out, dump(suite_document(found.make(found.profile), found.profile)))
