"""Sections of Markdown pages that benchmarks write."""

from __future__ import annotations

from pathlib import Path

from optsched.cli.options import blaming
from optsched.model.documents import read_bytes, write_text
from optsched.report.section import replace_section


def write_section(option: str, page: str | None, name: str, body: str) -> None:
    """Put a section into the page that an option names, if it names one; a page that is not there is made."""
    if page is None:
        return
    with blaming(option):
        text = read_bytes(page).decode() if Path(page).exists() else ""
        write_text(page, replace_section(text, name, body))
