"""The commands of docs/first-hour.md run as they stand there, in this order, in one folder."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from checkout import ROOT
from commands import optsched

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs/first-hour.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
"""All but the block that clones and installs."""
WRITTEN = {
    "requests.csv", "mine.json", "rows.csv", "srpf.py", "times.csv", "machine.json", "runs.json", "gantt.svg",
    "ttft.pdf", "perfetto.json", "history.csv", "bounds.svg", "gaps.tex", "gaps.csv", "study.toml", "study.sqlite",
    "study.csv", "report.html",
}  # fmt: skip


def steps(block: str) -> list[tuple[str, str | None]]:
    """Return commands, and for ``cat > FILE`` the text that follows."""
    pieces = re.split(r"^cat > (\S+) <<'END'\n(.*?)^END\n", block, flags=re.MULTILINE | re.DOTALL)
    found: list[tuple[str, str | None]] = []
    for number in range(0, len(pieces), 3):
        found += [(line, None) for line in pieces[number].splitlines()]
        if number + 2 < len(pieces):
            found.append((pieces[number + 1], pieces[number + 2]))
    return found


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(BLOCKS) == PAGE.count("```sh\n") == 7
    for block in BLOCKS:
        for line, text in steps(block):
            if text is not None:
                Path(line).write_text(text)
                continue
            settings, command = re.fullmatch(r"((?:[A-Z]+=\S+ )*)optsched (.*)", line).groups()  # type: ignore[union-attr]
            with monkeypatch.context() as environment:
                for setting in settings.split():
                    environment.setenv(*setting.split("="))
                outcome = optsched(capsys, *shlex.split(command))
            assert outcome.code == 0, (line, outcome.err)
            assert outcome.out or " --out " in line, line
            if "COLUMNS" in settings:
                assert max(map(len, outcome.out.splitlines())) <= int(settings.split("=")[1])
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} >= WRITTEN
    assert all(os.path.getsize(name) for name in WRITTEN)
