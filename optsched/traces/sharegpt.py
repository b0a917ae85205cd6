"""ShareGPT's lengths with a predictor's estimates: Vidur's columns and ``num_predicted_decode_tokens``.

Source: AKafakA/vidur_opt_scheduler, ``sharegpt-val-10k-predicted-len.csv``. No arrival times; a few rows have 0 tokens.
"""

from __future__ import annotations

from dataclasses import replace

from optsched.traces.rows import Rows, TraceRow, tokens
from optsched.traces.tables import Cells, read_table
from optsched.traces.vidur import LENGTHS, vidur_row

_PREDICTED = "num_predicted_decode_tokens"


def read_sharegpt(text: str) -> Rows:
    """Read the text of a file (see the module)."""
    return read_table(text, (*LENGTHS, _PREDICTED), _row)


def _row(cells: Cells) -> TraceRow:
    return replace(vidur_row(cells), predicted=tokens(cells[_PREDICTED], _PREDICTED))
