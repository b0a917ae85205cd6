"""What one method, policy, plug-in or bound breaks costs nothing that the others have found."""

from __future__ import annotations

import json
import sqlite3
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import commands
import pytest
from brute_force import optimum
from commands import Outcome
from hypothesis import given, settings
from hypothesis import strategies as st

from optsched import (
    Instance,
    Limits,
    Objective,
    Request,
    Restrictions,
    Rules,
    catalogue,
    check_schedule,
    simulate,
    solve,
)
from optsched.bounds.bound import Bound
from optsched.bounds.catalogue import BOUNDS, bound_method
from optsched.catalogue import FORMULATION_GROUP, entries, lookup
from optsched.methods import best as incumbents
from optsched.methods import bound as bounding
from optsched.methods import plan as planning
from optsched.methods import policies as naming
from optsched.methods import simulate as simulating
from optsched.methods import stages
from optsched.methods.bound import BoundRun, best_bound, bound
from optsched.methods.checked import DefectFoundError, is_proved
from optsched.methods.formulations import make_formulation
from optsched.methods.solve import was_interrupted
from optsched.model.cost import CostModel
from optsched.model.documents import dump, instance_document
from optsched.model.errors import InputError
from optsched.model.result import Badge, Result, Status
from optsched.policies import STANDARD
from optsched.policies.grouped import Group, GroupedPolicy, Members
from optsched.solvers.declaration import Declaration
from optsched.solvers.formulation import Outcome as Found
from optsched.solvers.formulation import Task, Termination

TEN = CostModel(base=10, token=0)
HARD = Instance("hard", Limits(8, 64, 64), Rules(chunked_prefill=False), TEN, (Request(3, 4), Request(4, 3)) * 2)
"""No policy's value meets a bound, so that every formulation is asked that few requests which come together concern."""
FORMULATIONS = tuple(entries(FORMULATION_GROUP))
ANY = (ValueError("zip() is shorter"), MemoryError(), RecursionError("deep"), SystemExit(3), InputError("a", 1, "b"))
SOON: dict[str, Any] = {"time_limit": 20, "workers": 1}


def bound_runs() -> list[BoundRun]:
    """Return what every bound says of `HARD`."""
    return best_bound(HARD, Objective.MAKESPAN, Restrictions())[1]


def fail(error: BaseException, *_arguments: object, **_options: object) -> Any:
    raise error


def break_formulations(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], error: BaseException) -> None:
    """Let formulations raise as soon as they are asked."""

    class Broken:
        declaration = Declaration(covers=("swap",))

        def solve(self, task: Task) -> Found:
            raise error

    def make(name: str, options: dict[str, str]) -> object:
        return Broken() if name in names else make_formulation(name, options)

    monkeypatch.setattr(planning, "make_formulation", make)


def best_policy(instance: Instance) -> int:
    values = [simulate(instance, name).value for name in STANDARD if name != "planner"]
    return min(value for value in values if value is not None)


def keeps_all(result: Result) -> None:
    """Assert that a result has what policies and bounds alone give."""
    assert result.schedule is not None
    assert check_schedule(HARD, result.schedule)[0] == []
    proved = bound(HARD)
    assert (result.value, result.bound, result.badge) == (best_policy(HARD), proved.bound, Badge.CERTIFIED)
    assert result.status == Status.FEASIBLE


# Formulations ----------------------------------------------------------------------------------------------


def test_the_instance_leaves_something_to_search() -> None:
    proved = bound(HARD)
    assert proved.bound is not None
    assert proved.bound < best_policy(HARD)


