"""Faults that are planted one by one in a copy of the package, to see whether the trial finds them.

Each drops a condition of a theorem's checker, or counts something twice, too early or too late. A fault is a piece of
source text and what takes its place; when the source changes, this text has to follow.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree, ignore_patterns
from signal import SIGKILL, Signals
from tempfile import TemporaryDirectory
from threading import Timer
from typing import NamedTuple

from optsched.model.errors import InputError
from trial.trials import TRIALS, run_trial

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 20
"""Wall-clock time, in multiples of the CPU time, after which trials are taken to hang."""


@dataclass(frozen=True)
class Fault:
    """A fault.

    Parameters
    ----------
    kind, what
        Whose theorem it breaks, and how.
    file, old, new
        Where in ``optsched``, the text that is replaced, which stands there once, and what takes its place.
    """

    kind: str
    what: str
    file: str
    old: str
    new: str

    @property
    def name(self) -> str:
        """Its name."""
        return f"{self.kind}: {self.what}"

    @property
    def sort(self) -> str:
        """The sort of trials that is to find it."""
        return self.kind if self.kind in TRIALS else f"certificates, {self.kind}"


class Verdict(NamedTuple):
    """Whether a fault was found, after how many seconds of CPU time, by which trial and as what."""

    name: str
    found: bool
    seconds: float
    by: str


def read_faults() -> list[Fault]:
    """Read the faults from the file beside this one."""
    entries = tomllib.loads((Path(__file__).parent / "faults.toml").read_text(encoding="utf-8"))["fault"]
    return [Fault(**entry) for entry in entries]


def replaced(fault: Fault, package: Path) -> None:
    """Plant a fault in a copy of the package; refuse if its text does not stand there just once."""
    path = package / fault.file
    text = path.read_text(encoding="utf-8")
    if text.count(fault.old) != 1:
        expected = f"once in optsched/{fault.file}; tell benchmarks/trial/faults.toml what stands there now"
        raise InputError(f"fault {fault.name}", fault.old, expected)
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")


def plant(fault: Fault, seconds: float) -> Verdict:
    """Run trials on a copy of the package with a fault until one finds what it does not find without the fault.

    Seconds are CPU time of the trials, so that what else runs on the machine does not count. Trials that end by a
    signal have found the fault, too, as where a number that wraps is a place in an array.
    """
    before, by = _of_children(), ""
    with TemporaryDirectory() as folder:
        package = Path(folder) / "optsched"
        copytree(ROOT / "optsched", package, ignore=ignore_patterns("__pycache__", "*.pyc", "*.nb*"))
        replaced(fault, package)
        paths = (folder, str(ROOT / "formulations"))
        command = [sys.executable, str(ROOT / "benchmarks" / "soundness.py"), "hunt", fault.sort]
        process = subprocess.Popen(
            [*command, "--minutes", str(seconds / 60)],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"},
            text=True,
        )
        timer = Timer(_PATIENCE * seconds, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                sort, seed, name = json.loads(line)
                if not run_trial(sort, seed).found:
                    by = f"{name}, {sort}, seed {seed}"
                    break
            else:
                ended = process.wait()
                if ended < 0 and ended != -SIGKILL:
                    by = f"{Signals(-ended).name}, {fault.sort}"
        finally:
            timer.cancel()
            process.kill()
            process.communicate()
    return Verdict(fault.name, bool(by), _of_children() - before, by)


def _of_children() -> float:
    """Return the CPU time of all processes that were started and have ended."""
    times = os.times()
    return times.children_user + times.children_system
