"""Stand-ins for traces of conversations that we may not ship: sessions whose turns begin with all that came before.

A trace is measured as sessions: a request goes on from the request that has the last block that it shares, else it
begins one. Tables hold quantiles at `LEVELS`; what is drawn lies evenly between two of them.

What is lost: that lengths, pauses and numbers of turns depend on each other, that sessions branch, that coding sessions
of one conversation share a system prompt, and how the rate changes.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from random import Random

from optsched.calibrate.library import cost_model
from optsched.model.cluster import CacheMode, CacheRules
from optsched.model.documents import Suite
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.prefixes import Path, PrefixNode, PrefixTree
from optsched.traces.prefixed import PrefixedRows
from optsched.traces.rows import TraceRow

LEVELS = (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 0.95, 0.99, 1.0)
"""Of the quantiles in a table."""
MACHINES = 4
_PS_PER_MS = 10**9

Table = tuple[int, ...]


@dataclass(frozen=True)
class Sessions:
    """What is measured of a trace, and the machines for its stand-in.

    Parameters
    ----------
    described
        The trace, with its numbers of requests and sessions.
    head
        Tokens that all prompts begin with.
    turns, first, output, added
        Tables of the turns of a session; in tokens, of the first prompt, of outputs, and of what a later prompt has
        beyond the one before it and its output.
    pause_ms
        Table of the times between the arrivals of two turns.
    requests, rates
        Requests of each instance, and sessions that begin per 1,000 s.
    limits
        Of each machine.
    """

    described: str
    head: int
    turns: Table
    first: Table
    output: Table
    added: Table
    pause_ms: Table
    requests: int
    rates: tuple[int, ...]
    limits: Limits


MOONCAKE = Sessions(
    described="Mooncake's conversation trace (12,031 requests, 7,928 sessions)",
    head=512,
    turns=(1, 1, 1, 1, 1, 1, 2, 2, 4, 7, 43),
    first=(891, 923, 1364, 2745, 5028, 7763, 12_497, 21_223, 36_998, 87_172, 126_195),
    output=(1, 32, 156, 275, 350, 410, 472, 566, 698, 1120, 2000),
    added=(1, 1, 7, 13, 25, 75, 491, 3735, 7154, 16_705, 91_467),
    pause_ms=(3000, 48_000, 69_000, 92_998, 125_998, 177_000, 266_998, 432_000, 621_000, 1_481_999, 3_030_000),
    requests=1000,
    rates=(250, 500, 1000),
    limits=Limits(kv_tokens=198_656, batch_tokens=8192, prefill_tokens=8192, batch_requests=256, kv_block=512),
)
CODING = Sessions(
    described="the coding sessions of kv-cache-tester (6,952 requests, 235 sessions)",
    head=0,
    turns=(1, 4, 8, 15, 21, 29, 46, 66, 84, 99, 129),
    first=(8868, 15_927, 19_563, 29_756, 44_665, 71_309, 112_686, 165_030, 279_541, 598_321, 829_382),
    output=(2, 110, 135, 164, 205, 275, 410, 694, 1406, 3504, 12_625),
    added=(1, 2, 35, 117, 253, 462, 956, 2411, 6056, 17_245, 234_962),
    pause_ms=(4000, 8000, 10_000, 13_000, 16_000, 21_000, 33_000, 80_000, 224_000, 1_334_000, 27_442_000),
    requests=500,
    rates=(2, 5, 10),
    limits=Limits(kv_tokens=1_048_576, batch_tokens=8192, prefill_tokens=8192, batch_requests=256, kv_block=64),
)


def drawn_from(table: Table, rng: Random) -> int:
    """Return a number between two quantiles of a table, each level as likely as any."""
    level = rng.random()
    place = bisect_right(LEVELS, level) - 1
    share = (level - LEVELS[place]) / (LEVELS[place + 1] - LEVELS[place])
    return int(table[place] + share * (table[place + 1] - table[place]))


def draw_sessions(sessions: Sessions, count: int, seed: int, rate: float) -> PrefixedRows:
    """Draw requests of sessions that begin by a Poisson process.

    A session ends early where its next prompt and output would exceed the longest first prompt and output together; the
    last one where the requests are enough.

    Parameters
    ----------
    sessions
        What is measured.
    count
        Number of requests.
    seed
        Of all random numbers.
    rate
        Sessions that begin per second.
    """
    rng = Random(f"{seed} sessions")
    longest = sessions.first[-1] + sessions.output[-1]
    nodes = [PrefixNode("head", sessions.head)] if sessions.head else []
    front: Path = tuple(node.name for node in nodes)
    rows, paths = list[TraceRow](), list[Path]()
    begin_ms, number = 0.0, 0
    while len(rows) < count:
        begin_ms += 1000 * rng.expovariate(rate)
        now, before, path = round(begin_ms), sessions.head, front
        own = max(1, drawn_from(sessions.first, rng) - sessions.head)
        for turn in range(min(drawn_from(sessions.turns, rng), count - len(rows))):
            output = drawn_from(sessions.output, rng)
            if turn and before + own + output > longest:
                break
            name = f"c{number}t{turn}"
            nodes.append(PrefixNode(name, own + output, path[-1] if path else None))
            path = (*path, name)
            rows.append(TraceRow(now * _PS_PER_MS, before + own, output, conversation=number))
            paths.append(path)
            before += own + output
            own = drawn_from(sessions.added, rng)
            now += drawn_from(sessions.pause_ms, rng)
        number += 1
    return PrefixedRows(tuple(rows), tuple(paths), PrefixTree(tuple(nodes))).in_order()


def session_suite(name: str, sessions: Sessions, profile: str) -> Suite:
    """Return a stand-in at several rates on machines that cache all blocks, on a cost profile."""
    cost, limits = cost_model(profile), sessions.limits
    instances = []
    for rate in sessions.rates:
        found = draw_sessions(sessions, sessions.requests, 1, rate / 1000)
        requests = tuple(
            Request(row.input, row.output, arrival_ps=row.arrival_ps, prefix=path)
            for row, path in zip(found.rows, found.paths, strict=True)
        )
        cache = CacheRules(CacheMode.ALL)
        instances.append(
            Instance(
                f"{name}-{rate}", limits, Rules(), cost, requests, replicas=MACHINES, prefixes=found.tree, cache=cache
            )
        )
    shown = [str(rate) for rate in sessions.rates]
    description = (
        f"Stand-in for {sessions.described}: {sessions.requests:,} requests with quantiles of its turns, lengths and "
        f"pauses, {', '.join(shown[:-1])} and {shown[-1]} sessions in 1,000 s, on {MACHINES} machines that cache all "
        f"blocks of {limits.kv_block} tokens; M = {limits.kv_tokens:,} each."
    )
    return Suite(name, description, tuple(instances))
