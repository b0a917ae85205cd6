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


def is_noted(targets: Iterable[str]) -> bool:
    """Return whether there is a note that the loops of all targets, ``module:function``, are compiled, and it holds."""
    try:
        noted = json.loads(_file().read_bytes())
        made_of, code = noted["made_of"], noted["code"]
        return bool(code) and made_of == _made_of(package_folders(targets)) and all(map(os.path.exists, code))
    except (OSError, ValueError, TypeError, KeyError):
        return False


def write_note(targets: Iterable[str]) -> None:
    """Note that the loops of all targets are compiled; where nothing can be written, there is no note."""
    folders = package_folders(targets)
    code = sorted(str(file) for folder in _code_folders(folders) for file in folder.rglob(_CODE))
    with suppress(InputError):
        write_text(_file(), json.dumps({"made_of": _made_of(folders), "code": code}))


def package_folders(targets: Iterable[str]) -> list[Path]:
    """Return the folders of the packages that targets are in, and of this one."""
    names = {_OWN, *(re.split("[.:]", target)[0] for target in targets)}
    found = (find_spec(name) for name in sorted(names))
    return [Path(place) for spec in found if spec is not None for place in spec.submodule_search_locations or ()]


def _given_folder() -> Path | None:
    given = os.environ.get("NUMBA_CACHE_DIR")
    return Path(given) if given else None


def _file() -> Path:
    return (_given_folder() or Path(__file__).parent / _CACHE) / _FILE


def _code_folders(packages: list[Path]) -> list[Path]:
    given = _given_folder()
    return packages if given is None else [given]


def _made_of(packages: list[Path]) -> str:
    """Return a digest of all that machine code depends on."""
    parts = [sys.version, version("numba"), version("llvmlite"), *_processor()]
    parts += sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("NUMBA_"))
    for source in sorted(file for folder in packages for file in folder.rglob("*.py")):
        seen = source.stat()
        parts.append(f"{source} {seen.st_mtime_ns} {seen.st_size}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _processor() -> Iterator[str]:
    """Yield what the system says of the processor: machine code is for its instructions."""
    yield platform.machine()
    try:
        first = _PROCESSOR.read_text().partition("\n\n")[0]
    except OSError:
        yield platform.processor()
    else:
        yield from re.findall(r"^(?:model name|flags|Features)\s*:.*", first, re.MULTILINE)
