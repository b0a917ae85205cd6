"""InferMax's ranking schedulers (Kim et al., section 4.6): requests in order of size, whatever their phase.

- `rank_org`: no size, the order of arrival.
- `rank_i`: short prompts first.
- `rank_o`: short outputs first, which only hindsight knows: the truth, or a prediction.

The paper groups by size in Algorithm 1.

Where the paper is *silent*:

- The scheduler that it changes is Sarathi with P = C: hybrid batches, chunked prefills. All requests are in one group,
  which evicts, so that a small request that waits takes the memory of a larger one that runs.
- Requests of the same size go in order of arrival.

It *differs* in nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from optsched.policies.algorithm import Order
from optsched.policies.grouped import Group, GroupedPolicy, Members
from optsched.policies.predictors import Estimate, Predicting, by_prediction
from optsched.policies.stable_queue import StableQueue
from optsched.simulator.replica import Occasion, Policy


def _ranked(order: Order | None) -> GroupedPolicy:
    return GroupedPolicy(groups=(Group(Members.ALL, order, evicts=True),), hybrid=True, chunked=True)


def _by_output(estimate: Estimate) -> GroupedPolicy:
    return _ranked(by_prediction(estimate, estimate))


@dataclass(frozen=True)
class ByInput:
    """Short prompts first."""

    def prepared(self, _: Occasion) -> Policy:
        """Return the policy of a run."""
        return _ranked(StableQueue(lambda job: job.request.input))


RANK_ORG = _ranked(None)
RANK_I = ByInput()
RANK_O = Predicting(_by_output)
