"""Compiling ahead."""

from __future__ import annotations

import os
import time

import click

from optsched.ahead.catalogue import WARM_UPS
from optsched.ahead.processes import compile_all
from optsched.cli.group import cli
from optsched.cli.options import workers_option
from optsched.cli.step_bar import Line
from optsched.compiled import is_kept
from optsched.model.errors import InputError, Said


@cli.command("compile")
@workers_option
def compile_loops(workers: int | None) -> None:
    """Compile all loops, so that no later command has to: once on a machine, one or two minutes.

    Without it each command compiles what it needs. Ctrl-C keeps what is compiled.
    """
    if not is_kept(compile_all):
        raise InputError("NUMBA_CACHE_DIR", Said("nowhere to keep machine code"), "a folder that can be written")
    started, compiled = time.monotonic(), set[str]()
    with Line("compile", len(WARM_UPS)) as live:
        for loops in compile_all(workers or os.cpu_count() or 1):
            compiled |= loops
            live.advance()
    seconds = time.monotonic() - started
    click.echo(f"{len(compiled)} loops compiled in {seconds:.1f} s" if compiled else "all loops are compiled already")
