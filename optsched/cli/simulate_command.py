"""The command that runs policies on the simulator."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from optsched import library
from optsched.cli.group import cli
from optsched.cli.layout import CSV, DEFAULT_LAYOUT, Layout, layout_options
from optsched.cli.machines import on_machines
from optsched.cli.options import (
    blaming,
    cache_option,
    decisions_option,
    instance_argument,
    json_option,
    machines_option,
    naming_options,
    objective_option,
    out_option,
    policies_option,
    profile_option,
    read_evictors,
    read_objective,
    read_policies,
    read_routers,
    requests_option,
    restriction_options,
    router_option,
    seed_option,
    timeline_option,
    workers_option,
)
from optsched.cli.result_output import deliver
from optsched.cli.step_bar import Line
from optsched.cli.terminal import terminal_width
from optsched.model.documents import write_text
from optsched.model.errors import InputError
from optsched.model.restrictions import Restrictions
from optsched.model.result import Result
from optsched.report.decisions import decision_rates, decisions_csv
from optsched.report.requests import requests_csv
from optsched.report.results_csv import results_csv
from optsched.report.summary import policy_columns, policy_comparison, policy_sheet
from optsched.report.timeline import timeline_csv
from optsched.simulator.routed import DecisionRecord
from optsched.study.simulations import simulate_each


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
    problems = [on_machines(problem, profile, machines, caches) for problem in library.load_instances(instance)]
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
    text = results_csv(results) if layout.style == CSV else "\n".join(tables)
    deliver(results, out, as_json, "" if to_stdout else text)


def _policy_table(results: Sequence[Result], layout: Layout, records: Sequence[DecisionRecord]) -> str:
    """Compare policies on one instance as ``--format`` says; of CSV there is one table of all instances."""
    if layout.style == CSV:
        return ""
    if layout == DEFAULT_LAYOUT:
        return policy_comparison(results, terminal_width(), records)
    return layout.render(policy_sheet(results, records), terminal_width())
