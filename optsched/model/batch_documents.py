"""The batches of a schedule as documents, whether they are objects or tables."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from optsched.model.schedule import Batch, Pairs, Schedule
from optsched.model.table import BatchTable, MachineTable

if TYPE_CHECKING:
    from optsched.model.table import Ints, ShortInts


def batch_documents(schedule: Schedule) -> list[dict[str, Any]]:
    """Return a document for each batch; those of tables are made without an object for each."""
    if schedule.tables is not None:
        return [document for table in schedule.tables for document in _of_table(table, 0)]
    if schedule.machine_tables is not None:
        found = [each for machine, table in enumerate(schedule.machine_tables) for each in _of_table(table, machine)]
        return sorted(found, key=itemgetter("start_ps"))
    return [_of_batch(batch) for batch in schedule.batches]


def lists(pairs: Pairs) -> list[list[int]]:
    """Return pairs as a document has them."""
    return [list(pair) for pair in pairs]


def _of_batch(batch: Batch) -> dict[str, Any]:
    document: dict[str, Any] = {"replica": batch.replica, "start_ps": batch.start_ps, "end_ps": batch.end_ps}
    document |= {"run": lists(batch.run), "evict": list(batch.evict)}
    swaps = {"swap_out": list(batch.swap_out), "swap_in": list(batch.swap_in)}
    document |= {name: indices for name, indices in swaps.items() if indices}
    if batch.considered:
        document["considered"] = batch.considered
    if batch.hits:
        document["hits"] = lists(batch.hits)
    if batch.drop:
        document["drop"] = lists(batch.drop)
    return document | ({"repeat": batch.repeat} if batch.repeat > 1 else {})


def _of_table(table: BatchTable | MachineTable, machine: int) -> list[dict[str, Any]]:
    runs = _parts(table.run_begin, _pairs(table.request, table.tokens))
    evicted = _parts(table.evict_begin, table.evict.tolist())
    documents = [
        {"replica": machine, "start_ps": start, "end_ps": end, "run": run, "evict": evict}
        for start, end, run, evict in zip(table.start_ps.tolist(), table.end_ps.tolist(), runs, evicted, strict=True)
    ]
    if isinstance(table, MachineTable):
        hits = _parts(table.hit_begin, _pairs(table.hit, table.hit_tokens))
        drops = _parts(table.drop_begin, _pairs(table.drop, table.drop_number))
        for name, values in (("hits", hits), ("drop", drops)):
            for document, value in zip(documents, values, strict=True):
                if value:
                    document[name] = value
    for document, times in zip(documents, table.repeat.tolist(), strict=True):
        if times > 1:
            document["repeat"] = times
    return documents


def _pairs(named: ShortInts, numbers: ShortInts) -> list[list[int]]:
    return list(map(list, zip(named.tolist(), numbers.tolist(), strict=True)))


def _parts(begins: Ints, values: list[Any]) -> Iterable[list[Any]]:
    """Yield the values of one row after the other."""
    return (values[begin:end] for begin, end in pairwise(begins.tolist()))
