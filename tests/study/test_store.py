"""The store from the outside: what is there counts, what is better is not replaced, what is edited is refused."""

from __future__ import annotations

import pickle
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import pytest

from optsched.library import load_instance
from optsched.model.domain import replace
from optsched.model.errors import InputError
from optsched.model.instance import Instance, Limits, Request
from optsched.model.objectives import Objective
from optsched.study.drive import run
from optsched.study.execute import Outcome, execute
from optsched.study.record import Ended
from optsched.study.runner import Here
from optsched.study.store import EVEN_FAILURES, EXACT, Store
from optsched.study.trial import Trial, bounding, simulating, solving

MAKESPAN = Objective.MAKESPAN


def small(name: str = "small", size: int = 8) -> Instance:
    template = load_instance("infermax-fig15-I8")
    return replace(template, name=name, limits=Limits(16, 64, 64), requests=(Request(size, 3),) * 3)


def policy(name: str = "vllm", instance: Instance | None = None, **changes: object) -> Trial:
    return simulating(instance or small(), MAKESPAN, policy=name, **changes)  # type: ignore[arg-type]


def search(limit: float, workers: int = 1) -> Trial:
    return solving(small(), MAKESPAN, time_limit=limit, workers=workers)


def unproved(trial: Trial, gap_ps: int) -> Outcome:
    """Return the outcome of a search that has left a gap."""
    result = execute(policy()).result
    assert result is not None
    assert result.value is not None
    least = execute(bounding(small(), MAKESPAN, method="volume")).result
    assert least is not None
    assert least.bound is not None
    found = replace(
        result,
        method="auto",
        bound=least.bound - gap_ps,
        badge=least.badge,
        certificate=least.certificate,
        time_limit_s=trial.time_limit_s,
    )
    return Outcome(Ended.FINISHED, result=found)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "s.sqlite"


def test_a_trial_is_the_same_in_another_process() -> None:
    for trial in (policy("larry", options={"alpha": 1000}), policy(predictor="gaussian:25", seed=7), search(5)):
        again = pickle.loads(pickle.dumps(trial))
        assert (again, again.key, again.label) == (trial, trial.key, trial.label)


def test_whatever_differs_has_another_key_but_not_the_names() -> None:
    trials = [
        policy(),
        policy("sarathi"),
        policy(seed=1),
        policy(predictor="gaussian:25"),
        policy("larry"),
        policy("larry", options={"alpha": 2}),
        policy(instance=small(size=7)),
        search(5),
        search(6),
        search(5, workers=2),
        bounding(small(), MAKESPAN, method="volume"),
        simulating(small(), Objective.MEAN_E2E, policy="vllm"),
    ]
    assert len({trial.key for trial in trials}) == len(trials)
    assert len({trial.unlimited_key for trial in trials}) == len(trials) - 2, "three searches differ only in limits"
    assert policy(instance=small("other")).key == policy().key


def test_what_is_finished_is_found_after_the_file_is_opened_again(store: Path) -> None:
    trials = [policy(name, small(size=size)) for name in ("vllm", "orca") for size in (7, 8)]
    with Store(store) as kept:
        first = list(run(trials, Here(), kept))
    with Store(store) as kept:
        second = list(run(trials, Here(), kept))
    assert [done.kept is None for done in (*first, *second)] == [True] * 4 + [False] * 4
    assert [done.result for done in first] == [done.result for done in second]
    assert not list(store.parent.glob(".*")), "no lock stays behind"


def test_trials_of_one_key_run_once_and_keep_their_names(store: Path) -> None:
    with Store(store) as kept:
        found = list(run([policy(), policy(instance=small("twin"))], Here(), kept))
        assert len(list(kept.attempts())) == 1
    assert [done.result and done.result.instance.name for done in found] == ["small", "twin"]


def test_a_proof_counts_under_any_limit_and_a_shorter_limit_replaces_nothing(store: Path) -> None:
    with Store(store) as kept:
        kept.add(search(60), unproved(search(60), 1))
        assert kept.find(search(5)) is None, "a schedule of another limit is no answer"
        kept.add(search(5), unproved(search(5), 1000))
        wide, narrow = kept.find(search(5)), kept.find(search(60))
        assert wide is not None
        assert narrow is not None
        assert wide.record.bound is not None
        assert narrow.record.bound == wide.record.bound + 999, "each has its own"
        _, bound = kept.best(search(5))
        assert bound is not None
        assert bound.bound == narrow.record.bound
        kept.add(search(60), unproved(search(60), 2000))
        again = kept.find(search(60))
        assert again is not None
        assert again.record.bound == narrow.record.bound, "of several the smallest gap counts"
        (proved,) = run([search(120)], Here(), kept)
        assert proved.result is not None
        assert proved.result.status == "optimal"
        for limit, workers in ((5, 1), (60, 1), (7, 3)):
            found = kept.find(search(limit, workers))
            assert found is not None
            assert found.record.status == "optimal"
        assert kept.find(search(7, 3), EXACT) is None
        assert len(list(kept.attempts())) == 4, "nothing is replaced"


