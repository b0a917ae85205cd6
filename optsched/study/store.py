"""The store: one SQLite file of instances, tasks and attempts. Attempts are only appended.

What is read is checked as if it came from anywhere: the checker replays the schedule and proves the bound. Because it
can prove neither times nor a bound that rests on a solver's word, a row also has to be as it was written (a SHA-256 of
all its fields). A row that is not is refused by name: it stays in the file, counts no more, and its trial is run again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout, lock_descriptor

from optsched.calibrate.library import cost_model
from optsched.check import check_result
from optsched.failures import FAILURES, failure_text
from optsched.model.documents import MAX_BYTES, ClaimedResult, instance_document, instance_sha256, parse_results
from optsched.model.domain import replace
from optsched.model.errors import InputError, Said
from optsched.model.instance import Instance
from optsched.model.objectives import gap
from optsched.model.result import Badge, Result, Status
from optsched.study.execute import Outcome, pack_result, record_of
from optsched.study.record import Ended, Record, now
from optsched.study.trial import Trial, digest, read_instance, trial_of

FILE = "study.sqlite"
"""The store's name in a folder of results."""
_VERSION = 1
_APPLICATION = 0x6F707473
"""What marks a SQLite file as ours, ``opts``."""
_BUSY_S = 60.0
_SCHEMA = """
CREATE TABLE instances (
    sha256 TEXT PRIMARY KEY, name TEXT NOT NULL, requests INTEGER NOT NULL, kappa REAL NOT NULL, document BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE tasks (
    key TEXT PRIMARY KEY, unlimited TEXT NOT NULL, question TEXT NOT NULL, instance TEXT NOT NULL, about TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX tasks_unlimited ON tasks (unlimited);
CREATE INDEX tasks_question ON tasks (question);
CREATE TABLE attempts (
    id INTEGER PRIMARY KEY, task TEXT NOT NULL, date TEXT NOT NULL, ended TEXT NOT NULL, message TEXT,
    status TEXT NOT NULL, badge TEXT NOT NULL, value TEXT, bound TEXT, runtime_s REAL NOT NULL, points TEXT NOT NULL,
    versions TEXT NOT NULL, machine TEXT NOT NULL, made_by TEXT NOT NULL, document BLOB, digest TEXT NOT NULL
);
CREATE INDEX attempts_task ON attempts (task);
CREATE TABLE refused (attempt INTEGER PRIMARY KEY, date TEXT NOT NULL, reason TEXT NOT NULL);
CREATE TABLE members (
    study TEXT NOT NULL, position INTEGER NOT NULL, task TEXT NOT NULL, instance TEXT NOT NULL,
    PRIMARY KEY (study, position)
) WITHOUT ROWID;
CREATE TABLE leases (task TEXT PRIMARY KEY, driver TEXT NOT NULL) WITHOUT ROWID;
"""
_FIELDS = (
    "task", "date", "ended", "message", "status", "badge", "value", "bound", "runtime_s", "points", "versions",
    "machine", "made_by", "document",
)  # fmt: skip
_DONE = "('finished', 'overran', 'imported')"
_ANSWERING = f"""
SELECT attempts.id, attempts.digest, {", ".join(f"attempts.{name}" for name in _FIELDS)}, tasks.about
FROM attempts JOIN tasks ON tasks.key = attempts.task
WHERE attempts.id NOT IN (SELECT attempt FROM refused)"""


def _ignore(what: str, reason: str) -> None:
    """Say nothing of a row that is refused."""


@dataclass(frozen=True)
class Wanted:
    """Which attempts answer a trial.

    Parameters
    ----------
    exactly
        No proof that was made under other limits.
    failures
        Also the failure of a policy, which nothing backs but the row itself.
    """

    exactly: bool = False
    failures: bool = False


ANSWER, EXACT, EVEN_FAILURES = Wanted(), Wanted(exactly=True), Wanted(failures=True)


@dataclass(frozen=True)
class Attempt:
    """A row of the store: the attempt's number, its trial, and what came of it."""

    number: int
    trial: Trial
    outcome: Outcome
    record: Record


