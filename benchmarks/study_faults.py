"""A study of two drivers that are killed again and again, on a disk that fills up, with a record that is corrupted.

    python benchmarks/study_faults.py [--trials 500] [--kills 20] [--seed 1]

First the study runs undisturbed in a folder of its own. Then two drivers at a time share one store. Each is killed by
SIGKILL at a random moment, until as many are dead as asked for. After a third of the kills a driver runs while the disk
is full, after two thirds one record is corrupted. At last two drivers end the study. It holds if both stores have the
same keys, every trial is finished once, deterministic values are equal, only that record is refused, and SQLite finds
the file in order. The disk is a file system in memory that only this program sees; where the system allows none
(`unshare --mount`), that part is left out, and said to be.
"""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import click

from optsched.cli import run_program
from optsched.model.errors import InputError, Said

_STUDY = """\
name = "faults"
policies = ["vllm", "orca", "sarathi", "sjf", "econoserve", "rank_i", "fcfs", "static", {name = "larry", alpha = 1000}]
methods = ["auto"]
slots = 1

[[families]]
generator = "mix"
n = %d
requests = 6
kv_tokens = 512
seed = 3
"""
_PER_INSTANCE = 10
_DRIVER = [sys.executable, "-c", "from optsched.cli import main; main()", "study", "s.toml"]
_DISK_MIB = 64
_PRIVATE = "--private"
"""What this program calls itself with where it may have a disk of its own."""


