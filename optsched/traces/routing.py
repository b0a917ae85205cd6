"""Suites of routing: optima that are proved, Preble's workloads on 8 and 32 machines, and splits into roles."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from optsched.calibrate.library import cost_model
from optsched.model.cluster import CacheMode, CacheRules, Link, Role
from optsched.model.cost import CostModel
from optsched.model.documents import Suite
from optsched.model.domain import replace
from optsched.model.instance import Instance, Limits, MachineGroup, Request, Rules
from optsched.model.prefixes import PrefixNode, PrefixTree
from optsched.traces.clusters import prefixed_instance
from optsched.traces.preble import draw_prefixed

SIZES = ((2, 8), (3, 9), (4, 12))
"""Machines and requests of the small clusters; the last only with all requests at once."""
OUTPUT = 4
"""Tokens of most outputs; a third has one less."""
PREFIXED = (2, 6)
"""Machines and requests of those with prefixes."""
_SEEDS = (1, 2)
_STEP_PS = 10**9
_BATCH = 4096

PREBLE = ("toolbench", "embodied-agent", "programming", "video-qa", "loogle")
PREBLE_SIZES = ((200, 8), (2000, 32))
"""Requests and machines."""
_PREBLE_RATE = 2
"""Requests per second and machine."""

PD_MACHINES = 4
_PD_REQUESTS, _PD_RATES = 24, (8, 48, 96)
_PD_LINK = Link(kv_ps=2**19 * 10**12 // (125 * 10**8))
"""100 Gb/s for the 2¹⁹ bytes of a token of Llama-2-7B."""


def routing_small(profile: str) -> Suite:
    """Return clusters that are small enough to prove the best assignment and schedules together."""
    cost = cost_model(profile)
    description = (
        f"Clusters for joint optima: {', '.join(f'{n} requests on {m}' for m, n in SIZES)} machines, and "
        f"{PREFIXED[1]} requests with prefixes on {PREFIXED[0]}, outputs of {OUTPUT - 1} and {OUTPUT} tokens, whole "
        "prefills, all at once and as they arrive."
    )
    return Suite("routing-small", description, (*_plain(cost), *_prefixed(cost)))


def _plain(cost: CostModel) -> Iterator[Instance]:
    for machines, number in SIZES:
        for late in (False, True) if machines < 4 else (False,):
            for seed in _SEEDS:
                rng = Random(f"{seed} {machines}x{number} {late}")
                requests = []
                for _ in range(number):
                    prompt = rng.choice((4, 8, 12, 16, 24, 32, 48, 64))
                    output = rng.choice((OUTPUT - 1, OUTPUT, OUTPUT))
                    requests.append(Request(prompt, output, rng.randrange(6 * OUTPUT) * _STEP_PS if late else 0))
                requests.sort(key=lambda request: (request.arrival_ps, request.input, request.output))
                held = sum(2 * request.input + request.output - 1 for request in requests)
                capacity = max(5 * held // (4 * number), *(request.peak_tokens for request in requests))
                name = f"routing-small-{machines}x{number}{'-online' if late else ''}-{seed}"
                rules = Rules(chunked_prefill=False)
                yield Instance(name, Limits(capacity, _BATCH, _BATCH), rules, cost, tuple(requests), replicas=machines)


def _prefixed(cost: CostModel) -> Iterator[Instance]:
    tree = PrefixTree(
        (PrefixNode("s", 8), PrefixNode("a", 24, "s"), PrefixNode("b", 32, "s"), PrefixNode("c", 16, "a"))
    )
    lengths = {("s",): 8, ("s", "a"): 32, ("s", "b"): 40, ("s", "a", "c"): 48}
    machines, number = PREFIXED
    for late in (False, True):
        for seed in _SEEDS:
            rng = Random(f"{seed} prefixes {late}")
            requests = []
            for _ in range(number):
                path = rng.choice(list(lengths))
                prompt, output = lengths[path] + rng.choice((4, 8, 20)), rng.choice((OUTPUT - 1, OUTPUT, OUTPUT))
                arrival = rng.randrange(6 * OUTPUT) * _STEP_PS if late else 0
                requests.append(Request(prompt, output, arrival, prefix=path))
            requests.sort(key=lambda request: request.arrival_ps)
            block = 4
            capacity = (max(request.peak_tokens for request in requests) + 40) // block * block
            name = f"routing-small-prefixes{'-online' if late else ''}-{seed}"
            rules = Rules(chunked_prefill=False, eviction=False)
            limits = Limits(capacity, _BATCH, _BATCH, kv_block=block)
            cache = CacheRules(CacheMode.PREFIX)
            yield Instance(name, limits, rules, cost, tuple(requests), replicas=machines, prefixes=tree, cache=cache)


def prefix_preble(profile: str) -> Suite:
    """Return Preble's five workloads on few and on many machines."""
    cost = cost_model(profile)
    shown = " and ".join(f"{number:,} requests on {machines} machines" for number, machines in PREBLE_SIZES)
    description = (
        f"Preble's five workloads (Table 1): {shown} that cache all blocks of 16 tokens; {_PREBLE_RATE} requests/s and "
        "machine."
    )
    instances = (
        prefixed_instance(
            f"prefix-preble-{name}-{number}",
            draw_prefixed(f"preble-{name}", number, 1, _PREBLE_RATE * machines),
            cost,
            machines,
        )
        for number, machines in PREBLE_SIZES
        for name in PREBLE
    )
    return Suite("prefix-preble", description, tuple(instances))


def pd_small(profile: str) -> Suite:
    """Return the same requests, sooner and sooner, on machines of which 0, 1, … only prefill and the others decode."""
    cost = cost_model(profile)
    limits = Limits(4096, _BATCH, _BATCH, kv_block=16)
    instances = []
    for rate in _PD_RATES:
        rng, now = Random("pd-small"), 0.0
        requests = []
        for _ in range(_PD_REQUESTS):
            now += rng.expovariate(rate)
            requests.append(Request(rng.randint(64, 512), rng.randint(4, 64), round(now * 10**12)))
        equal = Instance(f"pd-small-{rate}-equal", limits, Rules(), cost, tuple(requests), replicas=PD_MACHINES)
        instances.append(equal)
        for prefill in range(1, PD_MACHINES):
            name = f"pd-small-{rate}-{prefill}-{PD_MACHINES - prefill}"
            groups = MachineGroup(prefill, Role.PREFILL), MachineGroup(PD_MACHINES - prefill, Role.DECODE)
            instances.append(replace(equal, name=name, replicas=1, machine_groups=groups, links=_PD_LINK))
    rates = ", ".join(map(str, _PD_RATES[:-1])) + f" and {_PD_RATES[-1]}"
    description = (
        f"How many of {PD_MACHINES} machines prefill and how many decode: {_PD_REQUESTS} requests at {rates} "
        "requests/s on each split, over 100 Gb/s, and on as many equal machines."
    )
    return Suite("pd-small", description, tuple(instances))
