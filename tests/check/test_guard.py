"""What every certificate has to be before anything is computed: large numbers, depth, sizes, 64 bits."""

from __future__ import annotations

from typing import Any

import pytest

from optsched import Instance, Limits, Objective, Request, Restrictions, Rules, replace
from optsched.check import UnprovedError, check_result, proved_bound
from optsched.check.certificates import kinds
from optsched.check.certificates.shared.guard import MOST_INTEGER, require_64_bits
from optsched.model.cost import CostModel
from optsched.model.documents import ClaimedResult, instance_sha256
from optsched.model.result import Badge, Result, Status

TWO = Instance("two", Limits(8, 8, 8), Rules(), CostModel(10, 1), (Request(1, 1), Request(1, 2, arrival_ps=7)))
WINDOWS = {
    "kind": "congestion",
    "window_ps": 1,
    "grain_ps": 1,
    "short_ps": 0,
    "windows": [[8, 1, 0, 0], [1, 0, 0, 0]],
}


def prove(certificate: dict[str, Any], instance: Instance = TWO, objective: Objective = Objective.MEAN_E2E) -> int:
    return proved_bound(instance, Restrictions(), objective, certificate)


def nested(depth: int) -> object:
    return [nested(depth - 1)] if depth else 1


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (MOST_INTEGER + 1, "expected an integer from -2^1000 to 2^1000"),
        ([0, -MOST_INTEGER - 1], "expected an integer from -2^1000 to 2^1000"),
        ({"a": [{"b": 2**2000}]}, "expected an integer from -2^1000 to 2^1000"),
        (nested(12), "at most 10 lists and objects in each other"),
    ],
)
def test_large_or_deep_certificates_are_refused(part: object, reason: str) -> None:
    with pytest.raises(UnprovedError, match=reason.replace("^", r"\^")):
        prove({"kind": "alone", "more": part})


def test_what_adds_up_to_63_bits_is_refused() -> None:
    require_64_bits(a_sum=2**62 - 1)
    with pytest.raises(UnprovedError, match="too large to be verified in 64 bits: a sum may be"):
        require_64_bits(a_sum=2**62)


@pytest.mark.parametrize("power", [52, 58, 60, 61, 62, 63])
@pytest.mark.parametrize("what", ["arrival", "base", "token", "decode_kv", "prefill_sq", "window_ps", "short_ps"])
def test_congestion_is_right_or_refused_near_the_largest_numbers(what: str, power: int) -> None:
    """One request after the other has a larger sum than any bound; what wrapped had not."""
    number = 2**power - 1
    cost = CostModel(**{"base": 10, "token": 1} | ({what: number} if what in CostModel.__dataclass_fields__ else {}))
    late = number - 10 if what == "arrival" else 7
    instance = Instance(
        "large", Limits(8, 8, 8), Rules(), cost, (Request(1, 1), Request(1, 2), Request(2, 2, arrival_ps=late))
    )
    shares = {"window_ps": max(1, number >> 8), "grain_ps": max(1, number >> 14)}
    certificate = WINDOWS | ({what: number} if what in WINDOWS else shares)
    # Batches one after another: 1, 1 and 1, 2 and 1 tokens; decodes read 1 and 2, fills run 1, 1 and 2.
    single, double = cost.base + cost.token, cost.base + 2 * cost.token
    times = [
        single + cost.prefill_sq,
        single + cost.prefill_sq,
        single + cost.decode_kv,
        double + 4 * cost.prefill_sq,
        single + 2 * cost.decode_kv,
    ]
    before = sum(times[:3])
    ends = [times[0], before, max(before, late) + times[3] + times[4]]
    reached = sum(ends) - late
    for windows in ([[8, 1, 0, 63], [1, 0, 0, 63]], [[1, 0, 0, 0]], [[1000, 64, 1, 63], [1, 0, 0, 0]]):
        try:
            bound = prove(certificate | {"windows": windows}, instance)
        except UnprovedError:
            continue
        assert bound <= reached


def test_kinds_that_list_tokens_say_how_many_they_list() -> None:
    long = Instance("long", Limits(10**9, 10**9, 10**9), Rules(), CostModel(10, 1), (Request(1, 10**9 - 1),))
    with pytest.raises(UnprovedError, match="kind congestion is computed for at most 20000000 output tokens"):
        prove(WINDOWS, long)
    for kind in ("ramp", "inflow", "resident_walk", "resident_search", "request_search", "patterns"):
        with pytest.raises(UnprovedError, match=f"kind {kind} is computed for at most"):
            prove({"kind": kind}, long, Objective.MAKESPAN)
    # One decode after the other, none dearer than a refill: 10 + 1 for each of 10^9 - 1 tokens.
    assert prove({"kind": "alone"}, long, Objective.MAKESPAN) == 11 * (10**9 - 1)


def test_a_certificate_that_breaks_the_checker_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise IndexError("out of\nrange")

    monkeypatch.setattr(kinds, "PROOFS", {"alone": broken})
    result = Result(TWO, "forged", Objective.MAKESPAN, Status.BOUND_ONLY, Badge.CERTIFIED, bound=1)
    claimed = ClaimedResult(replace(result, certificate={"kind": "alone"}), instance_sha256(TWO), None)
    assert check_result(claimed).violations == (
        "certificate: the checker failed, which proves nothing (IndexError: 'out of\\nrange')",
    )
