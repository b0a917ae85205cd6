"""Latencies of requests, from the times of their tokens; exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from optsched.model.instance import Instance
from optsched.model.objectives import PLAIN_OBJECTIVES, Objective, value_of
from optsched.model.schedule import Batch
from optsched.model.spread import Ramp, Spread, document, ratios, summary
from optsched.model.state import RequestState

FEW = 1000
"""Batches that are repeated more often are counted by formulas, which for fewer of them would take longer."""


class TokenTimes:
    """When requests have their tokens.

    Parameters
    ----------
    count
        Number of requests.

    Attributes
    ----------
    first, latest
        When each request has its first and its latest token, ps.
    """

    def __init__(self, count: int) -> None:
        self.first, self.latest = [0] * count, [0] * count
        self._gaps: Counter[int] = Counter()
        self._rising: list[Ramp] = []

    @staticmethod
    def of(first: list[int], latest: list[int], gaps: Counter[int]) -> TokenTimes:
        """Return times that are known already, with how often each time between two tokens of a request comes."""
        times = TokenTimes(0)
        times.first, times.latest, times._gaps = first, latest, gaps
        return times

    def note(
        self, generated: Iterable[int], states: Mapping[int, RequestState] | Sequence[RequestState], end_ps: int
    ) -> None:
        """Note the tokens of one batch, whose requests are now in these states."""
        latest, gaps = self.latest, self._gaps
        for index in generated:
            if states[index].generated > 1:
                gaps[end_ps - latest[index]] += 1
            else:
                self.first[index] = end_ps
            latest[index] = end_ps

    def note_repeats(self, generated: Sequence[int], batch: Batch, first_ps: int, slower_ps: int) -> None:
        """Note the tokens of repeated decode steps: the first take ``first_ps``, later ones ``slower_ps`` more each."""
        gaps, runs, times = self._gaps, len(generated), batch.repeat
        for index in generated:
            gaps[batch.start_ps + first_ps - self.latest[index]] += 1
            self.latest[index] = batch.end_ps
        if times > FEW:
            self._rising.append(Ramp(first_ps + slower_ps, slower_ps, runs, 0, times - 1))
        else:
            for number in range(1, times):
                gaps[first_ps + number * slower_ps] += runs

    def between(self) -> Spread | None:
        """Return the times from one token of a request to its next, over all such pairs; None if there are none."""
        return Spread.of(self._gaps, self._rising)


def latency_metrics(
    instance: Instance, first: Sequence[int], last: Sequence[int], between: Spread | None
) -> tuple[dict[str, int], dict[str, Any]]:
    """Return what follows from the times of tokens alone.

    Parameters
    ----------
    instance
        The requests.
    first, last
        When each has its first and its last token, ps.
    between
        Times between two tokens.

    Returns
    -------
    tuple
        The values of all objectives but ``max_load``; and the metrics from ``ttft_ps`` to ``slo_attainment``
        (`optsched.model.metrics.metrics`).
    """
    requests = instance.requests
    ttft = [end - request.arrival_ps for end, request in zip(first, requests, strict=True)]
    e2e = [end - request.arrival_ps for end, request in zip(last, requests, strict=True)]
    decoding = [index for index, request in enumerate(requests) if request.output > 1]
    decode_ps = [e2e[index] - ttft[index] for index in decoding]
    # Sorting takes longest, and what is sorted already is quick to sort: a percentile needs no other order.
    ordered = sorted(ttft), sorted(e2e)
    objectives = {
        objective.value: value_of(requests, objective, *((ttft, e2e) if objective.percentile is None else ordered))
        for objective in PLAIN_OBJECTIVES
        if objective is not Objective.P99_TBT
    }
    objectives[Objective.P99_TBT.value] = 0 if between is None else between.percentile(99)
    makespan, misses = objectives[Objective.MAKESPAN.value], objectives[Objective.SLO_MISSES.value]
    count = len(requests)

    def per_second(amount: int) -> float | None:
        return amount * 10**12 / makespan if makespan else None

    return objectives, {
        "ttft_ps": summary(ordered[0]),
        "tpot_ps": ratios(decode_ps, [requests[index].output - 1 for index in decoding]),
        "tbt_ps": document(between),
        "e2e_ps": summary(ordered[1]),
        "ttft_per_input_ps": ratios(ttft, [request.input for request in requests]),
        "e2e_per_output_ps": ratios(e2e, [request.output for request in requests]),
        "output_tokens_per_s": per_second(sum(request.output for request in requests)),
        "requests_per_s": per_second(count),
        "goodput_requests_per_s": per_second(count - misses),
        "slo_attainment": (count - misses) / count,
    }
