"""A sheet as a LaTeX table that fits the page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType

from optsched.report.sheet import AT_MOST, CERTIFIED, PROVED, Column, Sheet, panels

TEXT_WIDTH_PT = 345.0
r"""``\linewidth`` of the class article at 10 pt, in one column."""
PAGE_PT = 450.0
"""Height of a table's parts on a page; the rest is for caption and notes."""
_LINE_PT = 12.0
"""Height of a row."""
_GAP_PT = 12.0
"""Two of ``\tabcolsep``, the space around a column."""
_NARROW, _WIDE = "iljtfI.,:;'()[]| -", "mwMW%✓≤≥@"
_WIDTHS_PT = MappingProxyType(dict.fromkeys(_NARROW, 3.4) | dict.fromkeys(_WIDE, 8.4))
_DIGIT_PT, _CAPITAL_PT, _LETTER_PT = 5.01, 7.6, 5.6
"""Widths of Computer Modern at 10 pt, rounded up: digits are equally wide, the others at most that."""
_SYMBOLS = MappingProxyType(
    {"✓c": "$\\checkmark_c$", "✓": "$\\checkmark$", "κ": "$\\kappa$", "–": "--", "≥": "$\\ge$", "≤": "$\\le$"}
)
_SPECIAL = MappingProxyType(
    {character: "\\" + character for character in "&%#_${}"}
    | {"~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "\\": "\\textbackslash{}"}
    | {"<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}"}
)
_NUMBER = re.compile(rf"({AT_MOST})?(-?)(\d+)(?:\.(\d+))?( {CERTIFIED}| {PROVED})?")
"""A number, perhaps at most that, perhaps proved."""


def as_latex(sheet: Sheet, label: str | None = None, *, siunitx: bool = False) -> str:
    r"""Render as a LaTeX table.

    One that is wider than the text continues below, led by the key columns again, and then on further pages.

    A column that alone is wider than the text is scaled down.

    Parameters
    ----------
    sheet
        What to render.
    label
        For ``\label``.
    siunitx
        Align numbers at their decimal markers, by columns of type S.
    """
    caption = _plain(" ".join(part for part in (sheet.title + ".", sheet.common) if part))
    lines = [f"% needs \\usepackage{{booktabs,amssymb,adjustbox{',siunitx' if siunitx else ''}}}"]
    pages = pages_of(sheet)
    for number, page in enumerate(pages):
        lines += [r"\begin{table}", r"\centering"]
        if number == 0:
            lines += [f"\\caption{{{caption}}}", *([] if label is None else [f"\\label{{{label}}}"])]
        else:
            lines += [r"\addtocounter{table}{-1}", f"\\caption{{{_plain(sheet.title)}, continued}}"]
        lines.append("\n\\par\\medskip\n".join(_tabular(columns, siunitx=siunitx) for columns in page))
        if sheet.notes and number == len(pages) - 1:
            notes = (rf"\par {_plain(note.replace('`', ''))}" for note in sheet.notes)
            lines += [r"\par\medskip{\footnotesize\raggedright", *notes, r"\par}"]
        lines.append(r"\end{table}")
    return "\n".join([*lines, ""])


def pages_of(sheet: Sheet) -> list[list[list[Column]]]:
    """Return for each page of the table its parts: columns that fit the width beside each other."""
    pages: list[list[list[Column]]] = []
    used = PAGE_PT
    for columns in panels(sheet.shown, TEXT_WIDTH_PT, width_pt):
        rows = len(columns[0].cells)
        most = int((PAGE_PT - height_pt([replace(column, cells=()) for column in columns])) // _LINE_PT)
        for start in range(0, rows, most):
            part = [replace(column, cells=column.cells[start : start + most]) for column in columns]
            if used + height_pt(part) > PAGE_PT:
                pages.append([])
                used = 0
            pages[-1].append(part)
            used += height_pt(part)
    return pages


def height_pt(columns: Sequence[Column]) -> float:
    """Return about how high a part of a table is."""
    head = max(column.broken_header.count("\n") + 1 for column in columns)
    return _LINE_PT * (len(columns[0].cells) + head + 2)


def width_pt(column: Column) -> float:
    """Return about how wide a column is, rather too much than too little."""
    lines = [*column.broken_header.split("\n"), *(cell.shown for cell in column.cells)]
    return _GAP_PT + max(sum(map(_letter_pt, line)) for line in lines)


def _letter_pt(letter: str) -> float:
    if letter.isdigit():
        return _DIGIT_PT
    return _WIDTHS_PT.get(letter, _CAPITAL_PT if letter.isupper() else _LETTER_PT)


def _tabular(columns: Sequence[Column], *, siunitx: bool) -> str:
    kinds = [_kind(column, siunitx=siunitx) for column in columns]
    aligned = [kind.startswith("S") for kind in kinds]
    heads = [_head(column.broken_header, braced=each) for column, each in zip(columns, aligned, strict=True)]
    head, *body = (rf"{' & '.join(cells)} \\" for cells in (heads, *_rows(columns, aligned)))
    return "\n".join(
        [
            r"\begin{adjustbox}{max width=\linewidth}",
            f"\\begin{{tabular}}{{{''.join(kinds)}}}",
            *(r"\toprule", head, r"\midrule", *body, r"\bottomrule"),
            r"\end{tabular}",
            r"\end{adjustbox}",
        ]
    )


def _rows(columns: Sequence[Column], aligned: Sequence[bool]) -> Iterator[list[str]]:
    for cells in zip(*(column.cells for column in columns), strict=True):
        yield [_cell(cell.shown, braced=each) for cell, each in zip(cells, aligned, strict=True)]


def _kind(column: Column, *, siunitx: bool) -> str:
    """Return a column's type: S with room for the digits that its numbers have, and for marks; l or r."""
    found = [match for cell in column.cells if (match := _NUMBER.fullmatch(cell.shown))]
    if not siunitx or not found:
        return "l" if column.left else "r"
    sign = max(match[2] for match in found)
    before, after = (max(len(match[part] or "") for match in found) for part in (3, 4))
    options = [f"table-format={sign}{before}.{after}"]
    for name, part in (("pre", 1), ("post", 5)):
        marks = {match[part] for match in found if match[part]}
        if marks:
            options.append(f"table-space-text-{name}={_mark(max(marks, key=len))}")
    return f"S[{','.join(options)}]"


def _mark(text: str) -> str:
    """Return what is beside a number."""
    spaced = _plain(text).replace(" ", r"\,")
    return f"{{{spaced}}}"


def _head(header: str, *, braced: bool) -> str:
    """Return a header, whose lines are above each other."""
    lines = [_plain(line) for line in header.split("\n")]
    stacked = r" \\ ".join(lines)
    text = rf"\shortstack[r]{{{stacked}}}" if len(lines) > 1 else stacked
    return f"{{{text}}}" if braced else text


def _cell(text: str, *, braced: bool) -> str:
    """Return a cell; text in a column of numbers, or beside one, needs braces."""
    if not braced:
        return _plain(text)
    match = _NUMBER.fullmatch(text)
    if match is None:
        return f"{{{_plain(text)}}}"
    before, after = match[1] or "", match[5] or ""
    number = text.removeprefix(before).removesuffix(after)
    return (_mark(before) if before else "") + number + (_mark(after) if after else "")


def _plain(text: str) -> str:
    text = "".join(_SPECIAL.get(character, character) for character in text)
    for symbol, command in _SYMBOLS.items():
        text = text.replace(symbol, command)
    return text
