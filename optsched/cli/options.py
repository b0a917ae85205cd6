"""Options that several commands share, and how their values are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from optsched.methods.simulate import policy_names
from optsched.model.errors import InputError
from optsched.model.objectives import Objective
from optsched.model.restrictions import FORBIDDABLE, Restrictions

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

objective_option: Decorator = click.option(
    "--objective", default=Objective.MAKESPAN.value, show_default=True, help=f"One of {', '.join(Objective)}."
)
forbid_option: Decorator = click.option(
    "--forbid", multiple=True, metavar="NAME", help=f"Stay without it: {', '.join(FORBIDDABLE)}. May be repeated."
)
seed_option: Decorator = click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True)
time_limit_option: Decorator = click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds for each instance.",
)
workers_option: Decorator = click.option(
    "--workers", type=click.IntRange(1, 1024), default=None, help="Solver threads.  [default: one per core]"
)
out_option: Decorator = click.option(
    "--out", metavar="FILE", help="Write to a file; .gz packs it, - is standard output."
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


def read_policies(given: Sequence[str]) -> tuple[str, ...]:
    """Return the policies that are named, ``all`` standing for every one; names may be joined by commas."""
    known = policy_names()
    found: dict[str, None] = {}
    for name in (part for text in given for part in text.split(",")):
        if name != "all" and name not in known:
            raise InputError("--policy", name, f"all, or one of {', '.join(known)}")
        found.update(dict.fromkeys(known if name == "all" else (name,)))
    return tuple(found)
