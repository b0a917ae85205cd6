"""Options that say how a table is laid out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from optsched.cli.options import naming_options
from optsched.cli.types import OneOf
from optsched.model.errors import InputError
from optsched.report.formats import FORMATS, as_text
from optsched.report.latex import as_latex
from optsched.report.layout import chosen, require_columns, transposed
from optsched.report.sheet import Sheet

TEXT, CSV, LATEX = "text", "csv", "latex"


@dataclass(frozen=True)
class Layout:
    r"""What a user asks for.

    Parameters
    ----------
    style
        One of `optsched.report.formats.FORMATS`.
    columns
        Which columns; none for all.
    transpose
        Whether rows become columns.
    label
        LaTeX's ``\label``.
    siunitx
        Whether LaTeX aligns numbers at their decimal markers.
    """

    style: str
    columns: tuple[str, ...]
    transpose: bool
    label: str | None
    siunitx: bool

    def require(self, offered: Iterable[str]) -> None:
        """Raise `InputError` for a column that no table can have, before anything is computed for one."""
        with naming_options():
            require_columns(self.columns, offered)

    def render(self, sheet: Sheet, width: int) -> str:
        """Return the sheet as text."""
        if self.columns:
            with naming_options():
                sheet = chosen(sheet, self.columns)
        if self.transpose:
            sheet = transposed(sheet)
        if self.style == LATEX:
            return as_latex(sheet, self.label, siunitx=self.siunitx)
        return as_text(sheet, width) if self.style == TEXT else FORMATS[self.style](sheet)


DEFAULT_LAYOUT = Layout(TEXT, (), False, None, False)


def layout_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options for a layout; it takes them as ``layout``."""

    @wraps(command)
    def read(
        *args: Any, style: str, columns: str | None, transpose: bool, label: str | None, siunitx: bool, **others: Any
    ) -> Any:
        names = tuple(name.strip() for name in columns.split(",")) if columns is not None else ()
        if style == CSV and (names or transpose):
            raise InputError("--format", style, "another one with --columns or --transpose: csv has fixed columns")
        if style != LATEX and (label is not None or siunitx):
            raise InputError("--format", style, "latex with --label or --siunitx")
        return command(*args, layout=Layout(style, names, transpose, label, siunitx), **others)

    complete: Callable[..., Any] = read
    for option in (
        click.option("--siunitx", is_flag=True, help="LaTeX: columns of type S."),
        click.option("--label", metavar="NAME", help="LaTeX: \\label."),
        click.option("--transpose", is_flag=True, help="Columns as rows."),
        click.option("--columns", metavar="NAMES", help="Only these columns, joined by commas, in this order."),
        click.option(
            "--format",
            "style",
            type=OneOf(tuple(FORMATS)),
            default=TEXT,
            show_default=True,
            metavar="FORMAT",
            help=f"One of {', '.join(FORMATS)}.",
        ),
    ):
        complete = option(complete)
    return complete
