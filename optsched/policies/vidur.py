"""vLLM and Sarathi as Vidur simulates them, for results that can be laid beside its own.

Vidur (Agrawal et al., MLSys 2024; microsoft/vidur at 7d47513, ``vidur/scheduler/replica_scheduler``) has blocks of 16,
a cap of 128 requests that hold KV, and a watermark: admission leaves 1 % of the blocks free. A decode step needs a free
block even if it takes none. Its vLLM counts all prompts of a batch as long as the longest. Its evicted requests go to
the front of the queue, which is where the order of arrival has them. A request longer than the context of 4,096 has a
shorter prompt (`clipped`).
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from optsched.model.domain import replace as changed
from optsched.model.instance import Limits, Request
from optsched.policies.grouped import Margins
from optsched.policies.infermax import SARATHI, VLLM

LIMITS = Limits(kv_tokens=7424 * 16, batch_tokens=4096, prefill_tokens=4096, kv_block=16)
"""Of Llama-2-7B on an A100 of 80 GB, as Vidur derives them: 29 requests of 4,096 tokens."""
CONTEXT = 4096
"""Tokens of Llama-2's context."""

_MARGINS = Margins(residents=128, watermark=Fraction(1, 100), spare_block=True)
VIDUR_VLLM = replace(VLLM, margins=replace(_MARGINS, padded=True))
VIDUR_SARATHI = replace(SARATHI, margins=_MARGINS)


def clipped(request: Request, context: int = CONTEXT) -> Request:
    """Return a request whose prompt and output fit the context: if they do not, the prompt is cut."""
    return changed(request, input=min(request.input, context - request.output))
