"""Sections of Markdown pages that benchmarks write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from optsched.cli.options import blaming
from optsched.model.documents import read_bytes, write_text
from optsched.report.section import replace_section
from optsched.report.sheet import Cell, Column


def write_section(option: str, page: str | None, name: str, body: str) -> None:
    """Put a section into the page that an option names, if it names one; a page that is not there is made."""
    if page is None:
        return
    with blaming(option):
        text = read_bytes(page).decode() if Path(page).exists() else ""
        write_text(page, replace_section(text, name, body))


def text_columns(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, keys: int = 0
) -> tuple[Column, ...]:
    """Return columns whose cells are shown as they are; the first ones are aligned to the left, or keys."""
    return tuple(
        Column(header, header, tuple(Cell(row[place], row[place]) for row in rows), key=place < keys, left=place < left)
        for place, header in enumerate(headers)
    )