@dataclass(frozen=True)
class Folder:
    """A study file and its store.

    Parameters
    ----------
    path
        The folder.
    """

    path: Path

    def begin(self, trials: int) -> None:
        """Write the study file."""
        self.path.mkdir(exist_ok=True)
        (self.path / "s.toml").write_text(_STUDY % (trials // _PER_INSTANCE))

    @property
    def store(self) -> Path:
        """The store."""
        return self.path / "s.sqlite"

    def driver(self) -> subprocess.Popen[bytes]:
        """Start a driver."""
        return subprocess.Popen(_DRIVER, cwd=self.path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def rows(self, query: str) -> list[tuple[str | None, ...]]:
        """Return what the store answers; nothing if it is not made yet."""
        try:
            with closing(sqlite3.connect(f"file:{self.store}?mode=ro", uri=True, timeout=60)) as database:
                return database.execute(query).fetchall()
        except sqlite3.OperationalError:
            return []

    @property
    def finished(self) -> int:
        """How many attempts are in the store."""
        return len(self.rows("SELECT id FROM attempts"))

    def values(self) -> dict[str | None, str | None]:
        """Return by key the values that are deterministic: of policies, and optima."""
        query = (
            "SELECT task, attempts.value FROM attempts JOIN tasks ON tasks.key = task "
            "WHERE attempts.id NOT IN (SELECT attempt FROM refused) "
            "AND (status = 'optimal' OR json_extract(about, '$.kind') = 'simulate')"
        )
        return {row[0]: row[1] for row in self.rows(query)}


def killed(folder: Folder, kills: int, apart: int, chance: random.Random, between: Callable[[int], None]) -> None:
    """Keep two drivers at work and kill one of them at random moments, at most ``apart`` trials after each other."""
    drivers = [folder.driver(), folder.driver()]
    for number in range(1, kills + 1):
        wanted = folder.finished + chance.randint(0, apart)
        victim = drivers.pop(chance.randrange(2))
        while folder.finished < wanted and victim.poll() is None:
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 0.3))
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
        between(number)
        drivers = [driver for driver in drivers if driver.poll() is None]  # it may have met the full disk
        drivers += [folder.driver() for _ in range(2 - len(drivers))]
    for driver in drivers:
        _, said = driver.communicate()
        if driver.returncode != 0:
            raise InputError("", Said(f"exit code {driver.returncode}: {said.decode()}"), "the end of the study")


def on_a_full_disk(folder: Folder) -> None:
    """Run a driver that cannot write, and require that it says so in one line."""
    filler = folder.path / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    with folder.driver() as driver:
        _, said = driver.communicate()
    filler.unlink()
    lines = said.decode().strip().splitlines()
    click.echo(f"on a full disk: exit code {driver.returncode}: {' '.join(lines)}")
    if driver.returncode != 2 or len(lines) != 1:
        raise InputError("", Said(f"{len(lines)} lines, exit code {driver.returncode}"), "one line, exit code 2")


def corrupted(folder: Folder, chance: random.Random) -> None:
    """Change the value of one record, as soon as there is one."""
    while not folder.finished:
        time.sleep(0.02)
    with closing(sqlite3.connect(folder.store, timeout=60)) as database, database:
        numbers = [number for (number,) in database.execute("SELECT id FROM attempts WHERE value IS NOT NULL")]
        database.execute("UPDATE attempts SET value = value + 1 WHERE id = ?", (chance.choice(numbers),))


def compared(alone: Folder, together: Folder) -> list[str]:
    """Return in which way the stores differ, or the second is not as it should be."""
    found = []
    keys = "SELECT key FROM tasks ORDER BY key"
    if alone.rows(keys) != together.rows(keys):
        found.append("other keys")
    finished = (
        "SELECT task FROM attempts WHERE ended = 'finished' AND id NOT IN (SELECT attempt FROM refused) ORDER BY task"
    )
    if together.rows(finished) != alone.rows(keys):
        found.append("some trials are not finished exactly once")
    mine, theirs = alone.values(), together.values()
    both = mine.keys() & theirs.keys()
    click.echo(f"{len(both)} deterministic values")
    if any(mine[key] != theirs[key] for key in both):
        found.append("other values")
    if len(together.rows("SELECT attempt FROM refused")) != 1:
        found.append("the corrupted record is not the only one that is refused")
    if together.rows("PRAGMA integrity_check") != [("ok",)]:
        found.append("SQLite finds fault with the file")
    return found


@click.command(help=__doc__)
@click.option("--trials", default=500, show_default=True, help="How many, in tens.")
@click.option("--kills", default=20, show_default=True, help="How many drivers are killed.")
@click.option("--seed", default=1, show_default=True, help="Random seed of the moments.")
@click.option(_PRIVATE, "private", hidden=True, type=click.Path(path_type=Path), help="A disk of its own.")
def main(trials: int, kills: int, seed: int, private: Path | None) -> None:
    """Run the study both ways and compare."""
    if private is None and _may_mount():
        with tempfile.TemporaryDirectory() as disk:
            mount = f'mount -t tmpfs -o size={_DISK_MIB}m tmpfs "$0" && exec "$@"'
            again = [sys.executable, __file__, *sys.argv[1:], _PRIVATE, disk]
            sys.exit(subprocess.run(["unshare", "-rm", "sh", "-c", mount, disk, *again], check=False).returncode)
    if private is None:
        click.echo("without a full disk: unshare --mount is not allowed")
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as home:
        alone, together = Folder(Path(home)), Folder(private or Path(home) / "disk")
        for folder in (alone, together):
            folder.begin(trials)
        started = time.monotonic()
        with alone.driver() as driver:
            driver.communicate()
        click.echo(f"undisturbed: {alone.finished} trials in {time.monotonic() - started:.0f} s")

        def between(number: int) -> None:
            if number == kills // 3 and private is not None:
                on_a_full_disk(together)
            if number == 2 * kills // 3:
                corrupted(together, chance)
            click.echo(f"{number} killed, {together.finished} attempts")

        killed(together, kills, trials // kills, chance, between)
        faults = compared(alone, together)
    click.echo(
        "\n".join(faults) or f"{kills} kills: the same keys and values, each trial finished once, the file sound"
    )
    sys.exit(1 if faults else 0)


def _may_mount() -> bool:
    found = shutil.which("unshare")
    return (
        found is not None and subprocess.run([found, "-rm", "true"], capture_output=True, check=False).returncode == 0
    )


if __name__ == "__main__":
    run_program(main, "study_faults.py")
