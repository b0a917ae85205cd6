"""vLLM as it is now: the scheduler of its V1 engine (vLLM 0.19.0, ``vllm/v1/core/sched/scheduler.py``).

There are no phases: each request has a number of tokens to compute, and gets as many of them as one budget for all
leaves. First the running requests in the order in which they were admitted, then waiting ones, first come, first
served. If blocks run short for a running request the last of the running is preempted, recomputed later, and goes to
the head of the queue; in such a step none is admitted. A request is admitted if its whole prefill fits the blocks that
are free (``scheduler_reserve_full_isl``), but takes those of its first chunk only. `benchmarks/vllm_scheduler.py`
drives vLLM's own class beside it: docs/vllm.md.

In InferMax's terms this is `sarathi_pc` but for one thing. At most one request is in the middle of its prefill, the
last that was admitted, so the order of running requests is that of decodes before fills, and both are the order of
arrival; preempted requests are before all that wait, so that none passes them. But what is free counts as
free: decodes may take what the rest of a running prefill will need, and preempt it only when they meet.

On a machine with a prefix cache it is vLLM's with automatic prefix caching (`optsched.policies.cached`), block for
block if the machine's cache has mode ``all`` and ``share_in_batch``, and the evictor is ``vllm``: ``python
benchmarks/cluster_runs.py`` holds it against vLLM 0.33.0.

Where its code is *silent*, on the names here:

- C is ``max_num_batched_tokens``, N ``max_num_seqs``, b ``block_size``. N caps requests that run here and requests that
  hold KV there; that is the same, since none is admitted unless all that hold KV run. vLLM keeps one block for itself:
  its ``num_gpu_blocks`` is M / b + 1.

It *differs*:

- An instance's P, which vLLM has not, and its rules tighten the policy, because they do so for all others.
- Left out, because vLLM's defaults do so, or nothing here corresponds to it: ``long_prefill_token_threshold``,
  priorities, speculative decoding, pipeline parallelism, asynchronous scheduling.
"""

from __future__ import annotations

from dataclasses import replace

from optsched.policies.algorithm import nothing, whole_at_admission
from optsched.policies.cached import CachedPolicy
from optsched.policies.grouped import Group, Members

VLLM_V1 = CachedPolicy(
    groups=(Group(Members.RUNNING, evicts=True), Group(Members.WAITING)),
    hybrid=True,
    chunked=True,
    reserve=whole_at_admission,
)
"""vLLM's V1 scheduler."""

VLLM_V1_UNRESERVED = replace(VLLM_V1, reserve=nothing)
"""The same without ``scheduler_reserve_full_isl``: a request whose first chunk fits is admitted."""
