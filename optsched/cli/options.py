"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from optsched.cache.blocks import EVICTOR_NAMES, require_setting
from optsched.calibrate.library import find_cost
from optsched.catalogue import FORMULATION_GROUP, POLICY_GROUP, ROUTER_GROUP, broken_entries, in_file
from optsched.cli.completion import (
    complete_instances,
    complete_methods,
    complete_policies,
    complete_profiles,
    complete_suites,
)
from optsched.cli.types import FILE, FOLDER, Exact, OneOf, Positive, Whole, typed
from optsched.methods.plan import AUTO
from optsched.methods.plan import require_method as require_known_method
from optsched.methods.policies import parts_of, policy_in_file, policy_names, standard_policies
from optsched.methods.routing import find_router
from optsched.model.documents import check_writable, write_text
from optsched.model.domain import MAX_MACHINES, MAX_TOKENS, replace
from optsched.model.errors import InputError, Said, one_of
from optsched.model.instance import Instance
from optsched.model.objectives import Objective, find_objective
from optsched.model.restrictions import FORBIDDABLE, Restrictions
from optsched.traces.arrivals import process_forms

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@contextmanager
def blaming(field: str = "", source: str | None = None) -> Iterator[None]:
    """Let an `InputError` that names no field, or no file, name these."""
    try:
        yield
    except InputError as error:
        raise InputError(error.field or field, error.value, error.expected, error.source or source) from None


def _indices(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...]:
    """Read request indices joined by commas."""
    if value is None:
        return ()
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        raise InputError(param.opts[-1], typed(value), "request indices joined by commas, such as 2,0,1") from None


def _file_to_write(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Check that a file can be written before anything is computed."""
    if value is not None:
        with blaming(param.opts[-1]):
            check_writable(value)
    return value


def folder_to_write(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Check that a name is not that of a file."""
    if value is not None and not value:
        raise InputError(param.opts[-1], value, "the name of a folder")
    if value is not None and Path(value).is_file():
        raise InputError(param.opts[-1], Said(os.strerror(errno.EEXIST)), "a folder to write to", value)
    return value


def write_out(out: str | None, text: str) -> None:
    """Write what ``--out`` asks for; without it to standard output."""
    with blaming("--out"):
        write_text("-" if out is None else out, text)


instance_argument: Decorator = click.argument("instance", shell_complete=complete_instances)
suite_argument: Decorator = click.argument("suite", shell_complete=complete_suites)
objective_option: Decorator = click.option(
    "--objective",
    type=OneOf(tuple(Objective)),
    default=Objective.MAKESPAN.value,
    show_default=True,
    metavar="NAME",
    help=f"One of {', '.join(Objective)}.",
)
method_option: Decorator = click.option(
    "--method",
    default=AUTO,
    show_default=True,
    shell_complete=complete_methods,
    help="auto, a formulation, or FILE.py:NAME.",
)
_FORBID = click.option(
    "--forbid", multiple=True, metavar="NAME", help=f"Forbid: {', '.join(FORBIDDABLE)}. May be repeated."
)
_MAX_EVICTIONS = click.option(
    "--max-evictions", type=Whole(0), metavar="INTEGER", help="Maximum number of evictions in total."
)
_MAX_BATCH = click.option(
    "--max-batch", type=Whole(1, MAX_TOKENS), metavar="INTEGER", help="Maximum number of requests in a batch."
)
_FIX_ORDER = click.option(
    "--fix-order",
    "order",
    callback=_indices,
    metavar="2,0,1",
    help="Permutation of request indices (from 0): each request starts no later than the next.",
)
_AT_MOST = click.option(
    "--at-most",
    type=Whole(0),
    metavar="VALUE",
    help="Only decide whether an objective value this low is possible (ps; for means the sum over requests).",
)
seed_option: Decorator = click.option(
    "--seed", type=Whole(0, 2**31 - 1), default=0, show_default=True, metavar="INTEGER"
)
time_limit_option: Decorator = click.option(
    "--time-limit",
    type=Positive(),
    default=60,
    metavar="NUMBER",
    show_default=True,
    help="Seconds for each instance; compiling, once on a machine, does not count.",
)
workers_option: Decorator = click.option(
    "--workers",
    type=Whole(1, 1024),
    metavar="INTEGER",
    help="Threads or processes.  [default: one per core]",
)


def token_option(name: str, default: int, meaning: str) -> Decorator:
    """Return an option that takes a number of tokens."""
    return click.option(
        name, type=Whole(1, MAX_TOKENS), default=default, show_default=True, metavar="INTEGER", help=meaning
    )


def integer_option(name: str, low: int, high: int | None, default: int | None, meaning: str) -> Decorator:
    """Return an option that takes an integer of a range."""
    return click.option(
        name,
        type=Whole(low, high),
        default=default,
        show_default=default is not None,
        metavar="INTEGER",
        help=meaning,
    )


def number_option(name: str, default: float | None, meaning: str, *, finite: bool = False) -> Decorator:
    """Return an option that takes a number > 0."""
    return click.option(
        name,
        type=Positive(finite=finite),
        default=default,
        show_default=default is not None,
        metavar="NUMBER",
        help=meaning,
    )


def fraction_option(name: str, meaning: str, within: tuple[int, int] | None = None) -> Decorator:
    """Return an option that takes a number > 0, or one within these, exactly as it is written."""
    return click.option(name, type=Exact(within), metavar="NUMBER", help=meaning)


def file_option(name: str, meaning: str) -> Decorator:
    """Return an option that takes a file to write."""
    return click.option(name, type=FILE, metavar="FILE", callback=_file_to_write, help=meaning)


limit_option: Decorator = click.option(
    "--limit", type=Whole(1), metavar="INTEGER", help="Only this many requests, the first to arrive."
)
load_option: Decorator = fraction_option(
    "--load", "Scale arrivals to this multiple of the rate that the volume bound can sustain."
)
arrivals_option: Decorator = click.option(
    "--arrivals",
    metavar="PROCESS",
    help=f"New arrival times: {', '.join(process_forms())} (RATE in requests/s, STAY in s), or FORMAT:FILE for those "
    "of another trace. Of conversations they are the starts.",
)
start_option: Decorator = click.option(
    "--start",
    type=Whole(0, 10**9),
    default=0,
    metavar="SECONDS",
    show_default=True,
    help="Of a generator that covers a day (servegen): where to begin.",
)
out_option: Decorator = file_option("--out", "Write to a file; .gz packs it, - is standard output.")
timeline_option: Decorator = file_option(
    "--timeline",
    "Write queue length, requests, KV tokens and batch tokens over time (CSV, docs/documents.md); - is standard "
    "output.",
)
profile_option: Decorator = click.option(
    "--profile",
    metavar="PROFILE",
    shell_complete=complete_profiles,
    help="Cost profile in place of the instance's own: a name (optsched calibrate --list), or a .json file.",
)
requests_option: Decorator = file_option(
    "--requests",
    "Write a row for each request: TTFT, e2e latency, TPOT, evictions (CSV, docs/documents.md); - is standard output.",
)
decisions_option: Decorator = file_option(
    "--decisions",
    "Write a row for each decision of a router: the machine, that with the least work, and how much more it had (CSV, "
    "docs/documents.md), and decisions per second on standard error; - is standard output.",
)
history_option: Decorator = file_option(
    "--history", "Write incumbent and bound over time (CSV), which `optsched plot bounds` draws."
)
results_option: Decorator = click.option(
    "--results",
    type=FOLDER,
    metavar="FOLDER",
    callback=folder_to_write,
    help="Keep every result document in this folder as it is finished.",
)
deterministic_limit_option: Decorator = click.option(
    "--deterministic-limit", type=Positive(), metavar="NUMBER", help="In CP-SAT's own time."
)
ledger_option: Decorator = file_option(
    "--ledger", "Append what improves on this ledger of best values and bounds (JSON lines)."
)
json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="Print the result document on stdout.")


