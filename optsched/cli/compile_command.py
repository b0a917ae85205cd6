"""Compiling ahead."""

from __future__ import annotations

import compileall
import os
import time

import click

from optsched.ahead.catalogue import WARM_UPS
from optsched.ahead.note import is_noted, package_folders, state_of, write_note
from optsched.cli.group import cli
from optsched.cli.options import workers_option
from optsched.cli.step_bar import Line
from optsched.model.errors import InputError, Said

_ALL_THERE = "all loops are compiled already"


@cli.command("compile")
@workers_option
def compile_loops(workers: int | None) -> None:
    """Compile all loops, so that no later command has to: once on a machine, one or two minutes.

    Without it each command compiles what it needs. Ctrl-C keeps what is compiled.
    """
    packages = package_folders(WARM_UPS.values())
    state = state_of(packages)  # before compiling: a source may change meanwhile
    if is_noted(state):
        click.echo(_ALL_THERE)
        return
    # Numba takes a while to load.
    from optsched.ahead.processes import compile_all  # noqa: PLC0415
    from optsched.machine_code import is_kept  # noqa: PLC0415

    if not is_kept(compile_all):
        raise InputError("NUMBA_CACHE_DIR", Said("nowhere to keep machine code"), "a folder that can be written")
    started, compiled = time.monotonic(), set[str]()
    with Line("compile", len(WARM_UPS)) as live:
        for folder in packages:
            # Where PYTHONDONTWRITEBYTECODE is set, each command would read the sources anew.
            compileall.compile_dir(folder, quiet=2)
        for loops in compile_all(workers or os.cpu_count() or 1):
            compiled |= loops
            live.advance()
    write_note(state, packages)
    seconds = time.monotonic() - started
    click.echo(f"{len(compiled)} loops compiled in {seconds:.1f} s" if compiled else _ALL_THERE)
