"""A folder of result documents: what is finished stays, whatever happens to the run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from math import isinf
from pathlib import Path

from optsched.catalogue import file_version
from optsched.check import check_result
from optsched.failures import FAILURES, failure_text
from optsched.library import load_results
from optsched.methods.solve import was_interrupted
from optsched.model.documents import ClaimedResult, dump, instance_sha256, result_document, write_text
from optsched.model.errors import InputError, Said
from optsched.model.instance import Instance
from optsched.model.lines import append_lines
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Result, Status, versions

DIGESTS = "digests.txt"
"""The file in the folder that says which documents the store has written: ``sha256  name``, the last line of a name
counts."""
REFUSED = ".refused"
"""What is put behind the name of a document that is set aside."""
_LONGEST = 100


def _ignore(path: Path, reason: str) -> None:
    """Say nothing of a document that is set aside."""


class ResultStore:
    """Result documents in a folder, one file each, written whole or not at all.

    What is read back is checked as if it came from anywhere: the checker replays the schedule and proves the bound.
    Because it can prove neither times nor a bound that rests on a solver's word, the document also has to be, byte for
    byte, what the store has written (`DIGESTS`). One that is refused is renamed (`REFUSED`).

    Parameters
    ----------
    folder
        Made if it does not exist.
    resume
        Whether `find` may return what is already there.
    report
        Called with the path of a document that is set aside, and the reason.
    """

    def __init__(self, folder: Path, *, resume: bool = False, report: Callable[[Path, str], None] = _ignore) -> None:
        self.folder = folder
        self._resume, self._report = resume, report
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError("", Said(error.strerror or str(error)), "a folder to write to", str(folder)) from None

    def path(self, instance: Instance, method: str, objective: Objective, restrictions: Restrictions) -> Path:
        """Return where the result of a method on an instance is kept."""
        parts = [instance.name, objective.value, method, *(f"no-{name}" for name in restrictions.forbid)]
        numbers = {"evictions": restrictions.max_evictions, "batch": restrictions.max_batch, "at": restrictions.at_most}
        parts += [f"most-{name}-{number}" for name, number in numbers.items() if number is not None]
        parts += [f"order-{'-'.join(map(str, restrictions.order))}"] if restrictions.order else []
        return self.folder / ("--".join(_file_name(part) for part in parts) + ".json")

    def save(self, result: Result) -> None:
        """Keep a result."""
        target = self.path(result.instance, result.method, result.objective, result.restrictions)
        text = dump(result_document(result))
        write_text(target, text)
        append_lines(self.folder / DIGESTS, [f"{hashlib.sha256(text.encode()).hexdigest()}  {target.name}"])

    def find(
        self,
        instance: Instance,
        method: str,
        objective: Objective,
        restrictions: Restrictions,
        *,
        seed: int,
        time_limit: float | None = None,
    ) -> Result | None:
        """Return a kept result of the same problem, method, seed and versions, if resuming and there is one.

        Without a proof it must have had the same time limit, None for a method that has none. One that an interrupt cut
        short does not count, nor a failure of a policy, which nothing backs. One that cannot be read, or that the
        checker refuses, is set aside.
        """
        path = self.path(instance, method, objective, restrictions)
        if not self._resume or not path.exists():
            return None
        try:
            documents = load_results(path)
        except InputError as error:
            self._set_aside(path, str(InputError(error.field, error.value, error.expected)))
            return None
        if len(documents) > 1:
            self._set_aside(path, f"it holds {len(documents)} results instead of one")
            return None
        claimed = documents[0]
        result = claimed.result
        made = (result.method, result.objective, result.restrictions, result.seed, result.versions)
        wanted = (method, objective, restrictions, seed, dict(versions()) | file_version(method))
        limit = None if time_limit is None or isinf(time_limit) else time_limit
        searched = result.status == Status.OPTIMAL or result.time_limit_s == limit
        same = instance_sha256(result.instance) == instance_sha256(instance)
        ended = result.status != Status.FAILED and not was_interrupted(result)
        if not (same and searched and made == wanted and ended):
            return None
        wrong = self._wrong(path, claimed)
        if wrong is not None:
            self._set_aside(path, wrong)
            return None
        return result

    def _wrong(self, path: Path, claimed: ClaimedResult) -> str | None:
        """Say what keeps a document from being believed; None if nothing does."""
        try:
            violations = check_result(claimed).violations
        except FAILURES as error:
            return f"the checker fails on it: {failure_text(error)}"
        if violations:
            return violations[0]
        return None if self._written(path) else f"it is not as it was written ({DIGESTS})"

    def _written(self, path: Path) -> bool:
        """Whether a file is as the store has last written it."""
        try:
            lines = (self.folder / DIGESTS).read_text(encoding="utf-8", errors="replace").splitlines()
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            return False
        named = [line for line in lines if line.endswith(f"  {path.name}")]
        return named[-1:] == [f"{digest}  {path.name}"]

    def _set_aside(self, path: Path, reason: str) -> None:
        target = path.with_name(path.name + REFUSED)
        try:
            path.replace(target)
        except OSError as error:
            raise InputError("", Said(error.strerror or str(error)), f"to rename it, as {reason}", str(path)) from None
        self._report(path, reason)


def _file_name(text: str) -> str:
    """Return a short name fit for a file; a text that is none gets a hash, so that two do not become one."""
    plain = re.sub(r"[^\w.-]+|^\.+", "_", text, flags=re.ASCII)[:_LONGEST]
    return plain if plain == text else f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
