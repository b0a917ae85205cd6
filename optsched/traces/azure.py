"""Azure's LLM inference traces of 2023: ``TIMESTAMP,ContextTokens,GeneratedTokens``.

Source: Azure/AzurePublicDataset, AzureLLMInferenceDataset2023. Time stamps have seven digits after the second and no
time zone; lines may end in CR LF, the last one in nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from io import StringIO

from optsched.model.errors import InputError
from optsched.traces.rows import Row, Rows, collect, tokens

_HEADER = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,12}))?")
_EPOCH = datetime(1970, 1, 1)
_SECOND = 10**12


def read_azure(text: str) -> Rows:
    """Read the text of a file (see the module)."""
    lines = StringIO(text, newline=None)
    header = lines.readline().rstrip("\n")
    if header.split(",") != _HEADER:
        raise InputError("line 1", header, ",".join(_HEADER))
    return collect(_rows(lines))


def _rows(lines: Iterable[str]) -> Iterator[Row | InputError]:
    for number, line in enumerate(lines, 2):
        try:
            yield _row(line.rstrip("\n"))
        except InputError as error:
            yield error.located(f"line {number}")


def _row(line: str) -> Row:
    cells = line.split(",")
    if len(cells) != len(_HEADER):
        raise InputError("", line, f"{len(_HEADER)} columns")
    return Row(_stamp_ps(cells[0]), tokens(cells[1], _HEADER[1]), tokens(cells[2], _HEADER[2]))


def _stamp_ps(text: str) -> int:
    """Read a time stamp, exactly."""
    match = _STAMP.fullmatch(text.strip())
    try:
        moment = datetime.fromisoformat(match[1]) if match else None
    except ValueError:
        moment = None
    if match is None or moment is None:
        raise InputError(_HEADER[0], text, "a time such as 2023-11-16 18:15:46.6805900")
    seconds = round((moment - _EPOCH).total_seconds())
    return seconds * _SECOND + int((match[2] or "0").ljust(12, "0"))
