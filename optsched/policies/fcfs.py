"""First come, first served: schedulers that look at nothing but the order of arrival.

- `fcfs`: the engine of Kossmann et al. (sections 2 and 6), which `no_preempt`, `larry`, `ltr` and `trail` share:
  hybrid batches, chunked prefill, "no batch contains more than 1024 tokens", a cap on the requests that hold KV.
- `no_preempt`: `fcfs` that reserves the largest possible memory for every request (there, "No-Preempt").
- `fcfs_hy`: the engine of `sjf`, `rr` and `rr_sjf`: hybrid batches, whole prefills, the same cap.
- `orca`: iteration-level batches of both phases, maximal allocation, a fixed number of requests (EconoServe, section
  2.1: 8).
- `static`: request-level batching, as of FasterTransformer: no request joins before all have ended.
- `fastgen`: SplitFuse (DeepSpeed-FastGen): every batch is filled with decodes, and then with chunks of prompts, up to a
  target forward size.

Where the papers are *silent*:

- Kossmann et al. leave the cap to the user; it is 256, vLLM's default. Decodes go before chunks of prefills, as in
  Sarathi-Serve, which they cite for chunked prefill.
- The largest output that a user may ask for is the longest of the instance, unless a limit is given.
- Prompts of a `static` batch run together, so that they fit one token budget.
- The target forward size is the least number of tokens at which a token takes at most a tenth more time than at best,
  without attention: where the machine is nearly saturated. `fastgen` admits while prompts fit, and evicts the last to
  arrive if memory is short.

It *differs*:

- The largest possible memory of `no_preempt` is bounded by the cache, not by the model's context, because an instance
  has no context.
- `static` pads nothing, because a batch here is what its requests run: a request that has ended takes no more time, but
  its place is not filled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from optsched.model.cost import CostModel
from optsched.model.instance import Instance
from optsched.policies.algorithm import Reserve
from optsched.policies.grouped import Group, GroupedPolicy, Margins, Members
from optsched.policies.infermax import SARATHI, VLLM, VLLM_HY
from optsched.simulator.replica import Occasion, Policy

FCFS = replace(SARATHI, token_budget=None, batch_tokens=1024, margins=Margins(residents=256))
"""The engine of Kossmann et al.: chunks, at most 1,024 tokens a batch and 256 requests that hold KV."""

FCFS_HY = replace(VLLM_HY, margins=Margins(residents=256))
"""The engine of RR-SJF's policies: whole prefills beside decodes, at most 256 requests that hold KV."""


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
