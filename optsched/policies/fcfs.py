"""First come, first served: schedulers that look at nothing but the order of arrival.

- `fcfs`: vLLM with a cap on the requests that hold KV (Kossmann et al., section 2.2); 256 is vLLM's own default.
- `no_preempt`: `fcfs` that sets the largest possible memory aside for every request (there, "No-Preempt").
- `orca`: iteration-level batches of both phases, maximal allocation, a fixed number of requests (EconoServe, section
  2.1: 8).
- `static`: request-level batching, as of FasterTransformer: nobody joins before all have ended.
- `fastgen`: SplitFuse (DeepSpeed-FastGen): every batch is filled with decodes, and then with chunks of prompts, up to a
  target forward size.

Decisions where the papers are silent:

- The largest possible output is that of the instance, unless a limit is given; an allocation is never more than the
  cache.
- `static` pads nothing: who has ended takes no time any more, but his place is not filled. Prompts of a batch run
  together, so that they fit one token budget.
- The target forward size is the least number of tokens at which a token takes at most a tenth more time than at best,
  without attention: where the machine is nearly saturated. `fastgen` admits while prompts fit, and evicts the last to
  arrive if memory is short.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from optsched.model.cost import CostModel
from optsched.model.instance import Instance
from optsched.policies.grouped import Group, GroupedPolicy, Margins, Members, Reserve
from optsched.policies.infermax import SARATHI, VLLM
from optsched.simulate.replica import Occasion, Policy

FCFS = replace(VLLM, margins=Margins(residents=256))
"""vLLM's order, 256 requests at most."""


@dataclass(frozen=True)
class MaxAllocation:
    """A policy that allocates the most that a request may need.

    Parameters
    ----------
    base
        The policy.
    most_output
        The longest output that users may ask for; None for the longest of the instance.
    """

    base: GroupedPolicy
    most_output: int | None = None

    def prepared(self, occasion: Occasion) -> Policy:
        """Return the policy, which reserves as much for every request."""
        return replace(self.base, reserve=largest_allocation(occasion.instance, self.most_output))


def largest_allocation(instance: Instance, most_output: int | None = None) -> Reserve:
    """Return what maximal allocation gives a request: its prompt and the longest output, but no more than the cache."""
    capacity = instance.limits.kv_capacity
    most = max(request.output for request in instance.requests) if most_output is None else most_output
    return lambda job: min(job.request.input + most - 1, capacity)


NO_PREEMPT = MaxAllocation(FCFS)
"""`fcfs`, the worst case reserved."""

ORCA = MaxAllocation(
    GroupedPolicy(
        groups=(Group(Members.RUNNING, evicts=True), Group(Members.WAITING)),
        hybrid=True,
        chunked=False,
        margins=Margins(residents=8),
    )
)
"""Orca (Yu et al. 2022), batches of 8."""

STATIC = MaxAllocation(replace(VLLM, margins=Margins(residents=8, together=True)))
"""FasterTransformer: batches of 8, one after the other."""


@dataclass(frozen=True)
class FastGen:
    """SplitFuse.

    Parameters
    ----------
    forward_tokens
        Target forward size; None for that which nearly saturates the machine.
    """

    forward_tokens: int | None = None

    def prepared(self, occasion: Occasion) -> Policy:
        """Return Sarathi with the target as its budget."""
        instance = occasion.instance
        target = self.forward_tokens or saturating_tokens(instance.cost, instance.limits.batch_tokens)
        return replace(SARATHI, token_budget=target)


def saturating_tokens(cost: CostModel, most: int) -> int:
    """Return the least number of tokens, up to ``most``, at which each takes at most a tenth more than at best."""
    # The time of a token falls up to a bend, and may rise again after it only if there is no base left.
    best = min(cost.linear_ps(tokens) / tokens for tokens in range(1, most + 1))
    return next(tokens for tokens in range(1, most + 1) if cost.linear_ps(tokens) <= 1.1 * best * tokens)


FASTGEN = FastGen()
"""SplitFuse towards the size that nearly saturates the machine."""
