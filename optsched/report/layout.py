"""Sheets laid out otherwise: some columns only, rows as columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from optsched.model.errors import InputError, one_of
from optsched.report.sheet import Cell, Column, Sheet


def chosen(sheet: Sheet, names: Sequence[str]) -> Sheet:
    """Return the sheet with these columns, in this order, named by their headers or for machines."""
    require_columns(names, (name for column in sheet.columns for name in column.names))
    by_name = {name: column for column in reversed(sheet.columns) for name in column.names}
    shown = ((name, by_name[name]) for name in names)
    columns = tuple(column if column.header else replace(column, header=name) for name, column in shown)
    return replace(sheet, columns=columns)


def require_columns(names: Sequence[str], offered: Iterable[str]) -> None:
    """Raise `InputError` for a name that no column has."""
    known = sorted(set(offered))
    for name in names:
        if name not in known:
            raise InputError("columns", name, one_of(name, known))


def transposed(sheet: Sheet) -> Sheet:
    """Return the sheet with a row for each column that is no key, and a column for each row, named by its keys.

    It is for people: machines read rows.
    """
    shown = [column for column in sheet.columns if column.header]
    keys, others = [column for column in shown if column.key], [column for column in shown if not column.key]
    # One key is named once, in the corner; of several each is named in every header.
    alone = len(keys) == 1
    names = [[cell.shown if alone else f"{_title(key)} = {cell.shown}" for cell in key.cells] for key in keys]
    headers = [", ".join(parts) for parts in zip(*names, strict=True)]
    titles = tuple(Cell(_title(column), column.name) for column in others)
    corner = Column(_title(keys[0]) if alone else " ", "column", titles, key=True, left=True)
    columns = (
        Column(header, header, tuple(column.cells[row] for column in others)) for row, header in enumerate(headers)
    )
    return replace(sheet, columns=(corner, *columns))


def _title(column: Column) -> str:
    return " ".join(column.header.split())
