"""Which compiled loops the warm-ups of `optsched compile` reach, in a process in which nothing else has run."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import optsched
import optsched_formulations
from optsched.ahead.catalogue import WARM_UPS
from optsched.compiled import Loop


def all_loops() -> dict[FunctionType, str]:
    """Return every function with the decorator `compiled`, and its name."""
    found = {}
    for package in (optsched, optsched_formulations):
        folder = Path(inspect.getfile(package)).parent
        for file in folder.rglob("*.py"):
            if "\n@compiled\n" in file.read_text(encoding="utf-8"):
                name = ".".join([package.__name__, *file.relative_to(folder).with_suffix("").parts])
                for member in vars(importlib.import_module(name)).values():
                    if isinstance(member, Loop):
                        function = member.function
                        found[function] = f"{function.__module__}.{function.__name__}"
    return found


def _called(function: FunctionType) -> Iterator[FunctionType]:
    """Yield the functions that a function names: it is compiled with all of them."""
    for name in function.__code__.co_names:
        member = function.__globals__.get(name)
        if isinstance(member, Loop):
            yield member.function
        elif isinstance(member, FunctionType):
            yield member


def unreached() -> list[str]:
    """Run all warm-ups, and return the loops that were neither called nor are part of one that was."""
    for target in WARM_UPS.values():
        module, _, function = target.partition(":")
        getattr(importlib.import_module(module), function)()
    loops = all_loops()
    found = [getattr(importlib.import_module(loop.__module__), loop.__name__) for loop in loops]
    waiting = [loop.function for loop in found if loop.dispatcher.signatures]
    reached = set(waiting)
    while waiting:
        new = set(_called(waiting.pop())) - reached
        reached |= new
        waiting += new
    return sorted(name for loop, name in loops.items() if loop not in reached)


if __name__ == "__main__":
    print("\n".join(unreached()))
