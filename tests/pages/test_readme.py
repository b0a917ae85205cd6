"""The README says what the program does."""

from __future__ import annotations

import re

import pytest
from checkout import ROOT

from optsched.cli import main

README = ROOT / "README.md"


def _blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [content for name, content in fenced if name == language]


def test_the_example_prints_what_the_readme_shows(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = _blocks("python")
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out in _blocks("")


@pytest.mark.slow
def test_the_table_is_the_one_that_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """Everything but the times agrees, character by character."""
    with pytest.raises(SystemExit) as ended:
        main(["table", "infermax-fig15"])
    assert ended.value.code == 0

    def timeless(text: str) -> str:
        return re.sub(r"(✓c\s+\d+\s+)\d+\.\d\d", r"\1time", text)

    assert timeless(capsys.readouterr().out) in [timeless(block) for block in _blocks("")]


def test_links_lead_somewhere() -> None:
    for document in (*README.parent.glob("*.md"), *(README.parent / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