def policies_option(default: str | None = None) -> Decorator:
    """Return the option for policies; without a default it has to be given."""
    return click.option(
        "--policy",
        "policies",
        multiple=True,
        required=default is None,
        default=None if default is None else (default,),
        show_default=default is not None,
        metavar="NAMES",
        shell_complete=complete_policies,
        help="all, standard, names with commas, or FILE.py:NAME; may repeat.",
    )


router_option: Decorator = click.option(
    "--router",
    "routers",
    multiple=True,
    metavar="NAME",
    help="Router of several machines: names, or FILE.py:NAME; may repeat.  [default: round_robin]",
)
cache_option: Decorator = click.option(
    "--cache",
    "caches",
    multiple=True,
    metavar="NAME",
    help=f"Order in which cached blocks are dropped: {', '.join(EVICTOR_NAMES)}, or FILE.py:NAME; may repeat. An "
    "instance that caches nothing then caches all blocks.",
)
machines_option: Decorator = click.option(
    "--machines",
    type=Whole(1, MAX_MACHINES),
    metavar="INTEGER",
    help="Equal machines, instead of those of the instance.",
)


def restriction_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options for a class of schedules; it takes them as ``restrictions``."""
    return _restricted(command, _FORBID, _MAX_EVICTIONS, _MAX_BATCH, _FIX_ORDER)


def decision_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options and ``--at-most``."""
    return _restricted(command, _FORBID, _MAX_EVICTIONS, _MAX_BATCH, _FIX_ORDER, _AT_MOST)


def _restricted(command: Callable[..., Any], *options: Decorator) -> Callable[..., Any]:
    @wraps(command)
    def read(
        *args: Any,
        forbid: Sequence[str],
        max_evictions: int | None,
        max_batch: int | None,
        order: tuple[int, ...],
        at_most: int | None = None,
        **others: Any,
    ) -> Any:
        names = [part for text in forbid for part in text.split(",")]
        with naming_options():
            restrictions = Restrictions(tuple(dict.fromkeys(names)), max_evictions, max_batch, order, at_most)
        return command(*args, restrictions=restrictions, **others)

    complete: Callable[..., Any] = read
    for option in reversed(options):
        complete = option(complete)
    return complete


