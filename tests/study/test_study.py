"""Studies by the command: what runs, what is kept whatever happens, and what is said of it."""

from __future__ import annotations

import csv
import importlib
import io
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from commands import Outcome, optsched
from patience import until

import optsched as package
from optsched.library import load_suite
from optsched.model.errors import InputError
from optsched.study.cluster import Dask, Ray
from optsched.study.drive import run
from optsched.study.record import Ended
from optsched.study.runner import Here, Processes, Runner
from optsched.study.store import Store
from optsched.study.trial import Trial, bounding, simulating, solving
from optsched.study.worker import Allowance

COMMAND = [sys.executable, "-c", "from optsched.cli import main; main()", "study"]
STUDY = """
name = "mixes"
policies = ["vllm", "orca", {name = "larry", alpha = 1000}]
slots = 2

[[families]]
generator = "mix"
n = 20
requests = 12
kv_tokens = 2048
seed = 3
"""
HANGING = """
import time
class Hangs:
    def next_batch(self, replica):
        time.sleep(1000)
class Eats:
    def next_batch(self, replica):
        self.bytes = bytearray(1 << 30)
        time.sleep(1000)
class Dies:
    def next_batch(self, replica):
        import os
        os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str = STUDY, **more: str) -> str:
    fields = "".join(f"{name} = {value}\n" for name, value in more.items())
    Path("s.toml").write_text(fields + text)
    return "s.toml"


def attempts(store: str = "s.sqlite") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as database:
        return database.execute("SELECT task, ended, status, value FROM attempts ORDER BY task, id").fetchall()


def count(store: str) -> int:
    try:
        return len(attempts(store))
    except sqlite3.Error:  # not made yet
        return 0


# Running ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_study_killed_again_and_again_by_two_drivers_runs_each_trial_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The values are those of policies in this process; the kills come after random numbers of finished trials."""
    study = write(STUDY.replace("slots = 2", "slots = 1"))
    chance = random.Random(1)
    for _ in range(3):
        drivers = [
            subprocess.Popen([*COMMAND, study], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)
        ]
        for driver in drivers:
            wanted = count("s.sqlite") + chance.randint(1, 8)
            until(lambda driver=driver, wanted=wanted: count("s.sqlite") >= wanted or driver.poll() is not None)  # type: ignore[misc]
            driver.send_signal(signal.SIGKILL)
            driver.wait()
    assert optsched(capsys, "study", study).code == 0
    found = attempts()
    assert len(found) == len({task for task, *_ in found}) == 60
    assert {ended for _, ended, *_ in found} == {"finished"}
    with Store(Path("s.sqlite")) as store:
        trials = store.members("mixes")
        alone = {done.trial.key: done.result for done in run(trials, Here())}
        assert {task: value for task, _, _, value in found} == {
            key: None if result is None or result.value is None else str(result.value) for key, result in alone.items()
        }
        assert store.is_sound()
    assert sorted(path.name for path in Path().iterdir()) == ["s.sqlite", "s.toml"]


