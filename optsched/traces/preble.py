"""Preble's five workloads, with the prefixes that their requests share (its section 3 and Table 1).

Table 1 gives mean and standard deviation of the prompt, the output, the share of the prompt that is shared, the share
of the key portion (the deepest node with more tokens than all before it), and the requests that share a key portion. A
workload is made of

- a root that all requests share: the system prompt;
- keys: a tool, a task, a problem, a video, a document;
- for `steps` > 1 a chain behind each key: a step's prompt holds all earlier steps and their outputs;
- tokens of the request's own.

Lengths are lognormal, as Table 1 has means and deviations only. The number of requests of a key is lognormal too, or by
Zipf's law: the k-th most popular of `keys` has a share in proportion to 1 / k^s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType

from optsched.model.errors import InputError, one_of
from optsched.model.prefixes import Path, PrefixNode, PrefixTree
from optsched.traces.lengths import lognormal
from optsched.traces.prefixed import PrefixedRows
from optsched.traces.rows import SECOND_PS, TraceRow


@dataclass(frozen=True)
class PrefixWorkload:
    """A workload.

    Parameters
    ----------
    source
        Where it is described.
    root
        Tokens of the system prompt.
    key, own, output
        Mean and standard deviation of the tokens of a key, of a request's own, and of its output.
    sharing
        Mean and standard deviation of the requests of a key.
    steps
        Steps of a chain; ``own`` is what a step adds to its prompt.
    zipf
        (keys, s) for requests by Zipf's law instead of `sharing`.
    alone
        Share of requests whose key no other has; the others' keys have `sharing`. Video QA has few own tokens and still
        shares 88 % of its prompts only, with a deviation of 32 %.
    """

    source: str
    root: int
    key: tuple[float, float]
    own: tuple[float, float]
    output: tuple[float, float]
    sharing: tuple[float, float]
    steps: int = 1
    zipf: tuple[int, float] | None = None
    alone: float = 0.0


_TOOLS = PrefixWorkload(
    "Preble, Table 1: Toolbench", 135, key=(1450, 720), own=(250, 120), output=(43, 16), sharing=(39, 64)
)

PREFIX_WORKLOADS: Mapping[str, PrefixWorkload] = MappingProxyType(
    {
        "preble-toolbench": _TOOLS,
        "preble-toolbench-zipf": replace(_TOOLS, source="Preble, Figure 10: Toolbench, Zipf 1.1", zipf=(100, 1.1)),
        "preble-embodied-agent": PrefixWorkload(
            "Preble, Table 1: Embodied Agent", 40, (1710, 370), (67, 20), (16, 13), (48, 8), steps=12, alone=0.02
        ),
        # The demonstrations are the key portion of all problems that are not longer.
        "preble-programming": PrefixWorkload(
            "Preble, Table 1: Programming", 2750, (1010, 1640), (110, 40), (190, 343), (10, 3)
        ),
        "preble-video-qa": PrefixWorkload(
            "Preble, Table 1: Video QA", 1, (9810, 5970), (55, 15), (4, 1.5), (8.6, 2), alone=0.11
        ),
        "preble-loogle": PrefixWorkload(
            "Preble, Table 1: LooGLE", 13, (22100, 5700), (1360, 900), (16, 9.9), (18, 8.6), alone=0.03
        ),
    }
)
"""Name → workload."""


def draw_prefixed(name: str, count: int, seed: int, rate: float) -> PrefixedRows:
    """Draw requests of a workload, in the order of arrival.

    Parameters
    ----------
    name
        One of `PREFIX_WORKLOADS`; an unknown one raises `InputError`.
    count
        How many requests.
    seed
        Of all random numbers.
    rate
        Requests per second of the Poisson process by which they arrive.
    """
    if name not in PREFIX_WORKLOADS:
        raise InputError("workload", name, one_of(name, PREFIX_WORKLOADS))
    workload = PREFIX_WORKLOADS[name]
    rng = Random(f"{seed} {name} prefixes")
    nodes = [PrefixNode("system", workload.root)]
    groups = _groups(workload, count, rng)
    rows, paths = [], list[Path]()
    key, own, output = (lognormal(*pair) for pair in (workload.key, workload.own, workload.output))
    # Which group each place in the order of arrival belongs to; the requests of a group keep their order.
    places = [group for group, size in enumerate(groups) for _ in range(size)]
    rng.shuffle(places)
    keys: dict[int, PrefixNode] = {}
    chains: dict[int, tuple[list[PrefixNode], int]] = {}
    time_s = 0.0
    for index, group in enumerate(places):
        if group not in keys:
            keys[group] = PrefixNode(f"key{group}", key(rng), "system")
            nodes.append(keys[group])
        new, tokens = own(rng), output(rng)
        chain, length = chains.get(group, ([], 0))
        if len(chain) == workload.steps:
            chain, length = [], 0
        before = workload.root + keys[group].tokens + length
        path = ["system", keys[group].name, *(node.name for node in chain)]
        if workload.steps > 1:
            last = chain[-1].name if chain else keys[group].name
            turn = PrefixNode(f"turn{index}", new + tokens, last)
            nodes.append(turn)
            path.append(turn.name)
            chains[group] = ([*chain, turn], length + turn.tokens)
        time_s += rng.expovariate(rate)
        rows.append(TraceRow(round(time_s * SECOND_PS), before + new, tokens))
        paths.append(tuple(path))
    return PrefixedRows(tuple(rows), tuple(paths), PrefixTree(tuple(nodes)))


def _groups(workload: PrefixWorkload, count: int, rng: Random) -> list[int]:
    """Return the requests of each key, ``count`` in all."""
    if workload.zipf is not None:
        keys, exponent = workload.zipf
        weights = [1 / rank**exponent for rank in range(1, keys + 1)]
        sizes = [0] * keys
        for chosen in rng.choices(range(keys), weights, k=count):
            sizes[chosen] += 1
        return sizes
    size = lognormal(*workload.sharing)
    sizes = [1] * round(workload.alone * count)
    left = count - len(sizes)
    while left:
        sizes.append(min(size(rng), left))
        left -= sizes[-1]
    return sizes
