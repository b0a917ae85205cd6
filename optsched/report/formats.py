"""A sheet as text, Markdown or CSV; `optsched.report.latex` has LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType

from rich import box
from rich.align import VerticalAlignMethod
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from optsched.report.latex import as_latex
from optsched.report.sheet import Column, Sheet, panels

_MARKDOWN_SPECIAL = re.compile(r"[\\`*<\[\]|]|(?<!\w)_|_(?!\w)")
_PADDING = 3
"""Characters between two columns of a terminal table: rich's divider and two spaces."""


def _needed(column: Column) -> int:
    """Return the width that a column takes in a terminal."""
    return _PADDING + max(
        cell_len(part) for part in [*column.broken_header.split("\n"), *(cell.shown for cell in column.cells)]
    )


def as_text(sheet: Sheet, width: int, color: bool = False) -> str:
    """Render for a terminal of ``width`` columns; a sheet that is wider continues below."""
    console = _console(width, color)
    console.print(Text(sheet.title, style="bold"))
    if sheet.common:
        console.print(Text(sheet.common, style="dim"))
    for panel in panels(sheet.shown, width, _needed):
        console.print()
        console.file.write(_panel_text(panel, width, color))
    if sheet.notes:
        console.print()
    for note in sheet.notes:
        console.print(Text(note, style="dim"))
    return _printed(console)


def columns_text(columns: Sequence[Column], width: int) -> str:
    """Render columns alone for a terminal; what does not fit the width continues below."""
    return "\n".join(_panel_text(panel, width) for panel in panels(columns, width, _needed))


def _panel_text(panel: Sequence[Column], width: int, color: bool = False) -> str:
    """Render columns beside each other; no cell is ever cut, rather does the line get long."""
    width = max(width, sum(map(_needed, panel)))
    console = _console(width, color)
    table = _bare_table()
    for column in panel:
        justify: JustifyMethod = "left" if column.left else "right"
        table.add_column(Text(column.broken_header), justify=justify, no_wrap=True, vertical="bottom")
    for cells in zip(*(column.cells for column in panel), strict=True):
        table.add_row(*(Text(cell.shown) for cell in cells))
    console.print(table)
    return _printed(console)


def _console(width: int, color: bool) -> Console:
    return Console(
        file=io.StringIO(), width=width, force_terminal=color, color_system="auto" if color else None, highlight=False
    )


def _printed(console: Console) -> str:
    stream = console.file
    assert isinstance(stream, io.StringIO), "the consoles here print to memory"
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _bare_table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)


def _tabulated(sheet: Sheet, style: str) -> str:
    from tabulate import tabulate  # noqa: PLC0415  # loads tables of wide characters, which rich has as well

    columns = sheet.shown
    if style == "github":
        columns = [_escaped(column) for column in columns]
    rows = [[cell.shown for cell in cells] for cells in zip(*(column.cells for column in columns), strict=True)]
    headers = [column.header for column in columns]
    return tabulate(rows, headers, tablefmt=style, disable_numparse=True, colalign=["right"] * len(columns))


def _escaped(column: Column) -> Column:
    cells = tuple(replace(cell, shown=_plain_markdown(cell.shown)) for cell in column.cells)
    return replace(column, header=_plain_markdown(" ".join(column.header.split())), cells=cells)


def _plain_markdown(text: str) -> str:
    """Escape what Markdown would not show as it is; an underscore inside a word it does."""
    return _MARKDOWN_SPECIAL.sub(r"\\\g<0>", text)


def as_markdown(sheet: Sheet) -> str:
    """Render as a GitHub table with a title above and notes below."""
    notes = "  \n".join(note.replace("<", "\\<") for note in sheet.notes)
    parts = [f"**{_plain_markdown(sheet.title)}**", sheet.common, _tabulated(sheet, "github"), notes]
    return "\n\n".join(part for part in parts if part) + "\n"


def as_csv(sheet: Sheet) -> str:
    """Render exact values: integers in ps, of means the sum over requests, and gaps as fractions.

    Columns whose name ends in ``_s`` are seconds, of means the mean. A field is empty where there is no value.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([column.name for column in sheet.columns])
    writer.writerows([cell.value for cell in cells] for cells in sheet.rows)
    return stream.getvalue()


FORMATS: MappingProxyType[str, Callable[[Sheet], str]] = MappingProxyType(
    {"text": lambda sheet: as_text(sheet, 120), "md": as_markdown, "csv": as_csv, "latex": as_latex}
)
"""Format name → renderer for files."""


def simple_table(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int, left: Sequence[int] = (0,)) -> str:
    """Render any table of strings for a terminal; columns not in ``left`` are flush right."""
    console = _console(width, color=False)
    table = _bare_table()
    vertical: VerticalAlignMethod = "bottom" if len(left) == 1 else "top"
    for position, header in enumerate(headers):
        table.add_column(
            header, justify="left" if position in left else "right", vertical=vertical, no_wrap=not position
        )
    for row in rows:
        table.add_row(*(Text(text) for text in row))
    console.print(table)
    return _printed(console)
