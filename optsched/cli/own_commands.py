"""The commands for a user's own parts: ``new`` writes a file to begin with, ``conform`` tries it."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

import click

from optsched.cli.commands import terminal_width
from optsched.cli.group import cli
from optsched.cli.options import require_policy
from optsched.model.errors import InputError, printable
from optsched.report.formats import simple_table

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*")

_POLICY = '''"""{title}: a batching policy for optsched. Change what you like; each part says what it decides.

    optsched simulate infermax-fig15 --policy {file}:{policy} --policy vllm
    optsched conform {file}:{policy}
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
{policy} = GroupedPolicy(
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


@cli.command()
@click.argument("kind", metavar="policy")
@click.argument("name")
def new(kind: str, name: str) -> None:
    """Write NAME.py: a commented policy that runs, to be changed."""
    if kind != "policy":
        raise InputError("KIND", kind, "policy")
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise InputError("NAME", name, "letters, digits and underscores, a letter first")
    file = Path(f"{name.lower()}.py")
    text = _POLICY.format(title=name, file=file, policy=name.upper())
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise InputError("NAME", name, f"a name without a file: {file} is there") from None
    click.echo(
        f"{file}: try it with\n  optsched simulate infermax-fig15-I8 --policy {file}:{name.upper()} --policy vllm"
    )
    click.echo(f"  optsched conform {file}:{name.upper()}")


@cli.command()
@click.argument("policies", nargs=-1, required=True, metavar="POLICY...")
def conform(policies: tuple[str, ...]) -> int:
    """Try policies, names or FILE.py:NAME, on small instances: exit 0 only if each keeps to every rule.

    Each is run under every objective. Its schedules have to be legal, the same when run again, and the same when it is
    asked before each batch. n/a: it says that it cannot serve an instance, which it may; but not all of them.
    """
    from optsched.methods.conform import Verdict  # noqa: PLC0415 - other commands need no instances
    from optsched.methods.conform import conform as tried  # noqa: PLC0415

    for policy in policies:
        require_policy(policy)
    failed = False
    for policy in policies:
        found = tried(policy)
        rows = [[each.instance, each.verdict.value, printable(each.reason)] for each in found]
        click.echo(printable(policy))
        click.echo(simple_table(["instance", "verdict", "why"], rows, terminal_width(), left=(0, 1, 2)), nl=False)
        verdicts = {each.verdict for each in found}
        failed |= Verdict.FAILED in verdicts or verdicts == {Verdict.NOT_AVAILABLE}
    return int(failed)
