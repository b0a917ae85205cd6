"""Plain language: no words for people where requests are meant, and none that a reader has to guess at."""

from __future__ import annotations

import re
import subprocess

from checkout import ROOT

ROOMS = (
    "optsched",
    "formulations",
    "benchmarks",
    "tests",
    "docs/*.md",
    "README.md",
    "CONTRIBUTING.md",
    "Makefile",
)
"""What is searched, as git's patterns of paths."""
SEARCHED = (".py", ".md", ".toml", "Makefile")
FORBIDDEN = re.compile(
    r"\b(deeds?|nobody|somebody|everybody|anybody|whoever|whom|who|his|crowds?|lives|takings|restless|so\s+many|so\s+often)\b",
    re.IGNORECASE,
)


def listed() -> list[str]:
    found = subprocess.run(
        ["git", "ls-files", "--", *ROOMS, ":!tests/pages/test_words.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in found.stdout.splitlines() if name.endswith(SEARCHED)]


def said(text: str) -> list[str]:
    """Return the forbidden words of a text, in small letters."""
    return [" ".join(word.lower().split()) for word in FORBIDDEN.findall(text)]


def test_whole_words_are_found() -> None:
    assert said("Nobody knows so\nmany; whose? This alive crowd.") == ["nobody", "so many", "crowd"]


def test_no_forbidden_word_is_in_these_rooms() -> None:
    names = listed()
    assert len(names) > 200
    found = {name: said((ROOT / name).read_text(encoding="utf-8")) for name in names}
    assert {name: words for name, words in found.items() if words} == {}
