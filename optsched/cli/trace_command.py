"""The command that makes an instance of a request trace."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from random import Random

import click

from optsched.calibrate.library import find_profile
from optsched.cli.completion import complete_profiles
from optsched.cli.group import cli
from optsched.cli.options import (
    arrivals_option,
    blaming,
    fraction_option,
    integer_option,
    limit_option,
    load_option,
    machines_option,
    naming_options,
    out_option,
    read_turns,
    refuse_options,
    seed_option,
    start_option,
    token_option,
    write_out,
)
from optsched.cli.types import FILE, OneOf
from optsched.model.cluster import CacheMode, CacheRules
from optsched.model.cost import CostModel
from optsched.model.documents import dump, instance_document
from optsched.model.domain import MAX_PS, MAX_TOKENS, replace
from optsched.model.errors import InputError, Said, did_you_mean, printable
from optsched.model.instance import Limits, Rules
from optsched.study.setups import shaped
from optsched.traces.arrivals import PROCESSES, process_forms, read_process
from optsched.traces.own_table import ISO, UNITS, read_form
from optsched.traces.sources import CSV, PREFIXED, SERVEGEN, SOURCES, read_prefixed_rows, read_rows
from optsched.traces.summary import summarise
from optsched.traces.trace import DEFAULT_LIMITS, READERS, Trace, make_trace, trace_instance, with_deadlines

_MOST_BAD = 20
"""Maximum number of rejected rows that are named one by one."""


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
