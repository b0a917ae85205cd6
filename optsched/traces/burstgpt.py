"""BurstGPT: requests to ChatGPT and GPT-4 at Azure, as seconds since the first day's midnight.

Source: HPMLL/BurstGPT (Wang et al., *BurstGPT*). ``BurstGPT_3`` has two columns more than ``BurstGPT_1``, after the
first. Times are whole seconds, which requests share, and do not start at 0. A request with 0 tokens in and out failed.
"""

from __future__ import annotations

from optsched.model.errors import InputError
from optsched.traces.rows import Rows, TraceRow, time_ps, tokens
from optsched.traces.tables import Cells, read_table, require_sum

_TIME, _INPUT, _OUTPUT, _TOTAL = "Timestamp", "Request tokens", "Response tokens", "Total tokens"


def read_burstgpt(text: str) -> Rows:
    """Read the text of a file (see the module)."""
    return read_table(text, (_TIME, _INPUT, _OUTPUT, _TOTAL), _row)


def _row(cells: Cells) -> TraceRow:
    if cells[_INPUT].strip() == cells[_OUTPUT].strip() == "0":
        raise InputError(_INPUT, cells[_INPUT], "an integer ≥ 1; without input and output, the request failed")
    row = TraceRow(time_ps(cells[_TIME], _TIME), tokens(cells[_INPUT], _INPUT), tokens(cells[_OUTPUT], _OUTPUT))
    require_sum(cells, _TOTAL, (row.input, row.output))
    return row
