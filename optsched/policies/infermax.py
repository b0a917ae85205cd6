"""The schedulers that InferMax analyses (Kim et al., Table 1), and an eviction-free variant of each.

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
"""

from __future__ import annotations

from dataclasses import replace

from optsched.policies.grouped import Group, GroupedPolicy, Members, worst_case

VLLM = GroupedPolicy(groups=(Group(Members.WAITING), Group(Members.RUNNING, evicts=True)), hybrid=False, chunked=False)
"""vLLM (Kwon et al. 2023): prefills first, in batches of their own."""

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
