"""Every block of code on every page runs, or a comment before it says why not.

The comment is ``<!-- not run: REASON -->``, on the line before the block. The blocks of a page run in order in one
folder: Python each by itself, shell with ``optsched`` as it is here. A block whose first line is ``# NAME.py`` is
saved under that name.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from checkout import ROOT, searching_here

from optsched.cli.group import cli

PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
SHELL, PYTHON = ("sh", "bash", "console"), ("python",)
OTHERS = {"", "json", "toml", "math", "text", "{toctree}"}
"""What does not run: output, formulas, and documents, which the tests of their readers read."""
_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+?) -->\n)?^```(?P<kind>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_SECONDS = 240


@dataclass(frozen=True)
class Block:
    """A block of a page, from its line on; the reason says why it is not run."""

    kind: str
    text: str
    line: int
    reason: str | None


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page's text."""
    return [
        Block(found["kind"], found["text"], page[: found.start("text")].count("\n") + 1, found["reason"])
        for found in _BLOCK.finditer(page)
    ]


BLOCKS = {page: blocks_of(page.read_text(encoding="utf-8")) for page in PAGES}
ELSEWHERE = {ROOT / "README.md", ROOT / "docs" / "first-hour.md"}
"""Their blocks run in test_readme.py and test_first_hour.py, which also look at what they print and write."""
RUNNING = [
    page
    for page, blocks in BLOCKS.items()
    if page not in ELSEWHERE and any(each.kind in SHELL + PYTHON and not each.reason for each in blocks)
]


def test_blocks_by_hand() -> None:
    page = "a\n<!-- not run: why -->\n```sh\nx\n```\nb\n```python\ny\n```\n```\n```\n"
    assert blocks_of(page) == [
        Block("sh", "x\n", 4, "why"),
        Block("python", "y\n", 8, None),
        Block("", "", 11, None),
    ]


def test_all_blocks_are_of_known_kinds() -> None:
    kinds = {block.kind for blocks in BLOCKS.values() for block in blocks}
    assert kinds - {*SHELL, *PYTHON, *OTHERS} == set()
    marks = {page: len(re.findall("^<!-- not run:", page.read_text(encoding="utf-8"), re.MULTILINE)) for page in PAGES}
    assert marks == {page: sum(block.reason is not None for block in blocks) for page, blocks in BLOCKS.items()}
    assert len(RUNNING) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    python = shlex.quote(sys.executable)
    script = ["set -euo pipefail", f'optsched() {{ {python} -c "from optsched.cli import main; main()" "$@"; }}']
    for number, block in enumerate(BLOCKS[page]):
        if block.reason or block.kind in OTHERS:
            continue
        script.append(f"echo '{page.name}, line {block.line}' >&2")
        if block.kind in SHELL:
            script.append(block.text)
            continue
        named = re.match(r"# (\w+\.py)\n", block.text)
        name = named[1] if named else f"block{number}.py"
        (tmp_path / name).write_text(block.text)
        script.append(f"{python} {name}")
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path,
        env=searching_here(),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _commands(text: str) -> list[list[str]]:
    """Return the words of every line of shell that calls optsched, without comments."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words[1:] for line in lines if (words := line.split(" #")[0].split()) and words[0] == "optsched"]


def _found(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that words name, and the rest of them."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words:
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            break
        command, words = found, words[1:]
    return command, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_options_exist(page: Path) -> None:
    """Also in blocks that do not run."""
    for block in BLOCKS[page]:
        if block.kind not in SHELL:
            continue
        for words in _commands(block.text):
            command, rest = _found(words)
            assert command is not cli, words
            options = {option for parameter in command.params for option in parameter.opts}
            if isinstance(command, click.Group):  # study, whose command run may be left out
                options |= {name for each in command.commands.values() for one in each.params for name in one.opts}
            used = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", " ".join(rest)))
            assert used <= options, (page.name, words[0], used - options)
