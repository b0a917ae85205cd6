"""Policy classes: restrictions that turn a hypothesis about scheduling into a smaller set of schedules."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated

from pydantic import FailFast, Field

from optsched.model.domain import Index, Tokens, domain, replace
from optsched.model.errors import InputError, one_of
from optsched.model.instance import Instance, Limits

REORDERING = "reordering"
_RULES = MappingProxyType({"eviction": "eviction", "hybrid": "hybrid", "chunked": "chunked_prefill", "swap": "swap"})
FORBIDDABLE = (*_RULES, REORDERING)
"""What can be forbidden: rules of the instance, and ``reordering`` (first come, first served)."""


@domain
class Restrictions:
    """A class of schedules, smaller than what the instance allows (docs/problem.md, Policy classes).

    Parameters
    ----------
    forbid
        Names from `FORBIDDABLE`. If ``reordering`` is forbidden, requests start in order of arrival, ties by index:
        the first run of each is in no later batch than that of the next.
    max_evictions
        The most evictions of a schedule; None for any number.
    max_batch
        The most runs of a batch; None for the instance's own N.
    order
        Permutation of request indices: each starts no later than the next. Empty for any order.
    at_most
        The largest objective value (ps; for means the sum over requests): asks whether any schedule is that good.
    """

    forbid: Annotated[tuple[str, ...], FailFast()] = ()
    max_evictions: Index | None = None
    max_batch: Tokens | None = None
    order: Annotated[tuple[Index, ...], FailFast()] = ()
    at_most: Annotated[int, Field(ge=0)] | None = None

    def __post_init__(self) -> None:
        for name in self.forbid:
            if name not in FORBIDDABLE:
                raise InputError("forbid", name, one_of(name, FORBIDDABLE))
        if self.order and sorted(self.order) != list(range(len(self.order))):
            raise InputError("order", self.order, "every request index once, counted from 0")
        if self.order and REORDERING in self.forbid:
            raise InputError("order", self.order, "none where reordering is forbidden")

    def apply(self, instance: Instance) -> Instance:
        """Return the instance with rules and N tightened; what rules cannot say stays with the restrictions."""
        if self.order and len(self.order) != len(instance.requests):
            raise InputError("order", self.order, f"all {len(instance.requests)} requests")
        forbidden = {*self.forbid, *(["eviction"] if self.max_evictions == 0 else [])}
        off = {_RULES[name]: False for name in forbidden if name in _RULES}
        if not off and self.max_batch is None:
            return instance
        groups = tuple(
            replace(
                group,
                rules=None if group.rules is None else replace(group.rules, **off),
                limits=None if group.limits is None else self._limited(group.limits),
            )
            for group in instance.machine_groups
        )
        rules, limits = replace(instance.rules, **off), self._limited(instance.limits)
        return replace(instance, rules=rules, limits=limits, machine_groups=groups)

    def _limited(self, limits: Limits) -> Limits:
        """Return limits with N tightened."""
        own = limits.batch_requests
        if self.max_batch is None:
            return limits
        return replace(limits, batch_requests=self.max_batch if own is None else min(own, self.max_batch))

    def first_runs(self, instance: Instance) -> tuple[int, ...]:
        """Return the order in which requests must start, each no later than the next; empty for any order."""
        if REORDERING in self.forbid:
            requests = instance.requests
            return tuple(sorted(range(len(requests)), key=lambda index: requests[index].arrival_ps))
        return self.order
