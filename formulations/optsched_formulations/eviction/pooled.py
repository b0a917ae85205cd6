r"""What the prefix caches of R machines can find at most, whichever machine serves which request.

Requests are served one after another, in a given order, each on one of the machines; machine m caches :math:`K_m`
blocks. *The order is part of the question*, as in `prefix_cache`.

Theorem
-------
No assignment of requests to machines, and no choice of what they drop, finds more than `prefix_cache` proves for one
cache of :math:`K = \sum_m K_m` blocks. If finding is worth machine time, and a prefill on nothing takes the same on all
machines, :math:`T` for all prompts, some machine prefills for at least :math:`\lceil (T - \text{bound}) / R \rceil`.

Proof
-----
Let request k find block d on machine m, and let :math:`i_d` be the last request before k that used it, wherever. The
last one on m that used it came no later, and has left it there until k: nothing on m could have brought it back. So
while each request j strictly between :math:`i_d` and k is served, the block is cached somewhere, and j does not use it.
All machines hold at most K different blocks, of which j occupies :math:`\mathrm{occupied}_j`: at most
:math:`K - \mathrm{occupied}_j` others are found later. That is all that the theorem of `prefix_cache` uses. The
machines prefill for at least :math:`T - \text{bound}` together, and the largest of R numbers is at least their mean. ∎

*Tight* where each prefix is needed by one machine only. *Loose* where many machines hold copies of one prefix, or one
machine is given most of what is found.

Conditions
----------
Blocks have one size on all machines. `optsched.check.certificates.prefix_cache.saved_bound` checks the prices for a
service with K blocks, and `largest_load_bound` the load. A request that fits no machine alone is not noticed, which
only weakens what is proved. Requests that are served at the same time are not covered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optsched.model.errors import InputError
from optsched_formulations.eviction.prefix_cache import CacheUse, most_saved
from optsched_formulations.eviction.service import BlockValue, ServiceOrder


@dataclass(frozen=True)
class PooledUse:
    """What several machines' caches can save for an order of service.

    Parameters
    ----------
    use
        Of one cache of all their blocks; its bound holds for them.
    total
        What all prompts take on nothing, in the unit of the savings.
    machines
        R.
    """

    use: CacheUse
    total: int
    machines: int

    @property
    def recomputed(self) -> int:
        """The least that all machines recompute together."""
        return self.total - self.use.bound

    @property
    def largest_load(self) -> int:
        """The least that some machine recomputes; of time, its load."""
        return -(-self.recomputed // self.machines)


def pooled_use(
    order: ServiceOrder, capacities: Sequence[int], value: BlockValue, total: int, *, time_limit_s: float = 60.0
) -> PooledUse:
    """Return what caches of ``capacities`` blocks save at most for requests that take ``total`` on nothing.

    Raises
    ------
    InputError
        If there is no machine, or a request occupies more blocks than all machines have.
    """
    if not capacities:
        raise InputError("capacities", "no machine", "the blocks of at least one")
    return PooledUse(most_saved(order, sum(capacities), value, time_limit_s=time_limit_s), total, len(capacities))
