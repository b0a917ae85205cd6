r"""Predictions of output lengths, for policies that order or reserve by them.

A predictor says of every request how many output tokens it expects, 1 at least. It knows the true lengths, and errs as
its parameters say; all chance comes from the occasion's generator, one draw for each request in the order of the
instance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Any, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import Field

from optsched.model.domain import Tokens, domain
from optsched.model.errors import InputError, did_you_mean
from optsched.model.schedule import Assignment
from optsched.policies.histogram import Histogram
from optsched.policies.stable_queue import Key, StableQueue
from optsched.simulator.replica import Job, Notified, Occasion, Policy, PolicyFailureError, Replica

Estimate = Callable[[Job], int]
"""How many output tokens are expected of a job, 1 at least; it may have generated more."""


class Predicted:
    """What was expected before the run, and stays so.

    Parameters
    ----------
    lengths
        Tokens of every request, in the order of the instance.
    """

    __slots__ = ("_lengths",)

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = lengths

    def __call__(self, job: Job) -> int:
        """Return what was expected of a job."""
        return self._lengths[job.index]


def by_prediction(key: Key, estimate: Estimate) -> Callable[[Job, Replica], Any]:
    """Return the order by a key that depends on what is predicted, and nothing else that changes while waiting."""
    return StableQueue(key) if isinstance(estimate, Predicted) else lambda job, _: key(job)


Spread = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


class Predictor(Protocol):
    """Predicts output lengths."""

    def lengths(self, occasion: Occasion) -> Sequence[int]:
        """Return the predicted output tokens of every request, in the order of the instance."""
        ...


def _outputs(occasion: Occasion) -> npt.NDArray[np.float64]:
    return np.array([float(request.output) for request in occasion.instance.requests])


def _whole(lengths: npt.NDArray[np.float64], ceiling: int | None = None) -> list[int]:
    """Round to tokens, 1 at least."""
    return [int(length) for length in np.clip(np.rint(lengths), 1, ceiling)]


@dataclass(frozen=True)
class Truth:
    """Knows all lengths: the oracle of the papers."""

    def lengths(self, occasion: Occasion) -> Sequence[int]:
        """Return the true lengths."""
        return [request.output for request in occasion.instance.requests]


TRUTH = Truth()


@domain
class Gaussian:
    r"""Errs by a number of tokens, whatever the length: :math:`O + \mathcal N(0, σ^2)`, from 1 to a ceiling.

    Parameters
    ----------
    sigma
        σ, in tokens.
    ceiling
        The most that is predicted; None for no limit.

    References
    ----------
    RR-SJF (Gogineni et al.), section 3.5: σ = 25 and more, a floor of 1 and a ceiling of 1024.
    """

    sigma: Spread
    ceiling: Tokens | None = 1024

    def lengths(self, occasion: Occasion) -> Sequence[int]:
        """Return noisy lengths."""
        outputs = _outputs(occasion)
        return _whole(outputs + occasion.rng.normal(0, self.sigma, outputs.size), self.ceiling)


@domain
class Relative:
    r"""Errs in proportion to the length: :math:`O e^{\mathcal N(0, σ^2)}`, whose median is the truth.

    Parameters
    ----------
    sigma
        σ, about the relative error where it is small.
    """

    sigma: Spread

    def lengths(self, occasion: Occasion) -> Sequence[int]:
        """Return noisy lengths."""
        outputs = _outputs(occasion)
        return _whole(outputs * np.exp(occasion.rng.normal(0, self.sigma, outputs.size)))


@domain
class Bucketed:
    """Predicts one of equally wide buckets of lengths, the right one or one beside it, and says its middle.

    Parameters
    ----------
    width
        Of a bucket, in tokens: the first one is 1 to ``width``.
    wrong
        Share of the predictions that are a neighbour, either with the same chance; there is none below the first.
    """

    width: Tokens
    wrong: Share = 0.0

    def lengths(self, occasion: Occasion) -> Sequence[int]:
        """Return the middles of buckets."""
        outputs = _outputs(occasion)
        draws = occasion.rng.random(outputs.size)
        beside = np.where(draws < self.wrong / 2, -1, np.where(draws < self.wrong, 1, 0))
        bucket = np.maximum((outputs - 1) // self.width + beside, 0)
        return _whole(bucket * self.width + (self.width + 1) / 2)


@domain
class Rated:
    """Predicts a bucket of lengths, right and too low with the measured shares, and says its upper end.

    What is right, then, or too high, suffices. A wrong bucket is the one beside the right one; below the first there is
    half of it.

    Parameters
    ----------
    width
        Of a bucket, in tokens: the first one is 1 to ``width``.
    right, under
        How often it is the right bucket, and the one below; else it is the one above.

    References
    ----------
    EconoServe (Shen, Sen), section 2.3: accuracies and shares of under-provisioned requests, padding included.
    """

    width: Tokens
    right: Share
    under: Share

    def __post_init__(self) -> None:
        if self.right + self.under > 1:
            raise InputError("under", self.under, f"at most 1 - right = {1 - self.right:g}")

    def lengths(self, occasion: Occasion) -> Sequence[int]:
        """Return the upper ends of buckets."""
        outputs = _outputs(occasion)
        draws = occasion.rng.random(outputs.size)
        beside = np.where(draws < self.under, -1, np.where(draws < self.under + self.right, 0, 1))
        top = (np.ceil(outputs / self.width) + beside) * self.width
        return _whole(np.maximum(top, self.width // 2))


@domain
class Ranked:
    r"""Ranks requests by length, with errors; the request of rank i is said to have the i-th smallest length.

    The normal scores of the true ranks are mixed with noise so that the correlation is :math:`\sin(π τ / 2)`, which
    gives two normal variables a Kendall correlation of τ. Equal lengths are ranked by chance.

    Parameters
    ----------
    tau
        Kendall's τ between true and predicted order, from 0 (none) to 1 (the truth).

    References
    ----------
    Fu et al. 2024, "Efficient LLM scheduling by learning to rank", judge rankings by Kendall's τ; Kruskal 1958,
    "Ordinal measures of association", for the arcsine relation.
    """

    tau: Share

    def lengths(self, occasion: Occasion) -> Sequence[int]:
        """Return the lengths, permuted."""
        from scipy.special import ndtri  # noqa: PLC0415 - a second of loading for one policy

        outputs = _outputs(occasion)
        count, correlation = outputs.size, np.sin(np.pi * self.tau / 2)
        order = np.lexsort((occasion.rng.random(count), outputs))
        scores = np.empty(count)
        scores[order] = ndtri((np.arange(count) + 0.5) / count)
        mixed = correlation * scores + np.sqrt(1 - correlation**2) * occasion.rng.normal(size=count)
        found = np.empty(count)
        found[np.argsort(mixed, kind="stable")] = np.sort(outputs)
        return _whole(found)


@dataclass(frozen=True)
class Traced:
    """Says what the trace itself has predicted (``predicted_output`` of every request)."""

    def lengths(self, occasion: Occasion) -> Sequence[int]:
        """Return the trace's predictions; a request without one is a failure."""
        found: list[int] = []
        for index, request in enumerate(occasion.instance.requests):
            if request.predicted_output is None:
                raise PolicyFailureError(index, occasion.instance.start_ps, "the trace predicts no output for it")
            found.append(request.predicted_output)
        return found