def test_failures_and_interrupts_are_kept_with_their_reason_and_tried_again(store: Path) -> None:
    trial = policy()
    with Store(store) as kept:
        kept.add(trial, Outcome(Ended.LOST, "its process was killed by signal 9"))
        kept.add(trial, Outcome(Ended.FAILED, "memory: 3.00 GiB, of which 2.00 GiB are allowed"))
        kept.add(trial, replace_ended(execute(trial), Ended.INTERRUPTED))
        assert kept.find(trial) is None
        assert [attempt.record.message for attempt in kept.attempts()][:2] == [
            "its process was killed by signal 9",
            "memory: 3.00 GiB, of which 2.00 GiB are allowed",
        ]
        last = kept.last(trial)
        assert last is not None
        assert last.record.ended == Ended.INTERRUPTED


def replace_ended(outcome: Outcome, ended: Ended) -> Outcome:
    return Outcome(ended, outcome.message, outcome.points, outcome.result)


def test_the_failure_of_a_policy_counts_where_it_is_asked_for(store: Path) -> None:
    stuck = policy("sarathi", load_instance("infermax-fig15-I1024"))  # its token budget of 512 holds no prompt of 1024
    with Store(store) as kept:
        (done,) = run([stuck], Here(), kept)
        assert done.result is not None
        assert done.result.status == "failed"
        assert kept.find(stuck) is None
        assert kept.find(stuck, EVEN_FAILURES) is not None


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE attempts SET runtime_s = 0.001",
        "UPDATE attempts SET value = '1'",
        "UPDATE attempts SET machine = 'a faster one'",
        "UPDATE attempts SET document = substr(document, 1, 60)",
        "UPDATE attempts SET document = NULL",
        "UPDATE attempts SET task = (SELECT key FROM tasks WHERE key <> attempts.task)",
    ],
)
def test_an_edited_row_is_refused_by_name_and_run_again(edit: str, store: Path) -> None:
    trials, refused = [policy(), policy("orca")], list[str]()
    with Store(store) as kept:
        honest = list(run(trials, Here(), kept))
    with closing(sqlite3.connect(store)) as database, database:
        database.execute(f"{edit} WHERE id = 1")
    with Store(store, report=lambda what, reason: refused.append(f"{what}: {reason}")) as kept:
        again = list(run(trials, Here(), kept))
        assert sorted(attempt.number for attempt in kept.attempts()) == [2, 3]
    assert len(refused) == 1
    assert refused[0].startswith("attempt 1, ")
    assert [done.result and done.result.value for done in again] == [
        done.result and done.result.value for done in honest
    ]


def test_an_edited_instance_is_named(store: Path) -> None:
    with Store(store) as kept:
        list(run([policy()], Here(), kept))
    with closing(sqlite3.connect(store)) as database, database:
        (packed,) = database.execute("SELECT document FROM instances").fetchone()
        edited = zlib.compress(zlib.decompress(packed).replace(b'"kv_tokens": 16', b'"kv_tokens": 17'))
        database.execute("UPDATE instances SET document = ?", (edited,))
    with Store(store) as kept, pytest.raises(InputError, match="another instance than"):
        list(kept.attempts())


def test_a_file_that_is_no_store_is_named(tmp_path: Path) -> None:
    text = tmp_path / "text.sqlite"
    text.write_text("not a database, but long enough to be taken for one" * 100)
    with pytest.raises(InputError, match=r"text\.sqlite: got file is not a database"):
        Store(text)
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as database, database:
        database.execute("CREATE TABLE mine (x)")
    with pytest.raises(InputError, match="got another kind of file, expected a store of version 1"):
        Store(other)


def test_a_trial_is_claimed_by_one_driver_and_free_when_that_ends(store: Path) -> None:
    trial = policy()
    second = Store(store)
    with Store(store) as first:
        assert first.claim(trial)
        assert not second.claim(trial)
    assert second.claim(trial), "the first is closed"
    second.add(trial, execute(trial))
    with Store(store) as third:
        assert not third.claim(trial), "it is finished"
        assert third.claim(trial, again=True)
    second.close()


def test_forgetting_leaves_the_rest(store: Path) -> None:
    with Store(store) as kept:
        list(run([policy(), policy("orca", small(size=7))], Here(), kept))
        (number,) = [attempt.number for attempt in kept.attempts() if attempt.trial.method == "orca"]
        kept.forget([number])
        assert [attempt.trial.method for attempt in kept.attempts()] == ["vllm"]
        assert kept.is_sound()
    with closing(sqlite3.connect(store)) as database:
        assert database.execute("SELECT count(*) FROM instances").fetchone() == (1,)


def test_what_is_found_does_not_take_longer_the_more_is_there(store: Path) -> None:
    """SQLite takes as many steps to find an answer among 50 attempts as among 1,000, within the depth of its trees."""
    trial = policy()
    outcome = execute(trial)
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    taken = []
    with Store(store) as kept, closing(sqlite3.connect(store)) as database:
        kept.add(trial, outcome)
        for others in (range(50), range(50, 1000)):
            with database:
                for number in others:
                    database.execute(
                        "INSERT INTO tasks SELECT key || ?1, unlimited || ?1, question, instance, about FROM tasks "
                        "WHERE key = ?2",
                        (number, trial.key),
                    )
                    fields = "date, ended, status, badge, value, bound, runtime_s, points, versions, machine, made_by"
                    database.execute(
                        f"INSERT INTO attempts (task, digest, {fields}) SELECT task || ?1, digest, {fields} "
                        "FROM attempts WHERE task = ?2",
                        (number, trial.key),
                    )
            steps = 0
            kept._database.set_progress_handler(count, 1)
            assert kept.find(trial) is not None
            kept._database.set_progress_handler(None, 1)
            taken.append(steps)
    assert 0 < taken[1] <= 1.2 * taken[0]
