r"""Certificates of kind ``request_search``: no schedule is below the bound, by a search request by request.

Prefills run whole, batches are hybrid, the batch time has one affine piece, refills take no less time than the decodes
in their place (`require_dear_refills`), and C, P and N admit a step of every request at once, so that only memory
binds. The objective is the makespan; the largest e2e latency, if all requests arrive together, which then is the
makespan; or a sum of e2e latencies, with different weights only if all arrive together. An order of first runs or a
number of evictions may restrict schedules further: what holds without them holds with them.

*States.* After a batch every request waits or holds KV, with k tokens generated. One that holds KV may be evicted, if
that is allowed: then it waits, and no time has passed. In the next batch, which begins at once or at a later arrival, a
request that waits and has arrived may be filled; one that holds KV decodes. It is kept without running only if requests
arrive over time, for if they do not, `contents` says why schedules without pauses suffice. What all hold in the batch
fits the blocks. To evict and to refill in the next batch is no schedule, but takes no less time than to keep.
Groups are as in `contents`: requests of a group differ in their arrival alone, so let them start in the order in which
they arrive. Equal requests of a state are counted, not named. A batch that waits for an arrival begins with a request
that arrives just then: else it could begin earlier.

*Labels.* With arrivals a state has the time that has passed since the earliest arrival and, for sums, the sum of the
completions so far; without, the makespan so far, or the sum over batches of their time × weight that is unfinished.
Whatever follows from a state also follows from the same state with labels that are no larger, later batches beginning
when they did. So labels that another one equals or undercuts in all numbers are dropped.

*Estimate.* The certificate has ``shares``, an integer ≥ 0 for every item of `contents`, of which the requests that can
hold KV in one batch have at most the base of a batch: that is computed by a knapsack over all requests, each with one
of its tokens or none (`_most_shared`). So a batch lasts as long as all its steps take and all its runs have shares,
or longer. A step of token k thus needs its share and a fill or decode of a machine that is never given out twice, and

- the last completion is no earlier than that of jobs of these needs on one machine, in the order of their arrival;
- the sum of completions is no less than that by the shortest remaining need first, since by any moment as many jobs as
  possible have then completed (Schrage 1968); weighted, and all there at the start, by the smallest need per weight
  (Smith 1956);
- a request completes no earlier than all its tokens, each alone in a batch. The i-th completion is no earlier than the
  i-th of these, ascending, and the i-th by the shortest need first.

*Whole batches*, where completions of equal weight are summed. Let the i-th completion be at the end of the J-th batch
from now. What i requests still need is in these J batches: at least the sum of the i least shares, of which a batch
gives at most its base b, at least the sum of the i least works, and as many batches as one of them has tokens left. So
it is no earlier than b × max(⌈sum of i least shares / b⌉, i-th fewest tokens left) and the sum of the i least works.

*Prices of batches*, for sums of equal weights without arrivals. The certificate may have ``unit`` ≥ 1 and ``prices``,
an integer ≥ 0 for every item and each of some batches m = 1, …, H. Let :math:`C_m` be the most that what one batch
holds can pay at the prices of m (`_most_shared`). Let a request pay ``unit`` for every batch until it is completed, and
the price of its item for every one that holds it, the batches from now on having the prices of m, m + 1, …, H, and
none after H. It pays at least :math:`V_r(m)` from what it is now on, the least over all it may do. So all that are
unfinished wait for

.. math:: N = ⌈(\sum_r V_r(m) - C_m - … - C_H) / \mathrm{unit}⌉

batches or more, each counted for every request that is unfinished when it begins; and the sum of completions is at
least b N and the sum, over i, of the i least works.

*Bound.* The certificate has ``bound``, and ``states``, the most labels that the search may keep. The search follows all
batches from all labels whose estimate is less than ``bound``, smallest first. If none of them is finished, ``bound`` is
proved; else, or if more labels than ``states`` would be kept, or 16 times as many batches have been looked at, the
estimate of the label that has come that far, which no other is below. Numbers are kept in 64 bits; what the largest can
be is computed first (`require_64_bits`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from optsched.check.certificates.shared.contents import SUMS, Item, group_of, items_of, offline
from optsched.check.certificates.shared.guard import require_64_bits
from optsched.check.certificates.shared.refills import require_dear_refills
from optsched.check.certificates.shared.request_states import (
    DATED_SUM,
    LAST,
    MOST_REQUESTS,
    MOST_TOKENS,
    RESIDENT,
    SUM,
    Priced,
    Searched,
    search_requests,
)
from optsched.check.problem import Problem, feasible, pieces_of
from optsched.check.reading import UnprovedError, natural, shown
from optsched.compiled import uncompiled
from optsched.model.ints import Ints
from optsched.model.objectives import Objective

MOST_STATES = 4_000_000
"""A search keeps no more labels; these take up to a gigabyte."""
_FEW_REQUESTS, _FEW_STATES = 8, 500
"""With so few a search takes as long as to load what was compiled, a tenth of a second; to compile takes nine."""
_MOST_WORK = 200_000_000
"""Blocks × tokens of all requests, summed over the knapsacks that are solved."""
_KIND = "request_search"


def request_search_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return the bound of a ``request_search`` certificate; the module says why it holds."""
    _require_covered(problem, objective)
    items = items_of(problem, objective)
    bound, shares, states = _stated(certificate, items)
    unit, prices = _stated_prices(certificate, items)
    _require_little_work(problem, items, len(prices))
    [(base, _)] = pieces_of(problem.cost)
    shared = _most_shared(problem, items, shares)
    if shared[-1] > base:
        raise UnprovedError(f"shares of one batch add up to {shared[-1]}, more than its base {base}")
    order = sorted(
        range(len(problem.requests)),
        key=lambda request: (group_of(problem, objective, request), problem.requests[request].arrival_ps),
    )
    arrivals = [problem.requests[request].arrival_ps for request in order]
    aim = LAST if objective not in SUMS else SUM if offline(problem) else DATED_SUM
    weights = [group_of(problem, objective, request)[2] for request in order]
    start = min(arrivals)
    # With arrivals the search adds up completions from the first arrival on, of equal weights.
    equal, waited = (weights[0], sum(arrivals) - len(order) * start) if aim == DATED_SUM else (1, 0)
    below = -(-bound // equal) + waited
    _require_64_bits(problem, items, below, max(arrivals) - start)
    if prices and (aim != SUM or len(set(weights)) > 1):
        raise UnprovedError("prices are for sums of equal weights, and requests that arrive at the same time")
    priced = _priced(problem, items, unit, prices)
    searched = _searched(items, shares, base, [arrival - start for arrival in arrivals], priced)
    found = _search(searched, aim, base, shared, problem.eviction, not offline(problem), below, states)
    return min(bound, equal * (found - waited))


def _search(  # noqa: PLR0917 - as `search_requests`
    searched: Searched, aim: int, base: int, shared: Ints, evicts: bool, pauses: bool, below: int, states: int
) -> int:
    """Return what `search_requests` does, which is not compiled if a few labels prove all."""
    if len(searched.group) <= _FEW_REQUESTS:
        few = min(states, _FEW_STATES)
        with np.errstate(over="ignore"):  # hashes wrap
            found = uncompiled(search_requests)(searched, aim, base, shared, evicts, pauses, below, few)
        if found == below:  # else a label was finished, or there may be more of them
            return below
    return search_requests(searched, aim, base, shared, evicts, pauses, below, states)


def _require_covered(problem: Problem, objective: Objective) -> None:
    """Refuse problems and objectives of which the theorem does not speak, and states that do not fit their bytes."""
    requests, limits = problem.requests, problem.limits
    if objective not in SUMS | {Objective.MAKESPAN, Objective.MAX_E2E}:
        raise UnprovedError(f"kind {_KIND} bounds makespan and e2e latencies, the objective is {objective.value}")
    if objective is Objective.MAX_E2E and not offline(problem):
        raise UnprovedError(f"kind {_KIND} needs requests that arrive at the same time for {objective.value}")
    if problem.chunked or not problem.hybrid or len(pieces_of(problem.cost)) > 1:
        raise UnprovedError(f"kind {_KIND} needs whole prefills, hybrid batches and a batch time of 1 affine piece")
    # What runs in a batch is held in it.
    tokens = min(sum(request.input + request.output - 1 for request in requests), limits.kv_tokens)
    if min(limits.batch_tokens, limits.prefill_tokens) < tokens:
        raise UnprovedError(f"kind {_KIND} needs batch_tokens and prefill_tokens of at least {tokens}")
    if problem.runs is not None and problem.runs < len(requests):
        raise UnprovedError(f"kind {_KIND} needs batches of all {len(requests)} requests, {problem.runs} may run")
    if not feasible(problem):
        raise UnprovedError(f"kind {_KIND} needs a request to fit the KV cache alone, some request does not")
    if len(requests) > MOST_REQUESTS or max(request.output for request in requests) > MOST_TOKENS:
        raise UnprovedError(f"kind {_KIND} covers {MOST_REQUESTS} requests of {MOST_TOKENS} output tokens at most")
    weights = {group_of(problem, objective, request)[2] for request in range(len(requests))}
    if objective in SUMS and not offline(problem) and (len(weights) > 1 or 0 in weights):
        raise UnprovedError(f"kind {_KIND} needs equal weights > 0 where requests arrive over time")
    require_dear_refills(_KIND, problem)


def _stated(certificate: Mapping[str, Any], items: Sequence[Item]) -> tuple[int, list[int], int]:
    """Read ``bound``, ``shares`` and ``states``."""
    bound, shares, states = natural(certificate, "bound"), certificate.get("shares"), certificate.get("states")
    if type(states) is not int or not 1 <= states <= MOST_STATES:
        raise UnprovedError(f"states is {shown(states)}, expected an integer from 1 to {MOST_STATES}")
    if not isinstance(shares, list) or not all(type(share) is int and share >= 0 for share in shares):
        raise UnprovedError(f"shares is {shown(shares)}, expected a list of integers ≥ 0")
    if len(shares) != len(items):
        raise UnprovedError(f"shares has {len(shares)} integers, expected {len(items)}, one for each item")
    return bound, shares, states


def _stated_prices(certificate: Mapping[str, Any], items: Sequence[Item]) -> tuple[int, list[list[int]]]:
    """Read ``unit`` and ``prices``; 1 and none if there are none."""
    unit, prices = certificate.get("unit", 1), certificate.get("prices", [])
    if type(unit) is not int or unit < 1:
        raise UnprovedError(f"unit is {shown(unit)}, expected an integer ≥ 1")
    if not isinstance(prices, list) or not all(isinstance(batch, list) for batch in prices):
        raise UnprovedError(f"prices is {shown(prices)}, expected a list of lists")
    for batch in prices:
        if len(batch) != len(items) or not all(type(price) is int and price >= 0 for price in batch):
            raise UnprovedError(f"prices has {shown(batch)}, expected {len(items)} integers ≥ 0, one for each item")
    return unit, prices


def _require_little_work(problem: Problem, items: Sequence[Item], batches: int) -> None:
    tokens, blocks = sum(item.requests for item in items), problem.blocks
    if blocks * tokens * (1 + batches) > _MOST_WORK:
        work = (
            f"blocks × output tokens of all requests × (1 + batches with prices) are {blocks * tokens * (1 + batches)}"
        )
        raise UnprovedError(f"{work}, at most {_MOST_WORK}")


def _priced(problem: Problem, items: Sequence[Item], unit: int, prices: Sequence[Sequence[int]]) -> Priced:
    """Return prices of batches, and of all later ones, and what requests pay at least; no batches for no prices."""
    batches, groups = len(prices) + 1 if prices else 0, 1 + items[-1].group
    require_64_bits(paid=(unit * (batches + MOST_TOKENS) + sum(map(max, prices))) * 4 * MOST_REQUESTS)
    price = np.zeros((batches, groups, MOST_TOKENS + 2), dtype=np.int64)
    paid = np.zeros((groups, 2 * RESIDENT, batches), dtype=np.int64)
    most = np.zeros((batches, problem.blocks + 1), dtype=np.int64)
    for m, of_items in enumerate(prices):
        most[m] = _most_shared(problem, items, of_items)
        for item, pays in zip(items, of_items, strict=True):
            price[m, item.group, item.k] = pays
    for m in reversed(range(batches)):
        for item in reversed(items):
            then = min(m + 1, batches - 1)
            after = 0 if item.last else int(paid[item.group, RESIDENT + item.k, then])
            runs = unit + int(price[m, item.group, item.k]) + after
            waits = runs if then == m else min(runs, unit + int(paid[item.group, item.k - 1, then]))
            paid[item.group, item.k - 1, m] = waits
            if item.k > 1:
                # What holds the token before runs, or is evicted.
                paid[item.group, RESIDENT + item.k - 1, m] = waits if problem.eviction else runs
    return Priced(unit, price, paid, most, most[::-1, -1].cumsum()[::-1].copy())


def _most_shared(problem: Problem, items: Sequence[Item], shares: Sequence[int]) -> Ints:
    """Return the largest sum of shares of requests that hold 0, 1, … blocks or less, each with one token or none."""
    blocks = problem.blocks
    require_64_bits(shares=sum(item.requests * share for item, share in zip(items, shares, strict=True)))
    most = np.zeros(blocks + 1, dtype=np.int64)
    for _, group in groupby(zip(items, shares, strict=True), key=lambda pair: pair[0].group):
        tokens_of = list(group)
        for _ in range(tokens_of[0][0].requests):
            more = most.copy()
            for item, share in tokens_of:
                more[item.blocks :] = np.maximum(more[item.blocks :], most[: blocks + 1 - item.blocks] + share)
            most = more
    return most


def _require_64_bits(problem: Problem, items: Sequence[Item], below: int, latest: int) -> None:
    """Refuse numbers of which sums may be too large: a label, all needs after it, each as often as it is added."""
    [(base, _)] = pieces_of(problem.cost)
    # Where eviction is forbidden a refill may be cheaper than a decode.
    alone = sum(item.requests * (base + item.work_ps + max(0, item.extra_ps)) for item in items)
    weight = sum(item.requests * max(item.weight, 1) for item in items if item.k == 1)
    require_64_bits(largest_sum=(below + latest + 3 * alone) * (weight + 1) * MOST_REQUESTS)


def _searched(
    items: Sequence[Item], shares: Sequence[int], base: int, arrivals: Sequence[int], priced: Priced
) -> Searched:
    """Return the arrays of a problem; needs and chains are summed up from the last token."""
    groups = [list(group) for _, group in groupby(zip(items, shares, strict=True), key=lambda pair: pair[0].group)]
    shape = len(groups), MOST_TOKENS + 2
    blocks, fill, decode, share_of = (np.zeros(shape, dtype=np.int64) for _ in range(4))
    need, chain, work = (np.zeros((len(groups), 2 * RESIDENT), dtype=np.int64) for _ in range(3))
    for group, members in enumerate(groups):
        later = np.zeros(3, dtype=np.int64)
        for item, share in reversed(members):
            blocks[group, item.k], share_of[group, item.k] = item.blocks, share
            decode[group, item.k], fill[group, item.k] = item.work_ps, item.work_ps + item.extra_ps
            later += np.array([share, base, 0]) + item.work_ps
            for left, time in zip((need, chain, work), later.tolist(), strict=True):
                # The next token is this item: it is decoded, or by a request that waits filled.
                left[group, RESIDENT + item.k - 1], left[group, item.k - 1] = time, time + item.extra_ps
    sizes = [members[0][0].requests for members in groups]
    owner = [group for group, size in enumerate(sizes) for _ in range(size)]
    return Searched(
        group=np.array(owner, dtype=np.int64),
        output=np.array([groups[group][-1][0].k for group in owner], dtype=np.int64),
        weight=np.array([groups[group][0][0].weight for group in owner], dtype=np.int64),
        arrival=np.array(arrivals, dtype=np.int64),
        first=np.cumsum([0, *sizes]).astype(np.int64),
        blocks=blocks,
        fill=fill,
        decode=decode,
        need=need,
        chain=chain,
        work=work,
        share=share_of,
        moments=np.unique(np.array(arrivals, dtype=np.int64)),
        priced=priced,
    )
