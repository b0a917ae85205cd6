"""Worst cases of policies."""

from __future__ import annotations

import os
from dataclasses import replace

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
from optsched.model.documents import Suite, dump, suite_document
from optsched.model.errors import printable
from optsched.model.instance import Rules
from optsched.study.worst import FEW, Elite, Search, requests_text, rounds, side_by_side, worst_case

_KEPT = 0.9
"""The share of the gap that shrinking keeps."""
_MOST_SLOTS = 8


@cli.command()
@click.option(
    "--policy", required=True, metavar="NAME", shell_complete=complete_policies, help="The policy, or FILE.py:NAME."
)
@objective_option
@integer_option("--requests", 2, 64, 8, "Maximum number of requests.")
@number_option("--seconds", 80, "Seconds of the evolution, a quarter of them with at most four requests.", finite=True)
@number_option("--time-limit", 10, "Seconds to solve each of the two instances that it finds.")
@integer_option("--slots", 1, 1024, None, "Processes that search side by side.  [default: one per core, at most 8]")
@click.option("--online/--offline", default=True, help="Whether requests may arrive later.  [default: online]")
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
@file_option("--out", "Write both instances as a suite; .gz packs it, - is standard output.")
def worst(
    policy: str,
    objective: str,
    requests: int,
    seconds: float,
    time_limit: float,
    slots: int | None,
    online: bool,
    chunked: bool,
    profile: str,
    seed: int,
    out: str | None,
) -> None:
    """Look for a small instance on which a policy is far from what is possible (docs/study.md).

    Two are shown: the worst that is found, and one of at most four requests that is made as small as possible.
    """
    require_policy(policy)
    with naming_options():
        cost = find_profile(profile).cost
    search = Search(policy, read_objective(objective), requests, cost, Rules(chunked_prefill=chunked), online=online)
    few = replace(search, most_requests=min(requests, FEW))
    processes = min(slots or min(os.cpu_count() or 1, _MOST_SLOTS), _MOST_SLOTS)
    with StepBar(policy) as bar, side_by_side(processes) as evolve:
        elite: Elite = ()
        for number, elite in enumerate(rounds(search, 0.75 * seconds, seed, evolve), 1):
            bar.show(number, None, f"gap {elite[0][0]:.1%}")
        small: Elite = ()
        parts = few.parts(elite[0][1])
        for number, small in enumerate(rounds(few, 0.25 * seconds, seed, evolve, parts), 1):
            bar.show(number, None, f"gap {small[0][0]:.1%} with at most {few.most_requests} requests")
        gap, genome = small[0]
        found = (elite[0][1], few.shrunk(genome, _KEPT * gap))
        cases = [worst_case(search, search.instance(each), time_limit) for each in dict.fromkeys(found)]
    if out is not None:
        described = " ".join(f"{case.instance.name}: {case.explanation}" for case in cases)
        suite = Suite(f"worst-{policy}-{objective}", described, tuple(case.instance for case in cases))
        write_out(out, dump(suite_document(suite, profile)))
    for case in cases if out != "-" else ():
        found_in = f"(I, O) = {requests_text(case.instance)}; M = {case.instance.limits.kv_tokens}"
        click.echo(printable(f"{policy}, {objective}: {found_in}: {case.explanation}"))