_OPTIONS = {
    "forbid": "--forbid",
    "order": "--fix-order",
    "method": "--method",
    "objective": "--objective",
    "solver": "--solver",
    "profile": "--profile",
    "prefill_tokens": "--prefill-tokens",
    "batch_requests": "--batch-requests",
    "kv_block": "--kv-block",
    "load": "--load",
    "limit": "--limit",
    "arrivals": "--arrivals",
    "predictor": "--predictor",
    "pieces": "--pieces",
    "fit": "--fit",
    "layers": "--layers",
    "attention": "--attention",
    "network": "--network",
    "hardware": "--hardware",
    "kv_tokens": "--kv-tokens",
    "policy": "--policy",
    "router": "--router",
    "evictor": "--cache",
    "shape": "--shape",
    "device": "--device",
    "columns": "--columns",
    "unit": "--unit",
    "axis": "--axis",
    "latency": "--latency",
    "over": "--over",
    "labels": "--label",
    "groups": "--groups",
    "record": "--decisions",
    "runner": "--runner",
}


@contextmanager
def naming_options() -> Iterator[None]:
    """Let an `InputError` about what an option gives name the option instead of the field."""
    try:
        yield
    except InputError as error:
        # What is in a file is no option.
        option = _OPTIONS.get(error.field, error.field) if error.source is None else error.field
        raise InputError(option, error.value, error.expected, error.source) from None


def read_turns(text: str) -> tuple[float, float]:
    """Read ``MEAN,SECONDS``: mean turns of conversations, ≥ 1, and mean time from one to the next, > 0."""
    try:
        turns, seconds = map(float, text.split(","))
    except ValueError:
        turns = seconds = 0.0
    if not (1 <= turns <= MAX_TOKENS and 0 < seconds <= MAX_TOKENS):
        raise InputError("--turns", text, "MEAN,SECONDS: numbers, at least 1 and more than 0")
    return turns, seconds


def refuse_options(option: str, names: Sequence[str], expected: str) -> None:
    """Raise `InputError` if one of the parameters was typed next to an option with which it means nothing."""
    context = click.get_current_context()
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "") == ParameterSource.COMMANDLINE
        if parameter.name in names and given:
            raise InputError(option, Said(f"{parameter.opts[-1]} with it"), expected)


def read_objective(name: str) -> Objective:
    """Return the objective of that name."""
    with naming_options():
        return find_objective(name)


def on_profile(instance: Instance, profile: str | None) -> Instance:
    """Return the instance on the machine that ``--profile`` names; without one as it is."""
    if profile is None:
        return instance
    if any(group.cost is not None for group in instance.machine_groups):
        raise InputError("--profile", profile, "an instance whose machines have no cost of their own")
    with blaming("--profile"), naming_options():
        return replace(instance, cost=find_cost(profile))


def require_method(name: str) -> None:
    """Raise `InputError` if there is no formulation of that name, nor ``auto``, whose result names broken plug-ins."""
    if name != AUTO:
        _name_broken(FORMULATION_GROUP)
    require_known_method(name, "--method")


def _name_broken(group: str) -> None:
    """Name on stderr the entry points of a group that cannot be loaded."""
    for reason in broken_entries(group):
        click.echo(f"optsched: {reason}", err=True)


def require_policy(name: str) -> None:
    """Raise `InputError` if there is no policy of that name, or none where ``FILE.py:NAME`` points."""
    _name_broken(POLICY_GROUP)
    _require_policy(name, "")


def _require_policy(name: str, others: str) -> None:
    for part in parts_of(name):
        if in_file(part):
            policy_in_file(part, "--policy")
        elif part not in policy_names():
            raise InputError("--policy", part, others + one_of(part, policy_names()))


def read_policies(given: Sequence[str]) -> tuple[str, ...]:
    """Return the policies that ``--policy`` names: ``all``, the ``standard`` ones, or names; commas may join them."""
    _name_broken(POLICY_GROUP)
    several = {"all": policy_names(), "standard": standard_policies()}
    found: dict[str, None] = {}
    for name in (part for text in given for part in text.split(",")):
        if name not in several:
            _require_policy(name, "all, standard, or ")
        found.update(dict.fromkeys(several.get(name, (name,))))
    return tuple(found)


def _names(given: Sequence[str]) -> list[str | None]:
    """Return what was typed, commas apart, each once; None alone for nothing."""
    return list(dict.fromkeys(part for text in given for part in text.split(","))) or [None]


def read_routers(given: Sequence[str]) -> list[str | None]:
    """Return the routers that ``--router`` names; None for nothing."""
    _name_broken(ROUTER_GROUP)
    for name in (names := _names(given)):
        if name is not None:
            find_router(name, "--router")
    return names


def read_evictors(given: Sequence[str]) -> list[str | None]:
    """Return the evictors that ``--cache`` names; None for nothing."""
    for name in (names := _names(given)):
        if name is not None:
            require_setting(name, "--cache")
    return names
