"""What a shell completes: names of instances, suites, policies, methods and profiles, and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

from optsched.library import load_suite, suite_names
from optsched.methods.plan import method_names
from optsched.methods.policies import policy_names
from optsched.model.profiles import profile_names

Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _completing(names: Callable[[], Iterable[str]], *, files: bool = False) -> Completion:
    """Return what completes the last of names joined by commas; files, too, where one is allowed."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        found = [CompletionItem(before + comma + name) for name in names() if name.startswith(last)]
        return [*found, CompletionItem(incomplete, type="file")] if files else found

    return complete


def _instances() -> Iterable[str]:
    return [instance.name for suite in suite_names() for instance in load_suite(suite).instances]


def _policies() -> Iterable[str]:
    return ("all", "standard", *policy_names())


complete_suites = _completing(suite_names, files=True)
complete_instances = _completing(_instances, files=True)
complete_policies = _completing(_policies, files=True)
complete_methods = _completing(method_names)
complete_profiles = _completing(profile_names, files=True)
