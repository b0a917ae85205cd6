"""Shortest first: policies that serve by the length of outputs, as far as it is known.

- `sjf`: the shortest predicted output first, not preemptive (RR-SJF, section 3.4).
- `srtf`: the fewest predicted tokens left first, preemptive, from iteration to iteration, with memory for the longest
  output allocated to each (EconoServe, section 2.1: "using max-allocation").
- `ltr`: by predicted rank, not preemptive (Fu et al. 2024; Kossmann et al., section 2.2).
- `trail`: the fewest predicted tokens left first; a request that has generated the share c of its prediction is not
  preempted any more (Shahout et al. 2024; Kossmann et al., section 2.2). With the truth it is their TRAIL+, with c = 0
  the setting that they find best: no preemption for a waiting request.
- `svf`: the smallest memory-time volume first, as far as all that run will fit until they end (Wang, Ye and Zhou 2025).
- `mc_sf`: the shortest output first, as far as all that run will fit until they end (Jaillet et al. 2025, MC-SF).

Where the papers are *silent*:

- `sjf` runs on the engine of `rr_sjf`, `optsched.policies.fcfs.FCFS_HY`; `svf` and `mc_sf` have hybrid batches with
  whole prefills. If memory is short, the last by the policy's order is evicted.
- On the engine of `ltr` and `trail`, `optsched.policies.fcfs.FCFS`, `trail` runs all requests that hold KV by the
  tokens left, a chunk of a prefill before a decode if it has fewer; `ltr` orders decodes, chunks and the queue each.
- `ltr` has no counter against starvation; Kossmann et al. do not mention one.
- The longest output of `srtf` is that of the instance, unless a limit is given.
- A request that has generated more than was predicted is the first; where it matters, it is expected to end with its
  next token.

It *differs*:

- `ltr`, which Kossmann et al. describe and do not run, knows the true order unless a predictor is given, because their
  TRAIL+ does, and RR-SJF's `sjf`.
- `trail` has its predictions before the run, and not anew with each token, because nothing here has the activations
  that they come from; with the truth that is TRAIL+.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from optsched.model.memory import Memory, memory_of
from optsched.policies.algorithm import Admission, Order
from optsched.policies.fcfs import FCFS, FCFS_HY, largest_allocation
from optsched.policies.grouped import Group, GroupedPolicy, Members
from optsched.policies.predictors import TRUTH, Estimate, Online, Predicting, Predictor, by_prediction
from optsched.simulator.replica import Job, Occasion, Policy


def _length(estimate: Estimate) -> Order:
    return by_prediction(estimate, estimate)


def _left(estimate: Estimate) -> Order:
    return by_prediction(lambda job: estimate(job) - job.generated, estimate)


@dataclass(frozen=True)
class ShortestFirst:
    """The shortest predicted output first, not preemptive: every group of an engine in this order.

    Parameters
    ----------
    base
        The engine.
    predictor
        Predicts the lengths, of which only the order counts.
    """

    base: GroupedPolicy
    predictor: Predictor | Online = TRUTH

    def prepared(self, occasion: Occasion) -> Policy:
        """Return the policy of a run."""
        return Predicting(self._make, self.predictor).prepared(occasion)

    def _make(self, estimate: Estimate) -> GroupedPolicy:
        order = _length(estimate)
        return replace(self.base, groups=tuple(replace(group, order=order) for group in self.base.groups))


SJF = ShortestFirst(FCFS_HY)
LTR = ShortestFirst(FCFS)


@dataclass(frozen=True)
class Srtf:
    """Shortest remaining time first with maximal allocation.

    Parameters
    ----------
    most_output
        The longest output that users may ask for; None for the longest of the instance.
    predictor
        What predicts.
    """

    most_output: int | None = None
    predictor: Predictor | Online = TRUTH

    def prepared(self, occasion: Occasion) -> Policy:
        """Return the policy of a run."""
        reserve = largest_allocation(occasion.instance, self.most_output)

        def make(estimate: Estimate) -> GroupedPolicy:
            groups = (Group(Members.ALL, _left(estimate), evicts=True),)
            return GroupedPolicy(groups, hybrid=True, chunked=False, reserve=reserve)

        return Predicting(make, self.predictor).prepared(occasion)


SRTF = Srtf()


@dataclass(frozen=True)
class Trail:
    """Shortest predicted remaining time, with limited preemption.

    Parameters
    ----------
    share
        c, from 0 (never preempted) to 1 (always).
    predictor
        Predicts the lengths.
    base
        The engine.
    """

    share: Fraction = Fraction(0)
    predictor: Predictor | Online = TRUTH
    base: GroupedPolicy = FCFS

    def prepared(self, occasion: Occasion) -> Policy:
        """Return the policy of a run."""
        return Predicting(self._make, self.predictor).prepared(occasion)

    def _make(self, estimate: Estimate) -> GroupedPolicy:
        share, whole = self.share.numerator, self.share.denominator

        def kept(job: Job) -> bool:
            return job.cached > 0 and job.generated * whole >= share * estimate(job)

        order = _left(estimate)
        groups = (
            Group(Members.RUNNING, order, evicts=True, where=kept),
            Group(Members.ALL, order, evicts=True, where=lambda job: not kept(job)),
        )
        return replace(self.base, groups=groups)


TRAIL = Trail()


def fits_until_the_end(estimate: Estimate, memory: Memory) -> Admission:
    r"""Return whether all that hold KV, and one more, will fit until they have ended, if all run in every batch.

    After k batches a request with :math:`r ≥ k` tokens left holds :math:`m + k` tokens; one that starts holds its
    prompt after the first, and one more after each later one. What all hold is most in a batch in which one ends.
    """

    def admits(job: Job, others: Sequence[Job]) -> bool:
        jobs = [*others, job]
        left = np.array([max(estimate(one) - one.generated, 1) for one in jobs])
        begin = np.array([one.cached if one.decoding else one.request.input + one.generated - 1 for one in jobs])
        for batches in np.unique(left):
            if int(memory.sizes(jobs, begin + batches)[left >= batches].sum()) > memory.capacity:
                return False
        return True

    return admits


@dataclass(frozen=True)
class MemoryChecked:
    """Requests in some order, admitted as far as all that run will fit until they have ended.

    Parameters
    ----------
    order
        The order of those that wait, given what is predicted.
    predictor
        What predicts.
    """

    order: Callable[[Estimate], Order]
    predictor: Predictor | Online = TRUTH

    def prepared(self, occasion: Occasion) -> Policy:
        """Return the policy of a run."""
        memory = memory_of(occasion.instance)

        def make(estimate: Estimate) -> GroupedPolicy:
            order = self.order(estimate)
            return GroupedPolicy(
                groups=(Group(Members.RUNNING, _left(estimate), evicts=True), Group(Members.WAITING, order)),
                hybrid=True,
                chunked=False,
                admits=fits_until_the_end(estimate, memory),
            )

        return Predicting(make, self.predictor).prepared(occasion)


def _volume(estimate: Estimate) -> Order:
    def volume(job: Job) -> int:
        output = estimate(job)
        return output * job.request.input + output * (output - 1) // 2

    return by_prediction(volume, estimate)


MC_SF = MemoryChecked(_length)
SVF = MemoryChecked(_volume)
