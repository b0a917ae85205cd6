"""Policy classes: restrictions that turn a hypothesis about scheduling into a smaller set of schedules."""

from __future__ import annotations

from types import MappingProxyType

from optsched.model.domain import domain, replace
from optsched.model.errors import InputError
from optsched.model.instance import Instance

FORBIDDABLE = MappingProxyType({"eviction": "eviction", "hybrid": "hybrid", "chunked": "chunked_prefill"})
"""What can be forbidden, and the rule of `optsched.model.instance.Rules` that it switches off."""


@domain
class Restrictions:
    """A class of schedules, smaller than what the instance allows (problem.md, policy classes).

    Parameters
    ----------
    forbid
        Names from `FORBIDDABLE`: what no schedule of the class does.
    """

    forbid: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.forbid:
            if name not in FORBIDDABLE:
                raise InputError("forbid", name, f"one of {', '.join(FORBIDDABLE)}")

    def apply(self, instance: Instance) -> Instance:
        """Return the instance whose schedules are the class's schedules of ``instance``."""
        if not self.forbid:
            return instance
        rules = replace(instance.rules, **{FORBIDDABLE[name]: False for name in self.forbid})
        return replace(instance, rules=rules)
