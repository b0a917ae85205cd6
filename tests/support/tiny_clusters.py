"""Random tiny clusters with prefixes, caches, roles and links, and random changes of schedules."""

from __future__ import annotations

import random
from typing import Any

from optsched import (
    Batch,
    CacheMode,
    CacheRules,
    CostModel,
    Instance,
    Limits,
    Link,
    MachineGroup,
    Move,
    PrefixNode,
    PrefixTree,
    Request,
    Role,
    Rules,
    Schedule,
    replace,
)


def random_tiny(rng: random.Random, *, requests: int = 3, longest: int = 5, outputs: int = 3) -> Instance:
    """Return an instance of two machines, or one with a cache, and at most 3 requests that share prefixes."""
    nodes = [PrefixNode("a", rng.randint(1, 4)), PrefixNode("b", rng.randint(1, 3), "a")]
    nodes += [PrefixNode("c", rng.randint(1, 3), "a"), PrefixNode("d", rng.randint(1, 4))]
    paths = [(), ("a",), ("a", "b"), ("a", "c"), ("d",), ("a", "b")]
    lengths = {node.name: node.tokens for node in nodes}
    found = []
    for _ in range(rng.randint(1, requests)):
        prompt, output = rng.randint(1, longest), rng.randint(1, outputs)
        fitting = [path for path in paths if sum(lengths[name] for name in path) <= prompt + output]
        arrival = rng.choice([0, 0, rng.randint(1, 20)])
        slo = rng.choice([None, rng.randint(5, 40)])
        found.append(
            Request(prompt, output, arrival, rng.randint(0, 2), slo_e2e_ps=slo, prefix=rng.choice(fitting[-3:]))
        )
        if rng.random() < 0.4 and len(found) < requests:
            found.append(found[-1])

    def machine(role: Role) -> MachineGroup:
        block = rng.choice([1, 2, 2, 3])
        chunked = rng.random() < 0.7
        prefill = rng.randint(2, 8) if chunked else 8
        limits = Limits(
            rng.randint(8, 14) // block * block + rng.randint(0, 1), 9, prefill, rng.choice([None, None, 2]), block
        )
        rules = Rules(rng.random() < 0.8, chunked, rng.random() < 0.8, migration=rng.random() < 0.6)
        cost = CostModel(
            rng.randint(1, 4), rng.randint(0, 2), decode_kv=rng.randint(0, 1), prefill_sq=rng.randint(0, 1),
            prefill_kv=rng.randint(0, 1),
        )  # fmt: skip
        cache = CacheRules(rng.choice(list(CacheMode)), rng.random() < 0.5)
        return MachineGroup(1, role, limits, rules, cost, cache=cache)

    kind = rng.random()
    if kind < 0.15:
        only = machine(Role.BOTH)
        assert only.limits is not None
        assert only.rules is not None
        assert only.cost is not None
        cache = CacheRules(rng.choice([CacheMode.PREFIX, CacheMode.ALL]), rng.random() < 0.5)
        return Instance(
            "tiny", only.limits, only.rules, only.cost, tuple(found), prefixes=PrefixTree(tuple(nodes)), cache=cache
        )
    roles = (Role.PREFILL, Role.DECODE) if kind < 0.4 else (Role.BOTH, rng.choice(list(Role)))
    machines = tuple(machine(role) for role in roles)
    links = Link(rng.randint(0, 3), rng.randint(0, 2), rng.random() < 0.5, rng.random() < 0.5, rng.choice([1, 2, 3]))
    # Of its own generator: what else is drawn stays as it is.
    links = replace(links, layerwise=random.Random(str(found)).random() < 0.4)
    first = machines[0]
    assert first.limits is not None
    assert first.rules is not None
    assert first.cost is not None
    return Instance(
        "tiny", first.limits, first.rules, first.cost, tuple(found), machine_groups=machines, links=links,
        prefixes=PrefixTree(tuple(nodes)),
    )  # fmt: skip


