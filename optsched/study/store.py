"""A folder of result documents: what is finished stays, whatever happens to the run."""

from __future__ import annotations

import hashlib
import re
from math import isinf
from pathlib import Path

from optsched.library import load_results
from optsched.methods.solve import INTERRUPTED
from optsched.model.documents import dump, instance_sha256, result_document, write_text
from optsched.model.errors import InputError, Said
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Result, Status, versions

_LONGEST = 100


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
        numbers = {"evictions": restrictions.max_evictions, "batch": restrictions.max_batch, "at": restrictions.at_most}
        parts += [f"most-{name}-{number}" for name, number in numbers.items() if number is not None]
        parts += [f"order-{'-'.join(map(str, restrictions.order))}"] if restrictions.order else []
        return self.folder / ("--".join(_file_name(part) for part in parts) + ".json")

    def save(self, result: Result) -> None:
        """Keep a result."""
        target = self.path(result.instance, result.method, result.objective, result.restrictions)
        write_text(target, dump(result_document(result)))

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
        short does not count.
        """
        path = self.path(instance, method, objective, restrictions)
        if not self._resume or not path.is_file():
            return None
        claimed = load_results(path)[0]
        result = claimed.result
        same = claimed.instance_sha256 == instance_sha256(instance) == instance_sha256(result.instance)
        made = (result.method, result.objective, result.restrictions, result.seed, result.versions)
        wanted = (method, objective, restrictions, seed, dict(versions()))
        limit = None if time_limit is None or isinf(time_limit) else time_limit
        searched = result.status == Status.OPTIMAL or result.time_limit_s == limit
        return result if same and searched and made == wanted and result.message != INTERRUPTED else None


def _file_name(text: str) -> str:
    """Return a short name fit for a file; a text that is none gets a hash, so that two do not become one."""
    plain = re.sub(r"[^\w.-]+|^\.+", "_", text, flags=re.ASCII)[:_LONGEST]
    return plain if plain == text else f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
