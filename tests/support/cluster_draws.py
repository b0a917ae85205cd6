"""Random clusters with everything at once: unequal machines, roles, links, moves, caches, aged views."""

from __future__ import annotations

import random

from optsched import (
    CacheMode,
    CacheRules,
    CostModel,
    Instance,
    Limits,
    Link,
    MachineGroup,
    PrefixNode,
    PrefixTree,
    Request,
    Role,
    Rules,
)
from optsched.model.cluster import ViewAge


def drawn_cluster(seed: int) -> Instance:
    """Return two to four machines and at most 20 requests, with little memory; it may be infeasible."""
    rng = random.Random(f"cluster {seed}")
    nodes: list[PrefixNode] = []
    for number in range(rng.randint(0, 6)):
        parent = rng.choice([None, *(node.name for node in nodes)])
        nodes.append(PrefixNode(f"n{number}", rng.randint(1, 5), parent))
    requests = _requests(nodes, rng)
    block = rng.choice([1, 1, 2, 3, 4])

    def group(role: Role) -> MachineGroup:
        budget = rng.randint(6, 20)
        limits = Limits(
            rng.randint(14, 30), budget, rng.randint(2, budget), rng.choice([None, None, 2, 4]),
            block if rng.random() < 0.8 else rng.choice([1, 2, 3]),
        )  # fmt: skip
        rules = Rules(rng.random() < 0.8, rng.random() < 0.85, rng.random() < 0.85, migration=rng.random() < 0.5)
        cost = CostModel(
            rng.randint(1, 6), rng.randint(0, 2), decode_kv=rng.randint(0, 1), decode_req=rng.randint(0, 1),
            prefill_sq=rng.randint(0, 1), prefill_kv=rng.randint(0, 1), prefill_req=rng.randint(0, 2),
        )  # fmt: skip
        cache = CacheRules(rng.choice(list(CacheMode)), rng.random() < 0.5)
        return MachineGroup(1, role, limits, rules, cost, cache=cache)

    apart = [Role.PREFILL] * rng.randint(1, 2) + [Role.DECODE] * rng.randint(1, 2)
    together = [Role.BOTH] * rng.randint(2, 4)
    roles = rng.choice([apart, apart, [Role.PREFILL, Role.DECODE, Role.BOTH], together, together, together])
    first = group(roles[0])
    groups = tuple(MachineGroup(1, role) for role in roles)
    if rng.random() < 0.6:
        groups = (first, *map(group, roles[1:]))
    assert first.limits is not None
    assert first.rules is not None
    assert first.cost is not None
    assert first.cache is not None
    links = Link(
        rng.randint(0, 5), rng.randint(0, 2), rng.random() < 0.4, rng.random() < 0.5, rng.choice([1, 2, 3]),
        rng.random() < 0.4, rng.choice([None, 7]),
    )  # fmt: skip
    view = rng.choice([ViewAge(), ViewAge(), ViewAge(7), ViewAge(0, 9), ViewAge(11, 5)])
    return Instance(
        "drawn", first.limits, first.rules, first.cost, requests, machine_groups=groups, links=links,
        prefixes=PrefixTree(tuple(nodes)), cache=first.cache, view=view,
    )  # fmt: skip


def _requests(nodes: list[PrefixNode], rng: random.Random) -> tuple[Request, ...]:
    by_name = {node.name: node for node in nodes}
    paths: list[tuple[str, ...]] = [()]
    for node in nodes:
        above = next((path for path in paths if path[-1:] == (node.parent,)), ())
        paths.append((*above, node.name))
    requests, now = [], 0
    for _ in range(rng.randint(1, rng.choice([10, 10, 20]))):
        now += rng.choice([0, 0, 1, 3, 10, 40])
        prompt, output = rng.randint(1, 9), rng.choice([1, 2, 3, 6, rng.randint(1, 10)])
        fitting = [path for path in paths if sum(by_name[name].tokens for name in path) <= prompt + output]
        requests.append(
            Request(
                prompt, output, now, rng.randint(0, 3), slo_e2e_ps=rng.choice([None, 30, 100]),
                predicted_output=rng.choice([None, 1, output, output + 3]), prefix=rng.choice(fitting),
            )
        )  # fmt: skip
    return tuple(requests)
