"""Pages of the site that are made from registries and docstrings."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import optsched
from optsched import plot
from optsched.bounds.catalogue import BOUNDS
from optsched.policies import POLICIES
from optsched.routers import ROUTERS
from optsched_formulations import FORMULATIONS

_INLINE = re.compile(r"\$`([^`]+)`\$")
_NAMED_PART = re.compile(r"`(\w+)\.\w+`")
_OUTSIDE_LINK = re.compile(r"\[([^\]]+)\]\(\.\./[^)]+\)")


def read_markdown(app: Any, name: str, source: list[str]) -> None:
    """Turn GitHub's formulas into MyST's; of links to what is not on the site, the text is left."""
    text = source[0].replace("```math", "```{math}")
    text = _INLINE.sub(lambda found: f"${found[1]}$", text)
    source[0] = _OUTSIDE_LINK.sub(lambda found: found[1], text)


def drop_field_numbers(*event: Any) -> None:
    """Drop what Python says of the fields of named tuples, of which the class says more."""
    lines: list[str] = event[-1]
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()


def write(folder: Path) -> None:
    """Write all pages into a folder, and touch only what changes, so that Sphinx reads only that again."""
    pages = {
        **_catalogue("formulations", "Formulations by name", FORMULATIONS, "An exact model each, found by name."),
        **_catalogue("bounds", "Bounds by name", BOUNDS, "A theorem with its proof each, found by name."),
        **_catalogue("policies", "Policies by name", POLICIES, "All batching policies, by the modules that hold them."),
        **_catalogue("routers", "Routers by name", ROUTERS, "All routers, by the modules that hold them."),
        "api.rst": _api(),
    }
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for path in folder.rglob("*.rst"):
        if str(path.relative_to(folder)) not in pages:
            path.unlink()


def _modules(registry: Mapping[str, str]) -> dict[str, list[str]]:
    """Return which names each module of a registry has."""
    found: dict[str, list[str]] = {}
    for name, entry in registry.items():
        found.setdefault(entry.partition(":")[0], []).append(name)
    return found


def _catalogue(kind: str, title: str, registry: Mapping[str, str], opening: str) -> dict[str, str]:
    """Return a page for each module, with its docstring, and one that lists them by their names."""
    pages, rows, entries = dict[str, str](), list[str](), list[str]()
    for module, names in _modules(registry).items():
        loaded = importlib.import_module(module)
        page = names[0]
        docstring = inspect.getdoc(loaded) or ""
        first = " ".join(docstring.partition("\n\n")[0].split())
        called = ", ".join(f"``{name}``" for name in names)
        parts = "".join(f"\n{_title(f'Part: ``{part}``', '-')}\n{text}\n" for part, text in _parts(loaded).items())
        heading = called if len(names) < 3 else module.rpartition(".")[2]
        names_line = f"Names: {called}.\n\n"
        fields = "".join(
            f"- ``{name}``: {given}\n"
            for name in names
            if (given := _parameters(getattr(loaded, registry[name].partition(":")[2])))
        )
        pages[f"{kind}/{page}.rst"] = (
            f"{_title(heading)}\n{docstring}\n\n{names_line}{fields}\nDefined in ``{module}``.\n{parts}"
        )
        links = ", ".join(f":doc:`{name} <{page}>`" for name in names)
        rows.append(f"   * - {links}\n     - {first}")
        entries.append(page)
    rows_text = "\n".join(rows)
    head = ".. list-table::\n   :header-rows: 1\n   :widths: 40 60\n\n   * - names\n     - what they are\n"
    table = f"{head}{rows_text}\n"
    contents = ".. toctree::\n   :hidden:\n\n" + "".join(f"   {page}\n" for page in entries)
    pages[f"{kind}/index.rst"] = f"{_title(title)}\n{opening}\n\n{table}\n{contents}"
    return pages


def _parts(module: ModuleType) -> dict[str, str]:
    """Return the docstrings of a formulation's own folders of parts, such as ``flow`` of ``class_flow``."""
    found = {}
    for folder in _part_folders(module):
        package = importlib.import_module(folder)
        for each in sorted(Path(next(iter(package.__path__))).glob("[a-z]*.py")):
            part = f"{folder}.{each.stem}"
            text = inspect.getdoc(importlib.import_module(part))
            if text:
                found[part.removeprefix(f"{module.__package__}.")] = text
    return found


def _part_folders(module: ModuleType) -> list[str]:
    """Return the folders beside a module that it names, or imports from, perhaps not before it is used."""
    imported = [
        node.module for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.ImportFrom)
    ]
    folders = {name.rpartition(".")[0] for name in imported if name}
    named = {f"{module.__package__}.{folder}" for folder in _NAMED_PART.findall(inspect.getdoc(module) or "")}
    beside = {
        f"{module.__package__}.{each.name}" for each in Path(str(module.__file__)).parent.iterdir() if each.is_dir()
    }
    return sorted((folders | named) & beside)


def _parameters(thing: object) -> str:
    """Return the fields of a policy that are plain values."""
    if not dataclasses.is_dataclass(thing) or isinstance(thing, type):
        return ""
    values = {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
    plain = {name: value for name, value in values.items() if isinstance(value, bool | int | str | Fraction)}
    return ", ".join(f"``{name}={value}``" for name, value in plain.items())


def _title(text: str, mark: str = "=") -> str:
    return f"{text}\n{mark * len(text)}\n"


def _api() -> str:
    """Return the page of all that the package offers."""
    parts = [_title("Python"), "All of this is in ``optsched``; figures are in ``optsched.plot``.\n"]
    parts += _documented("optsched", (name for name in dir(optsched) if not name.startswith("_")))
    parts += [_title("Figures", "-"), *_documented("optsched.plot", plot.__all__)]
    return "\n".join(parts)


def _documented(module: str, names: Iterable[str]) -> list[str]:
    found = []
    for name in names:
        thing = getattr(importlib.import_module(module), name)
        kind = "autoclass" if inspect.isclass(thing) else "autofunction"
        members = "\n   :members:" if inspect.isclass(thing) else ""
        found.append(f".. {kind}:: {module}.{name}{members}\n")
    return found
