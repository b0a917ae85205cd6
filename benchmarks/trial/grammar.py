"""Random certificates of every kind, from what documents say of each, with numbers near those that matter.

A maker returns a certificate that is mostly accepted; whether what it then proves is true is for the trial to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType
from typing import Any

from trial.case import BETWEEN_TOKENS, OBJECTIVES, Case, TrialJob
from trial.odd import ANY, Wanted

Certificate = dict[str, Any]


@dataclass(frozen=True)
class About:
    """What a certificate is about: the problem, the objective, its optimum, and every machine with all requests."""

    case: Case
    objective: str
    best: int
    machines: tuple[Case, ...] = ()


Maker = Callable[[Random, About], Certificate]


@dataclass(frozen=True)
class Grammar:
    """A kind of certificates: how to draw one, which objectives it may bound, and of which problems.

    ``machines`` is ``one``, ``equal`` for several equal ones, or ``any`` for several.
    """

    make: Maker
    objectives: Sequence[str]
    wanted: Wanted = ANY
    machines: str = "one"


# Numbers -----------------------------------------------------------------------------------------------------


def _weights(rng: Random, count: int) -> list[int]:
    """Return integers ≥ 0, not all 0."""
    found = [0] * count
    match rng.randint(0, 2):
        case 0:
            found = [rng.randint(0, 5) for _ in range(count)]
        case 1:
            found = [rng.choice((0, 1, 10**9, 2**70)) for _ in range(count)]
        case _:
            pass
    if not any(found):
        found[rng.randrange(count)] = rng.choice((1, 1, 3))
    return found


def _part(rng: Random, whole: int) -> int:
    """Return an integer from 0 to ``whole``, often an end or beside one."""
    return max(0, min(whole, rng.choice((0, whole, whole, whole // 2, whole - 1, 1, rng.randint(0, whole)))))


def _around(rng: Random, unit: int, divisor: int = 1) -> int:
    """Return 0 or a number of the size of ``unit / divisor``."""
    numerator = rng.choice((0, 1, 2, 3, 4, 4, 4, 5, 8, rng.randint(0, 16)))
    return max(0, unit * numerator // (4 * max(1, divisor)) + rng.choice((0, 0, 0, -1, 1)))


def _non_attention(case: Case, tokens: int) -> int:
    return case.lasts(tokens, 0, 0, 0)


def _steepest(case: Case) -> int:
    """Return the least that a token of a batch takes."""
    return min((_non_attention(case, x) + case.prefill_req) // x for x in range(1, case.tokens + 1))


def _units(case: Case) -> dict[str, int]:
    """Return what a batch has of everything that has a price."""
    runs = case.runs or len(case.jobs)
    return {"memory": case.blocks, "tokens": case.tokens, "prefill_tokens": case.prefill_tokens, "runs": runs}


def _fill(case: Case, job: TrialJob) -> int:
    return case.lasts(job.prompt, case.attends(False, job.prompt, 0), 0, 0)


def _moment(rng: Random, case: Case) -> int:
    return rng.choice([job.arrival for job in case.jobs])


# Kinds -------------------------------------------------------------------------------------------------------


def alone(rng: Random, about: About) -> Certificate:
    """Return the only certificate of this kind."""
    return {"kind": "alone"}


def _shared(rng: Random, about: About) -> Certificate:
    case = about.case
    shares = dict(zip(("memory", "tokens", "runs"), _weights(rng, 3), strict=True))
    if case.runs is None:
        shares["runs"] = 0
        shares["memory"] += 0 if shares["tokens"] else 1
    apart = {"decode_weights": _weights(rng, len(case.pieces))} if rng.random() < 0.4 else {}
    return {
        "piece_weights": _weights(rng, len(case.pieces)),
        "prefill_step_ps": _part(rng, case.prefill_req) if rng.random() < 0.5 else case.prefill_req,
        "share_weights": shares,
    } | apart


def machine(rng: Random, about: About) -> Certificate:
    """Shares of one machine."""
    return {"kind": "machine"} | _shared(rng, about)


def late(rng: Random, about: About) -> Certificate:
    """Draw shares by which some requests cannot be in time."""
    return {"kind": "late"} | _shared(rng, about)


def percentile(rng: Random, about: About) -> Certificate:
    """Draw a bound, also just beyond the optimum, and shares."""
    bound = rng.choice((about.best + 1, about.best, about.best, about.best - 1, _part(rng, about.best), 0, 1))
    return {"kind": "percentile", "bound": bound} | _shared(rng, about)


def volume(rng: Random, about: About) -> Certificate:
    """Resources from some arrival on."""
    case = about.case
    return {"kind": "volume", "piece_weights": _weights(rng, len(case.pieces)), "release_ps": _moment(rng, case)}


def congestion(rng: Random, about: About) -> Certificate:
    """Prices of windows."""
    case = about.case
    steepest = _steepest(case)
    unit = max(1, rng.choice([_fill(case, job) for job in case.jobs]))
    window = max(1, min(10**15, rng.choice((1, unit // 4, unit // 2, unit, unit, 3 * unit, about.best, 10**15))))
    short = min(10**13, rng.choice((0, 0, unit // 2, unit, _non_attention(case, 1), 10**13, rng.randint(0, 2 * unit))))
    runs = []
    style = rng.choice(("few", "few", "few", "fitting", "fitting", "batches"))
    if style == "batches":
        # a window for each of some full batches, so that each batch has a price of its own
        whole = _non_attention(case, case.tokens)
        window = max(1, min(10**15, whole // rng.choice((1, 1, 2))))
        short = min(10**13, rng.choice((whole, whole, short)))
        runs = [
            [1, rng.choice((0, rng.randint(0, 64))), steepest, rng.randint(0, 40)] for _ in range(rng.randint(3, 12))
        ]
    elif style == "fitting":
        # as many windows without a price as the optimum lasts, so that what requests keep matters
        number = rng.choice((8, 20, 50, 200))
        window = max(1, min(10**15, about.best // number))
        runs.append([number, rng.choice((0, 0, 0, 1, 64)), steepest, rng.choice((0, 32, 63, 64))])
    for _ in range(rng.choice((0, 1, 1, 2, 3, 5)) if style == "few" else 0):
        theta = rng.choice((0, 16, 64, 64 * len(case.jobs), rng.randint(0, 300), 10**6))
        slope = rng.choice((0, steepest, steepest, steepest // 2))
        runs.append([rng.choice((1, 1, 2, 7)), theta, slope, rng.choice((0, 32, 64, rng.randint(0, 64)))])
    # The last one has to have price 0.
    last = [1, 0] if rng.random() < 0.95 else [rng.choice((1, 2)), rng.choice((1, 64, 300))]
    runs.append([*last, rng.choice((0, steepest, steepest)), rng.randint(0, 64)])
    return {
        "kind": "congestion",
        "window_ps": window,
        "grain_ps": max(1, window // rng.choice((1, 8, 256))),
        "short_ps": short,
        "windows": [[number, theta, min(slope, 2**50 - 1), kept] for number, theta, slope, kept in runs],
    }


def waiting(rng: Random, about: About) -> Certificate:
    """Prices of windows, which begin with as much as requests can earn and fall, as mean busy times do, or any."""
    case = about.case
    unit = max(1, rng.choice([_fill(case, job) for job in case.jobs]))
    window = max(1, min(10**15, rng.choice((1, unit // 4, unit // 2, unit, unit, 3 * unit, about.best // 20))))
    count, most = rng.choice((0, 1, 2, 5, 20)), 64 * len(case.jobs)
    prices = [rng.choice((0, 16, 64, most, rng.randint(0, 2 * most), 10**6)) for _ in range(count)]
    if rng.random() < 0.6:
        prices = sorted((rng.randint(0, most) for _ in range(count)), reverse=True)
    alone = 64 * _non_attention(case, 1)
    steepest = _steepest(case)
    memory = case.blocks * case.block
    rents = (0, 0, 1, alone // max(1, memory), alone, rng.randint(0, 2 * alone))
    return {
        "kind": "waiting",
        "slope_ps": rng.choice((0, steepest // 2, steepest - 1, *[steepest] * 6)) if steepest else 0,
        "memory": [min(2**50, rng.choice(rents)) for _ in prices],
        "window_ps": window,
        "kept": rng.choice((0, 1, 32, 63, 64, rng.randint(0, 64))),
        "short_ps": min(10**13, rng.choice((0, 0, unit // 2, unit, _non_attention(case, 1), rng.randint(0, 2 * unit)))),
        "blocks": rng.choice((1, 1, 2, 3, 1000)),
        "parts": rng.choice((1, 1, 2, 4, 64)),
        "prices": prices,
    }


def ramp(rng: Random, about: About) -> Certificate:
    """Prices of layers."""
    case, release = about.case, _moment(rng, about.case)
    found: Certificate = {
        "kind": "ramp",
        "release_ps": release,
        "prefill_step_ps": _part(rng, case.prefill_req) if rng.random() < 0.5 else case.prefill_req,
        "prices": [_layers(rng, case) for _ in range(rng.choice((0, 1, 1, 1, 2, 3)))],
    }
    prompts = sorted({job.prompt for job in case.jobs if job.arrival >= release})
    if rng.random() < 0.4:
        some = [prompts[0], *(size for size in prompts[1:-1] if rng.random() < 0.5), prompts[-1]]
        if case.block == 1 and rng.random() < 0.5:
            some = [max(1, prompts[0] - 1), prompts[-1] + rng.randint(0, 2)]
        found["prompts"] = sorted(set(some))
    return found


def inflow(rng: Random, about: About) -> Certificate:
    """Prices of windows that begin beside arrivals, and rents of all that they leave of a batch, or a part."""
    case, first = about.case, min(job.arrival for job in about.case.jobs)
    end = max(job.arrival for job in case.jobs) - first
    places = [job.arrival - first + rng.choice((0, 0, 1)) for job in case.jobs]
    places += [rng.randint(0, max(1, 2 * end)), about.best // 2, about.best]
    starts = sorted({0, *rng.sample(places, rng.randint(0, min(3, len(places))))})
    scale, step = rng.choice((1, 1, 7, 64, 10**6)), rng.choice((0, case.prefill_req, _part(rng, case.prefill_req)))
    time = [scale - _part(rng, scale) if rng.random() < 0.5 else scale for _ in starts]
    if rng.random() < 0.4:
        starts = sorted({job.arrival - first for job in case.jobs})
        free = rng.randint(0, len(starts) - 1)
        time = [0] * free + [scale] * (len(starts) - free)
    time[-1] = max(1, time[-1])
    if rng.random() < 0.5:
        time.sort()
    units = _units(case) | {"memory": case.blocks * case.block}
    base, slope = rng.choice(case.pieces)
    rows = {"tokens": [each * slope for each in time]} if rng.random() < 0.8 else {}
    for name in rng.sample(list(units), rng.choice((0, 0, 1, 1, 2))):
        rows[name] = [_part(rng, each * base // units[name]) for each in time]
    groups = [rng.randrange(len(case.jobs)) for _ in case.jobs] if rng.random() < 0.3 else [*range(len(case.jobs))]
    names = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    groups = [names[group] for group in groups]
    arrived = [(group, job.arrival - first) for group, job in zip(groups, case.jobs, strict=True)]
    earliest = dict(sorted(arrived, reverse=True))
    begins = [max(k for k, start in enumerate(starts) if start <= earliest[group]) for group in range(len(names))]
    rents = [[0] * (len(starts) - begin) for begin in begins]
    for k, each in enumerate(time):
        prices = {name: rows[name][k] if name in rows else 0 for name in units}
        left = _left_of(case, each, step, prices)
        there = [group for group, begin in enumerate(begins) if begin <= k]
        for group in rng.sample(there, len(there)):
            rent = max(0, left) // groups.count(group)
            rent = rng.choice((0, rent, rent, rent, rent // 2, rent // len(there)))
            rents[group][k - begins[group]] = rent
            left -= rent * groups.count(group)
    return {
        "kind": "inflow",
        "prefill_step_ps": step,
        "starts": starts,
        "time": time,
        **rows,
        "groups": groups,
        "rents": rents,
    }


def _left_of(case: Case, time: int, step: int, prices: Mapping[str, int]) -> int:
    """Return what prices leave of any batch: of every number of tokens."""
    most = max(1, min(case.tokens, case.blocks, case.runs or case.tokens))
    least = min(time * _non_attention(case, x) - prices["tokens"] * x for x in range(1, most + 1))
    for x in range(1, case.tokens + 1):
        lasts = time * (_non_attention(case, x) + case.prefill_req - step) - prices["tokens"] * x
        least = min(least, lasts - prices["prefill_tokens"] * min(case.prefill_tokens, x))
    return least - prices["memory"] * case.blocks * case.block - prices["runs"] * (case.runs or len(case.jobs))


def _layers(rng: Random, case: Case) -> Certificate:
    output = max(job.output for job in case.jobs)
    count = rng.randint(1, 4)
    widths = [rng.choice((1, 1, 2, output)) for _ in range(count)]
    scale = rng.choice((1, 1, 2, 7, 64, 10**6))
    busy = scale * (_non_attention(case, rng.choice((1, 2, case.tokens))) + rng.choice((0, 0, case.prefill_req)))
    units = _units(case)
    entry: Certificate = {"widths": widths, "scale": scale}
    for name in rng.sample(list(units), rng.randint(0, 3)):
        entry[name] = [_around(rng, busy, units[name]) for _ in range(count)]
    single = [stretch for stretch, width in enumerate(widths) if width == 1]
    if single and rng.random() < 0.6:
        entry["repeated"] = rng.choice(single)
    return entry


@dataclass(frozen=True)
class _Item:
    k: int
    blocks: int
    fill: int
    decode: int
    output: int
    weight: int


def _items(case: Case, weights: Sequence[int]) -> list[list[_Item]]:
    """Return what each group's requests take with each token, groups of (I, O, weight) in ascending order."""
    token = case.pieces[0][1]
    groups = sorted({(job.prompt, job.output, weight) for job, weight in zip(case.jobs, weights, strict=True)})
    found = []
    for prompt, output, weight in groups:
        items = []
        for k in range(1, output + 1):
            size = prompt + k - 1
            fill = token * size + case.attends(False, size, 0)
            decode = token + case.attends(True, 1, size - 1)
            items.append(_Item(k, case.held(size), fill, decode, output, weight))
        found.append(items)
    return found


