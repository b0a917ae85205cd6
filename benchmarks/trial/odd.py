"""Random problems with awkward numbers, as documents; and small changes of them."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from typing import Any

from trial.case import read_case

Document = dict[str, Any]

_SCALES = (1, 1, 1, 10, 1_000, 10**6, 10**9, 999_999_999_989, 10**12 + 7, 10**15)
_ENDS = 0.03
"""Share of problems with a number at the end of what documents may hold."""
_ALMOST = 0.1
"""Share of problems that are, in one respect, not what is wanted."""
_COEFFICIENTS = ("decode_kv", "decode_req", "prefill_sq", "prefill_kv", "prefill_req")


@dataclass(frozen=True)
class Wanted:
    """What is asked of random problems.

    Parameters
    ----------
    memory_only
        Only memory binds: whole prefills, hybrid batches, one piece, and budgets for all.
    whole
        Prefills run whole.
    arrivals
        Whether some requests arrive later than others; None for either.
    swap
        Whether swapping may be allowed.
    most
        The most requests.
    long
        One or two requests, of more output tokens, on a machine that often has no base.
    shared
        Some of the long ones are decodes beside which prompts arrive that fill the batch; all share a large base.
    wide
        One coefficient is 10^8 or more, and the others are small.
    """

    memory_only: bool = False
    whole: bool = False
    arrivals: bool | None = None
    swap: bool = True
    most: int = 4
    long: bool = False
    shared: bool = False
    wide: bool = False


ANY = Wanted()


def problem(rng: Random, wanted: Wanted = ANY) -> Document:
    """Return a random feasible instance document of a few requests."""
    while True:
        found = _drawn(rng, wanted)
        if read_case(found).servable:
            return found


def many(rng: Random) -> Document:
    """Return an instance of 64 to 90 requests, of some tokens each, with odd coefficients.

    They arrive over time, at a pace near what the machine can serve, or together.
    """
    found = _drawn(rng, Wanted(arrivals=False, swap=False))
    longest = rng.choice((8, 30, 30))
    shapes = [(rng.randint(1, 12), rng.randint(longest // 4, longest)) for _ in range(rng.choice((1, 2, 5)))]
    requests = [dict(zip(("input", "output"), rng.choice(shapes), strict=True)) for _ in range(rng.randint(64, 90))]
    found["requests"] = requests
    found["limits"] |= {"kv_tokens": rng.choice((42, 100, 1000)) * found["limits"]["kv_block"], "batch_requests": None}
    found["limits"] |= {"prefill_tokens": rng.choice((12, 30)), "batch_tokens": rng.choice((30, 64))}
    case = read_case(found)
    # a batch of that number of decodes a token, and a prompt, is what a request takes of the machine
    beside = rng.choice((1, 4, 12))
    decode = case.lasts(beside, beside * case.attends(True, 1, 20), 0, 0) // beside
    each = longest * 5 * decode // 8 + case.attends(False, 6, 0)
    pace = 0 if rng.random() < 0.3 else each * rng.choice((25, 60, 80, 100, 120, 150, 400)) // 100 + 1
    for number, entry in enumerate(requests):
        entry["arrival_ps"] = min(2**62, number * pace + rng.randint(0, pace))
        entry["weight"] = rng.randint(0, 3)
        if rng.random() < 0.5:
            entry["slo_e2e_ps"] = rng.randint(1, 10) * pace
    return found


def alike(rng: Random, most: int) -> Document:
    """Return an instance of some requests of one or two kinds, all there at once, of which few fit at a time."""
    shapes = [{"input": rng.randint(1, 4), "output": rng.randint(2, 4)} for _ in range(rng.choice((1, 1, 2)))]
    requests = [dict(shape) for shape in shapes for _ in range(rng.randint(4, most) // len(shapes))]
    memory_only = rng.random() < 0.7
    found = _drawn(rng, Wanted(memory_only=memory_only, whole=True, arrivals=False, swap=False))
    limits = found["limits"]
    peaks = [-(-(each["input"] + each["output"] - 1) // limits["kv_block"]) * limits["kv_block"] for each in shapes]
    limits["kv_tokens"] = max(peaks) * rng.choice((1, 1, 2, 2)) + rng.randint(0, min(peaks))
    limits |= {"batch_tokens": 99, "prefill_tokens": 99, "batch_requests": None}
    if not memory_only:
        limits |= {"batch_tokens": rng.choice((8, 20, 99)), "prefill_tokens": rng.choice((4, 8))}
        limits["batch_requests"] = rng.choice((None, 2, 3))
    found["rules"] |= {"chunked_prefill": False, "eviction": rng.random() < 0.9}
    found["requests"] = requests
    return found


def _drawn(rng: Random, wanted: Wanted) -> Document:
    if wanted.shared and rng.random() < 0.4:
        return _sharing(rng)
    memory_only = wanted.memory_only
    chunked = not memory_only and not wanted.whole and rng.random() < 0.45
    swaps = wanted.swap and rng.random() < 0.08
    fewest = 2 if wanted.arrivals else 1
    count = rng.choice([number for number in (1, 2, 2, 2, 2, 3, 3, 3, 3, 4) if fewest <= number <= wanted.most])
    # of four that are alike, short of memory, several are evicted with the same number of tokens
    alike = memory_only and wanted.most >= 4 and rng.random() < 0.25
    if alike:
        count = wanted.most
    if wanted.long:
        chunked, swaps, count = False, False, rng.choice((1, 1, 2))
    longest = 7 if wanted.long else (2 if count == 4 else 3) if chunked or swaps else (3 if count == 4 else 4)
    cost = odd_cost(rng, 1 if memory_only else rng.choice((1, 1, 2, 3)), swaps)
    if wanted.long and rng.random() < 0.6:
        cost |= {"base": 0, "prefill_req": 0, "pieces": []}
    if wanted.wide:
        cost = dict.fromkeys(cost, 0) | {"pieces": []}
        cost |= {name: rng.choice((0, 0, 1, 3, rng.randint(0, 40))) for name in ("base", "token", *_COEFFICIENTS)}
        large = rng.choice(("base", "base", "base", *_COEFFICIENTS))
        cost[large] = rng.choice((10**8, 10**9, 10**10, 10**11, 10**12, 10**13)) + rng.choice((0, 7, -11))
    requests: list[Document] = []
    for _ in range(count):
        if requests and (alike or rng.random() < 0.35):
            requests.append(dict(requests[-1]))
            continue
        entry: Document = {"input": rng.randint(1, 3 if chunked else 4), "output": rng.randint(1, longest)}
        if rng.random() < 0.5:
            entry["weight"] = rng.choice((0, 0, 1, 2, 5, 1000))
        requests.append(entry)
    block = rng.choice((1, 1, 1, 1, 2, 3))
    peak = max(-(-(entry["input"] + entry["output"] - 1) // block) * block for entry in requests)
    whole = sum(entry["input"] + entry["output"] - 1 for entry in requests)
    kv = rng.choice((peak, peak + rng.randint(0, 3), peak + rng.randint(0, 8), whole + block * count))
    kv = max(kv, peak)
    longest_prompt = max(entry["input"] for entry in requests)
    if memory_only:
        tokens = whole + rng.choice((0, 0, 1, 5, 50))
        prefill = whole if rng.random() < 0.5 else tokens
    else:
        prefill = rng.choice((longest_prompt, longest_prompt + rng.randint(0, 3), rng.randint(1, 4), whole, 64))
        tokens = prefill + rng.choice((0, 0, 1, 3, 64))
    limit = None if rng.random() < 0.6 else (count if memory_only else rng.randint(1, count))
    found: Document = {
        "format": "optsched-instance/1",
        "name": "odd",
        "limits": {
            "kv_tokens": kv,
            "batch_tokens": tokens,
            "prefill_tokens": prefill,
            "batch_requests": limit,
            "kv_block": block,
        },
        "rules": {
            "hybrid": memory_only or rng.random() < 0.7,
            "chunked_prefill": chunked,
            "eviction": rng.random() < 0.75,
        },
        "cost": cost,
        "replicas": 1,
        "requests": requests,
    }
    if swaps:
        found["rules"]["swap"] = True
    if wanted.arrivals or (wanted.arrivals is None and rng.random() < 0.65):
        arrive(rng, found)
    if (memory_only or wanted.whole) and rng.random() < _ALMOST:
        # of the kinds that are about these problems only, this has to be refused
        if wanted.whole or rng.random() < 0.5:
            found["rules"]["chunked_prefill"] = True
        else:
            cost["pieces"] = [[cost["base"] + rng.choice((0, 1, 30)), cost["token"] + rng.choice((0, 1, 7))]]
    if rng.random() < _ENDS:
        _to_the_end(rng, found, wanted)
    set_slos(rng, found)
    return found


def _sharing(rng: Random) -> Document:
    """Return an instance in which prompts arrive whenever a batch ends, for which decodes leave most of the next."""
    tokens = rng.randint(8, 64)
    decoding, later = rng.choice((1, 1, 2)), rng.randint(2, 5)
    cost: Document = dict.fromkeys(("token", *_COEFFICIENTS), 0)
    cost |= {"base": tokens * rng.choice((10**3, 10**6)), "pieces": []}
    if rng.random() < 0.3:
        cost[rng.choice(("token", *_COEFFICIENTS))] = rng.choice((1, 7))
    requests = [{"input": rng.randint(1, tokens // decoding), "output": later + 1} for _ in range(decoding)]
    batch = cost["base"] + tokens * cost["token"]
    for number in range(1, later + 1):
        arrival = max(0, number * batch + rng.choice((0, 0, 0, -1, 1, -batch)))
        prompt = tokens - decoding - rng.choice((0, 0, 0, 1))
        requests.append({"input": prompt, "output": 1, "arrival_ps": arrival})
    return {
        "format": "optsched-instance/1",
        "name": "shared",
        "limits": {
            "kv_tokens": tokens * len(requests),
            "batch_tokens": tokens,
            "prefill_tokens": tokens,
            "batch_requests": None,
            "kv_block": 1,
        },
        "rules": {"hybrid": True, "chunked_prefill": False, "eviction": rng.random() < 0.3},
        "cost": cost,
        "replicas": 1,
        "requests": requests,
    }


def _to_the_end(rng: Random, document: Document, wanted: Wanted) -> None:
    """Give some number the largest value that documents may have, or one near it."""
    most = 2**63 - 1 - rng.choice((0, 0, 1, 5, 10**15))
    if wanted.arrivals is not False and rng.random() < 0.6:
        rng.choice(document["requests"])["arrival_ps"] = most
    else:
        document["cost"][rng.choice(("base", "token", *_COEFFICIENTS))] = most


def odd_cost(rng: Random, pieces: int, swaps: bool) -> Document:
    """Return coefficients: some 0, some tiny beside a huge one, some that make refills cheaper than decodes."""

    def small() -> int:
        return rng.choice((0, 0, 1, 1, 2, 3, 7, rng.randint(0, 40)))

    scale = rng.choice(_SCALES)
    style = rng.choice(("plain", "plain", "scaled", "mixed", "mixed", "cheap refill", "cheap refill", "base", "fill"))
    unit = scale if style == "scaled" else 1
    cost: Document = {"base": unit * rng.choice((0, 0, 1, 10, 10, 25, 40)), "token": unit * small()}
    cost["pieces"] = [[unit * rng.choice((0, 5, 10, 30)), unit * small()] for _ in range(pieces - 1)]
    if pieces > 1 and rng.random() < 0.5:
        # kinks at few tokens
        cost["pieces"] = []
        base, slope = cost["base"] + 40 * unit, 0
        cost["base"], cost["token"] = base, slope
        for _ in range(pieces - 1):
            turn, more = rng.randint(1, 6), unit * rng.randint(1, 12)
            base, slope = base - turn * more, slope + more
            if base >= 0:
                cost["pieces"].append([base, slope])
    for name in _COEFFICIENTS:
        cost[name] = unit * small() if rng.random() < 0.6 else 0
    match style:
        case "mixed":
            name = rng.choice(("base", "token", *_COEFFICIENTS))
            cost[name] = scale + rng.choice((-1, 0, 1)) * (scale > 1)
        case "cheap refill":
            cost[rng.choice(("decode_req", "decode_kv"))] = rng.choice((50, 1000, 10**9, 10**12))
        case "base":
            cost["base"] = scale
        case "fill":
            cost["prefill_req"] = rng.choice((30, 200, 10**6, scale))
        case _:
            pass
    if rng.random() < 0.1:
        cost["cpu_batch"] = small()
    if swaps:
        cost |= {"swap_out_kv": small(), "swap_in_kv": small(), "swap_overlap": rng.choice((0, 50, 100))}
    return cost


def arrive(rng: Random, document: Document) -> None:
    """Let requests arrive over time: at, just before and just after times at which batches could end, or far away."""
    cost = document["cost"]
    requests = document["requests"]
    case = read_case(document)
    prompt = requests[0]["input"]
    batch = case.lasts(prompt, case.attends(False, prompt, 0), 0, 0)
    single = case.lasts(1, case.attends(True, 1, prompt), 0, 0)
    times = [0, 1, batch - 1, batch, batch + 1, batch + single, batch + single - 1, 2 * batch, cost["base"]]
    far = rng.choice((10 * batch + 3, 10**13, 10**6))
    for entry in requests:
        moment = rng.choice((*times, rng.randint(0, max(1, 4 * batch)), far if rng.random() < 0.3 else 0))
        entry["arrival_ps"] = max(0, min(moment, 2**62))


def set_slos(rng: Random, document: Document) -> None:
    """Give some requests SLOs near what they can reach."""
    case = read_case(document)
    for entry in document["requests"]:
        prompt = entry["input"]
        batch = case.lasts(prompt, case.attends(False, prompt, 0), 0, 0)
        single = case.lasts(1, case.attends(True, 1, prompt), 0, 0)
        if rng.random() < 0.5:
            slo = rng.choice((1, 1, 2)) * batch + rng.choice((-1, 0, 1, 5, single))
            entry["slo_ttft_ps"] = max(0, min(2**63 - 1, slo))
        if rng.random() < 0.5:
            later = (entry["output"] - 1) * single
            slo = rng.choice((1, 1, 2)) * (batch + later) + rng.choice((-1, 0, 1, 5, batch))
            entry["slo_e2e_ps"] = max(0, min(2**63 - 1, slo))


def restricted(rng: Random, document: Document) -> Document:
    """Return restrictions, mostly none, under which every request can still be served."""
    if rng.random() < 0.7:
        return {}
    count = len(document["requests"])
    found: Document = {}
    match rng.choice(("forbid", "forbid", "evictions", "batch", "order", "reordering")):
        case "forbid":
            found["forbid"] = [rng.choice(("eviction", "hybrid", "chunked", "swap"))]
        case "evictions":
            found["max_evictions"] = rng.randint(0, 2)
        case "batch":
            found["max_batch"] = rng.randint(1, count)
        case "order":
            order = list(range(count))
            rng.shuffle(order)
            found["order"] = order
        case _:
            found["forbid"] = ["reordering"]
    return found if read_case(document, found).servable else {}


# Small changes -----------------------------------------------------------------------------------------------


def changed(rng: Random, document: Document) -> Document:
    """Return the instance after a small change that leaves it feasible and tiny, or itself if none is found."""
    changes: tuple[Callable[[Random, Document], None], ...] = (
        _change_cost,
        _change_cost,
        _change_cost,
        _change_limit,
        _change_request,
        _change_request,
        _change_arrival,
        _change_rule,
    )
    for _ in range(20):
        found = deepcopy(document)
        rng.choice(changes)(rng, found)
        if found != document and _fine(found):
            return found
    return document


def _fine(document: Document) -> bool:
    limits, requests = document["limits"], document["requests"]
    whole = sum(entry["output"] for entry in requests)
    return (
        1 <= limits["prefill_tokens"] <= limits["batch_tokens"]
        and limits["kv_tokens"] >= 1
        and whole <= (6 if document["rules"]["chunked_prefill"] else 9)
        and read_case(document).servable
    )


def _near(rng: Random, number: int) -> int:
    return max(0, min(2**62, rng.choice((number + 1, number - 1, 0, 2 * number, number // 2, number + 10, 1, 10**9))))


def _change_cost(rng: Random, document: Document) -> None:
    cost = document["cost"]
    name = rng.choice(("base", "token", *_COEFFICIENTS))
    cost[name] = _near(rng, cost[name])


def _change_limit(rng: Random, document: Document) -> None:
    limits = document["limits"]
    name = rng.choice(("kv_tokens", "batch_tokens", "prefill_tokens"))
    limits[name] = max(1, limits[name] + rng.choice((-1, 1)))


def _change_request(rng: Random, document: Document) -> None:
    entry = rng.choice(document["requests"])
    name = rng.choice(("input", "output"))
    entry[name] = max(1, min(4, entry[name] + rng.choice((-1, 1))))


def _change_arrival(rng: Random, document: Document) -> None:
    entry = rng.choice(document["requests"])
    entry["arrival_ps"] = _near(rng, entry.get("arrival_ps", 0))


def _change_rule(rng: Random, document: Document) -> None:
    name = rng.choice(("hybrid", "chunked_prefill", "eviction"))
    document["rules"][name] = not document["rules"][name]
