"""The schedulers that InferMax analyses (Kim et al., Table 1), an eviction-free variant of each, and its own.

========  ========  ======  =======  =====
name      priority  hybrid  chunked  P
========  ========  ======  =======  =====
vllm      prefill   no      no       C
vllm_hy   prefill   yes     no       C
sarathi   decode    yes     yes      512
…_pc      decode    yes     yes      C
…_nocp    decode    yes     no       C
…_nohy    decode    no      no       C
========  ========  ======  =======  =====

The table's P = 4096 is the model's context size C there. The eviction-free variants reserve I + O − 1 tokens
at admission and so know the output length (section 4.1): they admit while the sum of the reservations of all
admitted requests is at most M.

InferMax's own scheduler (section 6) is Sarathi with two changes. Among the requests that decode those that hold more
KV go first, so that the shortest is evicted if memory is short, whose refill costs least. And a histogram of the
outputs so far estimates how much memory a waiting request will take at most, I + Ô − 1, which has to be free when it is
admitted: step 3 of Algorithm 1 checks m_reserve ≤ M − Σ m over the requests that hold KV, m being what they hold, not
what was estimated for them. Either change can be switched off.

Where the paper is *silent*:

- The statistic Ô of the histogram: the mean, or a quantile, of the finished outputs that were longer than what the
  request has generated; if there are none its next token is the last.
- P of InferMax's own scheduler: that of Sarathi in Table 1, 512.
- The estimate is at most what the cache holds, so that a request alone is always admitted.
- Requests that hold equally much go in order of arrival.

It *differs*:

- The eviction-free variants check against the sum of the reservations, because against what is held (Algorithm 1,
  step 3) requests admitted one after the other would outgrow M and be evicted. `Check.RESERVED` does the same with the
  estimates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from fractions import Fraction

from optsched.model.schedule import Assignment
from optsched.policies.algorithm import worst_case
from optsched.policies.grouped import Group, GroupedPolicy, Members, longest
from optsched.policies.histogram import Histogram
from optsched.simulator.replica import Job, Occasion, Policy, Replica

VLLM = GroupedPolicy(groups=(Group(Members.WAITING), Group(Members.RUNNING, evicts=True)), hybrid=False, chunked=False)
"""vLLM (Kwon et al. 2023): prefills first, in batches of their own."""

VLLM_SWAP = replace(VLLM, swaps=True)
"""vLLM that swaps where the instance allows it."""

VLLM_HY = replace(VLLM, hybrid=True)
"""vLLM with hybrid batches."""

SARATHI = GroupedPolicy(
    groups=(
        Group(Members.DECODING, evicts=True),
        Group(Members.FILLING, evicts=True),
        Group(Members.WAITING),
    ),
    hybrid=True,
    chunked=True,
    token_budget=512,
)
"""Sarathi-Serve (Agrawal et al. 2024): decodes first, prefill chunks fill the batch up to 512 tokens."""

SARATHI_PC = replace(SARATHI, token_budget=None)
"""Sarathi with P = C."""

SARATHI_NOCP = replace(SARATHI_PC, chunked=False)
"""Sarathi with P = C and whole prefills."""

SARATHI_NOHY = replace(SARATHI_NOCP, hybrid=False)
"""Sarathi with P = C, whole prefills and batches of one kind."""

VLLM_EF = replace(VLLM, reserve=worst_case)
VLLM_HY_EF = replace(VLLM_HY, reserve=worst_case)
SARATHI_EF = replace(SARATHI, reserve=worst_case)
SARATHI_PC_EF = replace(SARATHI_PC, reserve=worst_case)
SARATHI_NOCP_EF = replace(SARATHI_NOCP, reserve=worst_case)
SARATHI_NOHY_EF = replace(SARATHI_NOHY, reserve=worst_case)


class Check(Enum):
    """What is compared with the estimated memory of a waiting request."""

    HELD = auto()
    """M less what the others hold, the paper's: an estimate counts only when its request is admitted."""
    RESERVED = auto()
    """M less the estimates of the others, each as long as its request holds KV."""


@dataclass(frozen=True)
class InferMax:
    """InferMax's scheduler.

    Parameters
    ----------
    long_first
        Whether the requests that hold more KV decode first, and are evicted last.
    histogram
        Whether admission estimates memory by the outputs so far.
    base
        The scheduler that the two change.
    check
        What the estimate is compared with.
    quantile
        The quantile of the histogram that is estimated, from above 0 to 1; None for the mean.
    """

    long_first: bool = True
    histogram: bool = True
    base: GroupedPolicy = SARATHI
    check: Check = Check.HELD
    quantile: Fraction | None = None

    def prepared(self, occasion: Occasion) -> Policy:
        """Return the policy of one run, whose histogram is empty."""
        policy = self.base
        if self.long_first:
            groups = tuple(
                replace(group, order=_longest) if group.members is Members.DECODING else group
                for group in policy.groups
            )
            policy = replace(policy, groups=groups)
        if not self.histogram:
            return policy
        estimates = _Estimates(self.quantile, occasion.instance.limits.kv_capacity)
        return _Asking(policy, estimates) if self.check is Check.HELD else _Reserving(policy, estimates)


def _longest(job: Job, _: Replica) -> int:
    return -job.cached


class _Estimates:
    """What requests are expected to hold at most, I + Ô − 1, by a histogram that is kept up to date."""

    def __init__(self, quantile: Fraction | None, capacity: int) -> None:
        self._histogram, self._capacity = Histogram(quantile), capacity

    def __call__(self, job: Job) -> int:
        return self.after(job, job.generated)

    def after(self, job: Job, generated: int) -> int:
        """Return the estimate once a request has generated that number of tokens."""
        return min(job.request.input + self._histogram.expected(generated) - 1, self._capacity)

    def next_batch(self, policy: GroupedPolicy, replica: Replica) -> Assignment:
        """Count the requests that have ended, then form the next batch."""
        self._histogram.count()
        assignment = policy.next_batch(replica)
        self._histogram.watch(replica, assignment)
        return assignment


class _Asking:
    """A policy that admits a request if its estimate fits beside what the others hold."""

    def __init__(self, policy: GroupedPolicy, estimates: _Estimates) -> None:
        self._policy, self._estimates = replace(policy, asks=estimates), estimates

    def next_batch(self, replica: Replica) -> Assignment:
        """Form the next batch."""
        return self._estimates.next_batch(self._policy, replica)

    def valid_for(self, replica: Replica, assignment: Assignment) -> int:
        """Return how many batches the decision remains valid: memory gets less, and estimates change when one ends."""
        return self._policy.valid_for(replica, assignment)


class _Reserving:
    """A policy that sets the estimate aside as long as its request holds KV."""

    def __init__(self, policy: GroupedPolicy, estimates: _Estimates) -> None:
        self._policy, self._estimates = replace(policy, reserve=estimates), estimates

    def next_batch(self, replica: Replica) -> Assignment:
        """Form the next batch."""
        return self._estimates.next_batch(self._policy, replica)

    def valid_for(self, replica: Replica, assignment: Assignment) -> int:
        """Return how many batches reservations fit, which grow with what is generated, if all admitted requests run."""
        jobs, memory = replica.running, replica.memory
        if len(assignment.run) < len(jobs):
            return 1

        def lasts(times: int) -> bool:
            # Reservations are those at the begin of the last batch.
            after = ((job, self._estimates.after(job, job.generated + times - 1)) for job in jobs)
            return sum(memory.size(job, max(job.cached + times, most)) for job, most in after) <= memory.capacity

        return longest(min(job.request.output - job.generated for job in jobs), lasts)


INFERMAX = InferMax()
