"""Hypotheses: intervals against all the numbers in them, verdicts by hand, and what the command says."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest
from commands import optsched
from hypothesis import given
from hypothesis import strategies as st

from optsched import InputError, Limits, Request, cost_model, load_instance, load_results, save_instance
from optsched.model.documents import Suite, dump, suite_document
from optsched.model.instance import Instance, Rules
from optsched.study.hypotheses.claim import read_claim
from optsched.study.hypotheses.hypothesis import Finding, Verdict, decide, read_hypothesis, shipped
from optsched.study.hypotheses.interval import (
    Interval,
    conjunction,
    disjunction,
    greatest,
    least,
    negation,
)
from optsched.study.runner import Here
from optsched.study.store import Store

ENDS = st.integers(-6, 6)


@st.composite
def intervals(draw: st.DrawFn) -> Interval:
    """Draw an interval of small integers, perhaps without an end."""
    low, high = sorted((draw(ENDS), draw(ENDS)))
    return Interval(
        None if draw(st.integers(0, 5)) == 0 else Fraction(low),
        None if draw(st.integers(0, 5)) == 0 else Fraction(high),
    )


def members(interval: Interval) -> list[Fraction]:
    """Return numbers of an interval; an end that is missing is far away."""
    low = Fraction(-20) if interval.low is None else interval.low
    high = Fraction(20) if interval.high is None else interval.high
    return [low, (low + high) / 2, low + (high - low) / 3, high]


def within(number: Fraction, interval: Interval) -> bool:
    return (interval.low is None or interval.low <= number) and (interval.high is None or number <= interval.high)


@given(intervals(), intervals())
def test_results_lie_in_the_interval_of_results(first: Interval, second: Interval) -> None:
    for a, b in product(members(first), members(second)):
        assert within(a + b, first + second)
        assert within(a - b, first - second)
        assert within(a * b, first * second)
        assert b == 0 or within(a / b, first / second)
        assert within(min(a, b), least([first, second]))
        assert within(max(a, b), greatest([first, second]))


@given(intervals(), intervals())
def test_what_is_decided_is_so_for_all_numbers(first: Interval, second: Interval) -> None:
    pairs = list(product(members(first), members(second)))
    for truth, compared in (
        (first < second, [a < b for a, b in pairs]),
        (first <= second, [a <= b for a, b in pairs]),
        (first.equals(second), [a == b for a, b in pairs]),
    ):
        if truth is not None:
            assert set(compared) == {truth}


def test_points_are_decided_and_overlaps_are_not() -> None:
    one, same, two, between = Interval.of(1), Interval.of(1), Interval.of(2), Interval(Fraction(1), Fraction(2))
    assert (one < two, two < one, one <= same, one < same, one.equals(same)) == (True, False, True, False, True)
    assert (between < two, one <= between, between.equals(one), two < between) == (None, True, None, False)
    assert Interval.of(0.17) == Interval.of(Fraction(17, 100)), "as it is written"
    assert Interval.of(1) / Interval(Fraction(-1), Fraction(1)) == Interval(None, None)
    assert Interval.of(6) / Interval(Fraction(2), None) == Interval(Fraction(0), Fraction(3))


def test_kleenes_tables() -> None:
    assert [conjunction(pair) for pair in product((True, None, False), repeat=2)] == [
        True, None, False, None, None, False, False, False, False,
    ]  # fmt: skip
    assert [disjunction(pair) for pair in product((True, None, False), repeat=2)] == [
        True, True, True, True, None, None, True, None, False,
    ]  # fmt: skip
    assert [negation(truth) for truth in (True, None, False)] == [False, None, True]


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("a < b", None),
        ("a < 2 * b", True),
        ("b - a >= 0", None),
        ("a / b <= 1.5", True),
        ("c == a.evictions", False),
        ("1 < c < b", True),
        ("not (c > b) and n == 4", True),
        ("min(a, b) > c or a < b", True),
        ("max(a, c) == c", False),
        ("-c < 0 <= c - 3", True),
    ],
)
def test_claims_by_hand(text: str, truth: bool | None) -> None:
    """The side a lies in [4, 6] with 1 eviction, b in [5, 7], and c is 3; there are 4 requests."""
    a, b = Interval(Fraction(4), Fraction(6)), Interval(Fraction(5), Fraction(7))
    case = {
        "a": {"value": a, "evictions": Interval.of(1)},
        "b": {"value": b},
        "c": {"value": Interval.of(3)},
        "": {"n": Interval.of(4)},
    }
    assert read_claim("says", text, dict.fromkeys("abc"), ("n",)).holds(case) is truth


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("a <", "got 'a <', expected an expression such as"),
        ("a", "got 'a', expected a comparison"),
        ("a + b", "got 'a + b', expected a comparison"),
        ("a < d", "got 'd', expected one of a, b, n"),
        ("a ** 2 < b", "got a ** 2, expected a number, a side"),
        ("__import__('os').system('x') < 1", "got __import__('os').system('x'), expected a number"),
        ("a in b", "got 'a in b', expected a comparison"),
        ("mean(a) < mean(b)", "got 'mean(a) < mean(b)', expected one mean of one expression"),
        ("a < 'x'", "got 'x', expected a number"),
    ],
)
def test_what_is_no_claim_is_said(text: str, got: str) -> None:
    with pytest.raises(InputError) as error:
        read_claim("says", text, dict.fromkeys("ab"), ("n",))
    assert str(error.value).startswith(f"says: {got}")


# Verdicts --------------------------------------------------------------------------------------------------


def pair(name: str, tokens: int) -> Instance:
    """Return two requests of 8 and 2 tokens; with M = 18 they run together, with M = 9 one after the other."""
    requests = (Request(8, 2), Request(8, 2))
    return Instance(name, Limits(tokens, 64, 64), Rules(), cost_model("a100-llama2-7b-linear"), requests)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    suite = Suite("pairs", "Two.", (pair("wide", 18), pair("narrow", 9)))
    Path("pairs.json").write_text(dump(suite_document(suite, "a100-llama2-7b-linear")))


def write(says: str, sides: str, **more: str) -> str:
    fields = {"claim": '"It holds"', "source": '"me"', "instances": '["pairs.json"]', "says": f'"{says}"'} | more
    text = "".join(f"{name} = {value}\n" for name, value in fields.items() if value)
    Path("h.toml").write_text(f"{text}\n[sides]\n{sides}\n")
    return "h.toml"


def found(says: str, sides: str, **more: str) -> Finding:
    return decided(write(says, sides, **more), None)


def decided(file: str, store: Store | None) -> Finding:
    return decide(read_hypothesis(file), Here(), store, lambda done, total: None)


BEST = 'a = { policy = "vllm" }\nb = { optimum = {} }'


def test_over_a_finite_family_a_claim_is_proved_or_refuted() -> None:
    assert found("a <= b", 'a = { optimum = {} }\nb = { policy = "vllm" }').verdict is Verdict.PROVED
    refuted = found("a.batches == 2", BEST)
    assert refuted.verdict is Verdict.REFUTED
    assert refuted.counterexample is not None
    assert refuted.counterexample.instance.name == "narrow", "one after the other takes four batches"
    assert (refuted.count(True), refuted.count(False)) == (1, 1)
    assert refuted.badge is not None


def test_where_and_otherwise() -> None:
    rule = {"where": '"M >= 18"', "otherwise": '"a.batches == 4"'}
    assert found("a.batches == 2", BEST, **rule).verdict is Verdict.PROVED
    only = found("a.batches == 2", BEST, where='"M >= 18"')
    assert (only.verdict, len(only.cases)) == (Verdict.PROVED, 1)


def test_a_bound_below_the_value_leaves_a_claim_open() -> None:
    """Without time the search has the bound of the volume alone; whether vLLM is optimal is not known then."""
    Path("pairs.json").unlink()
    save_instance(load_instance("ladder-n16-LILO+SILO-k2"), "pairs.json")
    finding = found("a == b", BEST, objective='"mean_e2e"', time_limit="0.01")
    (case,) = finding.cases
    assert (case.results["b"].bound or 0) < (case.results["b"].value or 10**30)
    assert finding.verdict in {Verdict.OPEN, Verdict.REFUTED}
    assert (finding.verdict is Verdict.OPEN) == ((case.results["a"].value or 0) <= (case.results["b"].value or 0))


FAMILY = '\n[[families]]\ngenerator = "random"\nn = 20\nrequests = 3'


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store of what has been searched for instances of the family: claims of the same sides ask for the same."""
    with Store(tmp_path_factory.mktemp("family") / "s.sqlite") as store:
        yield store


