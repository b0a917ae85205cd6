r"""LARRY (Kossmann et al., section 4.1): short prompts first while many wait, and whoever has waited long.

Those that wait are dispatched in decreasing order of

.. math:: α \cdot \text{waiting time} - \text{queue length} \cdot \text{memory}

with the waiting time in seconds and the memory in KV tokens of the prompt. Equation 1 of the paper has a plus; its
text says that large requests are put off the more the longer the queue is, and so does this. With α = 1000 it is nearly
first come, first served, as there.

Decisions where the paper is silent: the engine is Sarathi with its budget of 512 tokens, as vLLM's chunked prefill then
was; the queue includes the request; whoever was evicted has waited since its arrival, as in first come, first served,
and needs memory for all its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from optsched.policies.grouped import GroupedPolicy
from optsched.policies.infermax import SARATHI
from optsched.simulate.replica import Job, Occasion, Policy, Replica

_SECOND = 10**12


@dataclass(frozen=True)
class Larry:
    """LARRY.

    Parameters
    ----------
    alpha
        α, KV tokens that a second of waiting is worth; 1 in the paper.
    base
        The engine.
    """

    alpha: int = 1
    base: GroupedPolicy = SARATHI

    def prepared(self, occasion: Occasion) -> Policy:
        """Return the policy."""
        *running, waiting = self.base.groups
        return replace(self.base, groups=(*running, replace(waiting, order=self._order)))

    def _order(self, job: Job, replica: Replica) -> int:
        memory = job.request.input + job.generated
        waited = replica.now_ps - job.request.arrival_ps
        return len(replica.waiting) * memory * _SECOND - self.alpha * waited


LARRY = Larry()
