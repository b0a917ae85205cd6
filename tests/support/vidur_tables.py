"""A cost model that looks batch times up, for runs of simulators that do: Vidur's tables, after its predictor."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import isqrt
from pathlib import Path
from typing import TypeVar

from optsched.model.csv_text import read_records
from optsched.model.documents import read_text
from optsched.model.errors import InputError

_PS_PER_MS = 10**9
_LINEAR = ["num_tokens", "linear_ms"]
_DECODE = ["batch_size", "kv_cache_size", "decode_attention_ms"]
_PREFILL = ["kv_cache_size", "chunk_from", "chunk_to", "prefill_attention_ms"]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class TableCost:
    """Batch times by table, as Vidur adds them up (Agrawal et al., "Vidur", MLSys 2024).

    The time of a batch is the sum of three entries, in ps:

    - non-attention, by the tokens of the batch, rounded up to a multiple of ``token_step``;
    - decode attention, by the number of decode steps and the mean of what they read and the token that each runs, cut
      to an integer and then rounded up to a multiple of ``kv_step``;
    - prefill attention, by the cached tokens of all prefill steps, each rounded up to a multiple of ``kv_step``, and
      the root of the sum of the squares of their chunks, rounded to an integer.

    There is no closed form for repeated batches, so that simulators go step by step.

    Parameters
    ----------
    linear
        By tokens.
    decode
        By decode steps and tokens.
    prefill
        By cached tokens: last chunk of every run of chunks that take the same time, ascending, and these times.
    token_step, kv_step
        Grid of the tables.
    """

    linear: Mapping[int, int]
    decode: Mapping[tuple[int, int], int]
    prefill: Mapping[int, tuple[Sequence[int], Sequence[int]]]
    token_step: int = 8
    kv_step: int = 64

    def batch_ps(self, tokens: int, decodes: int, decode_kv_tokens: int, prefills: Iterable[tuple[int, int]]) -> int:
        """Return the duration of a batch in ps (see `optsched.model.cost.BatchCost`).

        Raises
        ------
        InputError
            If a table has no such entry.
        """
        time = _entry(self.linear, _up(tokens, self.token_step), "tokens")
        if decodes:
            mean = (decode_kv_tokens + decodes) // decodes
            time += _entry(self.decode, (decodes, _up(mean, self.kv_step)), "decode steps and tokens")
        cached = squares = 0
        for chunk, before in prefills:
            cached += _up(before, self.kv_step)
            squares += chunk**2
        if squares:
            lasts, times = _entry(self.prefill, cached, "cached tokens of prefills")
            root = isqrt(squares)
            # (root + 1/2)² is no integer.
            place = bisect_left(lasts, root + (squares > root * (root + 1)))
            if place == len(lasts):
                raise InputError(
                    "chunk", root, f"at most {lasts[-1]} tokens with {cached} cached ones, as in the table"
                )
            time += times[place]
        return time


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


def _entry(table: Mapping[_Key, _Value], key: _Key, name: str) -> _Value:
    try:
        return table[key]
    except KeyError:
        raise InputError(name, key, "an entry of the table of batch times") from None


def read_vidur_tables(folder: str | Path) -> TableCost:
    """Read ``costmodel_linear.csv``, ``costmodel_decode_attention.csv`` and ``costmodel_prefill_attention.csv``.

    Times are in ms of a whole iteration; of prefills every row is for chunks from one size to another.

    Raises
    ------
    InputError
        If a file cannot be read, or a row is wrong.
    """
    place = Path(folder)
    linear = {row[0]: row[-1] for row in _rows(place / "costmodel_linear.csv", _LINEAR)}
    decode = {(row[0], row[1]): row[-1] for row in _rows(place / "costmodel_decode_attention.csv", _DECODE)}
    prefill: dict[int, tuple[list[int], list[int]]] = {}
    for cached, first, last, time in _rows(place / "costmodel_prefill_attention.csv", _PREFILL):
        lasts, times = prefill.setdefault(cached, ([], []))
        if first != (lasts[-1] if lasts else 0) + 1 or last < first:
            wanted = f"chunks after the row before, of {cached} cached tokens"
            raise InputError("chunk_from", first, wanted, str(place / "costmodel_prefill_attention.csv"))
        lasts.append(last)
        times.append(time)
    return TableCost(linear, decode, prefill)


def _rows(path: Path, header: list[str]) -> Iterator[tuple[int, ...]]:
    """Yield the rows of a table: integers, and then a time in ms, as ps."""
    for number, row in read_records(read_text(path), str(path), header):
        try:
            *sizes, time = row
            if len(row) != len(header):
                raise ValueError
            yield (*map(int, sizes), round(Decimal(time) * _PS_PER_MS))
        except (ValueError, ArithmeticError):
            wanted = f"{len(header) - 1} integers and a time in ms"
            raise InputError(f"line {number}", ",".join(row), wanted, str(path)) from None