@dataclass(frozen=True)
class Padded:
    """Adds a share to what another predictor says, rounded up, so as to under-predict less often.

    Parameters
    ----------
    ratio
        The share.
    base
        The other predictor.

    References
    ----------
    EconoServe (Shen, Sen), section 2.3: 10, 15 and 20 % suit Alpaca, ShareGPT and BookCorpus.
    """

    ratio: float
    base: Predictor = TRUTH

    def lengths(self, occasion: Occasion) -> Sequence[int]:
        """Return longer lengths."""
        return [ceil(length * (1 + self.ratio)) for length in self.base.lengths(occasion)]


@dataclass(frozen=True)
class Online:
    """Predicts from those that have ended: the mean output of those longer than what a request has generated.

    Until there is one, the next token is expected to be the last. So all newcomers look alike, and predictions change
    from batch to batch.

    Parameters
    ----------
    ratio
        The share by which it pads.

    References
    ----------
    InferMax (Kim et al.), section 6, reserves memory by such a histogram.
    """

    ratio: float = 0.0


class _Learning:
    """A policy whose predictions come from a histogram, which it keeps up to date."""

    def __init__(self, policy: Policy, histogram: Histogram) -> None:
        self._policy, self._histogram = policy, histogram

    def next_batch(self, replica: Replica) -> Assignment:
        """Count the requests that have ended, then let the policy decide."""
        self._histogram.count()
        assignment = self._policy.next_batch(replica)
        self._histogram.watch(replica, assignment)
        return assignment


