"""Policies of the time before paged attention, that allocate by predictions (Kossmann et al., section 2.2).

- `s3` (Jin et al. 2023): every request gets memory for its prompt and its predicted output. A supervisor stops one that
  needs more, and starts it again with twice the output.
- `pia` (Zheng et al. 2023, "Response length perception and sequence scheduling"): request-level batches of requests
  whose predicted outputs are alike.

Where Kossmann et al. are *silent*, whose description this follows:

- If no other request could run in the batch in which a request would be stopped, it goes on with the larger allocation.
- `pia` serves the request that arrived first, and with it those whose predicted outputs are nearest to its own, 16 at
  most. They share one token budget.

It *differs* from the two papers:

- `s3` is vLLM with that allocation, first come, first served, and not by decreasing first fit, because only its
  allocation is compared here.
- In `pia` a request that outlives its allocation goes on, and if memory is short the last to arrive is evicted, because
  the schedule of an instance has every token of a request, and none is collected and run anew in a later batch; all
  batches have one size, because the memory of a batch is what its requests hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from optsched.model.schedule import Assignment
from optsched.policies.grouped import Group, GroupedPolicy, Margins, Members
from optsched.policies.infermax import VLLM
from optsched.policies.predictors import TRUTH, Estimate, Online, Predicting, Predictor
from optsched.simulator.replica import Job, NoBatchError, Occasion, Policy, Replica


def _allocated(estimate: Estimate) -> GroupedPolicy:
    return replace(VLLM, reserve=lambda job: job.request.input + estimate(job) - 1)


class _Supervised:
    """vLLM, whose allocations double when they do not suffice."""

    def __init__(self, estimate: Estimate) -> None:
        self._estimate = estimate
        self._doubled: dict[int, int] = {}
        self._base = _allocated(self._output)

    def _output(self, job: Job) -> int:
        """Return the tokens that memory is allocated for."""
        return self._estimate(job) << self._doubled.get(job.index, 0)

    def next_batch(self, replica: Replica) -> Assignment:
        """Stop each request that has used its allocation up, and let the others run."""
        over = [job for job in replica.running if job.decoding and job.generated >= self._output(job)]
        for job in over:
            while job.generated >= self._output(job):
                self._doubled[job.index] = self._doubled.get(job.index, 0) + 1
        others = [job for job in replica.running if job not in over]
        if over and replica.rules.eviction and (others or replica.waiting):
            try:
                found = self._base.next_batch(replace(replica, running=others))
            except NoBatchError:
                pass
            else:
                return found._replace(evict=[*(job.index for job in over), *found.evict])
        return self._base.next_batch(replica)

    def valid_for(self, replica: Replica, assignment: Assignment) -> int:
        """Say how long: until memory is full or a request has used its allocation up."""
        ends = (self._output(job) - job.generated for job in replica.running)
        return max(1, min(self._base.valid_for(replica, assignment), *ends))


S3 = Predicting(_Supervised)


@dataclass(frozen=True)
class Pia:
    """Batches of requests with like predictions.

    Parameters
    ----------
    size
        Requests of a batch, at most.
    predictor
        What predicts.
    """

    size: int = 16
    predictor: Predictor | Online = TRUTH

    def prepared(self, occasion: Occasion) -> Policy:
        """Return the policy of a run."""
        return Predicting(self._make, self.predictor).prepared(occasion)

    def _make(self, estimate: Estimate) -> GroupedPolicy:
        def apart(job: Job, replica: Replica) -> int:
            return abs(estimate(job) - estimate(replica.waiting[0]))

        groups = (Group(Members.WAITING, apart), Group(Members.RUNNING, evicts=True))
        margins = Margins(residents=self.size, together=True)
        return replace(_allocated(estimate), groups=groups, margins=margins)


PIA = Pia()
