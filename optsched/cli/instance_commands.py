"""The commands that look into the instance library, or generate its suites."""

from __future__ import annotations

from typing import Any

import click

from optsched import library
from optsched.cli.completion import complete_profiles, complete_suites
from optsched.cli.group import cli
from optsched.cli.options import (
    instance_argument,
    integer_option,
    objective_option,
    out_option,
    read_objective,
    suite_argument,
    write_out,
)
from optsched.cli.terminal import terminal_width
from optsched.model.documents import dump, instance_document, instance_sha256
from optsched.model.domain import MAX_TOKENS
from optsched.report.formats import simple_table
from optsched.report.summary import objective_text
from optsched.study import ledger as ledgers


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
    from optsched.cli.suites import made_suite  # noqa: PLC0415  # only this command loads the generators

    write_out(out, dump(made_suite(suite, groups, drawn)))
