"""A folder of result documents: what is finished stays, whatever happens to the run."""

from __future__ import annotations

import re
from pathlib import Path

from optsched.library import load_results
from optsched.model.documents import dump, instance_sha256, result_document, write_text
from optsched.model.errors import InputError, Said
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Result, versions


class ResultStore:
    """Result documents in a folder, one file each, written whole or not at all.

    Parameters
    ----------
    folder
        Made if it does not exist.
    resume
        Whether `find` may return what is already there.
    """

    def __init__(self, folder: Path, *, resume: bool = False) -> None:
        self.folder = folder
        self._resume = resume
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError("", Said(error.strerror or str(error)), "a folder to write to", str(folder)) from None

    def path(self, instance: Instance, method: str, objective: Objective, restrictions: Restrictions) -> Path:
        """Return where the result of a method on an instance is kept."""
        parts = [instance.name, objective.value, method, *(f"no-{name}" for name in restrictions.forbid)]
        return self.folder / ("--".join(re.sub(r"[^\w.-]+", "_", part) for part in parts) + ".json")

    def save(self, result: Result) -> None:
        """Keep a result."""
        target = self.path(result.instance, result.method, result.objective, result.restrictions)
        write_text(target, dump(result_document(result)))

    def find(self, instance: Instance, method: str, objective: Objective, restrictions: Restrictions) -> Result | None:
        """Return a kept result of the same problem, method and versions, if resuming and there is one."""
        path = self.path(instance, method, objective, restrictions)
        if not self._resume or not path.is_file():
            return None
        claimed = load_results(path)[0]
        same = claimed.instance_sha256 == instance_sha256(instance) == instance_sha256(claimed.result.instance)
        return claimed.result if same and claimed.result.versions == dict(versions()) else None