def mutated(schedule: Schedule, rng: random.Random, instance: Instance) -> Schedule:
    """Return a schedule with one random change, which may leave it as it is."""
    count = len(instance.requests)

    def near(value: int) -> int:
        return max(0, value + rng.choice([-2, -1, 1, 1, 2]))

    def pairs(found: Any) -> tuple[tuple[int, int], ...]:
        listed = list(found)
        kind = rng.random()
        if kind < 0.4 and listed:
            listed.pop(rng.randrange(len(listed)))
        elif kind < 0.7 or not listed:
            listed.insert(rng.randint(0, len(listed)), (rng.randint(0, count - 1), rng.randint(0, 3)))
        else:
            at = rng.randrange(len(listed))
            request, number = listed[at]
            listed[at] = (request, near(number)) if rng.random() < 0.7 else (near(request), number)
        return tuple(listed)

    def runs(found: Any) -> tuple[tuple[int, int], ...]:
        changed = [(request, max(1, tokens)) for request, tokens in pairs(found)]
        if rng.random() < 0.3:
            rng.shuffle(changed)
        return tuple(changed)

    def batch_with(batch: Batch) -> Batch:
        match rng.choice(["start", "end", "run", "run", "evict", "replica", "hits", "drop", "shift"]):
            case "start":
                return replace(batch, start_ps=near(batch.start_ps))
            case "end":
                return replace(batch, end_ps=near(batch.end_ps))
            case "shift":
                by = near(0)
                return replace(batch, start_ps=batch.start_ps + by, end_ps=batch.end_ps + by)
            case "run":
                return replace(batch, run=runs(batch.run))
            case "evict":
                return replace(batch, evict=batch.evict[1:] if batch.evict else (rng.randrange(count),))
            case "replica":
                return replace(batch, replica=rng.choice([0, 1, 2]))
            case "hits":
                return replace(batch, hits=pairs(batch.hits))
            case _:
                return replace(batch, drop=pairs(batch.drop))

    def move_with(move: Move) -> Move:
        match rng.choice(["request", "source", "target", "start", "end", "drop", "stages", "aborted", "shift"]):
            case "request":
                return replace(move, request=rng.randint(0, count))
            case "source":
                return replace(move, source=rng.choice([0, 1, 2]))
            case "target":
                return replace(move, target=rng.choice([0, 1, 2]))
            case "start":
                return replace(move, start_ps=near(move.start_ps))
            case "end":
                return replace(move, end_ps=near(move.end_ps))
            case "shift":
                by = near(0)
                stages = tuple(each + by for each in move.stages_ps)
                return replace(move, start_ps=move.start_ps + by, end_ps=move.end_ps + by, stages_ps=stages)
            case "drop":
                return replace(move, drop=pairs(move.drop))
            case "stages":
                listed = [*move.stages_ps]
                if listed and rng.random() < 0.5:
                    listed.pop(rng.randrange(len(listed)))
                else:
                    listed.insert(rng.randint(0, len(listed)), near(move.end_ps))
                return replace(move, stages_ps=tuple(listed))
            case _:
                return replace(move, aborted=not move.aborted)

    batches, moves, routes = list(schedule.batches), list(schedule.moves), list(schedule.routes)
    kind = rng.random()
    if kind < 0.5 or (not moves and kind < 0.7):
        at = rng.randrange(len(batches))
        batches[at] = batch_with(batches[at])
    elif kind < 0.55:
        batches.pop(rng.randrange(len(batches)))
    elif kind < 0.6 and len(batches) > 1:
        at = rng.randrange(len(batches) - 1)
        batches[at : at + 2] = batches[at + 1], batches[at]
    elif kind < 0.9 and moves:
        at = rng.randrange(len(moves))
        moves[at] = move_with(moves[at])
    elif kind < 0.93 and moves:
        moves.pop(rng.randrange(len(moves)))
    elif kind < 0.96:
        start = rng.randint(0, batches[-1].end_ps)
        moves.append(Move(rng.randrange(count), rng.randint(0, 1), rng.randint(0, 1), start, start + rng.randint(0, 4)))
        moves.sort(key=lambda move: move.start_ps)
    elif routes:
        routes[rng.randrange(len(routes))] = rng.choice([0, 1, 2])
    else:
        routes = [0] * count
    return Schedule(tuple(batches), tuple(routes), tuple(moves))
