"""Mooncake's traces: JSON lines with ``timestamp`` (ms), ``input_length``, ``output_length`` and ``hash_ids``.

Source: kvcache-ai/Mooncake, FAST25-release (Qin et al., *Mooncake*, FAST 2025). Arrivals come in ticks of 3 s. A hash
represents a block of 512 prompt tokens, the last of which may be partial; requests share what their leading hashes
share. The hashes are checked, not kept.
"""

from __future__ import annotations

from optsched.model.errors import InputError, Said
from optsched.traces.json_lines import Entry, member, read_json_lines
from optsched.traces.rows import SECOND_PS, Rows, TraceRow, plain, time_ps, token_count

_BLOCK = 512
_TIME, _INPUT, _OUTPUT, _HASHES = "timestamp", "input_length", "output_length", "hash_ids"


def read_mooncake(text: str) -> Rows:
    """Read the text of a file (see the module)."""
    return read_json_lines(text, lambda entry, _: (_row(entry),))


def _row(entry: Entry) -> TraceRow:
    row = TraceRow(
        time_ps(member(entry, _TIME), _TIME, SECOND_PS // 1000),
        token_count(member(entry, _INPUT), _INPUT),
        token_count(member(entry, _OUTPUT), _OUTPUT),
    )
    hashes = member(entry, _HASHES)
    if not isinstance(hashes, list):
        raise InputError(_HASHES, plain(hashes), "a list")
    for index, name in enumerate(hashes):
        if type(name) is not int:
            raise InputError(f"{_HASHES}[{index}]", plain(name), "an integer")
    blocks = -(-row.input // _BLOCK)
    if len(hashes) != blocks:
        raise InputError(_HASHES, Said(f"{len(hashes)} blocks"), f"{blocks}, one for every {_BLOCK} input tokens")
    return row
