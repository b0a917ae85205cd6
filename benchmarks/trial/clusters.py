"""Certificates of several machines, of prefixes and placements, beside exhaustive searches of their own."""

from __future__ import annotations

import heapq
import json
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, combinations, count, product
from random import Random
from typing import Any

from optsched.calibrate.library import cost_model
from optsched.check import UnprovedError, proved_bound
from optsched.check.certificates.prefix_placement import Placing, placement_bound
from optsched.methods.bound import all_bounds
from optsched.methods.simulate import simulate
from optsched.methods.solve import solve
from optsched.model.documents import parse_instance
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched_formulations.routing.prefix_placement import place
from optsched_formulations.routing.prefix_tree import PlacedRequest, PrefixTree
from trial.grammar import nudged, spoiled
from trial.tried import SlowError, Tally, limited

Document = dict[str, Any]
_OBJECTIVES = ("makespan", "mean_e2e", "mean_ttft")
_POLICIES, _ROUTERS = ("vllm", "sarathi", "sjf"), ("disaggregated", "splitwise", "least_tokens")
_STEPS = 6
_SECONDS, _SOLVED = 3.0, 0.3
"""For an optimum of several machines, and the share of clusters of which one is sought."""

# One machine, everything tried --------------------------------------------------------------------------------


def least(machine: Document, nodes: Document, requests: Sequence[Document], objective: str) -> int | None:
    """Return the least end, or sum of latencies, of one machine: any batch, at any event; None if there is none."""
    limits, rules, cost, mode = machine["limits"], machine["rules"], machine["cost"], machine["cache"]["mode"]
    size, number = limits["kv_block"], len(requests)
    blocks = [_blocks(nodes, index, request, size, mode) for index, request in enumerate(requests)]
    arrivals = [request["arrival_ps"] for request in requests]
    # Cost so far, time, and of each request its tokens, what it holds, and whether it is being filled.
    order = count()
    queue: list[tuple[int, int, int, tuple[tuple[int, int, bool], ...], tuple[Any, ...]]]
    queue = [(0, 0, next(order), ((0, 0, True),) * number, ())]
    seen: dict[object, list[tuple[int, int]]] = {}
    while queue:
        spent, now, _, held, cached = heapq.heappop(queue)
        open_ = [i for i in range(number) if held[i][0] < requests[i]["output"]]
        if not open_:
            return spent
        known = seen.setdefault((held, cached, tuple(now >= time for time in arrivals)), [])
        if any(one <= spent and other <= now for one, other in known):
            continue
        known.append((spent, now))
        here = [i for i in open_ if arrivals[i] <= now]
        later = [time for time in arrivals if time > now]

        cost_of = partial(_spent, objective, requests, (spent, now, held))
        if later:
            heapq.heappush(queue, (cost_of(min(later)), min(later), next(order), held, cached))
        for evict in subsets([i for i in here if held[i][1]] if rules["eviction"] else []):
            left = [(g, 0, True) if i in evict else (g, m, fill) for i, (g, m, fill) in enumerate(held)]
            pins = {block for i in open_ for block in blocks[i][: left[i][1] // size]}
            for drop in subsets([block for block in cached if block not in pins]):
                kept = {block for block in cached if block not in drop}
                if any(path[k] in kept and path[k - 1] not in kept for path in blocks for k in range(1, len(path))):
                    continue
                for chosen in subsets([i for i in here if i not in evict]):
                    ends = [_ends(left[i], requests[i], rules["chunked_prefill"]) for i in chosen]
                    for until in product(*ends) if chosen else ():
                        found = _batch(
                            limits, rules, cost, (blocks, requests), left, kept, dict(zip(chosen, until, strict=True))
                        )
                        if found is not None:
                            time, after, then = found
                            label = cost_of(now + time), now + time, next(order)
                            heapq.heappush(queue, (*label, after, tuple(sorted(then, key=str))))
    return None


def _spent(
    objective: str, requests: Sequence[Document], before: tuple[int, int, Sequence[tuple[int, int, bool]]], end: int
) -> int:
    """Return what has been spent by an end: the time, or what those have waited that wait."""
    spent, now, held = before
    if objective == "makespan":
        return end
    arrivals = [
        int(request["arrival_ps"])
        for request, (generated, _, _) in zip(requests, held, strict=True)
        if generated < (request["output"] if objective == "mean_e2e" else 1)
    ]
    return spent + sum(max(0, end - max(now, arrival)) for arrival in arrivals)


def subsets(items: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield all subsets of some items, the small ones first."""
    return chain.from_iterable(combinations(items, size) for size in range(len(items) + 1))


def _blocks(nodes: Document, index: int, request: Document, size: int, mode: str) -> list[Any]:
    """Return what a request's whole blocks are called, as far as they may be cached."""
    places = [name for name in request.get("prefix", []) for _ in range(nodes[name]["tokens"])]
    most = len(places) if mode == "prefix" else request["input"] + request["output"] if mode == "all" else 0
    last = [places[end - 1] if end <= len(places) else index for end in range(size, most + 1, size)]
    return [(name, number) for number, name in enumerate(last)]


def _ends(held: tuple[int, int, bool], request: Document, chunked: bool) -> range:
    generated, tokens, filling = held
    whole = request["input"] + generated
    if not filling:
        return range(tokens + 1, tokens + 2)
    return range(tokens + 1 if chunked else whole, whole + 1)


def _batch(
    limits: Document, rules: Document, cost: Document, problem: tuple[list[list[Any]], Sequence[Document]],
    held: Sequence[tuple[int, int, bool]], cached: set[Any], until: Mapping[int, int],
) -> tuple[int, tuple[tuple[int, int, bool], ...], set[Any]] | None:  # fmt: skip
    """Return how long a batch takes, and what is there after it; None if it is not legal. Nothing is shared in it."""
    (blocks, requests), size = problem, limits["kv_block"]
    tokens = prefill = steps = decodes = 0
    after, done = list(held), []
    for i, end in until.items():
        g, m, filling = held[i]
        if filling and not m:
            while (
                m // size < min(len(blocks[i]), (requests[i]["input"] + g - 1) // size)
                and blocks[i][m // size] in cached
            ):
                m += size
        run = end - m
        if run < 1:
            return None
        tokens += run
        if filling:
            prefill += run
            steps += cost["prefill_sq"] * (end**2 - m**2) + cost["prefill_kv"] * m + cost["prefill_req"]
        else:
            decodes += 1
            steps += cost["decode_kv"] * m + cost["decode_req"]
        done += blocks[i][m // size : end // size]
        after[i] = g, end, filling
    holds = sum(-(-m // size) - min(len(path), m // size) for path, (_, m, _) in zip(blocks, after, strict=True))
    runs = limits["batch_requests"]
    if len(cached) + len(done) + holds > limits["kv_tokens"] // size or tokens > limits["batch_tokens"]:
        return None
    if prefill > limits["prefill_tokens"] or (runs is not None and len(until) > runs):
        return None
    if decodes and prefill and not rules["hybrid"]:
        return None
    for i in until:
        g, m, filling = after[i]
        if m == requests[i]["input"] + g:
            after[i] = (g + 1, 0 if g + 1 == requests[i]["output"] else m, False)
    return cost["base"] + cost["token"] * tokens + steps, tuple(after), cached | set(done)


def optimum(document: Document, objective: str) -> int:
    """Return the optimum of several machines: the best of all assignments."""
    best: int | None = None
    requests, machines = document["requests"], document["machines"]
    known: dict[tuple[int, tuple[int, ...]], int | None] = {}
    for choice in product(range(len(machines)), repeat=len(requests)):
        values = []
        for machine in set(choice):
            mine = tuple(index for index, at in enumerate(choice) if at == machine)
            if (machine, mine) not in known:
                served = [requests[index] for index in mine]
                known[machine, mine] = least(machines[machine], document["prefixes"], served, objective)
            values.append(known[machine, mine])
        sure = [value for value in values if value is not None]
        if len(sure) == len(values):
            value = max(sure) if objective == "makespan" else sum(sure)
            best = value if best is None else min(best, value)
    assert best is not None
    start = min(request["arrival_ps"] for request in requests)
    return best - start if objective == "makespan" else best


# Clusters -----------------------------------------------------------------------------------------------------


def cluster(rng: Random, caches: bool) -> Document:
    """Return a tiny cluster, of which every request fits the first machine."""
    nodes: Document = {
        "a": {"tokens": rng.randint(1, 4), "parent": None},
        "b": {"tokens": rng.randint(1, 3), "parent": "a"},
    }
    nodes["c"] = {"tokens": rng.randint(1, 3), "parent": "a"}
    paths: list[list[str]] = [[], ["a"], ["a", "b"], ["a", "c"]]
    requests: list[Document] = []
    for _ in range(rng.randint(1, 3)):
        prompt, output = rng.randint(1, 5), rng.randint(1, 2)
        fitting = [path for path in paths if sum(nodes[name]["tokens"] for name in path) <= prompt + output]
        arrival = rng.choice([0, 0, 0, rng.randint(1, 25)])
        request = {"input": prompt, "output": output, "arrival_ps": arrival}
        requests.append(request | ({"prefix": rng.choice(fitting[-2:])} if caches else {}))
    block = rng.choice([1, 1, 2])
    machines: list[Document] = []
    for _ in range(rng.choice([1, 2, 2, 3])):
        rules = {"hybrid": rng.random() < 0.8, "chunked_prefill": rng.random() < 0.15, "eviction": rng.random() < 0.4}
        names = ("base", "token", "decode_kv", "decode_req", "prefill_sq", "prefill_kv", "prefill_req")
        costs = {name: rng.choice([0, 0, 1, 2, 5]) for name in names} | {"base": rng.randint(1, 9), "pieces": []}
        runs = rng.choice([None, None, 1, 2])
        capacity = rng.randint(8 if not machines else 4, 12)
        limits = {
            "kv_tokens": capacity,
            "batch_tokens": 12,
            "prefill_tokens": 8,
            "batch_requests": runs,
            "kv_block": block,
        }
        cache = {"mode": rng.choice(["none", "prefix", "prefix", "all"]) if caches else "none", "share_in_batch": False}
        machines.append({"count": 1, "role": "both", "limits": limits, "rules": rules, "cost": costs, "cache": cache})
        if rng.random() < 0.4:
            machines.append(machines[-1])
    machines = machines[:3]
    document = {"format": "optsched-instance/1", "name": "tiny", "requests": requests, "machines": machines}
    document |= {name: machines[0][name] for name in ("limits", "rules", "cost")}
    return document | {"prefixes": nodes if caches else {}, "replicas": 1}


def clusters(rng: Random, tally: Tally, *, caches: bool) -> None:
    """Hold bounds, certificates and joint optima of tiny clusters against all assignments and batches."""
    label = "several, prefixes" if caches else "several"
    for _ in range(10):
        document = cluster(rng, caches)
        instance = parse_instance(json.dumps(document).encode(), cost_model)
        objective = rng.choice(_OBJECTIVES)
        finding: Document = {"instance": document, "objective": objective}
        try:
            with limited():
                best = optimum(document, objective)
                bounds = all_bounds(instance, objective)
                # Most are for the bounds alone, which take less than a search.
                asked = rng.random() < _SOLVED
                answer = solve(instance, objective, time_limit=_SECONDS, workers=1) if asked else None
        except SlowError:
            tally.find("slow", label, finding)
            continue
        except Exception:
            tally.find("traceback", label, finding | {"error": traceback.format_exc()})
            continue
        finding["optimum"] = best
        if answer is not None:
            tally.counts[f"optima/{label}/tried"] += 1
            tally.counts[f"optima/{label}/proved"] += answer.status == "optimal"
            if answer.value is None or answer.value < best or (answer.bound or 0) > best:
                tally.find("false", f"optima/{label}", finding | {"value": answer.value, "bound": answer.bound})
        prove = partial(proved_bound, instance, Restrictions(), Objective(objective))
        for result in [*bounds, answer]:
            if result is None or result.bound is None:
                continue
            if result is not answer:
                tally.counts[f"bounds/{result.method}/tried"] += 1
                tally.counts[f"bounds/{result.method}/tight"] += result.bound == best
                if result.bound > best:
                    tally.find("false", f"bounds/{result.method}", finding | {"bound": result.bound})
            if result.certificate is not None:
                kind = result.certificate["kind"]
                climb(rng, tally, kind, result.certificate, (prove, best, finding))


def roles(rng: Random, tally: Tally) -> None:
    """Hold bounds where machines only prefill or only decode against what routers and policies reach.

    All schedules of such clusters are tried in the tests, of fewer of them.
    """
    for _ in range(10):
        document = cluster(rng, caches=False)
        first, *others = document["machines"]
        kinds = ["prefill", "decode", *(rng.choice(["prefill", "decode", "both"]) for _ in others)]
        document["machines"] = [
            machine | {"role": role} for machine, role in zip([first, first, *others], kinds, strict=True)
        ]
        document["links"] = {name: rng.choice([0, 0, 1, 4, 20]) for name in ("base_ps", "kv_ps")}
        document["links"] |= {name: rng.random() < 0.3 for name in ("exclusive", "layerwise")}
        instance = parse_instance(json.dumps(document).encode(), cost_model)
        objective = rng.choice(_OBJECTIVES)
        finding: Document = {"instance": document, "objective": objective}
        runs = [simulate(instance, policy, objective, router=router) for policy, router in product(_POLICIES, _ROUTERS)]
        best = min((run.value for run in runs if run.value is not None), default=None)
        if best is None:
            continue
        finding["reached"] = best
        try:
            with limited():
                bounds = all_bounds(instance, objective)
        except SlowError:
            tally.find("slow", "roles", finding)
            continue
        except Exception:
            tally.find("traceback", "roles", finding | {"error": traceback.format_exc()})
            continue
        prove = partial(proved_bound, instance, Restrictions(), Objective(objective))
        for result in bounds:
            if result.bound is not None and result.certificate is not None:
                tally.counts["bounds/roles/tried"] += 1
                tally.counts["bounds/roles/tight"] += result.bound == best
                if result.bound > best:
                    tally.find("false", "bounds/roles", finding | {"bound": result.bound})
                climb(rng, tally, "roles", result.certificate, (prove, best, finding))


def climb(
    rng: Random,
    tally: Tally,
    kind: str,
    certificate: Document,
    asked: tuple[Callable[[Document], int], int, Document],
) -> None:
    """Change a certificate where what it proves does not fall, and spoil it."""
    bound = _proved(tally, kind, certificate, asked)
    for _ in range(_STEPS):
        other = nudged(rng, certificate)
        proved = _proved(tally, kind, other, asked)
        if proved is not None and (bound is None or proved >= bound):
            certificate, bound = other, proved
    _proved(tally, kind, spoiled(rng, certificate), asked, "malformed")


def _proved(
    tally: Tally,
    kind: str,
    certificate: Any,
    asked: tuple[Callable[[Document], int], int, Document],
    sort: str = "certificates",
) -> int | None:
    prove, best, finding = asked
    tally.counts[f"{sort}/{kind}/tried"] += 1
    try:
        with limited():
            bound = prove(certificate)
    except UnprovedError:
        return None
    except SlowError:
        tally.find("slow", kind, finding | {"certificate": certificate})
        return None
    except Exception:
        tally.find("traceback", kind, finding | {"certificate": certificate, "error": traceback.format_exc()})
        return None
    tally.counts[f"{sort}/{kind}/accepted"] += 1
    tally.counts[f"{sort}/{kind}/tight"] += bound == best
    if bound > best or type(bound) is not int:
        tally.find("false", kind, finding | {"certificate": certificate, "bound": bound})
    return bound


# Placements ---------------------------------------------------------------------------------------------------


def placements(rng: Random, tally: Tally) -> None:
    """Hold bounds on the largest load against all placements."""
    for _ in range(20):
        nodes, machines = rng.randint(1, 5), rng.randint(1, 3)
        parents = [rng.choice([None, *range(node)]) if node and rng.random() < 0.7 else None for node in range(nodes)]
        times = [rng.randint(0, 12) for _ in parents]
        placed = [(rng.choice([None, *range(nodes)]), rng.randint(0, 9)) for _ in range(rng.randint(1, 6))]
        fronts = [[node] for node in range(nodes)]
        for path in fronts:
            while (front := parents[path[-1]]) is not None:
                path.append(front)
        best = min(
            _largest_load(fronts, times, placed, choice) for choice in product(range(machines), repeat=len(placed))
        )
        tree = PrefixTree(tuple(parents), tuple(times), tuple(PlacedRequest(*each) for each in placed))
        found = place(tree, machines, time_limit_s=0.0)
        finding = {"parents": parents, "times": times, "requests": placed, "machines": machines, "optimum": best}
        if not found.bound <= best <= found.value:
            tally.find("false", "placement", finding | {"bound": found.bound, "value": found.value})
        prove = partial(placement_bound, Placing(parents, times, placed, machines))
        for kind in ("prefix_placement", "prefix_components"):
            climb(rng, tally, kind, {"kind": kind, "bound": rng.randint(0, best + 2)}, (prove, best, finding))
        if found.certificate is not None:
            climb(rng, tally, found.certificate["kind"], found.certificate, (prove, best, finding))


def _largest_load(
    fronts: list[list[int]], times: list[int], placed: list[tuple[int | None, int]], choice: Sequence[int]
) -> int:
    loads = []
    for machine in set(choice):
        mine = [request for request, at in zip(placed, choice, strict=True) if at == machine]
        held = {node for last, _ in mine if last is not None for node in fronts[last]}
        loads.append(sum(times[node] for node in held) + sum(own for _, own in mine))
    return max(loads)
