"""What a shell completes: names of instances, suites, policies, methods, objectives and profiles, and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _completing(names: Callable[[], Iterable[str]], *, files: bool = False) -> Completion:
    """Return what completes the last of names joined by commas; files, too, where one may stand."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        found = [CompletionItem(before + comma + name) for name in names() if name.startswith(last)]
        return [*found, CompletionItem(incomplete, type="file")] if files else found

    return complete


# Each loads what it lists only when a shell asks.


def _suites() -> Iterable[str]:
    from optsched.library import suite_names  # noqa: PLC0415

    return suite_names()


def _instances() -> Iterable[str]:
    from optsched.library import load_suite, suite_names  # noqa: PLC0415

    return [instance.name for suite in suite_names() for instance in load_suite(suite).instances]


def _policies() -> Iterable[str]:
    from optsched.methods.simulate import policy_names  # noqa: PLC0415

    return ("all", "standard", *policy_names())


def _methods() -> Iterable[str]:
    from optsched.methods.plan import method_names  # noqa: PLC0415

    return ("auto", *method_names())


def _objectives() -> Iterable[str]:
    from optsched.model.objectives import Objective  # noqa: PLC0415

    return [objective.value for objective in Objective]


def _profiles() -> Iterable[str]:
    from optsched.model.profiles import profile_names  # noqa: PLC0415

    return profile_names()


complete_suites = _completing(_suites, files=True)
complete_instances = _completing(_instances, files=True)
complete_policies = _completing(_policies, files=True)
complete_methods = _completing(_methods)
complete_objectives = _completing(_objectives)
complete_profiles = _completing(_profiles, files=True)