@pytest.mark.parametrize("error", ANY, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("name", FORMULATIONS)
def test_a_formulation_that_raises_is_named(name: str, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    break_formulations(monkeypatch, (name,), error)
    result = solve(HARD, method=name, **SOON)
    keeps_all(result)
    assert result.message is not None
    assert result.message.startswith(f"{name}: {type(error).__name__}")
    assert "test_robust.py:" in result.message


@pytest.mark.parametrize("name", FORMULATIONS)
def test_auto_does_without_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else `small_search` settles it before the others.
    broken = tuple(dict.fromkeys(("small_search", name)))
    break_formulations(monkeypatch, broken, ValueError("no"))
    # It ends as soon as the optimum is proved.
    result = solve(HARD, time_limit=300, workers=1)
    assert (result.status, result.value) == (Status.OPTIMAL, optimum(HARD))
    said = [sentence.partition(":")[0] for sentence in (result.message or "").split("; ")]
    assert said[0] == "small_search"
    assert said[1:] in ([], [name])


def test_auto_does_without_all(monkeypatch: pytest.MonkeyPatch) -> None:
    break_formulations(monkeypatch, FORMULATIONS, ValueError("no"))
    result = solve(HARD, **SOON)
    keeps_all(result)
    said = (result.message or "").split("; ")
    tried = {sentence.partition(":")[0] for sentence in said}
    of_others = {"unbroken", "reinsertion", "clock_beam", "core_alone", "free_pauses", "last_arrivals"}
    assert tried == set(FORMULATIONS) - {"infermax_milp", "class_flow_mip"} - of_others
    assert len(said) == len(tried), "token_cpsat is tried twice and named once"


@pytest.mark.parametrize("method", ["auto", "state_search"])
@pytest.mark.parametrize("broken", ["the import", "the class"])
def test_a_formulation_that_cannot_be_made_is_named(method: str, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken == "the import":
        offered = {**entries(FORMULATION_GROUP), "state_search": "no.such.module:StateSearch"}
        real, broken_only = catalogue._offered, catalogue._Offered(offered, ())
        monkeypatch.setattr(
            catalogue, "_offered", lambda group: broken_only if group == FORMULATION_GROUP else real(group)
        )
        said = "state_search: no.such.module:StateSearch cannot be loaded: ModuleNotFoundError: No module named 'no'"
    else:
        monkeypatch.setattr(lookup(FORMULATION_GROUP, "state_search", ""), "__init__", partial(fail, OSError("no")))
        said = "state_search: OSError: no ("
    result = solve(HARD, method=method, **SOON)
    assert (result.message or "").startswith(said)
    if method == "auto":
        assert (result.status, result.value) == (Status.OPTIMAL, optimum(HARD))
    else:
        keeps_all(result)


def test_the_user_presses_ctrl_c_and_a_method_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def solve(self, task: Task) -> Found:
            raise KeyboardInterrupt

    monkeypatch.setattr(planning, "entries", lambda group: {"token_cpsat": "", "pair_flow": ""})
    monkeypatch.setattr(
        planning, "make_formulation", lambda name, options: Interrupted() if name == "pair_flow" else object()
    )
    result = solve(HARD, **SOON)
    keeps_all(result)
    assert (result.message or "").startswith("interrupted; token_cpsat: AttributeError")
    assert was_interrupted(result)


def test_a_search_learns_what_is_found_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int | None] = []

    class Waits:
        declaration = Declaration(sequential=True)

        def solve(self, task: Task) -> Found:
            seen.append(task.incumbent_value)
            until = monotonic() + 30
            while task.value_beside() == task.incumbent_value and monotonic() < until:
                sleep(0.01)
            seen.append(task.value_beside())
            return Found(Termination.LIMIT, None, None, Badge.HEURISTIC)

    monkeypatch.setattr(planning, "entries", lambda group: {"token_cpsat": "", "pair_flow": ""})
    finds = make_formulation("state_search", {})
    monkeypatch.setattr(planning, "make_formulation", lambda name, options: Waits() if name == "token_cpsat" else finds)
    result = solve(HARD, time_limit=60, workers=2)
    assert seen == [best_policy(HARD), result.value]
    assert result.value == optimum(HARD) < best_policy(HARD)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        Found(Termination.LIMIT, None, 5.5, Badge.CERTIFIED),  # type: ignore[arg-type]
        Found(Termination.LIMIT, None, -1, Badge.SOLVER_CLAIMED),
        Found(Termination.LIMIT, None, True, Badge.SOLVER_CLAIMED),
        Found(Termination.LIMIT, "schedule", None, Badge.HEURISTIC),  # type: ignore[arg-type]
        Found(Termination.LIMIT, None, 39, Badge.CERTIFIED, {"kind": []}),
        Found(Termination.LIMIT, None, 39, Badge.CERTIFIED, 7),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_an_answer_that_is_none_costs_nothing(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd:
        def solve(self, task: Task) -> Found:
            return answer  # type: ignore[no-any-return]

    monkeypatch.setattr(planning, "make_formulation", lambda name, options: Odd())
    keeps_all(solve(HARD, method="token_cpsat", **SOON))


# Policies and bounds in solve ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in STANDARD if name != "planner"])
def test_a_policy_of_ours_that_raises_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def next_batch(self, replica: object) -> object:
            raise KeyError("gone")

    monkeypatch.setattr(naming, "lookup", lambda *asked: Broken() if asked[1] == name else lookup(*asked))
    # It ends as soon as the optimum is proved; ``auto`` would prove it before any policy has its turn.
    result = solve(HARD, method="token_cpsat", time_limit=300, workers=1)
    assert (result.status, result.value) == (Status.OPTIMAL, optimum(HARD))
    assert (result.message or "").startswith(f"policy {name}: raised KeyError: 'gone' (")


@pytest.mark.parametrize("name", BOUNDS)
def test_a_bound_that_raises_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = {run.name: run.bound for run in bound_runs()}
    del honest[name]
    best = max(found.value for found in honest.values() if found is not None)
    broken = partial(fail, IndexError("beyond"))
    monkeypatch.setattr(bounding, "bound_method", lambda asked: broken if asked == name else bound_method(asked))
    found, runs = bound(HARD), bound_runs()
    assert (found.status, found.bound, found.badge) == (Status.BOUND_ONLY, best, Badge.CERTIFIED)
    assert (found.message or "").startswith(f"{name}: IndexError: beyond (")
    assert [run.failure is not None for run in runs] == [asked == name for asked in BOUNDS]
    alone = bound(HARD, method=name)
    assert (alone.status, alone.bound) == (Status.UNKNOWN, None)
    assert (alone.message or "").startswith(f"{name}: IndexError: beyond (")
    break_formulations(monkeypatch, FORMULATIONS, ValueError("no"))
    result = solve(HARD, **SOON)
    assert (result.value, result.bound, result.badge) == (best_policy(HARD), best, Badge.CERTIFIED)
    assert f"{name}: IndexError: beyond (" in (result.message or "")


def test_bounds_count_only_if_the_checker_confirms_them(monkeypatch: pytest.MonkeyPatch) -> None:
    break_formulations(monkeypatch, FORMULATIONS, ValueError("no"))
    monkeypatch.setattr(incumbents, "is_proved", partial(fail, OverflowError("int too large")))
    result = solve(HARD, **SOON)
    assert (result.value, result.bound, result.badge) == (best_policy(HARD), None, Badge.HEURISTIC)
    assert "the check of volume's bound" in (result.message or "")
    assert "OverflowError: int too large" in (result.message or "")
    assert "volume: the checker does not prove its bound" in (result.message or "")


def test_a_bound_that_the_checker_fails_on_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(instance: Instance, objective: Objective) -> Bound:
        return Bound(10**30, {"kind": "volume"})

    honest = bound(HARD)
    monkeypatch.setattr(bounding, "bound_method", lambda name: lie if name == "ramp" else bound_method(name))
    with pytest.raises(DefectFoundError, match=f"ramp: the checker does not confirm the bound {10**30}") as caught:
        bound(HARD)
    assert (caught.value.result.bound, caught.value.result.badge) == (honest.bound, Badge.CERTIFIED)


# Contradictions --------------------------------------------------------------------------------------------


def test_a_bound_above_a_replayed_value_is_dropped_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Found(Termination.LIMIT, None, 10**6, Badge.SOLVER_CLAIMED)

    class Liar:
        def solve(self, task: Task) -> Found:
            return wrong

    monkeypatch.setattr(planning, "make_formulation", lambda name, options: Liar())
    with pytest.raises(DefectFoundError) as caught:
        solve(HARD, method="token_cpsat", **SOON)
    keeps_all(caught.value.result)
    said = f"token_cpsat: its bound 1000000 (solver_claimed) exceeds the value {best_policy(HARD)} of a schedule of "
    assert str(caught.value).startswith(said)
    assert caught.value.result.message == str(caught.value)


def test_a_schedule_refutes_the_bounds_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A false theorem with a false checker: the replayed schedule decides, and the next best bound is what is left."""

    def lie(instance: Instance, objective: Objective) -> Bound:
        return Bound(10**6, {"kind": "late"})

    honest, runs = bound(HARD), bound_runs()
    assert max(run.bound.value for run in runs if run.bound is not None and run.name != "late") == honest.bound
    monkeypatch.setattr(bounding, "bound_method", lambda name: lie if name == "late" else bound_method(name))
    monkeypatch.setattr(incumbents, "is_proved", lambda *asked: asked[3] == 10**6 or is_proved(*asked))
    with pytest.raises(DefectFoundError, match=r"late: its bound 1000000 \(certified\) exceeds the value") as caught:
        solve(HARD, method="token_cpsat", **SOON)
    result = caught.value.result
    # The bounds after `late` were not better than it and are gone, those before are not.
    assert result.bound is not None
    assert result.bound >= max(
        run.bound.value for run in runs[: [run.name for run in runs].index("late")] if run.bound is not None
    )
    assert (result.status, result.value) == (Status.OPTIMAL, optimum(HARD))


def test_an_illegal_schedule_costs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    legal = simulate(HARD, "vllm").schedule
    assert legal is not None
    illegal = Found(Termination.LIMIT, type(legal)(legal.batches[:-1]), None, Badge.HEURISTIC)

    class Liar:
        def solve(self, task: Task) -> Found:
            return illegal

    monkeypatch.setattr(planning, "make_formulation", lambda name, options: Liar())
    with pytest.raises(DefectFoundError, match="token_cpsat made an illegal schedule") as caught:
        solve(HARD, method="token_cpsat", **SOON)
    keeps_all(caught.value.result)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_whatever_breaks_the_rest_is_kept(data: st.DataObject) -> None:
    """Any set of formulations, policies and bounds raises: value and bound are what the others give."""
    policies = [name for name in STANDARD if name != "planner"]
    gone = set(data.draw(st.lists(st.sampled_from(policies), max_size=len(policies), unique=True)))
    lost = set(data.draw(st.lists(st.sampled_from(tuple(BOUNDS)), max_size=len(BOUNDS), unique=True)))
    error = data.draw(st.sampled_from(ANY))
    values = [simulate(HARD, name).value for name in policies if name not in gone]
    bounds = [run.bound.value for run in bound_runs() if run.bound is not None and run.name not in lost]
    with pytest.MonkeyPatch.context() as monkeypatch:
        break_formulations(monkeypatch, FORMULATIONS, error)
        real = simulating.served_alone
        monkeypatch.setattr(stages, "served_alone", lambda *asked: fail(error) if asked[1] in gone else real(*asked))
        broken = partial(fail, error)
        monkeypatch.setattr(bounding, "bound_method", lambda name: broken if name in lost else bound_method(name))
        result = solve(HARD, **SOON)
    assert result.value == min((value for value in values if value is not None), default=None)
    assert result.bound == max(bounds, default=None)


# Plug-ins --------------------------------------------------------------------------------------------------

Command = Callable[..., Outcome]
Install = Callable[..., Path]

RAISES = """
class Mine:
    def next_batch(self, replica):
        return self.choose(replica)
    def choose(self, replica):
        raise ZeroDivisionError("nothing to divide")

MINE = Mine()
POLICIES = {"mine": "plugged:MINE"}
"""
SAYS_NONE = """
class Mine:
    def next_batch(self, replica):
        return None

from optsched.model.schedule import Assignment
MINE = Mine()
POLICIES = {"mine": "plugged:MINE"}
"""


@pytest.fixture
def optsched(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run the command in a folder with one instance."""
    monkeypatch.chdir(tmp_path)
    Path("hard.json").write_text(dump(instance_document(HARD)))
    return partial(commands.optsched, capsys)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install packages that offer policies, a file each."""
    points: list[EntryPoint] = []
    monkeypatch.syspath_prepend(str(tmp_path))

    real = catalogue._installed()

    def installed() -> dict[str, list[EntryPoint]]:
        return {group: [*found, *(point for point in points if point.group == group)] for group, found in real.items()}

    monkeypatch.setattr(catalogue, "_installed", installed)

    def add(text: str, name: str = "plugged", group: str = "optsched.policies") -> Path:
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        points.append(EntryPoint(name, f"{name}:POLICIES", group))
        sys.modules.pop(name, None)
        catalogue._offered.cache_clear()
        return file

    yield add
    catalogue._offered.cache_clear()
    for point in points:
        sys.modules.pop(point.name, None)


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        (RAISES, "raised ZeroDivisionError: nothing to divide ({})", 6),
        (SAYS_NONE, "raised TypeError: next_batch answers null, which is no Assignment", 2),
        (RAISES.replace('ZeroDivisionError("nothing to divide")', "SystemExit(0)"), "raised SystemExit: 0 ({})", 6),
        (
            # The object is made when the module that the name points at is imported.
            'POLICIES = {"mine": "hidden:MINE"}',
            "raised hidden:MINE cannot be loaded: ValueError: no licence ({})",
            2,
        ),
        ('POLICIES = {"mine": "plugged:GONE"}', "raised plugged:GONE cannot be loaded: AttributeError", None),
        ('POLICIES = {"mine": "syntax:MINE"}', "raised syntax:MINE cannot be loaded: SyntaxError: ", None),
        (SAYS_NONE.replace("return None", "return 'run all'"), "which is no Assignment", 2),
        (
            RAISES.replace(
                'raise ZeroDivisionError("nothing to divide")',
                "from optsched.simulator.replica import PolicyFailureError; raise PolicyFailureError(99, 0, 'no')",
            ),
            "raised IndexError",
            None,
        ),
        (
            SAYS_NONE.replace("return None", "return Assignment([(0, 1.5)], [])"),
            "raised ",
            2,
        ),
        (
            SAYS_NONE.replace("return None", "return Assignment(7, None)"),
            "raised TypeError",
            2,
        ),
    ],
)
def test_a_users_policy_that_raises_is_not_available(
    text: str, said: str, line: int | None, install: Install, optsched: Command, tmp_path: Path
) -> None:
    file = install(text)
    (tmp_path / "hidden.py").write_text("def licence():\n    raise ValueError('no licence')\nMINE = licence()\n")
    (tmp_path / "syntax.py").write_text("MINE = (\n")
    sys.modules.pop("hidden", None)
    place = f"{tmp_path / 'hidden.py' if 'hidden' in text else file}:{line}"
    result = simulate(HARD, "mine")
    assert (result.status, result.value, result.schedule) == (Status.FAILED, None, None)
    assert (result.message or "").startswith("mine: ")
    assert said.format(place) in (result.message or "")
    assert line is None or place in (result.message or "")
    code, out, err = optsched("simulate", "hard.json", "--policy", "mine,vllm")
    assert (code, err) == (0, "")
    assert f"n/a: {result.message}\n" in out
    code, out, err = optsched(
        "table", "hard.json", "--policies", "vllm,mine", "--time-limit", "5", "--format", "csv", "--results", "kept"
    )
    assert (code, err) == (0, "")
    kept = attempts_of("mine")
    assert [(document["status"], document["message"]) for document in kept] == [("failed", result.message)]
    assert "n/a: mine on hard: raised" in " ".join(Path("kept/table.txt").read_text().split())
    Path("mine.json").write_text(json.dumps(kept[0]))
    assert optsched("check", "mine.json").code == 0


def attempts_of(method: str) -> list[Any]:
    """Return the documents that the folder of results keeps of a method."""
    query = "SELECT document FROM attempts JOIN tasks ON tasks.key = task WHERE json_extract(about, '$.method') = ?"
    query += " AND document IS NOT NULL"
    with closing(sqlite3.connect("kept/study.sqlite")) as database:
        return [json.loads(zlib.decompress(packed)) for (packed,) in database.execute(query, (method,))]


def test_the_line_in_a_function_that_a_policy_of_ours_was_given() -> None:
    def worst(job: object, replica: object) -> int:
        raise LookupError("no order")

    mine = GroupedPolicy((Group(Members.WAITING, order=worst), Group(Members.RUNNING)), hybrid=False, chunked=False)
    result = simulate(HARD, mine)
    assert result.status == Status.FAILED
    assert f"raised LookupError: no order ({__file__}:" in (result.message or "")


@pytest.mark.parametrize("method", ["auto", "token_cpsat", "planner"])
def test_solve_plays_no_policy_but_ours(method: str, install: Install, optsched: Command) -> None:
    """A plug-in leaves a file when one of its policies is loaded, also one that is called like one of ours."""
    install('POLICIES = {"mine": "traced:MINE", "vllm": "traced:MINE"}', name="aaa")
    Path("traced.py").write_text("open('loaded', 'w').close()\nMINE = None\n")
    sys.modules.pop("traced", None)
    assert entries("optsched.policies")["vllm"].startswith("optsched.")
    code, _, err = optsched("solve", "hard.json", "--method", method, "--time-limit", "5", "--workers", "1")
    assert (code, err) == (0, "")
    assert not Path("loaded").exists()
    assert optsched("simulate", "hard.json", "--policy", "mine").code == 0
    assert Path("loaded").exists()


@pytest.mark.parametrize("text", ["import nothing_like_it", "POLICIES = 7", "POLICIES = {'mine': 3}", "x = ("])
@pytest.mark.parametrize("group", ["optsched.policies", "optsched.formulations"])
def test_a_plug_in_that_cannot_be_read_is_named_and_left_out(
    text: str, group: str, install: Install, optsched: Command
) -> None:
    install(text, group=group)
    asked: dict[str, list[tuple[str, ...]]] = {
        "optsched.policies": [("simulate", "--policy", "vllm"), ("table", "--policies", "vllm", "--time-limit", "5")],
        "optsched.formulations": [("solve", "--time-limit", "5"), ("solve", "--method", "token_cpsat")],
    }
    for name, *options in asked[group]:
        code, _, err = optsched(name, "hard.json", *options)
        assert code == 0
        assert f"entry point plugged = plugged:POLICIES of {group} is left out: " in err
    (broken,) = catalogue.broken_entries(group)
    result = solve(HARD, **SOON)
    assert result.status == Status.OPTIMAL
    assert result.message == (broken if group == "optsched.formulations" else None)


# The commands ----------------------------------------------------------------------------------------------


def test_a_failed_method_is_named_on_stderr(optsched: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    break_formulations(monkeypatch, FORMULATIONS, ValueError("no\x1b[31m"))
    code, _, err = optsched("solve", "hard.json", "--method", "token_cpsat", "--out", "r.json")
    assert code == 0
    assert err.startswith("optsched: hard: token_cpsat: ValueError: no\\x1b[31m (")
    assert optsched("check", "r.json").code == 0
    code, _, err = optsched("table", "hard.json", "--method", "token_cpsat", "--policies", "vllm")
    assert code == 0
    assert err.startswith("optsched: hard: token_cpsat: ValueError: no\\x1b[31m (")


def test_a_defect_is_reported_and_the_rest_printed(optsched: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    class Liar:
        def solve(self, task: Task) -> Found:
            return Found(Termination.LIMIT, None, 10**6, Badge.SOLVER_CLAIMED)

    monkeypatch.setattr(planning, "make_formulation", lambda name, options: Liar())
    code, _, err = optsched("solve", "hard.json", "--out", "r.json")
    assert code == 1
    assert err.startswith("optsched: defect of optsched: ")
    assert len(err.splitlines()) == 1
    document = json.loads(Path("r.json").read_text())
    proved = bound(HARD)
    assert (document["value"], document["bound"], document["status"]) == (best_policy(HARD), proved.bound, "feasible")
    assert optsched("check", "r.json").code == 0
    options = ("--policies", "vllm", "--results", "kept", "--ledger", "ledger.jsonl")
    code, out, err = optsched("table", "hard.json", *options)
    assert code == 1
    assert "hard: makespan, gap of each policy" in out
    assert err.splitlines()[-1].startswith("optsched: defect of optsched: hard: ")
    assert attempts_of("auto") == [], "it is searched again"
    assert len(attempts_of("vllm")) == 1
    assert not Path("ledger.jsonl").exists()


MOST = 2**63 - 1
HUGE = {
    "base": (CostModel(base=MOST, token=0), (Request(3, 2), Request(3, 2))),
    "all": (CostModel(base=MOST, token=MOST, decode_kv=MOST, prefill_sq=MOST), (Request(3, 2), Request(3, 2, MOST))),
    "arrival": (TEN, (Request(3, 2), Request(3, 2, MOST))),
    "both": (CostModel(base=MOST, token=0), (Request(3, 2), Request(3, 2, MOST))),
}


@pytest.mark.parametrize("objective", ["makespan", "mean_e2e"])
@pytest.mark.parametrize("name", HUGE)
def test_times_that_no_schedule_can_state(name: str, objective: str, optsched: Command) -> None:
    """Batches that end beyond 2⁶³ − 1 ps: bounds stand, policies are n/a, nothing is a traceback."""
    cost, requests = HUGE[name]
    instance = Instance("huge", Limits(100, 100, 100), Rules(), cost, requests)
    Path("huge.json").write_text(dump(instance_document(instance)))
    goal = ("--objective", objective)
    assert optsched("solve", "huge.json", *goal, "--time-limit", "10", "--out", "r.json").code == 0
    found = json.loads(Path("r.json").read_text())
    assert (found["status"], found["badge"], found["value"]) == ("bound_only", "certified", None)
    # Both requests take two batches of at least `base` after they have arrived; a makespan counts from 0.
    longest = 2 * cost.base + (max(request.arrival_ps for request in requests) if objective == "makespan" else 0)
    assert found["bound"] >= longest
    assert optsched("check", "r.json").code == 0
    assert optsched("bound", "huge.json", *goal, "--out", "b.json").code == 0
    assert optsched("check", "b.json").code == 0
    assert json.loads(Path("b.json").read_text())["bound"] == found["bound"]
    code, _, err = optsched("simulate", "huge.json", "--policy", "all", *goal, "--out", "s.json")
    assert (code, err) == (0, "")
    for document in json.loads(Path("s.json").read_text()):
        assert document["status"] == "failed"
        assert "later than a schedule can state" in document["message"] or "64 bits" in document["message"]
    assert optsched("check", "s.json").code == 0
    code, out, err = optsched("table", "huge.json", "--policies", "vllm", *goal, "--time-limit", "5")
    assert (code, err) == (0, "")
    assert "later than a schedule can state" in " ".join(out.split())