def test_a_sample_never_proves(family: Store) -> None:
    sampled = decided(write("b <= a", BEST + FAMILY, instances=""), family)
    assert (sampled.verdict, len(sampled.cases)) == (Verdict.NOT_REFUTED, 20)
    # Without a failure among 20 the share of failures is at most 1 − 0.05^(1/20) with 95 % confidence.
    assert sampled.most_failing == pytest.approx(1 - 0.05 ** (1 / 20))
    assert decided(write("b < 0 * a", BEST + FAMILY, instances=""), family).verdict is Verdict.REFUTED


def test_a_mean_is_supported_contradicted_or_neither(family: Store) -> None:
    assert decided(write("mean(b / a) <= 1", BEST + FAMILY, instances=""), family).verdict is Verdict.SUPPORTED
    contradicted = decided(write("mean(b / a) > 1.01", BEST + FAMILY, instances=""), family)
    assert contradicted.verdict is Verdict.CONTRADICTED
    assert contradicted.mean is not None
    assert contradicted.mean.low is not None
    assert contradicted.mean.high is not None
    middle = float(contradicted.mean.low + contradicted.mean.high) / 2
    assert decided(write(f"mean(b / a) < {middle}", BEST + FAMILY, instances=""), family).verdict is Verdict.NOT_REFUTED


