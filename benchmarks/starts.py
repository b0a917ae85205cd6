"""How soon commands are done with a small instance, beside a Python that loads what all of them need; what they load.

    python benchmarks/starts.py [--runs 3] [--only bound]

Each command runs once unseen, so that nothing is compiled or read from disk for the first time, and then some times in
turn with that Python. Printed are the least seconds, the ratio to that Python, and the large libraries that are loaded;
and what an empty figure takes, which `plot` cannot undercut.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

import click

from optsched.cli import run_program

_INSTANCE = "infermax-fig15-I8"
_COMMANDS = (
    "--help",
    "instances list",
    f"instances show {_INSTANCE}",
    f"simulate {_INSTANCE} --policy vllm",
    f"bound {_INSTANCE}",
    f"bound {_INSTANCE} --objective mean_e2e",
    "bound ladder-n16-LISO+SISO-k2",
    "check result.json",
    "plot gantt result.json --out schedule.svg",
    "conform vllm",
    f"solve {_INSTANCE}",
    f"solve {_INSTANCE} --objective mean_e2e",
    "solve infermax-fig15-I1024",
    "compile",
)
_FLOOR = "import click, numpy, pydantic"
_FIGURE = "from matplotlib.figure import Figure; Figure().add_subplot().figure.savefig('empty.svg')"
"""What any figure takes."""
_LARGE = "highspy", "matplotlib", "numba", "ortools", "pandas", "pulp", "scipy.optimize", "scipy.sparse"
_PROGRAM = f"""\
import sys
from optsched.cli import main
try:
    code = main()
except SystemExit as ended:
    code = ended.code
print(*(name for name in {_LARGE} if name in sys.modules), sep=", ", file=sys.stderr)
sys.exit(code)
"""


class _Timer:
    """Runs Python in a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        # Containers often set it; a second start would translate again what has changed since the installation.
        self._environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def seconds(self, *arguments: str) -> tuple[float, str]:
        """Return how long a run takes, and the last line that it writes to stderr."""
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", *arguments],
            cwd=self._folder,
            env=self._environment | {"PYTHONPATH": os.pathsep.join(sys.path[1:])},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise click.ClickException(f"{' '.join(arguments[1:])}: {done.stderr.strip()}")
        return time.perf_counter() - started, "".join(done.stderr.splitlines()[-1:])


@click.command(help=__doc__)
@click.option("--runs", default=3, show_default=True, type=click.IntRange(min=1))
@click.option("--only", default="", metavar="TEXT", help="Only commands with this text in them.")
def main(runs: int, only: str) -> None:
    """Print a row for each command."""
    with tempfile.TemporaryDirectory() as folder:
        timer = _Timer(folder)
        timer.seconds(_PROGRAM, "solve", _INSTANCE, "--out", "result.json")
        if not only:
            timer.seconds(_FIGURE)
            empty = min(timer.seconds(_FIGURE)[0] for _ in range(runs))
            click.echo(f"An empty figure by matplotlib alone takes {empty:.2f} s.\n")
        click.echo("| command | s | times as long | loads |\n|---|---|---|---|")
        for command in _COMMANDS:
            if only not in command:
                continue
            timer.seconds(_PROGRAM, *command.split())
            floors, taken = [], []
            for _ in range(runs):
                floors.append(timer.seconds(_FLOOR)[0])
                seconds, loaded = timer.seconds(_PROGRAM, *command.split())
                taken.append(seconds)
            click.echo(f"| `{command}` | {min(taken):.2f} | {min(taken) / min(floors):.1f} | {loaded or 'none'} |")


if __name__ == "__main__":
    run_program(main, "starts.py")
