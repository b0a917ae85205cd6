"""Worst cases of policies."""

from __future__ import annotations

import click

from optsched.calibrate.library import find_profile
from optsched.cli.completion import complete_policies, complete_profiles
from optsched.cli.group import cli
from optsched.cli.options import (
    file_option,
    integer_option,
    naming_options,
    number_option,
    objective_option,
    read_objective,
    require_policy,
    seed_option,
    write_out,
)
from optsched.cli.step_bar import StepBar
from optsched.model.documents import dump, instance_document
from optsched.model.errors import printable
from optsched.model.instance import Rules
from optsched.study.worst import Search, worst_case

_KEPT = 0.9
"""The share of the gap that shrinking keeps."""


@cli.command()
@click.option(
    "--policy", required=True, metavar="NAME", shell_complete=complete_policies, help="The policy, or FILE.py:NAME."
)
@objective_option
@integer_option("--requests", 2, 64, 8, "Maximum number of requests.")
@number_option("--seconds", 60, "Seconds of the evolution.", finite=True)
@number_option("--time-limit", 10, "Seconds to solve the instance that it finds.")
@click.option("--online", is_flag=True, help="Requests may arrive later.")
@click.option("--chunked", is_flag=True, help="Allow chunked prefills.")
@click.option(
    "--profile",
    default="a100-llama2-7b-nocall",
    show_default=True,
    metavar="PROFILE",
    shell_complete=complete_profiles,
    help="The cost profile: a name, or a .json file.",
)
@seed_option
@file_option("--out", "Write the instance; .gz packs it, - is standard output.")
def worst(
    policy: str,
    objective: str,
    requests: int,
    seconds: float,
    time_limit: float,
    online: bool,
    chunked: bool,
    profile: str,
    seed: int,
    out: str | None,
) -> None:
    """Look for a small instance on which a policy is far from what is possible (docs/study.md)."""
    require_policy(policy)
    with naming_options():
        cost = find_profile(profile).cost
    search = Search(policy, read_objective(objective), requests, cost, Rules(chunked_prefill=chunked), online=online)
    with StepBar(policy) as bar:
        found = search.evolve(seconds, seed, lambda count, gap: bar.show(count, None, f"gap {gap:.1%}"))
        gap = search.gap(search.instance(found))
        case = worst_case(search, search.shrunk(found, _KEPT * gap), time_limit)
    if out is not None:
        write_out(out, dump(instance_document(case.instance)))
    if out != "-":
        lengths = ", ".join(f"({request.input}, {request.output})" for request in case.instance.requests)
        limits = f"M = {case.instance.limits.kv_tokens}"
        click.echo(printable(f"{policy}, {objective}: (I, O) = {lengths}, {limits}: {case.explanation}"))
