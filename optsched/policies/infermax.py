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
outputs so far says how much memory a request will take at most, which is reserved at admission. Either can be switched
off. Decisions where the paper is silent:

- The histogram says the mean output of the finished requests that were longer than what the request has generated; it
  has generated its last token but one if there were none. I and this make the reservation, I + O − 1, but no more than
  the cache holds.
- A reservation is the job's share of memory until it ends or is evicted, as in all policies here, and follows the
  histogram from batch to batch.
- Requests that hold equally much go in order of arrival.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from optsched.model.schedule import Assignment
from optsched.policies.grouped import Group, GroupedPolicy, Members, longest, worst_case
from optsched.policies.histogram import Histogram
from optsched.simulate.replica import Job, Occasion, Policy, Replica

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


@dataclass(frozen=True)
class InferMax:
    """InferMax's scheduler.

    Parameters
    ----------
    long_first
        Whether who holds more KV decodes first, and is evicted last.
    histogram
        Whether memory is reserved for the output that is expected.
    base
        What it is made of.
    """

    long_first: bool = True
    histogram: bool = True
    base: GroupedPolicy = SARATHI

    def prepared(self, occasion: Occasion) -> Policy:
        """Return the policy of one run, whose histogram is empty."""
        policy = self.base
        if self.long_first:
            groups = tuple(
                replace(group, order=_longest) if group.members is Members.DECODING else group
                for group in policy.groups
            )
            policy = replace(policy, groups=groups)
        return _Reserving(policy) if self.histogram else policy


def _longest(job: Job, _: Replica) -> int:
    return -job.cached


class _Reserving:
    """A policy that reserves what a histogram says, and keeps it up to date."""

    def __init__(self, policy: GroupedPolicy) -> None:
        self._policy = replace(policy, reserve=self._reserve)
        self._histogram = Histogram()
        self._capacity = 0

    def next_batch(self, replica: Replica) -> Assignment:
        """Count who has ended, then form the next batch."""
        self._histogram.count()
        self._capacity = replica.limits.kv_tokens
        assignment = self._policy.next_batch(replica)
        self._histogram.watch(replica, assignment)
        return assignment

    def stands(self, replica: Replica, assignment: Assignment) -> int:
        """Say how long reservations fit, which grow with what is generated, if everybody runs who is admitted."""
        jobs, limits = replica.running, replica.limits
        if len(assignment.run) < len(jobs):
            return 1

        def lasts(times: int) -> bool:
            # Reservations are those at the begin of the last batch.
            reserved = (max(job.cached + times, self._reserved(job, job.generated + times - 1)) for job in jobs)
            return sum(map(limits.occupied, reserved)) <= limits.kv_capacity

        return longest(min(job.request.output - job.generated for job in jobs), lasts)

    def _reserve(self, job: Job) -> int:
        return self._reserved(job, job.generated)

    def _reserved(self, job: Job, generated: int) -> int:
        output = self._histogram.expected(generated)
        return min(job.request.input + output - 1, self._capacity)


INFERMAX = InferMax()