def _priced(rng: Random, about: About, everything: bool) -> Certificate:
    """Return ``item_prices``, ``scale`` and ``tracked`` near the share of the base that each item holds.

    With ``everything`` also what its steps take themselves, else what refills save where they are cheap.
    """
    case, scale = about.case, rng.choice((1, 1, 1, 2, 60, 10**6))
    weights = [0] * len(case.jobs)
    if about.objective in {"mean_e2e", "weighted_e2e"}:
        weights = [job.weight if about.objective == "weighted_e2e" else 1 for job in case.jobs]
    base = case.cpu_batch + case.pieces[0][0]
    share = rng.choice((0, 1, 2, 3, 4, 4, 4, 5, 6))
    noise = rng.choice((0, 0, 1, base // 4))
    taken = rng.choice((share, 4))
    rate = 1 if not any(weights) else 0
    prices = []
    for items in _items(case, weights):
        ahead, steps, ps = 0, 0, scale * (rate + items[0].weight)
        back = []
        for item in reversed(items):
            # rounded down for each item, so that no batch that is full pays more than its base
            ahead += ps * base * item.blocks // case.blocks
            if everything:
                steps += item.fill if item.k == 1 else min(item.fill, item.decode)
            elif item.k > 1:
                steps += min(0, item.fill - item.decode)
            back.append(ahead * share // 4 + ps * steps * taken // 4 + rng.randint(-noise, noise))
        prices += back[::-1]
    if share == 0 and rng.random() < 0.5:
        prices = [rng.randint(-noise, noise) for _ in prices]
    count = len(_items(case, weights))
    found: Certificate = {"item_prices": prices}
    if rng.random() < 0.6:
        found["tracked"] = rng.sample(range(count), rng.randint(0, count))
    if scale > 1 or rng.random() < 0.5:
        found["scale"] = scale
    return found


def walk(rng: Random, about: About) -> Certificate:
    """Prices of items for walks."""
    return {"kind": "resident_walk"} | _priced(rng, about, everything=False)


def search(rng: Random, about: About) -> Certificate:
    """Prices of items for the checker's search, and a bound, often beyond the optimum."""
    best = about.best
    bound = rng.choice((best + 1, best + 1, best, 2 * best + 3, max(0, best - 1), _part(rng, best), 10**20))
    return {"kind": "resident_search", "bound": bound} | _priced(rng, about, everything=True)


def by_batches(rng: Random, about: About) -> Certificate:
    """Prices of items for numbers of batches, mostly for all that matter, and a bound, often beyond the optimum."""
    return _perhaps_by_input(rng, about, _by_batches(rng, about))


def _by_batches(rng: Random, about: About) -> Certificate:
    stated = search(rng, about)
    case, bound = about.case, min(stated["bound"], 2 * about.best + 3)
    base = case.cpu_batch + case.pieces[0][0]
    most = min(bound // base + 1 if base else 12, 40)
    batches: list[Certificate] = []
    staged = rng.random() < 0.5
    for count in range(1, most + 1):
        if rng.random() < 0.995:
            batches.append({"count": count, "item_prices": _priced(rng, about, True)["item_prices"]})
            after = sorted(rng.randint(1, count) for _ in range(rng.randint(0, 2))) if staged else []
            if after:
                later = [{"after": done, "item_prices": _priced(rng, about, True)["item_prices"]} for done in after]
                batches[-1]["later"] = later
    scale = {"scale": rng.choice((1, 2))} if rng.random() < 0.2 else {}
    return {"kind": "layered_search", "bound": bound, "pairs": rng.choice((0, 9, 10**6)), "batches": batches} | scale


def by_core(rng: Random, about: About) -> Certificate:
    """Return the like of some groups, with prices of the others' tokens near the share of the base that each holds."""
    found, case = _by_batches(rng, about), about.case
    groups = _items(case, [0] * len(case.jobs))
    core = rng.sample(range(len(groups)), rng.randint(1, max(1, len(groups) - 1)))
    base, scale = case.cpu_batch + case.pieces[0][0], found.get("scale", 1)
    inside = [group in core for group, items in enumerate(groups) for _ in items]
    blocks = [item.blocks for items in groups for item in items]
    for entry in found["batches"]:
        share, noise = rng.choice((0, 2, 4, 4, 4, 5, 8)), rng.choice((0, 0, 1, base // 4))
        entry["item_prices"] = [
            price if there else scale * base * held * share // (4 * case.blocks) + rng.randint(-noise, noise)
            for price, there, held in zip(entry["item_prices"], inside, blocks, strict=True)
        ]
    return _perhaps_by_input(rng, about, found | {"core": core})


def _perhaps_by_input(rng: Random, about: About, found: Certificate) -> Certificate:
    """Return it for requests of one input as one group, or as it is."""
    if rng.random() < 0.5:
        return found
    kinds = sorted({(job.prompt, job.output) for job in about.case.jobs})
    core, noise = found.get("core", range(len(kinds))), rng.choice((0, 0, 0, 1, 10))

    def turned(stated: Certificate) -> Certificate:
        """Return prices of the longest output; ends give back what is left of it."""
        left, prices = [*stated["item_prices"]], dict[tuple[int, int], list[int]]()
        for prompt, output in kinds:
            prices[prompt, output], left = left[:output], left[output:]
        inside = [kind for group, kind in enumerate(kinds) if group in core]
        longest = dict(inside)
        items = [price for kind in longest.items() for price in prices[kind]]
        ends = [
            rng.randint(-noise, noise) - prices[prompt, longest[prompt]][output]
            for prompt, output in inside
            if output < longest[prompt]
        ]
        others = [price for kind in kinds if kind not in inside for price in prices[kind]]
        return stated | {"item_prices": items + ends + others}

    batches = [turned(entry) for entry in found["batches"]]
    for entry in batches:
        if "later" in entry:
            entry["later"] = [turned(later) for later in entry["later"]]
    return found | {"alike": "input", "batches": batches}


def by_apart(rng: Random, about: About) -> Certificate:
    """Return the like where some run apart: those that leave no room for others, or any."""
    case = about.case
    kinds = sorted({(job.prompt, job.output) for job in case.jobs})
    least = sorted(case.held(job.prompt) for job in case.jobs)
    second = least[1] if len(least) > 1 else case.blocks
    apart = [group for group, (prompt, _) in enumerate(kinds) if case.held(prompt) + second > case.blocks]
    if rng.random() < 0.2:
        apart = rng.sample(range(len(kinds)), rng.randint(0, len(kinds)))
    there = {kinds[group] for group in apart}
    others = tuple(job for job in case.jobs if (job.prompt, job.output) not in there)
    items = dict(zip(kinds, _items(case, [0] * len(case.jobs)), strict=True))
    taken = sum(
        case.cpu_batch + case.pieces[0][0] + (item.fill if item.k == 1 else item.decode)
        for job in case.jobs
        if (job.prompt, job.output) in there
        for item in items[job.prompt, job.output]
    )
    if not others:
        return {"kind": "layered_search", "bound": about.best + rng.choice((0, 1, 9)), "apart": apart}
    rest = replace(about, case=replace(case, jobs=others), best=max(1, about.best - taken))
    found = rng.choice((by_batches, by_core))(rng, rest)
    return found | {"apart": apart, "bound": found["bound"] + taken}


def requests(rng: Random, about: About) -> Certificate:
    """Shares of a batch's base near those that a full batch has, and a bound, often beyond the optimum."""
    case, best = about.case, about.best
    base = case.cpu_batch + case.pieces[0][0]
    weights = [0] * len(case.jobs)
    if about.objective in {"mean_e2e", "weighted_e2e"}:
        weights = [job.weight if about.objective == "weighted_e2e" else 1 for job in case.jobs]
    part, noise = rng.choice((0, 1, 3, 4, 4, 4, 5)), rng.choice((0, 0, 0, 1, base // 4))
    shares = [
        max(0, base * part * item.blocks // (4 * case.blocks) + rng.randint(-noise, noise))
        for items in _items(case, weights)
        for item in items
    ]
    if rng.random() < 0.1:
        shares = [_part(rng, base) for _ in shares]
    bound = rng.choice((best + 1, best + 1, best, 2 * best + 3, max(0, best - 1), _part(rng, best), 10**20))
    states = rng.choice((1, 10, 1_000, 100_000, 4_000_000))
    stated: Certificate = {"kind": "request_search", "bound": bound, "shares": shares, "states": states}
    if about.objective not in {"mean_e2e", "weighted_e2e"} or len(set(weights)) > 1 or rng.random() < 0.3:
        return stated
    unit = rng.choice((1, 1, 2, 60, 10**6))
    prices = [
        [rng.choice((0, 0, unit, 2 * unit, rng.randint(0, unit))) for _ in shares] for _ in range(rng.randint(1, 6))
    ]
    return stated | {"unit": unit, "prices": prices}


def pauses(rng: Random, about: About) -> Certificate:
    """Draw a bound near the optimum, and a number of steps."""
    best = about.best
    bound = rng.choice((best + 1, best + 1, best, best, 2 * best + 3, max(1, best - 1), max(1, _part(rng, best))))
    return {"kind": "free_pauses", "bound": bound, "steps": rng.choice((1, 10, 1_000, 3_000_000, 3_000_000))}


def patterns(rng: Random, about: About) -> Certificate:
    """Prices of batches, and packings."""
    case = about.case
    groups = _items(case, [0] * len(case.jobs))
    flat = [item for items in groups for item in items]
    packings = []
    for _ in range(rng.choice((0, 0, 1, 2))):
        part = rng.choice((2, 3, 4))
        style = rng.randint(0, 2)
        packings.append(
            [
                rng.randint(0, 3)
                if style == 0
                else int(part * item.blocks > case.blocks)
                if style == 1
                else item.blocks
                for item in flat
            ]
        )
    most = sum(job.output for job in case.jobs)
    weights = _weights(rng, len(case.pieces))
    found: Certificate = {"kind": "patterns", "piece_weights": weights, "packings": packings}
    entries = []
    extras = [abs(item.fill - item.decode) for item in flat if item.k > 1] or [0]
    units = _units(case) | {"fill_memory": case.blocks, "decode_memory": case.blocks}
    for _ in range(rng.choice((0, 1, 1, 2))):
        scale = rng.choice((1, 1, 2, 60, 10**6))
        batches = rng.choice((most, rng.randint(1, most)))
        entry: Certificate = {"batches": batches, "scale": scale}
        busy = scale * sum(weights) * rng.choice((*extras, case.pieces[0][0]))
        names = rng.sample(list(units), rng.choice((0, 1, 1, 2, 3)))
        if rng.random() < 0.3:
            # of these a batch pays only the dearer one if it may not be hybrid; both may bind if P is far below M
            names = ["prefill_tokens", "decode_memory"]
        even = rng.random() < 0.4
        for name in names:
            until = batches if even else rng.randint(0, batches)
            level = _around(rng, busy, units[name])
            entry[name] = [(level if even else _around(rng, busy, units[name])) * (j < until) for j in range(batches)]
        if packings and rng.random() < 0.6:
            entry["packings"] = [[_around(rng, busy, 2) for _ in range(batches)] for _ in packings]
        entries.append(entry)
    found["prices"] = entries
    return found


def last_arrivals(rng: Random, about: About) -> Certificate:
    """Another certificate, for the requests that arrive last."""
    case = about.case
    moment = max(job.arrival for job in case.jobs) if rng.random() < 0.6 else _moment(rng, case)
    jobs = tuple(job for job in case.jobs if job.arrival >= moment)
    rest = max(0, about.best - moment + min(job.arrival for job in case.jobs))
    inner = About(replace(case, jobs=jobs, queue=()), about.objective, rest)
    return {"kind": "last_arrivals", "from_ps": moment, "certificate": _of_some(rng, inner)}


def _of_some(rng: Random, about: About) -> Certificate:
    """Return a certificate of another kind, for some requests alone."""
    makers = [alone, machine, volume, ramp]
    if len({job.arrival for job in about.case.jobs}) == 1 and not about.case.chunked:
        makers += [patterns, patterns, patterns, walk, walk, search]
    elif not about.case.chunked:
        makers += [search, search]
    return rng.choice(makers)(rng, about)


def core_alone(rng: Random, about: About) -> Certificate:
    """Another certificate, for some requests that arrive earlier by what the others take about."""
    case = about.case
    core = sorted(rng.sample(range(len(case.jobs)), rng.randint(1, len(case.jobs))))
    others = [job for number, job in enumerate(case.jobs) if number not in core]
    slope, first = min(token for _, token in case.pieces), min(job.arrival for job in case.jobs)

    def work(job: TrialJob) -> int:
        decodes = (case.attends(True, 1, job.prompt + k) + slope for k in range(job.output - 1))
        return slope * job.prompt + case.attends(False, job.prompt, 0) + sum(decodes)

    def earlier(job: TrialJob) -> TrialJob:
        before = sum(work(other) for other in others if other.arrival < job.arrival)
        return replace(job, arrival=max(first, job.arrival - before))

    jobs = tuple(earlier(case.jobs[number]) for number in core)
    rest = max(0, about.best - sum(map(work, others)) - min(job.arrival for job in jobs) + first)
    inner = About(replace(case, jobs=jobs, queue=()), about.objective, rest)
    return {"kind": "core_alone", "requests": core, "certificate": _of_some(rng, inner)}


def assignment(rng: Random, about: About) -> Certificate:
    """Shares and weights of machines."""
    shares = [_shared(rng, replace(about, case=case)) for case in about.machines]
    if len(set(about.machines)) == 1 and rng.random() < 0.7:
        shares = [shares[0]] * len(shares)
    found = {"kind": "assignment", "shares": shares, "weights": _weights(rng, len(shares))}
    if rng.random() < 0.6:
        found["weights"] = [1] * len(shares)
    return found | {"release_ps": _moment(rng, about.case)}


def _rate(rng: Random, case: Case) -> Certificate:
    shared = _shared(rng, About(case, "makespan", 0))
    return {name: shared[name] for name in ("piece_weights", "prefill_step_ps")}


def chains(rng: Random, about: About) -> Certificate:
    """Draw a bound, also just beyond the optimum, and a share of memory."""
    whole = rng.choice((1, 2, 8))
    bound = rng.choice((about.best + 1, about.best, about.best, about.best - 1, _part(rng, about.best), 1))
    terms = {"kind": "chains", "bound": bound, "release_ps": _moment(rng, about.case)}
    return terms | _rate(rng, about.case) | {"memory_share": [_part(rng, whole), whole]}


def worth(rng: Random, about: About) -> Certificate:
    """Worths near what requests take, and rules for ranges of numbers of batches."""
    case, release, weight = about.case, _moment(rng, about.case), rng.choice((1, 1, 3, 1000))
    unit = _non_attention(case, 1) + case.decode_req
    single = [
        weight * (_fill(case, job) + (job.output - 1) * unit) if job.arrival >= release else 0 for job in case.jobs
    ]
    worths = [_around(rng, each) if each else 0 for each in single]
    most = max(job.prompt + job.output for job in case.jobs)
    ends = sorted(rng.sample(range(1, most + 3), rng.choice((0, 0, 1, 2))))
    base = case.lasts(0, 0, 0, 0)
    ranges = []
    for last in (*ends, None):
        count = rng.choice((0, 1, 1, 1, 2))
        rates = [{"weight": rng.choice((weight, weight, rng.randint(0, 3)))} | _rate(rng, case) for _ in range(count)]
        ranges.append({"last": last, "memory_ps": _part(rng, weight * base), "rates": rates})
    if rng.random() < 0.5:
        # Worths are what requests take by one piece, with their part of memory or without; ranges differ in nothing.
        piece, memory = rng.randrange(len(case.pieces)), rng.choice((0, 0, weight))
        worths = [_taken(case, job, piece, weight, memory) if job.arrival >= release else 0 for job in case.jobs]
        chosen = [int(place == piece) for place in range(len(case.pieces))]
        rate: Certificate = {"weight": weight, "piece_weights": chosen, "prefill_step_ps": case.prefill_req}
        for entry in ranges:
            entry |= {"memory_ps": memory * case.pieces[piece][0], "rates": [rate]}
    found: Certificate = {"kind": "worth", "release_ps": release, "worths": worths, "ranges": ranges}
    if rng.random() < 0.2:
        return found | _by_memory(rng, about, release)
    if rng.random() < 0.4:
        step = rng.choice((0, case.prefill_req))
        ramps = [{"prefill_step_ps": step} | _layers(rng, case) for _ in range(rng.choice((1, 1, 2)))]
        for entry in ranges:
            places = [place for place in range(len(ramps)) if rng.random() < 0.8]
            entry["ramps"] = [{"weight": rng.choice((weight, weight, 0, 1)), "ramp": place} for place in places]
        found["ramps"] = ramps
    return found


def _by_memory(rng: Random, about: About, release: int) -> Certificate:
    """Let requests be worth what they hold: few batches cannot hold a part of it, more of them leave the rest each."""
    case = about.case
    base = case.cpu_batch + case.pieces[0][0]
    price = rng.choice((base // case.blocks, _part(rng, base // case.blocks)))
    held = [_held(case, job) if job.arrival >= release else 0 for job in case.jobs]
    full = len(about.machines) * case.blocks
    last = max(1, -(-sum(held) // full) - 1 + rng.choice((-1, 0, 0, 0, 1)))
    ramps = [{"prefill_step_ps": 0, "widths": [1], "scale": 1, "memory": [price], "repeated": 0}]
    few = {"last": last, "memory_ps": price * case.blocks, "rates": []}
    more = {"last": None, "memory_ps": 0, "rates": [], "ramps": [{"weight": 1, "ramp": 0}]}
    return {"worths": [price * each for each in held], "ranges": [few, more], "ramps": ramps}


def _taken(case: Case, job: TrialJob, piece: int, weight: int, memory: int) -> int:
    """Return what a request takes besides the bases of batches, if prefills are whole, and its part of these."""
    base, slope = case.pieces[piece]
    taken = slope * job.prompt + case.attends(False, job.prompt, 0)
    taken += sum(slope + case.attends(True, 1, job.prompt + decode) for decode in range(job.output - 1))
    return weight * taken + memory * base * _held(case, job) // case.blocks


def _held(case: Case, job: TrialJob) -> int:
    """Return the blocks that a request holds, in all batches together."""
    return sum(map(case.held, range(job.prompt, job.prompt + job.output)))


def joint(rng: Random, about: About) -> Certificate:
    """Bounds of some sets of requests on some machines, and what they prove together."""
    classes: dict[TrialJob, int] = {}
    for job in about.case.jobs:
        classes[job] = classes.get(job, 0) + 1
    groups = sorted(classes.items(), key=lambda group: group[0].arrival)
    makers: list[Maker] = [alone]
    if about.objective in _MEANS:
        makers += [machine, machine]
    if about.case.hybrid and not about.case.chunked and about.objective in _SEARCHED:
        makers += [search, search, search]
    makers += {"makespan": [volume, volume], "slo_misses": [late], "mean_e2e": [congestion]}.get(about.objective, [])
    sets = []
    for _ in range(rng.choice((1, 2, 4, 8, 16))):
        place = rng.randrange(len(about.machines))
        counts = [rng.randint(0, size) for _, size in groups]
        jobs = tuple(job for (job, _), count in zip(groups, counts, strict=True) for _ in range(count))
        if jobs or rng.random() < 0.05:
            case = replace(about.machines[place], jobs=jobs or about.case.jobs)
            certificate = rng.choice(makers)(rng, About(case, about.objective, about.best))
            sets.append({"machine": place, "counts": counts, "certificate": certificate})
    bound = rng.choice((about.best + 1, about.best, about.best - 1, _part(rng, about.best), about.best // 2, 0))
    return {"kind": "joint", "bound": bound, "sets": sets}


_PERCENTILES = tuple(name for name in OBJECTIVES if name.startswith("p") and name not in BETWEEN_TOKENS)
_MEANS = ("makespan", "mean_ttft", "max_ttft", "mean_e2e", "max_e2e", "weighted_e2e")
_MAKESPAN = ("makespan",)
_FEW = Wanted(memory_only=True, arrivals=False, most=3)
_FEW_LATER = Wanted(memory_only=True, arrivals=True, swap=False, most=3)
_DIVIDED = (*_MEANS, "slo_misses")
_SHARED = Wanted(most=3)
_SEARCHED = ("makespan", "max_e2e", "mean_e2e", "weighted_e2e")

GRAMMARS: Mapping[str, Grammar] = MappingProxyType(
    {
        "alone": Grammar(alone, OBJECTIVES),
        "machine": Grammar(machine, _MEANS),
        "late": Grammar(late, ("slo_misses",)),
        "percentile": Grammar(percentile, _PERCENTILES),
        "congestion": Grammar(congestion, ("mean_e2e",)),
        "congestion, long": Grammar(congestion, ("mean_e2e",), Wanted(long=True, shared=True)),
        "waiting": Grammar(waiting, ("mean_e2e",)),
        "waiting, long": Grammar(waiting, ("mean_e2e",), Wanted(long=True)),
        "volume": Grammar(volume, _MAKESPAN),
        "ramp": Grammar(ramp, _MAKESPAN),
        "inflow": Grammar(inflow, _MAKESPAN, Wanted(arrivals=True)),
        "resident_walk": Grammar(walk, _MAKESPAN, Wanted(memory_only=True, arrivals=False)),
        "resident_search": Grammar(search, _SEARCHED, _FEW),
        "resident_search, arrivals": Grammar(search, _MAKESPAN, _FEW_LATER),
        "layered_search": Grammar(by_batches, ("makespan", "max_e2e"), _FEW),
        "layered_search, core": Grammar(by_core, ("makespan", "max_e2e"), _FEW),
        "layered_search, apart": Grammar(by_apart, ("makespan", "max_e2e"), _FEW),
        "request_search": Grammar(requests, _SEARCHED, _FEW),
        "request_search, arrivals": Grammar(requests, ("makespan", "mean_e2e"), _FEW_LATER),
        "free_pauses": Grammar(pauses, _MAKESPAN, _FEW_LATER),
        "patterns": Grammar(patterns, _MAKESPAN, Wanted(whole=True, arrivals=False)),
        "last_arrivals": Grammar(last_arrivals, _MAKESPAN, Wanted(arrivals=True, swap=False)),
        "last_arrivals, memory": Grammar(last_arrivals, _MAKESPAN, Wanted(memory_only=True, arrivals=True, swap=False)),
        "core_alone": Grammar(core_alone, _MAKESPAN, Wanted(whole=True, arrivals=True, swap=False)),
        "core_alone, memory": Grammar(core_alone, _MAKESPAN, Wanted(memory_only=True, arrivals=True, swap=False)),
        "alone, several": Grammar(alone, _DIVIDED, _SHARED, "any"),
        "assignment": Grammar(assignment, ("makespan", "mean_ttft", "mean_e2e"), _SHARED, "any"),
        "chains": Grammar(chains, _MAKESPAN, _SHARED, "equal"),
        "worth": Grammar(worth, _MAKESPAN, _SHARED, "equal"),
        "congestion, several": Grammar(congestion, ("mean_e2e",), Wanted(long=True), "equal"),
        "joint": Grammar(joint, _DIVIDED, _SHARED, "any"),
    }
)
"""Kinds of certificates by name; what stands after a comma says of which problems."""


# Changes of certificates -------------------------------------------------------------------------------------


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where the parts of a JSON value are that hold no others."""
    if isinstance(value, dict):
        return [place for key, entry in value.items() for place in leaves(entry, (*path, key))]
    if isinstance(value, list):
        return [place for key, entry in enumerate(value) for place in leaves(entry, (*path, key))]
    return [path]


def put(value: Any, path: Sequence[Any], change: Callable[[Any], Any]) -> Any:
    """Return a copy of a JSON value in which the part at a place is changed."""
    if not path:
        return change(value)
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = put(value[path[0]], path[1:], change)
    return copied


_FIXED = frozenset({"kind", "widths", "from_ps", "release_ps", "repeated", "tracked"})
"""Fields of which hardly any other value is accepted."""


def nudged(rng: Random, certificate: Certificate) -> Certificate:
    """Return the certificate with one to three of its integers changed a little."""
    places = [place for place in leaves(certificate) if not _FIXED & set(place)]
    if not places:
        return certificate
    for place in rng.sample(places, min(len(places), rng.choice((1, 1, 2, 3)))):
        certificate = put(certificate, place, lambda number: _near(rng, number))
    return certificate


def _near(rng: Random, number: Any) -> Any:
    if type(number) is not int:
        return number
    step = max(1, abs(number) // rng.choice((2, 4, 8, 32, 1000)))
    return rng.choice((number + 1, number - 1, number + step, number + step, number - step, 2 * number, 0))


_JUNK: tuple[Any, ...] = (
    None, True, False, 1.5, -1, "1", "", [], {}, [1], [[1]], {"x": 1}, 2**31, 2**62, 2**63, 2**64, -(2**63), 10**30,
    -(10**30), 10**400, float("nan"), float("inf"), -0.0, "memory", [None], [[1, 0, 0]], [True], 10**15, 10**13 + 1,
)  # fmt: skip


def spoiled(rng: Random, certificate: Certificate) -> Any:
    """Return the certificate with something in it of another type, size or length, or missing."""
    places = leaves(certificate)
    place = rng.choice(places)
    if len(place) > 1 and rng.random() < 0.4:
        place = place[: rng.randint(1, len(place) - 1)]
    if place == ("kind",) and rng.random() < 0.9:
        place = rng.choice(places)
    parent: Any = certificate
    for key in place[:-1]:
        parent = parent[key]
    change = rng.randint(0, 9)
    if change <= 1 and place[:-1]:
        return put(certificate, place[:-1], lambda _: _shorter(rng, parent, place[-1]))
    if change == 2 and len(place) == 1:
        return {key: entry for key, entry in certificate.items() if key != place[0]}
    return put(certificate, place, lambda _: rng.choice(_JUNK))


def _shorter(rng: Random, parent: Any, key: Any) -> Any:
    if isinstance(parent, dict):
        return {name: entry for name, entry in parent.items() if name != key}
    return parent[:key] + ([parent[key]] * 2 if rng.random() < 0.5 else []) + parent[key + 1 :]
