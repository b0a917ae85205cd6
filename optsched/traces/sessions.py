"""Prefixes of traces: Mooncake's hashes, coding sessions, and conversations made of single turns."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from optsched.model.errors import InputError
from optsched.model.prefixes import Path, PrefixNode, PrefixTree
from optsched.traces.json_lines import Entry, as_entry, member, read_json_lines
from optsched.traces.mooncake import read_mooncake
from optsched.traces.prefixed import Chunk, PrefixedRows, share
from optsched.traces.rows import SECOND_PS, TraceRow, plain, time_ps, token_count

_MOONCAKE_BLOCK = 512
_CODING_BLOCK = 64


def read_mooncake_prefixes(text: str) -> PrefixedRows:
    """Read one of Mooncake's traces with the prefixes of its ``hash_ids`` (`optsched.traces.mooncake`).

    A hash identifies 512 tokens and all before them; the last one of a prompt may have fewer.

    Raises
    ------
    InputError
        For the first line that cannot be read, or in which a hash is behind another one than before.
    """
    found = read_mooncake(text)
    if found.bad:
        raise found.bad[0]
    sequences = []
    entries: list[Sequence[int]] = []
    blocks = _BlockParents()

    def hashes(entry: Entry, _: int) -> tuple[()]:
        blocks.add(entry["hash_ids"])
        entries.append(entry["hash_ids"])
        return ()

    again = read_json_lines(text, hashes)
    if again.bad:
        raise again.bad[0]
    for row, names in zip(found.rows, entries, strict=True):
        chunks = [(name, min(_MOONCAKE_BLOCK, row.input - _MOONCAKE_BLOCK * place)) for place, name in enumerate(names)]
        sequences.append(chunks)
    return share(found.rows, sequences)


def read_coding_prefixes(text: str) -> PrefixedRows:
    """Read coding sessions with the prefixes of their turns (`optsched.traces.agentic`).

    The ``hash_ids`` of a request identify its full blocks of 64 tokens, and mean something within its conversation. A
    turn that goes on from an earlier one begins with that one's blocks. Requests without output are left out.

    Raises
    ------
    InputError
        For the first line that cannot be read, or in which a hash is behind another one than before in its
        conversation.
    """
    rows: list[TraceRow] = []
    sequences: list[list[Chunk]] = []

    def conversation(entry: Entry, number: int) -> tuple[()]:
        pending = [(entry, 0)]
        # Each block is one object, however often it is sent again: sessions of 85,000 tokens have 1,300 a turn.
        known: dict[object, Chunk] = {}
        blocks = _BlockParents()
        while pending:
            session, start_ps = pending.pop()
            requests = member(session, "requests")
            if not isinstance(requests, list):
                raise InputError("requests", plain(requests), "a list")
            for request in requests:
                turn = as_entry(request, "requests")
                arrival = start_ps + time_ps(member(turn, "t"), "t")
                if turn.get("type") == "subagent":
                    pending.append((turn, arrival))
                elif member(turn, "out") != 0:
                    tokens, output = (token_count(member(turn, name), name) for name in ("in", "out"))
                    hashes = member(turn, "hash_ids")
                    if not isinstance(hashes, list) or len(hashes) > tokens // _CODING_BLOCK:
                        raise InputError("hash_ids", plain(hashes), f"at most one for every {_CODING_BLOCK} of in")
                    if not all(type(name) is int for name in hashes):
                        raise InputError("hash_ids", hashes, "integers")
                    blocks.add(hashes)
                    rows.append(TraceRow(arrival, tokens, output, conversation=number))
                    sequences.append([known.setdefault(name, ((number, name), _CODING_BLOCK)) for name in hashes])
        return ()

    found = read_json_lines(text, conversation)
    if found.bad:
        raise found.bad[0]
    return share(rows, sequences)


class _BlockParents:
    """The block in front of each block, None for one that a prompt begins with.

    As every prompt begins with a block without parent, there are no cycles where each block has one parent at most.
    """

    def __init__(self) -> None:
        self._parents: dict[int, int | None] = {}
        self._latest: list[int] = []

    def add(self, hashes: list[int]) -> None:
        """Add a prompt's blocks; raise `InputError` if one is behind another than before."""
        parents = self._parents
        # Turns begin with all that was there before.
        known = len(self._latest) if hashes[: len(self._latest)] == self._latest else 0
        before = hashes[known - 1] if known else None
        for place in range(known, len(hashes)):
            name = hashes[place]
            if parents.setdefault(name, before) != before:
                where = "as the first" if parents[name] is None else f"behind {parents[name]}"
                expected = f"this block only {where}, as before: a block has one parent"
                raise InputError(f"hash_ids[{place}]", name, expected)
            before = name
        self._latest = hashes


def conversations(turns: Sequence[TraceRow], mean_turns: float, think_s: float, rate: float, seed: int) -> PrefixedRows:
    """Make conversations of single turns, such as ShareGPT's, whose trace does not record which belong together.

    The prompt of a turn is all that was said before and its own input; the node of a turn holds its own input and its
    output, and the path of the next turn contains it.

    Parameters
    ----------
    turns
        Lengths of the turns, in the order in which they are used.
    mean_turns
        Mean number of turns of a conversation, which is geometric, ≥ 1.
    think_s
        Mean time between the arrivals of two turns of a conversation in s, exponential.
    rate
        Conversations that begin per second, by a Poisson process.
    seed
        Of all random numbers.
    """
    rng = Random(f"{seed} conversations")
    rows, paths, nodes = list[TraceRow](), list[Path](), list[PrefixNode]()
    begin_s, index, number = 0.0, 0, 0
    while index < len(turns):
        begin_s += rng.expovariate(rate)
        time_s, before = begin_s, 0
        path: Path = ()
        while index < len(turns):
            turn = turns[index]
            node = PrefixNode(f"c{number}t{len(path)}", turn.input + turn.output, path[-1] if path else None)
            nodes.append(node)
            path = (*path, node.name)
            arrival = round(time_s * SECOND_PS)
            rows.append(TraceRow(arrival, before + turn.input, turn.output, turn.predicted, conversation=number))
            paths.append(path)
            before += node.tokens
            index += 1
            time_s += rng.expovariate(1 / think_s)
            if rng.random() < 1 / mean_turns:
                break
        number += 1
    return PrefixedRows(tuple(rows), tuple(paths), PrefixTree(tuple(nodes))).in_order()
