"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from optsched.methods.simulate import policy_names
from optsched.model.documents import check_writable, write_text
from optsched.model.errors import InputError, Said, shown
from optsched.model.objectives import Objective
from optsched.model.restrictions import FORBIDDABLE, Restrictions

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Reader = Callable[[click.Context, click.Parameter, str | None], Any]
"""Turns what was typed into an option's value."""


@contextmanager
def blaming(field: str = "", source: str | None = None) -> Iterator[None]:
    """Let an `InputError` that names no field, or no file, name these."""
    try:
        yield
    except InputError as error:
        raise InputError(error.field or field, error.value, error.expected, error.source or source) from None


def _integer(low: int, high: int) -> Reader:
    """Read an integer of a range, or say in one line what is wrong."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise InputError(param.opts[-1], _typed(value), f"an integer from {low} to {high}")
        return number

    return read


def _positive(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Read a number > 0, perhaps infinite, or say in one line what is wrong."""
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not number > 0:
        raise InputError(param.opts[-1], _typed(value), "a number > 0")
    return number


def _typed(value: str) -> str:
    """Show what was typed without quotes, if there is anything to show."""
    return Said(shown(value)[1:-1]) if value.strip() else value


def _file_to_write(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Complain about a file that cannot be written before anything is computed."""
    if value is not None:
        with blaming(param.opts[-1]):
            check_writable(value)
    return value


def _folder_to_write(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value:
        raise InputError(param.opts[-1], value, "the name of a folder")
    return value


def write_out(out: str | None, text: str) -> None:
    """Write what ``--out`` asks for; without it to standard output."""
    with blaming("--out"):
        write_text("-" if out is None else out, text)


objective_option: Decorator = click.option(
    "--objective", default=Objective.MAKESPAN.value, show_default=True, help=f"One of {', '.join(Objective)}."
)
forbid_option: Decorator = click.option(
    "--forbid", multiple=True, metavar="NAME", help=f"Stay without it: {', '.join(FORBIDDABLE)}. May be repeated."
)
seed_option: Decorator = click.option(
    "--seed", type=str, callback=_integer(0, 2**31 - 1), default="0", show_default=True, metavar="INTEGER"
)
time_limit_option: Decorator = click.option(
    "--time-limit",
    type=str,
    callback=_positive,
    default="60",
    metavar="NUMBER",
    show_default=True,
    help="Seconds for each instance.",
)
workers_option: Decorator = click.option(
    "--workers", callback=_integer(1, 1024), metavar="INTEGER", help="Solver threads.  [default: one per core]"
)
out_option: Decorator = click.option(
    "--out", metavar="FILE", callback=_file_to_write, help="Write to a file; .gz packs it, - is standard output."
)
results_option: Decorator = click.option(
    "--results",
    metavar="FOLDER",
    callback=_folder_to_write,
    help="Keep every result document in this folder as it is finished.",
)
deterministic_limit_option: Decorator = click.option(
    "--deterministic-limit", callback=_positive, metavar="NUMBER", help="In CP-SAT's own time."
)
json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="Print the result document on stdout.")


def read_objective(name: str) -> Objective:
    """Return the objective of that name."""
    try:
        return Objective(name)
    except ValueError:
        raise InputError("--objective", name, f"one of {', '.join(Objective)}") from None


def read_restrictions(forbid: Sequence[str]) -> Restrictions:
    """Return the restrictions that ``--forbid`` asks for; names may be joined by commas."""
    names = [part for text in forbid for part in text.split(",")]
    for name in names:
        if name not in FORBIDDABLE:
            raise InputError("--forbid", name, f"one of {', '.join(FORBIDDABLE)}")
    return Restrictions(tuple(dict.fromkeys(names)))


def read_policies(given: Sequence[str], option: str) -> tuple[str, ...]:
    """Return the policies that ``option`` names, ``all`` standing for every one; names may be joined by commas."""
    known = policy_names()
    found: dict[str, None] = {}
    for name in (part for text in given for part in text.split(",")):
        if name != "all" and name not in known:
            raise InputError(option, name, f"all, or one of {', '.join(known)}")
        found.update(dict.fromkeys(known if name == "all" else (name,)))
    return tuple(found)