def test_a_policy_that_fails_is_counted_apart() -> None:
    finding = found("a <= b", 'a = { policy = "vllm" }\nb = { policy = "sarathi" }', instances='["infermax-fig15"]')
    assert (finding.failed, len(finding.cases)) == (1, 10), "Sarathi's batch holds no prompt of 1024 tokens"


# The command -----------------------------------------------------------------------------------------------


def test_the_command_says_the_verdict_and_writes_the_counterexample(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = optsched(capsys, "hypothesis", write("a.batches == 2", BEST), "--out", "c.json", "--store", "s.sqlite")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[:2] == [
        "h.toml: refuted: It holds (me)",
        "  a.batches == 2: true in 1, false in 1, open in 0 of 2 cases",
    ]
    assert lines[2].startswith("  smallest counterexample: narrow, a = ")
    assert [claim.result.instance.name for claim in load_results("c.json")] == ["narrow"] * 2
    assert optsched(capsys, "check", "c.json").code == 0
    assert optsched(capsys, "hypothesis", "h.toml", "--store", "s.sqlite").out == outcome.out


def test_a_counterexample_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="an extra that is not installed")
    assert optsched(capsys, "hypothesis", write("a.batches == 2", BEST), "--plots", "drawn").code == 0
    drawn = Path("drawn/h.svg").read_text()
    for text in ("narrow: counterexample to a.batches == 2", "a: vllm", "b: auto"):
        assert f"<!-- {text} -->" in drawn or text in drawn, "both sides, one above the other"
    assert optsched(capsys, "hypothesis", write("a >= b", BEST), "--plots", "none").code == 0
    assert not Path("none").exists(), "nothing is refuted"
    outcome = optsched(capsys, "hypothesis", write("a.batches == 2", BEST), "--plots", "h.toml")
    assert outcome.code == 2
    assert "--plots: got File exists, expected a folder to write to" in outcome.err


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"says": '"a <"'}, "says: got 'a <', expected an expression such as 1 - a / b <= 0.17"),
        ({"instances": ""}, "instances: got none, expected instances or families"),
        ({"otherwise": '"a < b"'}, "otherwise: got 'a < b', expected where, which says when it holds"),
        ({"where": '"a < b"'}, "where: got 'a < b', expected only n, I, O, M, kappa"),
        ({"objective": '"x"'}, "objective: got 'x', expected one of makespan"),
        ({"says": '"b.evictions == 0"'}, "b.evictions: got nothing, expected one of makespan, value"),
        ({"nonsense": "1"}, "nonsense: got 1, expected no field of this name"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    changes: dict[str, str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = optsched(capsys, "hypothesis", write(changes.pop("says", '"a < b"').strip('"'), BEST, **changes))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"optsched: h.toml: {complaint}")
    assert len(outcome.err.splitlines()) == 1


def test_a_side_is_a_policy_or_an_optimum(capsys: pytest.CaptureFixture[str]) -> None:
    for side, complaint in (
        ("a = {}", "sides.a.policy: got null, expected either a policy or an optimum"),
        ('a = { policy = "vlm" }', "sides.a.policy: got 'vlm', expected one of vllm, "),
        ('a = { optimum = { order = "x" } }', "sides.a.optimum.order: got 'x', expected one of input, output"),
    ):
        outcome = optsched(capsys, "hypothesis", write("a < 1", side))
        assert outcome.err.startswith(f"optsched: h.toml: {complaint}")


def test_shipped_hypotheses_can_be_read_and_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    names = list(shipped())
    assert len(names) >= 10
    assert all(read_hypothesis(name).claim for name in names)
    listed = optsched(capsys, "hypothesis").out
    assert all(name in listed for name in names)
    assert optsched(capsys, "hypothesis", "none").err.startswith(
        "optsched: none: HYPOTHESIS: got 'none', expected a file (.toml), or one of "
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "verdict"),
    [("low-contention", "proved"), ("eviction-threshold", "proved"), ("sjf-is-optimal", "refuted")],
)
def test_shipped_verdicts(name: str, verdict: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert optsched(capsys, "hypothesis", name).out.startswith(f"{name}: {verdict}: ")
