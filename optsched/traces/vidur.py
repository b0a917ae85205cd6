"""Vidur's processed traces: ``num_prefill_tokens,num_decode_tokens`` and more columns.

Source: microsoft/vidur, ``data/processed_traces``. ``arrived_at``, in s, is missing where a trace has only lengths. The
total, where there is one, must be the sum; ``pd_ratio`` is ignored, as it is input over output in one file and output
over input in another.
"""

from __future__ import annotations

from optsched.traces.rows import Rows, TraceRow, time_ps, tokens
from optsched.traces.tables import Cells, read_table, require_sum

TIME, TOTAL = "arrived_at", "num_total_tokens"
LENGTHS = ("num_prefill_tokens", "num_decode_tokens")


def read_vidur(text: str) -> Rows:
    """Read the text of a file (see the module)."""
    return read_table(text, LENGTHS, vidur_row)


def vidur_row(cells: Cells) -> TraceRow:
    """Return a line's row."""
    arrival = time_ps(cells[TIME], TIME) if TIME in cells else 0
    lengths = [tokens(cells[column], column) for column in LENGTHS]
    if TOTAL in cells:
        require_sum(cells, TOTAL, lengths)
    prompt, output = lengths
    return TraceRow(arrival, prompt, output)
