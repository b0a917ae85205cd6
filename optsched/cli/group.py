"""The command line's commands, each loaded when it is asked for."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

import click

from optsched.cli.streams import discard_output
from optsched.uncollected import uncollected

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "bound": (
            "bound_command",
            "Prove a lower bound alone, at any size.",
        ),
        "calibrate": (
            "calibration",
            "Fit a cost profile to measured times, and report its errors.",
        ),
        "check": (
            "check_command",
            "Verify schedules, values and certificates of a result document, independently of what made them.",
        ),
        "compile": (
            "compile_command",
            "Compile all loops, so that no later command has to: once on a machine, one or two minutes.",
        ),
        "conform": (
            "own_commands",
            "Try policies, routers, evictors or formulations on small instances: exit 0 only if all keep to the rules.",
        ),
        "execute": (
            "machine_commands",
            "Run a real transformer batch by batch, and compare its times with the predicted ones.",
        ),
        "hypothesis": (
            "hypothesis_commands",
            "Decide a claim over a family of instances (docs/study.md).",
        ),
        "instances": (
            "instance_commands",
            "Look into the instance library.",
        ),
        "new": (
            "own_commands",
            "Write NAME.py: a commented policy, router, evictor or formulation that runs, to be changed.",
        ),
        "pages": (
            "page_commands",
            "Write how far from optimal each policy is on each suite of the library: Markdown, and the numbers as CSV.",
        ),
        "plot": (
            "plot_commands",
            "Draw results (documents of solve, bound, simulate; - is standard input).",
        ),
        "profile": (
            "machine_commands",
            "Measure a transformer's kernels on this machine, for optsched calibrate to fit a cost profile to.",
        ),
        "report": (
            "page_commands",
            "Write one page about a study, FILE.toml or its store (.sqlite): tables, figures, schedules, provenance.",
        ),
        "simulate": (
            "simulate_command",
            "Run policies on the cost-model simulator; INSTANCE may also be a suite.",
        ),
        "solve": (
            "solve_command",
            "Find the best schedule and a proved bound on it.",
        ),
        "study": (
            "study_commands",
            "Run the trials of a study into one store (docs/study.md): `optsched study FILE.toml`.",
        ),
        "submit": (
            "submit_command",
            "Check a result document, and add what it improves to the ledger: the change of a pull request.",
        ),
        "table": (
            "table_command",
            "Print a bound table: optimum or bound of every instance, and each policy's gap to it.",
        ),
        "trace": (
            "trace_command",
            "Make an instance of a request trace; rejected rows are named on stderr with the reason.",
        ),
        "worst": (
            "worst_commands",
            "Look for a small instance on which a policy is far from what is possible (docs/study.md).",
        ),
    }
)
"""Of each command the module of this package that makes it, and the first sentence of its help."""


class LazyGroup(click.Group):
    """Commands in modules that take a while to load, and whose reader may leave early.

    Click alone would end with 1 when a pipe is closed, which means a failed check.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            discard_output()
            return 0

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load the module that makes a command."""
        if cmd_name in COMMANDS:
            module = f"optsched.cli.{COMMANDS[cmd_name][0]}"
            if module not in sys.modules:
                with uncollected():
                    import_module(module)
                    gc.freeze()  # modules stay: no collection needs to look through them
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; suggest those that are spelled alike, loaded or not."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand:
            raise click.exceptions.NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without loading them."""
        listed = {name: click.Command(name, help=summary) for name, (_, summary) in COMMANDS.items()}
        click.Group(commands=listed).format_commands(ctx, formatter)


def _one_spelling(name: str) -> str:
    return "policy" if name == "policies" else name


@click.group(
    cls=LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "token_normalize_func": _one_spelling,
    },
)
@click.version_option(package_name="optsched")
def cli() -> None:
    """How far is this LLM-serving scheduler from optimal?

    INSTANCE and SUITE are files (.json, .json.gz, - for standard input) or names of the instance library
    (optsched instances list). Progress goes to stderr, and only to a terminal.
    """