@pytest.mark.slow
def test_kills_a_full_disk_and_a_corrupted_record_change_nothing() -> None:
    """What benchmarks/study_faults.py does with 500 trials and 20 kills, smaller; it says if it may mount no disk."""
    command = [sys.executable, str(ROOT / "benchmarks/study_faults.py"), "--trials", "20", "--kills", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[-1] == "3 kills: the same keys and values, each trial finished once, the file sound"
    if "without a full disk: unshare --mount is not allowed" not in lines:
        # SQLite says the second where the index of its log, and not a page of the file, finds no room.
        full = ("database or disk is full", "disk I/O error")
        expected = "expected a store that can be read and written"
        assert {f"on a full disk: exit code 2: optsched: s.sqlite: got {it}, {expected}" for it in full} & set(lines)


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_is_finished_and_leaves_no_process(ending: signal.Signals) -> None:
    study = write()
    with subprocess.Popen([*COMMAND, study], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as driver:
        until(lambda: count("s.sqlite") >= 3)
        workers = children(driver.pid)
        driver.send_signal(ending)
        _, said = driver.communicate()
    assert (driver.returncode, said.lstrip("\n")) == (130, "optsched: interrupted; what was finished is kept\n")
    assert 3 <= len(attempts()) < 60
    assert workers
    until(lambda: not any(Path(f"/proc/{worker}/cmdline").exists() for worker in workers))


def children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[1] == str(parent):
            found.append(int(path.parent.name))
    return found


def carried_out(runner: Runner, *trials: Trial) -> list[Any]:
    """Return the attempts that a store has of trials, run by a runner."""
    with Store(Path("t.sqlite")) as store, closing(runner):
        list(run(trials, runner, store))
        return [(attempt.record.ended, attempt.record.message) for attempt in store.attempts()]


def mine(name: str) -> Trial:
    Path("mine.py").write_text(HANGING)
    instance = load_suite("infermax-fig15").instances[0]
    return simulating(instance, package.Objective.MAKESPAN, policy=f"mine.py:{name}")


def test_a_policy_beyond_its_time_is_ended() -> None:
    ((ended, message),) = carried_out(Processes(1, Allowance(policy_s=0.5)), mine("Hangs"))
    assert ended == Ended.OVERRAN
    assert message is not None


def test_a_policy_beyond_its_memory_is_ended_and_the_next_trial_runs() -> None:
    allowance = Allowance(memory_bytes=2**30)
    instance = load_suite("infermax-fig15").instances[0]
    good = simulating(instance, package.Objective.MAKESPAN, policy="vllm")
    (failed, message), (finished, _) = carried_out(Processes(1, allowance), mine("Eats"), good)
    assert (failed, finished) == (Ended.FAILED, Ended.FINISHED)
    assert message.startswith("memory: 1.")
    assert message.endswith(" GiB, of which 1.00 GiB are allowed")


def test_a_trial_whose_process_dies_is_tried_three_times() -> None:
    found = carried_out(Processes(1), mine("Dies"))
    assert found == [(Ended.LOST, "its process was killed by signal 9")] * 3


def test_wrong_input_is_the_same_error_from_another_process() -> None:
    wrong = bounding(load_suite("infermax-fig15").instances[0], package.Objective.MAKESPAN, method="magic")
    said = []
    for runner in (Here(), Processes(1)):
        with closing(runner), pytest.raises(InputError) as found:
            next(run([wrong], runner)).required()
        said.append((found.value.field, str(found.value)))
    assert said[0] == said[1]
    assert said[0][1].startswith("method: got 'magic', expected one of best, all, volume")


def some() -> list[Trial]:
    """Return a few trials, most of them short."""
    instances = load_suite("infermax-fig15").instances
    names = ("vllm", "orca", "larry")
    return [
        *(simulating(each, package.Objective.MAKESPAN, policy=name) for name in names for each in instances),
        *(solving(each, package.Objective.MAKESPAN, time_limit=60, workers=1) for each in instances[:2]),
    ]


def while_one_is_lost(runner: Runner, lose: Callable[[], None]) -> None:
    """Run some trials, lose a part of the cluster after the tenth, and hold what comes of it against this process."""
    trials = some()
    alone = {done.trial.key: done.result and done.result.value for done in run(trials, Here())}
    found = {}
    with closing(runner), Store(Path("c.sqlite")) as store:
        for number, done in enumerate(run(trials, runner, store), 1):
            found[done.trial.key] = done.result and done.result.value
            if number == 10:
                lose()
        assert store.is_sound()
        assert list(run(trials, Here(), store))[-1].kept is not None
    assert found == alone
    finished = [task for task, ended, *_ in attempts("c.sqlite") if ended == "finished"]
    assert finished == sorted(alone), "each once"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_of_dask_that_loses_a_worker_gives_the_same() -> None:
    distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        workers = list(client.run(os.getpid).values())
        while_one_is_lost(Dask(client), lambda: os.kill(workers[0], signal.SIGKILL))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_of_ray_that_loses_a_node_gives_the_same() -> None:
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    utils = importlib.import_module("ray.cluster_utils")
    cluster = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        while_one_is_lost(Ray(cluster.address), lambda: cluster.remove_node(second, allow_graceful=False))
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_an_extra_that_is_missing_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for engine, package_name in (("dask", "distributed"), ("ray", "ray")):
        monkeypatch.setitem(sys.modules, package_name, None)
        outcome = optsched(capsys, "study", write(runner=f'"{engine}:local"'))
        expected = f"got {engine} without the package {package_name}, expected pip install 'optsched[{engine}]'"
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.endswith(f": {expected}\n")


# What is said ----------------------------------------------------------------------------------------------


def small(**more: str) -> str:
    body = 'name = "s"\ninstances = ["infermax-fig15"]\npolicies = ["vllm", "orca"]\nbounds = ["volume"]\nslots = 1\n'
    Path("s.toml").write_text(body + "".join(f"{name} = {value}\n" for name, value in more.items()))
    return "s.toml"


def test_a_dry_run_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = optsched(capsys, "study", small(), "--dry-run")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0] == "s: 33 trials, 0 in s.sqlite, 33 to run"
    assert lines[1:4] == ["  11 × bound volume", "  11 × simulate vllm", "  11 × simulate orca"]
    assert attempts() == []


@pytest.mark.slow
def test_status_export_diff_and_forget(capsys: pytest.CaptureFixture[str]) -> None:
    study = small()
    first = optsched(capsys, "study", study, "--out", "rows.csv")
    assert first.code == 0
    rows = list(csv.DictReader(io.StringIO(Path("rows.csv").read_text())))
    assert [row["label"] for row in rows[:3]] == ["volume", "vllm", "orca"]
    for row in rows:  # the best bound is the volume bound, the only one
        if row["value"]:
            value, bound = int(row["value"]), int(row["best_bound"])
            assert float(row["gap_to_best_bound"]) == (value - bound) / value
    status = optsched(capsys, "study", "status", study).out
    assert status.startswith("s: 33 trials, 33 in s.sqlite, 0 to run\n")
    assert "The file is sound." in optsched(capsys, "study", "status", "s.sqlite").out
    assert optsched(capsys, "study", "export", study, "--out", "d.json", "--ledger", "l.jsonl").code == 0
    assert optsched(capsys, "check", "d.json").code == 0
    assert len(package.load_results("d.json")) == 33
    assert len(Path("l.jsonl").read_text().splitlines()) >= 22, "a value and a bound of each instance"
    with closing(sqlite3.connect("s.sqlite")) as database, database:
        assert database.execute("SELECT count(DISTINCT question) FROM tasks").fetchone() == (11,)
    assert optsched(capsys, "study", "forget", study, "--method", "orca").out == "11 attempts forgotten\n"
    assert optsched(capsys, "study", "status", study).out.startswith("s: 33 trials, 22 in s.sqlite, 11 to run\n")
    assert optsched(capsys, "study", "forget", study, "--outdated").out == "0 attempts forgotten\n"
    said = optsched(capsys, "study", "diff", study).out
    assert said.startswith("0 trials run by two versions of the code")


def test_gaps_are_to_the_best_bound_of_the_store(capsys: pytest.CaptureFixture[str]) -> None:
    """A study of bounds first, then one of policies alone in the same store."""
    body = 'name = "{}"\ninstances = ["infermax-fig15"]\n{} = ["{}"]\nstore = "both.sqlite"\nslots = 1\n'
    for name, kind, method in (("one", "bounds", "volume"), ("two", "policies", "vllm")):
        Path("s.toml").write_text(body.format(name, kind, method))
        assert optsched(capsys, "study", "s.toml", "--out", f"{name}.csv").code == 0
    bounds, values = (list(csv.DictReader(io.StringIO(Path(f"{name}.csv").read_text()))) for name in ("one", "two"))
    for bound, value in zip(bounds, values, strict=True):
        assert value["best_bound"] == bound["bound"]
        assert value["bound"] == ""
        least, most = int(bound["bound"]), int(value["value"])
        assert float(value["gap_to_best_bound"]) == (most - least) / most


def test_what_another_version_of_a_policy_does_is_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text("from optsched.policies.infermax import VLLM as P\n")
    study = small(policies='["mine.py:P"]')
    Path(study).write_text(Path(study).read_text().replace('policies = ["vllm", "orca"]\n', "", 1))
    assert optsched(capsys, "study", study).code == 0
    Path("mine.py").write_text("from optsched.policies.fcfs import STATIC as P\n")
    assert "22 trials, 11 in s.sqlite, 11 to run" in optsched(capsys, "study", study, "--dry-run").out
    assert optsched(capsys, "study", study).code == 0
    said = optsched(capsys, "study", "diff", study).out
    assert said.startswith("11 trials run by two versions of the code: ")
    assert "worse" in said.splitlines()[3]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name = ", "s.toml: got invalid TOML"),
        ("polices = []\n" + STUDY, "s.toml: polices: got [], expected no field of this name"),
        ('name = "s"', "s.toml: policies: got none, expected policies, methods or bounds"),
        ('name = "s"\npolicies = ["vllm"]', "s.toml: instances: got none, expected instances or families"),
        ('name = "s"\ninstances = ["none"]\nbounds = ["best"]', "s.toml: INSTANCE: got 'none', expected a file"),
        ('name = "s"\nbounds = ["nest"]', "s.toml: bounds: got 'nest', expected one of best, "),
        ('name = "s"\nmethods = ["none"]', "s.toml: methods: got 'none', expected one of auto, "),
        ('name = "s"\npolicies = ["vlm"]', "s.toml: policy: got 'vlm', expected one of vllm, "),
        (
            'name = "s"\npolicies = [{alpha = 1}]',
            "s.toml: policies[0].name: got nothing, expected the name of a method",
        ),
        (
            'name = "s"\npolicies = [{name = "larry", beta = 1}]',
            "s.toml: parameter: got 'beta', expected one of alpha, base, unit of policy larry",
        ),
        (
            'name = "s"\npolicies = [{name = "larry", alpha = "x"}]',
            "s.toml: larry.alpha: got 'x', expected a value such as 1",
        ),
        ('name = "s"\nseeds = [-1]', "s.toml: seeds[0]: got -1, expected an integer ≥ 0"),
        ('name = "s"\nobjectives = ["x"]\nbounds = ["best"]', "s.toml: objective: got 'x', expected one of makespan"),
        (
            'name = "s"\nbounds = ["best"]\n[[families]]\ngenerator = "some"',
            "s.toml: families[0].generator: got 'some', expected",
        ),
        (STUDY.replace("slots = 2", 'runner = "slurm"'), "s.toml: runner: got 'slurm', expected processes, dask:"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("s.toml").write_text(text)
    outcome = optsched(capsys, "study", "s.toml")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"optsched: {complaint}")
    assert len(outcome.err.splitlines()) == 1


# From Python -----------------------------------------------------------------------------------------------


def test_compare_gives_results_rows_and_a_frame() -> None:
    instances = load_suite("infermax-fig15").instances[3:5]
    options: dict[str, Any] = {"time_limit": 60, "workers": 1, "store": "c.sqlite"}
    found = package.compare(instances, ["vllm", "orca"], **options)
    assert [result.method for result in found.results] == ["auto", "vllm", "orca"] * 2
    for optimum, *policies in (found.results[:3], found.results[3:]):
        assert optimum.status == "optimal"
        assert all(result.value is not None and result.value >= (optimum.value or 0) for result in policies)
    assert [row["best_value"] for row in found.rows] == [
        result.value for optimum in (found.results[0], found.results[3]) for result in [optimum] * 3
    ]
    before = attempts("c.sqlite")
    again = package.compare(instances, ["vllm", "orca"], **options)
    assert (attempts("c.sqlite"), again.results) == (before, found.results)
    pandas = pytest.importorskip("pandas", reason="an extra that is not installed")
    frame = found.frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["value"]) == [result.value for result in found.results]
    with pytest.raises(package.InputError, match="policies: got 'vllm', expected a sequence of names"):
        package.compare(instances, "vllm")
    with pytest.raises(package.InputError, match="policy: got 'vlm'"):
        package.compare(instances, ["vlm"])


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    found = package.compare(load_suite("infermax-fig15").instances[:1], ["vllm"], methods=())
    with pytest.raises(package.InputError, match=r"pip install 'optsched\[frame\]'"):
        found.frame()


@pytest.mark.parametrize("kind", ["random", "mix"])
def test_families_are_the_same_for_the_same_seed(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("instances", "make", kind, "--n", "5", "--requests", "6")
    first = optsched(capsys, *command, "--seed", "1")
    assert (first.code, first.err) == (0, "")
    assert optsched(capsys, *command, "--seed", "1") == first
    assert optsched(capsys, *command, "--seed", "2") != first
    Path("family.json").write_text(first.out)
    instances = load_suite("family.json").instances
    assert len({instance.name for instance in instances}) == len(instances) == 5
    assert all(len(instance.requests) == 6 for instance in instances)
    for instance in instances:
        peaks = [request.input + request.output - 1 for request in instance.requests]
        assert max(peaks) <= instance.limits.kv_tokens <= sum(peaks)


def test_options_of_families_are_refused_for_suites(capsys: pytest.CaptureFixture[str]) -> None:
    outcome: Outcome = optsched(capsys, "instances", "make", "ladder", "--n", "5")
    assert outcome == (2, "", "optsched: SUITE: got --n with it, expected random or mix with it\n")