class Store:
    """Results of trials in a file; several drivers may use it at once, on one machine.

    Parameters
    ----------
    path
        The file, made if it does not exist.
    report
        Called with what is refused, and the reason.
    commit
        What made the results, such as a commit of a repository.
    """

    def __init__(self, path: Path, *, report: Callable[[str, str], None] = _ignore, commit: str = "unknown") -> None:
        self.path = path
        self._report, self._commit = report, commit
        self._driver = uuid.uuid4().hex
        self._leases = FileLock(self._lock_file(self._driver))
        # Without the lock two processes may both make the tables, or one find the file busy while it changes mode.
        with self._talking(), _locked(path.parent):
            self._database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
            self._set_up()
            for file in path.parent.glob(f".{escape(path.name)}.*.lock"):
                _is_held(file)
            self._leases.acquire()

    def _set_up(self) -> None:
        database = self._database
        database.row_factory = sqlite3.Row
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and (application, version) != (_APPLICATION, _VERSION):
            raise InputError("", Said("another kind of file"), f"a store of version {_VERSION}", str(self.path))
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        if not tables:
            database.executescript(
                f"BEGIN; {_SCHEMA} PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {_VERSION}; COMMIT"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let other drivers have what this one has claimed and not finished."""
        with suppress(sqlite3.Error):
            self._database.execute("DELETE FROM leases WHERE driver = ?", (self._driver,))
        self._database.close()
        self._leases.release()
        self._lock_file(self._driver).unlink(missing_ok=True)

    def _lock_file(self, name: str) -> Path:
        return self.path.with_name(f".{self.path.name}.{name}.lock")

    @contextmanager
    def _talking(self) -> Iterator[None]:
        """Let what goes wrong with the file be said in one line."""
        try:
            yield
        except sqlite3.Error as error:
            raise InputError("", Said(str(error)), "a store that can be read and written", str(self.path)) from None
        except OSError as error:
            raise InputError("", Said(error.strerror or str(error)), "a store to write", str(self.path)) from None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Write all of a block or nothing."""
        with self._talking():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # a full disk has rolled it back
                    self._database.execute("ROLLBACK")
                raise

    # Writing -----------------------------------------------------------------------------------------------

    def enter(self, study: str, trials: Sequence[Trial]) -> None:
        """Make the trials the members of a study, in place of those that it had."""
        with self._writing():
            self._database.execute("DELETE FROM members WHERE study = ?", (study,))
            for position, trial in enumerate(trials):
                self._add_task(trial)
                member = (study, position, trial.key, trial.instance.name)
                self._database.execute("INSERT INTO members VALUES (?, ?, ?, ?)", member)

    def _add_task(self, trial: Trial) -> None:
        instance = trial.instance
        if self._one("SELECT 1 FROM tasks WHERE key = ?", trial.key) is not None:
            return
        if self._one("SELECT 1 FROM instances WHERE sha256 = ?", trial.instance_sha256) is None:
            packed = zlib.compress(json.dumps(instance_document(instance)).encode())
            row = (trial.instance_sha256, instance.name, len(instance.requests), round(instance.kappa, 4), packed)
            self._database.execute("INSERT INTO instances VALUES (?, ?, ?, ?, ?)", row)
        about = json.dumps(trial.about, sort_keys=True)
        task = (trial.key, trial.unlimited_key, trial.question, trial.instance_sha256, about)
        self._database.execute("INSERT INTO tasks VALUES (?, ?, ?, ?, ?)", task)

    def _one(self, query: str, *values: object) -> Any:
        return self._database.execute(query, values).fetchone()

    def claim(self, trial: Trial, wanted: Wanted = ANSWER, *, again: bool = False) -> bool:
        """Take a trial to run it; False if another driver that is alive has it, or has finished it meanwhile.

        With ``again`` it is run although it is finished.
        """
        with self._writing():
            holder = self._one("SELECT driver FROM leases WHERE task = ?", trial.key)
            if holder is not None and holder[0] != self._driver and _is_held(self._lock_file(holder[0])):
                return False
            if not again and self._answers(trial, wanted):
                return False
            self._database.execute("INSERT OR REPLACE INTO leases VALUES (?, ?)", (trial.key, self._driver))
            return True

    def add(self, trial: Trial, outcome: Outcome) -> None:
        """Append an attempt; it is on disk when this returns."""
        record = record_of(trial, outcome, commit=self._commit)
        found = {
            "task": trial.key,
            "date": record.date,
            "ended": record.ended.value,
            "message": record.message,
            "status": record.status.value,
            "badge": record.badge.value,
            "value": _text(record.value),
            "bound": _text(record.bound),
            "runtime_s": record.runtime_s,
            "points": json.dumps(record.points),
            "versions": json.dumps(record.versions, sort_keys=True),
            "machine": record.machine,
            "made_by": record.commit,
            "document": outcome.packed or (None if outcome.result is None else pack_result(outcome.result)),
        }
        row = [found[name] for name in _FIELDS]
        marks = ", ".join("?" * (len(row) + 1))
        with self._writing():
            self._add_task(trial)
            self._database.execute(
                f"INSERT INTO attempts ({', '.join(_FIELDS)}, digest) VALUES ({marks})", (*row, _row_digest(row))
            )
            self._database.execute("DELETE FROM leases WHERE task = ? AND driver = ?", (trial.key, self._driver))

    def _refuse(self, number: int, what: str, reason: str) -> None:
        with self._writing():
            self._database.execute("INSERT OR IGNORE INTO refused VALUES (?, ?, ?)", (number, now(), reason))
        self._report(f"attempt {number}, {what}", reason)

    def forget(self, numbers: Iterable[int]) -> None:
        """Delete attempts, and tasks and instances that nothing refers to any more."""
        with self._writing():
            self._database.executemany("DELETE FROM attempts WHERE id = ?", ((number,) for number in numbers))
            self._database.execute("DELETE FROM refused WHERE attempt NOT IN (SELECT id FROM attempts)")
            self._database.execute(
                "DELETE FROM tasks WHERE key NOT IN (SELECT task FROM attempts) "
                "AND key NOT IN (SELECT task FROM members)"
            )
            self._database.execute("DELETE FROM instances WHERE sha256 NOT IN (SELECT instance FROM tasks)")

    # Reading -----------------------------------------------------------------------------------------------

    def find(self, trial: Trial, wanted: Wanted = ANSWER) -> Attempt | None:
        """Return the attempt that answers a trial: a proof under any limits, or else the best one under the same.

        One that an interrupt cut short does not count, nor one that failed, unless ``wanted`` says so.
        """
        rows = self._answers(trial, wanted)
        found = (self._read(row, trial.instance) for row in sorted(rows, key=_merit))
        return next((attempt for attempt in found if attempt is not None), None)

    def _answers(self, trial: Trial, wanted: Wanted) -> list[sqlite3.Row]:
        failures = "" if wanted.failures else "AND attempts.status <> 'failed'"
        query = (
            f"{_ANSWERING} AND attempts.ended IN {_DONE} {failures} "
            # Without the list SQLite goes through all attempts, because no index serves both sides of the OR.
            "AND attempts.task IN (SELECT key FROM tasks WHERE key = ?1 OR unlimited = ?2) "
            "AND (attempts.task = ?1 OR attempts.status IN ('optimal', 'infeasible'))"
        )
        with self._talking():
            return self._database.execute(query, (trial.key, "" if wanted.exactly else trial.unlimited_key)).fetchall()

    def last(self, trial: Trial) -> Attempt | None:
        """Return what answers a trial under its own limits, or else its last attempt, however that ended."""
        found = self.find(trial, EXACT)
        if found is not None:
            return found
        with self._talking():
            rows = self._database.execute(
                f"{_ANSWERING} AND attempts.task = ? ORDER BY attempts.id DESC", (trial.key,)
            ).fetchall()
        attempts = (self._read(row, trial.instance) for row in rows)
        return next((attempt for attempt in attempts if attempt is not None), None)

    def best(self, trial: Trial) -> tuple[Result | None, Result | None]:
        """Return the results with the least value, and with the greatest bound, of any method on a trial's problem."""
        query = f"{_ANSWERING} AND tasks.question = ? AND attempts.document IS NOT NULL"
        with self._talking():
            rows = self._database.execute(query, (trial.question,)).fetchall()

        def first(column: str, sign: int) -> Result | None:
            said = [row for row in rows if row[column] is not None]
            ranked = sorted(said, key=lambda row: (sign * int(row[column]), row["badge"] != Badge.CERTIFIED, row["id"]))
            found = (self._read(row, trial.instance) for row in ranked)
            return next((attempt.outcome.result for attempt in found if attempt is not None), None)

        return first("value", 1), first("bound", -1)

    def members(self, study: str) -> list[Trial]:
        """Return the trials of a study, in order."""
        query = (
            "SELECT tasks.about, members.instance FROM members JOIN tasks ON tasks.key = members.task "
            "WHERE study = ? ORDER BY position"
        )
        with self._talking():
            rows = self._database.execute(query, (study,)).fetchall()
        found = []
        for row in rows:
            about = json.loads(row["about"])
            instance = replace(self._instance(about["instance"]), name=row["instance"])
            found.append(trial_of(about, instance))
        return found

    @property
    def studies(self) -> dict[str, int]:
        """The names of the studies, and how many members each has."""
        with self._talking():
            return dict(self._database.execute("SELECT study, count(*) FROM members GROUP BY study").fetchall())

    def attempts(self) -> Iterator[Attempt]:
        """Yield every attempt that counts, in the order in which they were made."""
        with self._talking():
            rows = self._database.execute(f"{_ANSWERING} ORDER BY attempts.id").fetchall()
        for row in rows:
            found = self._read(row, self._instance(json.loads(row["about"])["instance"]))
            if found is not None:
                yield found

    def seconds_of(self, method: str) -> float | None:
        """Return the mean runtime of what a method has finished, for an estimate; None if that is nothing."""
        query = (
            "SELECT avg(runtime_s) FROM attempts JOIN tasks ON tasks.key = attempts.task "
            f"WHERE ended IN {_DONE} AND json_extract(tasks.about, '$.method') = ?"
        )
        with self._talking():
            (mean,) = self._one(query, method)
        return None if mean is None else float(mean)

    def is_sound(self) -> bool:
        """Whether SQLite finds the file in order."""
        with self._talking():
            return bool(self._one("PRAGMA integrity_check")[0] == "ok")

    def _instance(self, sha256: str) -> Instance:
        with self._talking():
            row = self._one("SELECT document FROM instances WHERE sha256 = ?", sha256)
        try:
            instance = read_instance(_unpacked(row[0]))
            if instance_sha256(instance) == sha256:
                return instance
        except (TypeError, zlib.error, InputError):
            pass
        raise InputError("", Said(f"another instance than {sha256[:12]}"), "what was stored", str(self.path))

    def _read(self, row: sqlite3.Row, instance: Instance) -> Attempt | None:
        """Return an attempt of a row, which names the instance as it is named there; None if the row is refused."""
        trial = trial_of(json.loads(row["about"]), instance)
        try:
            return self._believed(row, trial)
        except InputError as error:
            reason = str(error.value) if isinstance(error.value, Said) else str(error)
        except (*FAILURES, zlib.error) as error:
            reason = f"the checker fails on it: {failure_text(error)}"
        self._refuse(row["id"], f"{trial.label} on {trial.instance.name}, {trial.objective.value}", reason)
        return None

    def _believed(self, row: sqlite3.Row, trial: Trial) -> Attempt:
        """Return what a row says, or raise an error that says why it is not believed."""
        result = None if row["document"] is None else _claimed(row["document"], trial)
        if row["digest"] != _row_digest([row[name] for name in _FIELDS]):
            raise InputError("", Said("it is not as it was written"), "")
        points = tuple(tuple(point) for point in json.loads(row["points"]))
        outcome = Outcome(Ended(row["ended"]), row["message"], points, result)
        record = record_of(trial, outcome, date=row["date"], commit=row["made_by"], where=row["machine"])
        said = (row["status"], row["badge"], _number(row["value"]), _number(row["bound"]))
        if said != (record.status.value, record.badge.value, record.value, record.bound):
            raise InputError("", Said("its document says something else"), "")
        return Attempt(row["id"], trial, outcome, replace(record, versions=json.loads(row["versions"])))


def _merit(row: sqlite3.Row) -> tuple[bool, float, int]:
    """Order rows: proofs first, then small gaps, then the latest."""
    value, bound = _number(row["value"]), _number(row["bound"])
    left = gap(value, bound)
    return row["status"] not in {Status.OPTIMAL, Status.INFEASIBLE}, 1.0 if left is None else left, -row["id"]


def _claimed(packed: bytes, trial: Trial) -> Result:
    """Return the result in a document, once the checker has accepted it and it is of the trial."""
    claimed = accepted(parse_results(_unpacked(packed), cost_model))
    result = claimed.result
    asked = (trial.instance_sha256, trial.objective, trial.restrictions, trial.seed)
    if asked != (claimed.instance_sha256, result.objective, result.restrictions, result.seed):
        raise InputError("", Said("it is a result of something else"), "")
    return replace(result, instance=trial.instance)


def accepted(documents: Sequence[ClaimedResult]) -> ClaimedResult:
    """Return the only result of a document, which the checker has accepted."""
    if len(documents) != 1:
        raise InputError("", Said(f"{len(documents)} results in place of one"), "a document of one")
    violations = check_result(documents[0]).violations
    if violations:
        raise InputError("", Said(violations[0]), "a document that holds")
    return documents[0]


def _unpacked(packed: bytes) -> bytes:
    """Unpack a document, which is not longer than a file that can be read."""
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(packed, MAX_BYTES)
    if not unpacker.eof:
        raise InputError("", Said("it is cut short, or too long"), "")
    return data


def _row_digest(row: Sequence[object]) -> str:
    """Return the SHA-256 of a row's fields, of bytes that of themselves."""
    parts = [hashlib.sha256(part).hexdigest() if isinstance(part, bytes) else part for part in row]
    return digest(parts)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of the same block for the same folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        lock_descriptor(descriptor)
        yield
    finally:
        os.close(descriptor)


def _is_held(file: Path) -> bool:
    """Whether the driver whose lock this is still runs: the system frees it when the process ends. A free one goes."""
    try:
        with FileLock(file, timeout=0):
            file.unlink(missing_ok=True)
    except Timeout:
        return True
    return False


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)  # sums over requests exceed SQLite's integers


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
