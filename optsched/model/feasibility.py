"""Why no schedule exists, and what would change that.

Each request alone decides (docs/problem.md, Infeasible instances): if every one can be served, one after another is a
schedule, in any order of first runs, without eviction and with one run a batch. So of all restrictions only forbidding
chunked prefill can make an instance infeasible. Whether a schedule is as good as `Restrictions.at_most` asks is a
matter of bounds.
"""

from __future__ import annotations

from optsched.model.errors import InfeasibleInstanceError
from optsched.model.instance import Instance
from optsched.model.restrictions import Restrictions


def infeasibility(instance: Instance, restrictions: Restrictions | None = None) -> InfeasibleInstanceError | None:
    """Return what names the conflicting requests, limits and restrictions, and the smallest limits that would do.

    None if a schedule exists, of whatever value.
    """
    return infeasibility_of(instance, instance if restrictions is None else restrictions.apply(instance))


def infeasibility_of(instance: Instance, restricted: Instance) -> InfeasibleInstanceError | None:
    """Return the same of an instance to which restrictions have been applied already, as `restricted`."""
    reasons = restricted.infeasibilities()
    return InfeasibleInstanceError(reasons, _remedy(instance, restricted)) if reasons else None


def require_feasible(instance: Instance, restrictions: Restrictions | None = None) -> None:
    """Raise `InfeasibleInstanceError` if no schedule exists."""
    found = infeasibility(instance, restrictions)
    if found is not None:
        raise found


def _remedy(instance: Instance, restricted: Instance) -> str:
    if instance.is_distributed:
        return ""  # which of the machines should be larger is not for us to say
    limits, enough = restricted.limits, restricted.sufficient_limits()
    memory, budgets = (
        [f"{name} = {getattr(enough, name)}" for name in names if getattr(enough, name) != getattr(limits, name)]
        for names in (("kv_tokens",), ("prefill_tokens", "batch_tokens"))
    )
    text = f"{' and '.join([*memory, *budgets])} would do"
    if not budgets:
        return text
    whose = ", which the instance allows and the restrictions forbid" if instance.rules.chunked_prefill else ""
    return f"{text}, or {' and '.join([*memory, 'chunked prefill'])}{whose}"