class _LearningNotified(_Learning):
    """One with records of requests and memory."""

    keeps_records = True

    def __init__(self, policy: Notified, histogram: Histogram) -> None:
        super().__init__(policy, histogram)
        self.come, self.go = policy.come, policy.go
        self.resize, self.has_room = policy.resize, policy.has_room


@dataclass(frozen=True)
class Predicting:
    """A policy that needs predictions.

    Parameters
    ----------
    make
        Makes the policy of a run from what is expected of jobs.
    predictor
        What expects it.
    """

    make: Callable[[Estimate], Policy]
    predictor: Predictor | Online = TRUTH

    def prepared(self, occasion: Occasion) -> Policy:
        """Predict, and return the policy of the run."""
        if isinstance(self.predictor, Online):
            histogram, ratio = Histogram(), self.predictor.ratio
            policy = self.make(lambda job: ceil(histogram.expected(job.generated) * (1 + ratio)))
            return (
                _LearningNotified(policy, histogram) if isinstance(policy, Notified) else _Learning(policy, histogram)
            )
        return self.make(Predicted(self.predictor.lengths(occasion)))


_FORMS = (
    "truth",
    "traced",
    "histogram",
    "gaussian:SIGMA[,CEILING]",
    "relative:SIGMA",
    "bucketed:WIDTH[,WRONG]",
    "rated:WIDTH,RIGHT,UNDER",
    "ranked:TAU",
)
_NAMES = tuple(form.partition(":")[0] for form in _FORMS)
PREDICTOR_FORMS = f"{', '.join(_FORMS)}; +RATIO after any of them pads"
"""How predictors are written (`read_predictor`)."""


def read_predictor(text: str) -> Predictor | Online:
    """Read a predictor, such as ``gaussian:25`` or ``traced+0.15``.

    Raises
    ------
    InputError
        If it is none, or a number is out of range.
    """
    base, plus, ratio = text.partition("+")
    name, _, numbers = base.partition(":")
    try:
        values = [float(number) for number in numbers.split(",")] if numbers else []
        match name, values:
            case "truth", []:
                found: Predictor | Online = TRUTH
            case "traced", []:
                found = Traced()
            case "histogram", []:
                found = Online()
            case "gaussian", [sigma]:
                found = Gaussian(sigma)
            case "gaussian", [sigma, ceiling]:
                found = Gaussian(sigma, int(ceiling))
            case "relative", [sigma]:
                found = Relative(sigma)
            case "bucketed", [width]:
                found = Bucketed(int(width))
            case "bucketed", [width, wrong]:
                found = Bucketed(int(width), wrong)
            case "rated", [width, right, under]:
                found = Rated(int(width), right, under)
            case "ranked", [tau]:
                found = Ranked(tau)
            case _:
                raise ValueError
        padding = float(ratio) if plus else 0.0
        if not 0 <= padding < float("inf"):
            raise ValueError
    except InputError as error:
        raise InputError("predictor", text, f"{error.field} {error.expected}") from None
    except (ValueError, OverflowError):
        meant = "" if name in _NAMES else did_you_mean(name, _NAMES)
        raise InputError("predictor", text, PREDICTOR_FORMS + meant) from None
    if isinstance(found, Online):
        return Online(padding)
    return Padded(padding, found) if plus else found
