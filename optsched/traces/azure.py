"""Azure's LLM inference traces of 2023: ``TIMESTAMP,ContextTokens,GeneratedTokens``.

Source: Azure/AzurePublicDataset, AzureLLMInferenceDataset2023. Time stamps have seven digits after the second and no
time zone; lines may end in CR LF, the last one in nothing.
"""

from __future__ import annotations

import re
from datetime import datetime

from optsched.model.errors import InputError
from optsched.traces.rows import SECOND_PS, Rows, TraceRow, tokens
from optsched.traces.tables import Cells, read_table

_TIME, _INPUT, _OUTPUT = "TIMESTAMP", "ContextTokens", "GeneratedTokens"
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,12}))?")
_EPOCH = datetime(1970, 1, 1)


def read_azure(text: str) -> Rows:
    """Read the text of a file (see the module)."""
    return read_table(text, (_TIME, _INPUT, _OUTPUT), _row)


def _row(cells: Cells) -> TraceRow:
    return TraceRow(_stamp_ps(cells[_TIME]), tokens(cells[_INPUT], _INPUT), tokens(cells[_OUTPUT], _OUTPUT))


def _stamp_ps(text: str) -> int:
    """Read a time stamp, exactly."""
    match = _STAMP.fullmatch(text.strip())
    try:
        moment = datetime.fromisoformat(match[1]) if match else None
    except ValueError:
        moment = None
    if match is None or moment is None:
        raise InputError(_TIME, text, "a time such as 2023-11-16 18:15:46.6805900")
    seconds = round((moment - _EPOCH).total_seconds())
    return seconds * SECOND_PS + int((match[2] or "0").ljust(12, "0"))
