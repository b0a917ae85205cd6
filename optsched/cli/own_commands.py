"""The commands for a user's own parts: ``new`` writes a file to begin with, ``conform`` tries it."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from types import MappingProxyType

import click

from optsched.cli.group import cli
from optsched.cli.terminal import terminal_width
from optsched.cli.types import OneOf
from optsched.methods.conform import Verdict
from optsched.methods.conform_parts import Kind, kind_of, require_part
from optsched.methods.conform_parts import conform as tried
from optsched.model.errors import InputError, printable
from optsched.report.formats import simple_table

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*")

_POLICY = '''"""{title}: a batching policy for optsched. Change what you like; each part says what it decides.

    optsched simulate infermax-fig15 --policy {file}:{name} --policy vllm
    optsched conform {file}:{name}
"""

from optsched.policies.grouped import Group, GroupedPolicy, Members


def priority(job, replica):
    """Return what waiting requests are ordered by, the smallest first; ties by arrival.

    job.request has input, output, arrival_ps (in picoseconds) and predicted_output; job.generated counts the tokens
    that it has, job.missing those without KV, which a prefill has to run. Reading job.request.output is hindsight: an
    online policy does not know it. replica has now_ps, limits, rules, and the lists waiting and running.
    """
    return job.missing


# The groups are gone through in order, and in each its requests, as long as token budgets and KV memory allow.
{name} = GroupedPolicy(
    groups=(
        # Those that hold KV go first, by arrival. If memory is short, the last to arrive are evicted, and recomputed
        # later; evicts=False would let them wait for memory instead.
        Group(Members.RUNNING, evicts=True),
        # Then the waiting ones, the evicted among them, by priority; the first that does not fit ends the batch.
        Group(Members.WAITING, order=priority),
    ),
    hybrid=True,  # batches may mix prefill and decode steps, where the instance allows it
    chunked=True,  # and prefills may be split
)

# For anything else write a class with next_batch(self, replica), which returns
# optsched.Assignment(run=[(job.index, tokens), ...], evict=[job.index, ...]): docs/extending.md.
'''


_ROUTER = '''"""{title}: a router for optsched. It decides on the machine of each request when it arrives.

    optsched simulate infermax-fig15-I8 --machines 2 --policy vllm --router {file}:{name},round_robin
    optsched conform {file}:{name}
"""

from optsched.routers.router import Router


class {name}(Router):
    """To the machine with the fewest tokens left to run."""

    def route(self, request, views):
        """Return the index of a machine.

        request has index, input, output (a prediction), prompt (its pieces, which say what prompts share), session and
        arrival_ps. A view of a machine has machine (its index), waiting, running, queued_tokens, pending_tokens,
        kv_used, kv_capacity, work_ps, and cached(request): prompt tokens that are cached there.
        """
        return min(views, key=lambda view: (view.pending_tokens - view.cached(request), view.machine)).machine

    # Also, if needed: first_token, finished and dropped take note of what happens, move decides where a request goes
    # that has its first token on a machine that only prefills (docs/extending.md).
'''

_EVICTOR = '''"""{title}: an evictor for optsched. It decides which cached block is dropped first when memory is short.

    optsched simulate infermax-fig15-I8 --policy vllm --cache {file}:{name},lru
    optsched conform {file}:{name}
"""


def {name}(leaf):
    """Return what leaves of the tree of cached blocks are ordered by, a tuple of integers; the least is dropped first.

    leaf has last_access, created (ticks of a clock), hits, priority, longest, depth and blocks. What is returned must
    not change between two uses of a leaf.
    """
    return (leaf.hits, leaf.last_access)
'''

_FORMULATION = '''"""{title}: a formulation for optsched. It looks for a schedule and a proved bound on the objective.

    optsched conform {file}:{name}
"""

import itertools
import time

from optsched.model.metrics import evaluate
from optsched.model.restrictions import Restrictions
from optsched.model.result import Badge
from optsched.model.schedule import one_after_another
from optsched.solvers.formulation import Outcome, Termination, UnsupportedError, require_monotone


class {name}:
    """The best order of serving requests one at a time: legal, and far from optimal; it proves no bound."""

    def solve(self, task):
        """Return an Outcome.

        task has instance, objective, restrictions, incumbent and incumbent_value (a schedule to beat, or None), bound,
        time_limit_s, workers, seed and progress. Raise UnsupportedError for what is not covered.
        """
        require_monotone(task.objective)
        if task.restrictions != Restrictions():
            raise UnsupportedError("restrictions")
        instance, value, schedule = task.instance, task.incumbent_value, task.incumbent
        until = time.perf_counter() + task.time_limit_s
        for order in itertools.permutations(range(len(instance.requests))):
            if time.perf_counter() > until:
                break
            found = one_after_another(instance, order)
            new = evaluate(instance, found)["objectives"][task.objective.value]
            if value is None or new < value:
                value, schedule = new, found
        # A bound goes in place of None; what backs it is a badge: Badge.SOLVER_CLAIMED, or CERTIFIED with a certificate
        # that optsched check knows. Termination.OPTIMAL says that bound and value are equal.
        return Outcome(Termination.LIMIT, schedule, None, Badge.HEURISTIC)
'''

_TEXTS = MappingProxyType(
    {Kind.POLICY: _POLICY, Kind.ROUTER: _ROUTER, Kind.EVICTOR: _EVICTOR, Kind.FORMULATION: _FORMULATION}
)


@cli.command()
@click.argument("kind", type=OneOf(tuple(Kind)))
@click.argument("name")
def new(kind: str, name: str) -> None:
    """Write NAME.py: a commented policy, router, evictor or formulation that runs, to be changed."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise InputError("NAME", name, "letters, digits and underscores, a letter first, and no keyword of Python")
    file = Path(f"{name.lower()}.py")
    called = _called(Kind(kind), name)
    text = _TEXTS[Kind(kind)].format(title=name, file=file, name=called)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise InputError("NAME", name, f"a name without a file: {file} is there") from None
    click.echo(f"{file}: its first lines say how to try it:")
    for line in text.split('"""')[1].splitlines()[2:]:
        if line:
            click.echo(f"  {line.strip()}")


def _called(kind: Kind, name: str) -> str:
    """Return what the file calls it, as Python's style has it: a constant, a class or a function."""
    if kind is Kind.POLICY:
        return name.upper()
    if kind is Kind.EVICTOR:
        return name.lower()
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


@cli.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--kind", type=OneOf(tuple(Kind)), help="What NAME is.  [default: as its methods say]")
def conform(names: tuple[str, ...], kind: str | None) -> int:
    """Try policies, routers, evictors or formulations on small instances: exit 0 only if all keep to the rules.

    NAME is a name or FILE.py:NAME. Policies are run under every objective: schedules have to be legal, the same when
    run again, and the same when a policy is asked before each batch. Of formulations, bounds have to hold. n/a: it says
    that it cannot serve an instance, which it may; but not all of them.
    """
    kinds = [kind_of(name) if kind is None else Kind(kind) for name in names]
    for name, each in zip(names, kinds, strict=True):
        require_part(name, each)
    failed = False
    for name, each in zip(names, kinds, strict=True):
        found = tried(name, each)
        rows = [[one.instance, one.verdict.value, printable(one.reason)] for one in found]
        click.echo(printable(f"{each.value} {name}"))
        click.echo(simple_table(["instance", "verdict", "why"], rows, terminal_width(), left=(0, 1, 2)), nl=False)
        verdicts = {one.verdict for one in found}
        failed |= Verdict.FAILED in verdicts or verdicts == {Verdict.NOT_AVAILABLE}
    return int(failed)
