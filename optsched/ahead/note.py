"""A note that all loops are compiled, so that it is known without numba, which takes longer to load than to look.

It is kept beside machine code, and names what the code was made of: sources, versions, processor. Numba decides by the
same when it loads code; where the note is wrong, a later command compiles what is missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from optsched.model.documents import write_text
from optsched.model.errors import InputError

_FILE = "optsched-compiled.json"
_OWN = "optsched"
_CACHE, _PROCESSOR = "__pycache__", Path("/proc/cpuinfo")
_CODE = "*.nb[ci]"
"""What numba keeps: indices, and machine code."""


def package_folders(targets: Iterable[str]) -> list[Path]:
    """Return the folders of the packages that targets, ``module:function``, are in, and of this one."""
    names = {_OWN, *(re.split("[.:]", target)[0] for target in targets)}
    found = (find_spec(name) for name in sorted(names))
    return [Path(place) for spec in found if spec is not None for place in spec.submodule_search_locations or ()]


def state_of(packages: Iterable[Path]) -> str:
    """Return a digest of all that the machine code of packages depends on."""
    parts = [sys.version, version("numba"), version("llvmlite"), *_processor()]
    parts += sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("NUMBA_"))
    for source in sorted(file for folder in packages for file in folder.rglob("*.py")):
        seen = source.stat()
        parts.append(f"{source} {seen.st_mtime_ns} {seen.st_size}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def is_noted(state: str) -> bool:
    """Return whether there is a note that in this state all loops are compiled, and the code is still there."""
    try:
        noted = json.loads(_file().read_bytes())
        return bool(noted["made_of"] == state and noted["code"]) and all(map(os.path.exists, noted["code"]))
    except (OSError, ValueError, TypeError, KeyError):
        return False


def write_note(state: str, packages: Iterable[Path]) -> None:
    """Note that all loops are compiled of what there was before; where nothing can be written, there is no note."""
    given = _given_folder()
    code = sorted(str(file) for folder in ([given] if given else packages) for file in folder.rglob(_CODE))
    with suppress(InputError):
        write_text(_file(), json.dumps({"made_of": state, "code": code}))


def _given_folder() -> Path | None:
    given = os.environ.get("NUMBA_CACHE_DIR")
    return Path(given) if given else None


def _file() -> Path:
    return (_given_folder() or Path(__file__).parent / _CACHE) / _FILE


def _processor() -> Iterator[str]:
    """Yield what the system says of the processor: machine code is for its instructions."""
    yield platform.machine()
    try:
        first = _PROCESSOR.read_text().partition("\n\n")[0]
    except OSError:
        yield platform.processor()
    else:
        yield from re.findall(r"^(?:model name|flags|Features)\s*:.*", first, re.MULTILINE)
