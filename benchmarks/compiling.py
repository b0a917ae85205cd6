"""What typical commands still compile after `optsched compile`: nothing, if it reaches all loops with their types.

    python benchmarks/compiling.py [--without] [--only bound]

It starts with no machine code, in a folder of its own, runs `optsched compile` there (not with ``--without``), and then
every command of `COMMANDS` in a process of its own. Printed are the seconds that each took, and the functions that it
compiled, with their types. It takes ten minutes. Exit code 1 if anything was compiled after `optsched compile`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from optsched.cli import run_program

_SOLVES = (
    ("ladder-n08-I4-O8-k2", "makespan"),
    ("ladder-n08-I32-O8-k8", "makespan"),
    ("ladder-n08-LILO+SISO-k2-poisson", "makespan"),
    ("ladder-n12-I4-O8-k2", "makespan"),
    ("ladder-n12-SILO+LISO-k8-poisson", "makespan"),
    ("ladder-n16-LILO+SILO-k2", "makespan"),
    ("ladder-n16-LILO+SISO-k2-poisson", "makespan"),
    ("ladder-n16-LILO+SISO-k8-poisson", "makespan"),
    ("ladder-n08-I4-O8-k2", "mean_e2e"),
    ("ladder-n08-SILO+LISO-k2-poisson", "mean_e2e"),
    ("ladder-n12-LISO+SISO-k8", "mean_e2e"),
    ("ladder-n12-LILO+SISO-k2-poisson", "mean_e2e"),
    ("ladder-n16-I4-O8-k2", "mean_e2e"),
    ("ladder-n16-SILO+LISO-k8-poisson", "mean_e2e"),
    ("infermax-fig15-I64", "makespan"),
    ("infermax-fig15-I8", "mean_e2e"),
    ("chunked-small-n4-k2", "makespan"),
    ("routing-small-2x8-1", "makespan"),
    ("routing-small-prefixes-online-2", "makespan"),
    ("pd-small-8-equal", "makespan"),
)
COMMANDS = (
    "simulate azure-conv-1 --policy vllm",
    "simulate azure-conv-1 --policy standard",
    "simulate prefix-preble-toolbench-200 --policy vllm_v1,lpm",
    "simulate prefix-preble-loogle-2000 --machines 3 --router sal,e2,lmetric,least_kv --policy vllm_v1",
    "simulate prefix-mooncake-250 --router round_robin,p2c_tokens,aibrix_prefix --policy vllm_v1",
    "simulate routing-small --router sal,least_work --policy vllm",
    "bound azure-conv-1 --method all",
    "bound azure-conv-1 --objective mean_e2e --method all",
    "bound azure-code-1 --objective mean_e2e",
    "solve azure-conv-1 --objective mean_e2e --time-limit 20 --method planner",
    *(f"solve {name} --objective {objective} --time-limit 10" for name, objective in _SOLVES),
    "solve ladder-n08-I4-O8-k2 --time-limit 60 --workers 2",
    "solve infermax-fig15-I128 --method pattern_cg --time-limit 10",
    "table infermax-fig15 --policy standard --time-limit 10",
    "simulate azure-conv-1 --policy all",
)
"""Their results are checked as well, but for policies `all`, of which some write hundreds of thousands of batches."""

_LISTENER = """\
import os
from numba.core.event import Listener, register

class Log(Listener):
    def on_start(self, event):
        dispatcher = event.data["dispatcher"]
        if dispatcher.stats.cache_path is not None:  # else it is part of another function
            function = dispatcher.py_func
            with open(os.environ["OPTSCHED_COMPILED"], "a") as log:
                log.write(f"{function.__module__}.{function.__name__} {event.data['args']}\\n")

    def on_end(self, event):
        pass

register("numba:compile", Log())
"""
"""Python runs it first in every process that a command starts."""


class _Recorder:
    """Runs commands with machine code kept in a folder, and lists what they compile."""

    def __init__(self, folder: Path) -> None:
        self._log, self._result = folder / "compiled", folder / "result.json"
        (folder / "sitecustomize.py").write_text(_LISTENER)
        path = os.pathsep.join([str(folder), *sys.path[1:]])
        added = {"PYTHONPATH": path, "NUMBA_CACHE_DIR": str(folder / "code"), "OPTSCHED_COMPILED": str(self._log)}
        self._environment = {**os.environ, **added}

    def run(self, command: str) -> list[str]:
        """Run a command and check its result; print what it takes, and return what it compiled."""
        writes = command.startswith(("solve", "simulate", "bound")) and command != COMMANDS[-1]
        self._log.unlink(missing_ok=True)
        started = time.perf_counter()
        code = self._start(*command.split(), *(["--out", str(self._result)] if writes else []))
        seconds = time.perf_counter() - started
        if writes and code == 0:
            code = self._start("check", str(self._result))
        compiled = self._log.read_text().splitlines() if self._log.exists() else []
        click.echo(f"{seconds:6.1f} s  {len(compiled):3} compiled  {command}" + (f"  exit code {code}" if code else ""))
        return compiled

    def _start(self, *arguments: str) -> int:
        program = [sys.executable, "-c", "from optsched.cli import main; main()", *arguments]
        return subprocess.run(program, env=self._environment, check=False, stdout=subprocess.DEVNULL).returncode


@click.command()
@click.option("--without", is_flag=True, help="Do not run `optsched compile` first.")
@click.option("--only", default="", metavar="TEXT", help="Run the commands with this text in them.")
def main(without: bool, only: str) -> None:
    """List what typical commands compile after `optsched compile`."""
    found: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        recorder = _Recorder(Path(folder))
        if not without:
            for _ in range(2):
                recorder.run("compile")
        for command in COMMANDS:
            if only in command:
                compiled = recorder.run(command)
                for line in compiled:
                    click.echo(f"    {line}")
                found.update(compiled)
    click.echo(f"{len(found)} different functions and types")
    sys.exit(bool(found) and not without)


if __name__ == "__main__":
    run_program(main, "compiling.py")
