"""Folders of result documents, as ``table --results`` of earlier versions left them: taken over into a store once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path

from optsched.catalogue import POLICY_GROUP, entries, file_version
from optsched.failures import FAILURES, failure_text
from optsched.library import load_results
from optsched.methods.plan import method_names
from optsched.methods.solve import was_interrupted
from optsched.model.errors import InputError, Said
from optsched.model.result import Result, Status, versions
from optsched.study.execute import Outcome
from optsched.study.record import Ended
from optsched.study.store import Store, accepted
from optsched.study.trial import Trial, simulating, solving

DIGESTS = "digests.txt"
"""The file in such a folder that says what was written: ``sha256  name``, the last line of a name counts."""
_DONE = ".imported"
"""What is put behind the name of that file once the folder is taken over."""


@dataclass(frozen=True)
class Imported:
    """How many documents were taken over, and how many were made by other versions than the installed ones."""

    taken: int
    outdated: int


def import_folder(
    folder: Path, store: Store, workers: int | None, report: Callable[[str, str], None]
) -> Imported | None:
    """Take a folder's documents over into a store; None if there are none, or they were taken over before.

    They do not say which code made them: they count as made by the installed one if the versions that they name are the
    installed ones. One that the checker refuses, or that is not as it was written, is named by ``report`` and left out.

    Parameters
    ----------
    workers
        Threads of the searches that are asked for now; the documents do not say theirs.
    """
    written = folder / DIGESTS
    documents = sorted(folder.glob("*.json"))
    if not documents or written.with_name(written.name + _DONE).exists():
        return None
    try:
        lines = written.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    digests = {line[66:]: line[:64] for line in lines}
    taken = outdated = 0
    for path in documents:
        try:
            result = accepted(load_results(path)).result
            if hashlib.sha256(path.read_bytes()).hexdigest() != digests.get(path.name):
                raise InputError("", Said("another text"), f"what was written ({DIGESTS})")
        except InputError as error:
            report(str(path), str(InputError(error.field, error.value, error.expected)))
            continue
        except FAILURES as error:
            report(str(path), f"the checker fails on it: {failure_text(error)}")
            continue
        trial = _trial(result, workers)
        if trial is None:
            outdated += 1
        else:
            taken += 1
            store.add(trial, Outcome(Ended.IMPORTED, result.message, result=result))
    written.touch()
    written.replace(written.with_name(written.name + _DONE))
    return Imported(taken, outdated)


def _trial(result: Result, workers: int | None) -> Trial | None:
    """Return the trial that a result answers with the installed code; None if it answers none."""
    if result.versions != dict(versions()) | file_version(result.method):
        return None
    if result.status == Status.FAILED or was_interrupted(result):
        return None
    problem = (result.instance, result.objective, result.restrictions)
    if result.found_by or result.method in set(method_names()) - set(entries(POLICY_GROUP)):
        limit = inf if result.time_limit_s is None else result.time_limit_s
        return solving(*problem, method=result.method, time_limit=limit, workers=workers, seed=result.seed)
    return simulating(*problem, policy=result.method, seed=result.seed)
