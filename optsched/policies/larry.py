r"""LARRY (Kossmann et al., section 4.1): short prompts first while many wait, and requests that have waited long.

Waiting requests are dispatched in decreasing order of

.. math:: α \cdot \text{waiting time} - \text{queue length} \cdot \text{memory}

with the waiting time in seconds and the memory of the prompt in a unit that is a parameter, on the engine of
`optsched.policies.fcfs.FCFS`. A request is dispatched once the free memory holds its prompt; the first that cannot be
dispatched holds up those behind it.

Where the paper is *silent*:

- The unit of waiting time is the second, that of memory the token unless a block or a share of the cache is asked for.
  The paper has first come, first served for "very high values of α (larger than 1000)": so it is in blocks of 16
  tokens, which vLLM counts; in tokens α = 1000 is far from it, in shares α = 1 is it already.
- The queue includes the request itself.
- An evicted request has waited since its arrival, as in first come, first served, and needs memory for all its tokens.
  The last to arrive is evicted if memory is short.

It *differs*:

- Equation 1 adds the memory term; here it is subtracted, because the text puts large requests off the more, the longer
  the queue is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from optsched.model.memory import Memory
from optsched.policies.fcfs import FCFS
from optsched.policies.grouped import GroupedPolicy
from optsched.simulator.replica import Job, Occasion, Policy, Replica

_SECOND = 10**12


class MemoryUnit(Enum):
    """What the memory of a prompt is counted in."""

    TOKENS = "tokens"
    BLOCKS = "blocks"
    SHARE = "share"

    def fraction(self, job: Job, memory: Memory) -> tuple[int, int]:
        """Return the memory of all tokens that a request has in this unit, as numerator and denominator."""
        tokens = job.request.input + job.generated
        match self:
            case MemoryUnit.TOKENS:
                return tokens, 1
            case MemoryUnit.BLOCKS:
                return memory.size(job, tokens) // memory.block, 1
            case MemoryUnit.SHARE:
                return tokens, memory.capacity


@dataclass(frozen=True)
class Larry:
    """LARRY.

    Parameters
    ----------
    alpha
        α, units of memory that a second of waiting is worth; 1 in the paper.
    base
        The engine.
    unit
        The unit of memory.
    """

    alpha: int = 1
    base: GroupedPolicy = FCFS
    unit: MemoryUnit = MemoryUnit.TOKENS

    def prepared(self, occasion: Occasion) -> Policy:
        """Return the policy."""
        *running, waiting = self.base.groups
        return replace(self.base, groups=(*running, replace(waiting, order=self._order)))

    def _order(self, job: Job, replica: Replica) -> int:
        memory, whole = self.unit.fraction(job, replica.memory)
        waited = replica.now_ps - job.request.arrival_ps
        return len(replica.waiting) * memory * _SECOND - self.alpha * waited * whole


LARRY = Larry()
