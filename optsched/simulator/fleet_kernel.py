"""Equal machines with prefix caches in machine code, which form vLLM's batches (`optsched.policies.cached`).

Requests are served first come, first served. They are named by their rank, the place in the order of arrival, and are
on one machine from the moment that they are routed. Those that wait on a machine are the evicted ones and, as none is
admitted before an earlier one, a stretch of those that were sent there.

For speed it says again what other modules say, to which it has to correspond (besides `optsched.simulator.block_tree`):

==============================  ================================================================================
here                            there
==============================  ================================================================================
`_form`, `_go_on`, `_admit`     `optsched.policies.cached`: `_Forming`
`_start`, `_run_on`, `_decode`  `optsched.simulator.caching.BatchCache`: ``run``, ``decode``
`_lasts`, `_repeat`             `CachedPolicy.valid_for`, `PolicyRun._repeats`, `BatchCache.lasts`; `BatchCache.repeat`
`_carry_out`, `_let_go`         `MachineState.carry_out`, `PolicyRun._run`, `PolicyRun._let_go`
`_advance`                      `optsched.simulator.engine.PolicyRun`, `optsched.simulator.machine_run.MachineRun`
`_look`                         what `MachineRun` shows routers
==============================  ================================================================================
"""

from __future__ import annotations

from typing import NamedTuple

from optsched.arrays import Coefficients, linear_ps, prefill_ps
from optsched.compiled import compiled, compiled_helper, compiled_part
from optsched.model.instance import Instance
from optsched.model.ints import Ints
from optsched.simulator.block_tree import (
    BLOCKS,
    Cache,
    Held,
    Paths,
    ShortInts,
    ask,
    end,
    forget_news,
    found,
    free_blocks,
    in_use,
    known,
    match,
    release,
    step,
    takes,
)

_NO_LIMIT = 1 << 40
"""N where there is no limit."""
MOST_PS = 2**61
"""Times stay below, and sums of what requests take alone."""


class Rule(NamedTuple):
    """The policy, and the limits of a machine: b, C, P, N, how many runs are too many for a log, and what is allowed.

    ``whole`` says whether a prompt has to fit before its request is admitted; ``patience`` how many batches in a row
    may generate nothing.
    """

    block: int
    tokens: int
    prefill: int
    runs: int
    patience: int
    hybrid: bool
    chunked: bool
    eviction: bool
    share: bool
    whole: bool


def rule_of(instance: Instance, hybrid: bool, chunked: bool, whole: bool) -> Rule:
    """Return the rule of a policy on a machine that would have to serve an instance alone (`Rule`)."""
    limits, rules = instance.limits, instance.rules
    return Rule(
        limits.kv_block,
        limits.batch_tokens,
        limits.prefill_tokens,
        limits.batch_requests or _NO_LIMIT,
        sum(request.input + request.output for request in instance.requests),
        hybrid and rules.hybrid,
        chunked and rules.chunked_prefill,
        rules.eviction,
        instance.cache.share_in_batch,
        whole,
    )


class Requests(NamedTuple):
    """What requests are, and their states: arrival, I, O, g, m, whether they decode, and m as batches are formed.

    ``hit`` is what the fill before the first token has found.
    """

    arrival: Ints
    input: Ints
    output: Ints
    generated: Ints
    cached: Ints
    decoding: Ints
    forming: Ints
    hit: Ints


class Machines(NamedTuple):
    """The machines: a row of each array is a machine.

    Parameters
    ----------
    state
        See the names below.
    queue, running, returned
        Requests in the order in which they were sent; those with KV, and those that were evicted and wait, by rank.
    sums, node, heap, head, owner, fresh, refreshed, news, renewed, grown
        Of the caches (`Cache`).
    """

    state: Ints
    queue: ShortInts
    running: ShortInts
    returned: ShortInts
    sums: Ints
    node: Ints
    heap: Ints
    head: ShortInts
    owner: ShortInts
    fresh: ShortInts
    refreshed: ShortInts
    news: ShortInts
    renewed: ShortInts
    grown: ShortInts


NOW, KNOWN, ARRIVED, ADMITTED, RUNNING, RETURNED, OPEN, LEFT, ROW, FRUITLESS = range(10)
LATEST, FILLING, ENDED, FREE, NUMBER, END = range(10, 16)
"""Clock; requests that were sent, have arrived, and have been admitted for the first time; lengths of lists; whether a
batch is open; of a decision that a pause has cut short how many batches are left, and its row; batches in a row without
a token. Of the latest batch: tokens, those of prefill steps, requests that it ends, blocks that were free; then how
many notices there were, and when the latest batch ends."""
STATES = 16


class Log(NamedTuple):
    """What was done, in the order in which it was simulated.

    Parameters
    ----------
    rows
        For each batch machine, start, end, repeats, and where its rows of ``runs``, ``lost``, ``hits`` and ``drops``
        end.
    runs, hits
        Requests, and how many tokens they run, and find.
    lost
        Requests that are evicted.
    drops
        Cached blocks that are dropped: a request, and a place in its sequence.
    notices
        When a machine has what news: time, machine, number, whether it is the last token, request, tokens found.
    sizes
        How many rows each of these has.
    """

    rows: Ints
    runs: ShortInts
    lost: ShortInts
    hits: ShortInts
    drops: ShortInts
    notices: Ints
    sizes: Ints


ROWS, RUNS, LOST, HITS, DROPS, NOTICES = range(6)
MACHINE, START, STOP, REPEAT, RUNS_END, LOST_END, HITS_END, DROPS_END = range(8)
ROW_COLUMNS = 8
NOTICE_COLUMNS = 6

DONE, FULL, OVER = range(3)
"""All is done; the log needs room; the engine has to serve the requests, and say why if the policy fails."""


class Fleet(NamedTuple):
    """All of it."""

    rule: Rule
    costs: Coefficients
    paths: Paths
    requests: Requests
    held: Held
    machines: Machines
    log: Log
    left: Ints


@compiled_helper
def _cache_of(machines: Machines, number: int) -> Cache:
    return Cache(
        machines.sums[number],
        machines.node[number],
        machines.heap[number],
        machines.head[number],
        machines.owner[number],
        machines.fresh[number],
        machines.refreshed[number],
        machines.news[number],
        machines.renewed[number],
        machines.grown[number],
    )


@compiled_part
def _missing(requests: Requests, request: int) -> int:
    return int(requests.input[request] + requests.generated[request] - requests.cached[request])


@compiled_part
def _put(ranks: ShortInts, size: int, rank: int) -> None:
    """Put a rank among others in order."""
    place = size
    while place > 0 and ranks[place - 1] > rank:
        ranks[place] = ranks[place - 1]
        place -= 1
    ranks[place] = rank


@compiled_part
def _take(ranks: ShortInts, size: int, rank: int) -> None:
    """Take a rank out."""
    place, kept = size - 1, rank
    while ranks[place] != rank:
        ranks[place], kept = kept, ranks[place]
        place -= 1
    ranks[place] = kept


# Forming a batch --------------------------------------------------------------------------------------------------


_TOKENS, _PREFILL, _RUNS, _KIND, _EVICTED = range(5)
"""What a batch has left: tokens, prefill tokens, runs; its kind, 0 while it is empty; and how many it evicts."""
LEFT_OVER = 5
_DECODES, _PREFILLS = 1, 2


@compiled_part
def _tokens_of(rule: Rule, left: Ints, missing: int, prefill: bool) -> int:
    """Return the tokens of a step within all budgets, 0 if there can be none."""
    if not _has_room(rule, left, prefill):
        return 0
    budget = min(left[_TOKENS], left[_PREFILL]) if prefill else left[_TOKENS]
    count = min(missing, budget) if prefill and rule.chunked else missing
    return count if count <= budget else 0


@compiled_part
def _has_room(rule: Rule, left: Ints, prefill: bool) -> bool:
    if left[_TOKENS] <= 0 or left[_RUNS] <= 0:
        return False
    return not prefill or (left[_PREFILL] > 0 and (rule.hybrid or left[_KIND] != _DECODES))


@compiled_part
def _add(log: Log, left: Ints, request: int, count: int, prefill: bool) -> None:
    left[_KIND] = _PREFILLS if prefill else _DECODES
    left[_TOKENS] -= count
    left[_RUNS] -= 1
    if prefill:
        left[_PREFILL] -= count
    row = log.sizes[RUNS]
    log.runs[row, 0], log.runs[row, 1] = request, count
    log.sizes[RUNS] = row + 1


@compiled_helper
def _run_on(fleet: Fleet, cache: Cache, request: int, count: int) -> bool:
    """Run tokens of a request with KV; False if memory does not suffice."""
    block, forming = fleet.rule.block, fleet.requests.forming
    before, after = forming[request], forming[request] + count
    if (after + block - 1) // block - (before + block - 1) // block > free_blocks(cache.sums):
        return False
    _reach(fleet, cache, request, after)
    forming[request] = after
    return True


@compiled_part
def _reach(fleet: Fleet, cache: Cache, request: int, tokens: int) -> None:
    """Let blocks know how many tokens a request with KV holds now."""
    sizes, rule = fleet.log.sizes, fleet.rule
    sizes[DROPS] = step(
        fleet.paths, cache, fleet.held, rule.block, rule.share, request, tokens, fleet.log.drops, sizes[DROPS]
    )


@compiled_helper
def _decode(fleet: Fleet, cache: Cache, running: ShortInts, first: int, size: int, left: Ints) -> int:  # noqa: PLR0917
    """Run a decode step of each request from a place on, up to one that does not decode or fit; return how many."""
    requests, block, log = fleet.requests, fleet.rule.block, fleet.log
    last = min(size, first + min(left[_TOKENS], left[_RUNS]))
    row, place = log.sizes[RUNS], first
    while place < last:
        request = running[place]
        if not requests.decoding[request]:
            break
        tokens = requests.forming[request]
        rest = tokens % block
        if rest == 0 and free_blocks(cache.sums) <= 0:
            break
        requests.forming[request] = tokens + 1
        if rest == 0 or rest == block - 1:
            _reach(fleet, cache, request, tokens + 1)
        log.runs[row, 0], log.runs[row, 1] = request, 1
        row, place = row + 1, place + 1
    count = place - first
    if count > 0:
        log.sizes[RUNS] = row
        left[_KIND] = _DECODES
        left[_TOKENS] -= count
        left[_RUNS] -= count
    return int(count)


@compiled_helper
def _go_on(fleet: Fleet, cache: Cache, state: Ints, running: ShortInts, left: Ints) -> bool:
    """Let those that hold KV run; preempt the last of them if blocks run short. Say whether that is allowed."""
    rule, requests, log, held = fleet.rule, fleet.requests, fleet.log, fleet.held
    place, size = 0, state[RUNNING]
    while place < size:
        request = running[place]
        prefill = requests.decoding[request] == 0
        if not rule.hybrid and left[_KIND] != 0 and (left[_KIND] == _PREFILLS) != prefill:
            place += 1
            continue
        count = _tokens_of(rule, left, _missing(requests, request), prefill)
        if count <= 0:
            return True
        if not prefill:
            decoded = _decode(fleet, cache, running, place, size, left)
            if decoded > 0:
                place += decoded
                continue
        while not _run_on(fleet, cache, request, count):
            if not rule.eviction:
                return False
            size -= 1
            victim = running[size]
            requests.forming[victim] = 0
            release(fleet.paths, cache, held, rule.block, victim)
            log.lost[log.sizes[LOST], 0] = victim
            log.sizes[LOST] += 1
            left[_EVICTED] += 1
            if victim == request:
                return True
        _add(log, left, request, count, prefill)
        place += 1
    return True


@compiled_helper
def _admit(fleet: Fleet, cache: Cache, request: int, left: Ints) -> bool:
    """Admit a request if what is to be reserved for it fits; say whether it was."""
    rule, requests, paths, held, log = fleet.rule, fleet.requests, fleet.paths, fleet.held, fleet.log
    if requests.hit[request] < 0:
        requests.hit[request] = 0
        ask(paths, cache, request)
    total = requests.input[request] + requests.generated[request]
    whole = found(paths, cache, held, rule.block, request, total)
    missing = total - whole * rule.block
    count = _tokens_of(rule, left, missing, True)
    if count <= 0:
        return False
    asked = missing if rule.whole else count
    if takes(paths, cache, rule.block, request, whole, asked) > free_blocks(cache.sums):
        return False
    match(paths, cache, held, rule.block, request, whole)
    _reach(fleet, cache, request, whole * rule.block + count)
    requests.forming[request] = whole * rule.block + count
    if whole > 0:
        row = log.sizes[HITS]
        log.hits[row, 0], log.hits[row, 1] = request, whole * rule.block
        log.sizes[HITS] = row + 1
    _add(log, left, request, count, True)
    return True


@compiled_helper
def _form(fleet: Fleet, cache: Cache, state: Ints, queue: ShortInts, running: ShortInts, returned: ShortInts) -> bool:  # noqa: PLR0917
    """Form the next batch; say whether there is one."""
    rule, left = fleet.rule, fleet.left
    left[_TOKENS], left[_PREFILL], left[_RUNS], left[_KIND], left[_EVICTED] = rule.tokens, rule.prefill, rule.runs, 0, 0
    first = fleet.log.sizes[RUNS]
    if not _go_on(fleet, cache, state, running, left):
        return False
    waiting = state[RETURNED] + state[ARRIVED] - state[ADMITTED]
    if waiting > 0 and left[_EVICTED] == 0 and _has_room(rule, left, True):
        for place in range(waiting):
            back = state[RETURNED]
            request = returned[place] if place < back else queue[state[ADMITTED] + place - back]
            if not _admit(fleet, cache, request, left):
                break
    return bool(fleet.log.sizes[RUNS] > first)


# Carrying it out --------------------------------------------------------------------------------------------------


@compiled_helper
def _carry_out(  # noqa: PLR0917 - compiled functions take positions
    fleet: Fleet, cache: Cache, state: Ints, running: ShortInts, returned: ShortInts, first: int, lost: int, hit: int
) -> bool:
    """Carry out one batch, whose rows in the log begin as given; say whether it generates a token."""
    requests, log, costs = fleet.requests, fleet.log, fleet.costs
    for row in range(lost, log.sizes[LOST]):
        request = log.lost[row, 0]
        requests.cached[request] = requests.decoding[request] = requests.hit[request] = 0
        _take(running, state[RUNNING], request)
        state[RUNNING] -= 1
        _put(returned, state[RETURNED], request)
        state[RETURNED] += 1
    before = requests.cached
    tokens = decodes = read = fills = filling = ended = 0
    generated = False
    hits = hit
    for row in range(first, log.sizes[RUNS]):
        request, count = log.runs[row, 0], log.runs[row, 1]
        tokens += count
        if requests.decoding[request]:
            decodes += 1
            read += before[request]
            generated = True
            requests.generated[request] += 1
            before[request] += 1
            ended += requests.generated[request] == requests.output[request]
            continue
        filling += count
        if before[request] == 0:
            if hits < log.sizes[HITS] and log.hits[hits, 0] == request:
                before[request] = log.hits[hits, 1]
                if requests.generated[request] == 0:
                    requests.hit[request] = before[request]
                hits += 1
            if state[RETURNED] > 0 and returned[0] == request:
                _take(returned, state[RETURNED], request)
                state[RETURNED] -= 1
            else:
                state[ADMITTED] += 1
            _put(running, state[RUNNING], request)
            state[RUNNING] += 1
        fills += prefill_ps(costs, count, before[request])
        before[request] += count
        if before[request] == requests.input[request] + requests.generated[request]:
            generated = True
            requests.generated[request] += 1
            requests.decoding[request] = 1
            ended += requests.generated[request] == requests.output[request]
    state[NOW] += linear_ps(costs, tokens) + costs.decode_kv * read + costs.decode_req * decodes + fills
    state[END] = state[NOW]
    state[LATEST], state[FILLING], state[ENDED] = tokens, filling, ended
    end(fleet.paths, cache, fleet.held)
    state[OPEN] = 0
    return generated


@compiled_helper
def _notice(fleet: Fleet, number: int, state: Ints, last: bool, request: int) -> None:
    log = fleet.log
    row = log.notices[log.sizes[NOTICES]]
    row[0], row[1], row[2], row[3], row[4] = state[NOW], number, state[NUMBER], last, request
    row[5] = 0 if last else fleet.requests.hit[request]
    state[NUMBER] += 1
    log.sizes[NOTICES] += 1


@compiled_helper
def _let_go(fleet: Fleet, cache: Cache, number: int, state: Ints, running: ShortInts, first: int, last: int) -> None:  # noqa: PLR0917
    """Note first and last tokens of a batch whose runs these are, and forget requests that have ended."""
    requests, log, rule = fleet.requests, fleet.log, fleet.rule
    state[FREE] = free_blocks(cache.sums)
    for row in range(first, last):
        request = log.runs[row, 0]
        # Any step after the first token adds another one, but those of a prefill.
        if requests.generated[request] == 1 and requests.decoding[request]:
            _notice(fleet, number, state, False, request)
    if state[ENDED] == 0:
        return
    for row in range(first, last):
        request = log.runs[row, 0]
        if requests.generated[request] == requests.output[request]:
            requests.cached[request] = requests.forming[request] = 0
            _take(running, state[RUNNING], request)
            state[RUNNING] -= 1
            release(fleet.paths, cache, fleet.held, rule.block, request)
            _notice(fleet, number, state, True, request)


# Repeats ----------------------------------------------------------------------------------------------------------


@compiled_helper
def _lasts(fleet: Fleet, cache: Cache, state: Ints, first: int) -> int:
    """Return how many batches of the decode steps just formed may be carried out before the policy has to decide."""
    requests, rule, log = fleet.requests, fleet.rule, fleet.log
    block, runs, last = rule.block, log.sizes[RUNS] - first, log.sizes[RUNS]
    most = MOST_PS
    for row in range(first, last):
        request = log.runs[row, 0]
        most = min(most, requests.output[request] - requests.generated[request])
    waiting = state[RETURNED] + state[ARRIVED] - state[ADMITTED]
    if waiting > 0 and rule.hybrid and runs not in (rule.runs, rule.tokens):
        for row in range(first, last):
            most = min(most, block - 1 - requests.cached[log.runs[row, 0]] % block)
        most = max(most, 1)
    if most == 1:
        return 1
    blank = cache.sums[BLOCKS] - in_use(cache.sums)
    if blank == 0:
        for row in range(first, last):
            most = min(most, 1 + (-requests.forming[log.runs[row, 0]]) % block)
        return int(most)
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        more = 0
        for row in range(first, last):
            tokens = requests.forming[log.runs[row, 0]]
            more += (tokens + middle - 1 + block - 1) // block - (tokens + block - 1) // block
        if more <= blank:
            low = middle
        else:
            high = middle - 1
    return int(low)


@compiled_helper
def _repeat(fleet: Fleet, cache: Cache, state: Ints, first: int, last: int, batches: int) -> None:  # noqa: PLR0917
    """Carry out batches of decode steps on the cache, the first of which may have been formed."""
    paths, held, forming, log, block = fleet.paths, fleet.held, fleet.requests.forming, fleet.log, fleet.rule.block
    times = batches
    if state[OPEN]:
        end(paths, cache, held)
        state[OPEN] = 0
        times -= 1
        if times == 0:
            return
    # Blocks are completed batch by batch, and in each in the order of the runs.
    at, batch = 0, times + 1
    for row in range(first, last):
        batch = min(batch, block - forming[log.runs[row, 0]] % block)
    while batch <= times:
        if at:
            end(paths, cache, held)
        at, following = batch, times + 1
        for row in range(first, last):
            request = log.runs[row, 0]
            rest = (forming[request] + batch) % block
            if rest == 0:
                _reach(fleet, cache, request, forming[request] + batch)
            following = min(following, batch + block - rest)
        batch = following
    end(paths, cache, held)
    if at != times:
        forget_news(cache)
    for row in range(first, last):
        request = log.runs[row, 0]
        whole = (forming[request] + times) // block * block
        forming[request] += times
        # Blocks need only know of one that is begun.
        if forming[request] > whole >= forming[request] - times:
            _reach(fleet, cache, request, forming[request])


# From batch to batch ----------------------------------------------------------------------------------------------


@compiled_part
def _fits_log(fleet: Fleet, state: Ints, blocks: int) -> bool:
    """Whether the log has room for all that a batch can do."""
    log, sizes, runs = fleet.log, fleet.log.sizes, min(fleet.rule.tokens, state[KNOWN])
    return bool(
        sizes[ROWS] < len(log.rows)
        and sizes[RUNS] + runs <= len(log.runs)
        and sizes[LOST] + state[RUNNING] <= len(log.lost)
        and sizes[HITS] + runs <= len(log.hits)
        and sizes[DROPS] + blocks <= len(log.drops)
        and sizes[NOTICES] + 2 * runs <= len(log.notices)
    )


@compiled_helper
def _advance_one(fleet: Fleet, number: int, until: int) -> int:
    """Let a machine carry out all batches that start before a time."""
    machines, requests, rule, log = fleet.machines, fleet.requests, fleet.rule, fleet.log
    cache, state, queue = _cache_of(machines, number), machines.state[number], machines.queue[number]
    running, returned, sizes = machines.running[number], machines.returned[number], log.sizes
    while True:
        if state[RUNNING] + state[RETURNED] + state[ARRIVED] == state[ADMITTED]:
            if state[ARRIVED] == state[KNOWN]:
                return DONE
            state[NOW] = max(state[NOW], requests.arrival[queue[state[ARRIVED]]])
        if state[NOW] >= until:
            return DONE
        if not _fits_log(fleet, state, cache.sums[BLOCKS]):
            return FULL
        while state[ARRIVED] < state[KNOWN] and requests.arrival[queue[state[ARRIVED]]] <= state[NOW]:
            state[ARRIVED] += 1
            state[LEFT] = 0
        start, row, most = state[NOW], state[ROW], state[LEFT]
        if most == 0:
            lost, hits, drops, first = sizes[LOST], sizes[HITS], sizes[DROPS], sizes[RUNS]
            state[OPEN], row = 1, sizes[ROWS]
            if not _form(fleet, cache, state, queue, running, returned):
                return OVER
            steady = fleet.left[_PREFILL] == rule.prefill and sizes[LOST] == lost and sizes[DROPS] == drops
            most = _lasts(fleet, cache, state, first) if steady else 1
            log.rows[row, MACHINE], log.rows[row, START], log.rows[row, REPEAT] = number, start, 0
            log.rows[row, RUNS_END], log.rows[row, LOST_END] = sizes[RUNS], sizes[LOST]
            log.rows[row, HITS_END], log.rows[row, DROPS_END] = sizes[HITS], sizes[DROPS]
            sizes[ROWS] += 1
            if most == 1:
                generated = _carry_out(fleet, cache, state, running, returned, first, lost, hits)
                state[FRUITLESS] = 0 if generated else state[FRUITLESS] + 1
                log.rows[row, STOP], log.rows[row, REPEAT] = state[NOW], 1
                if state[NOW] > MOST_PS or state[FRUITLESS] > rule.patience:
                    return OVER
                _let_go(fleet, cache, number, state, running, first, sizes[RUNS])
                continue
        first, last = log.rows[row - 1, RUNS_END] if row else 0, log.rows[row, RUNS_END]
        times = _decode_on(fleet, state, queue, first, last, most, until)
        if state[NOW] > MOST_PS:
            return OVER
        _repeat(fleet, cache, state, first, last, times)
        state[LEFT], state[ROW], state[FRUITLESS] = most - times, row, 0
        log.rows[row, STOP] = state[NOW]
        log.rows[row, REPEAT] += times
        _let_go(fleet, cache, number, state, running, first, last)


@compiled_helper
def _decode_on(fleet: Fleet, state: Ints, queue: ShortInts, first: int, last: int, most: int, until: int) -> int:  # noqa: PLR0917
    """Carry out decode steps on requests, ``most`` times or up to an arrival or a time; return how often."""
    requests, costs, log = fleet.requests, fleet.costs, fleet.log
    stop = until
    if state[ARRIVED] < state[KNOWN]:
        stop = min(stop, requests.arrival[queue[state[ARRIVED]]])
    runs, read = last - first, 0
    for row in range(first, last):
        read += requests.cached[log.runs[row, 0]]
    base = linear_ps(costs, runs) + costs.decode_req * runs
    times, now = 0, state[NOW]
    while times < most and now < stop:
        now += base + costs.decode_kv * (read + times * runs)
        times += 1
        if now > MOST_PS:
            break
    state[NOW] = state[END] = now
    state[LATEST], state[FILLING], state[ENDED] = runs, 0, 0
    for row in range(first, last):
        request = log.runs[row, 0]
        requests.generated[request] += times
        requests.cached[request] += times
        state[ENDED] += requests.generated[request] == requests.output[request]
    return times


@compiled
def advance(fleet: Fleet, until: int, asked: Ints) -> int:
    """Let all machines carry out the batches that start before a time.

    Before that, each machine (first column) calls blocks by a request that was asked for (second).
    """
    for row in range(len(asked)):
        ask(fleet.paths, _cache_of(fleet.machines, asked[row, 0]), asked[row, 1])
    for number in range(len(fleet.machines.state)):
        code = _advance_one(fleet, number, until)
        if code != DONE:
            return code
    return DONE


@compiled
def cached_tokens(fleet: Fleet, request: int, tokens: int, now: int, cached: Ints) -> None:
    """Note how many of the first tokens of a request each machine caches."""
    machines, block = fleet.machines, fleet.rule.block
    for number in range(len(cached)):
        under_way = machines.state[number, END] > now
        cache = _cache_of(machines, number)
        cached[number] = known(fleet.paths, cache, fleet.held, block, request, tokens, under_way)


SEEN_WAITING, SEEN_RUNNING, SEEN_QUEUED, SEEN_FILLING, SEEN_PENDING, SEEN_USED, SEEN_WORK = range(7)
SEEN = 7
"""Columns of `look`, as `optsched.routers.router.MachineView` calls them."""


@compiled
def look(fleet: Fleet, now: int, arrived: int, seen: Ints) -> None:
    """Note what each machine shows routers, a row each (`SEEN`)."""
    machines, requests, costs = fleet.machines, fleet.requests, fleet.costs
    for number in range(len(seen)):
        state, sums, row = machines.state[number], machines.sums[number], seen[number]
        under_way = state[END] > now
        row[:] = 0
        for place in range(state[RUNNING]):
            request = machines.running[number, place]
            _look_at(requests, costs, request, row)
            if not requests.decoding[request]:
                row[SEEN_FILLING] += _missing(requests, request)
        row[SEEN_RUNNING] = state[RUNNING]
        for place in range(state[RETURNED]):
            request = machines.returned[number, place]
            _look_at(requests, costs, request, row)
            row[SEEN_QUEUED] += _missing(requests, request)
        fresh = state[ADMITTED]
        while fresh < state[KNOWN]:
            request = machines.queue[number, fresh]
            if fresh >= state[ARRIVED] and requests.arrival[request] > arrived:
                break
            _look_at(requests, costs, request, row)
            row[SEEN_QUEUED] += requests.input[request]
            fresh += 1
        row[SEEN_WAITING] = state[RETURNED] + fresh - state[ADMITTED]
        free = free_blocks(sums)
        if under_way:
            free = state[FREE]
            row[SEEN_RUNNING] += state[ENDED]
            row[SEEN_FILLING] += state[FILLING]
            row[SEEN_PENDING] += state[LATEST]
            row[SEEN_WORK] += state[END] - now
        row[SEEN_USED] = (sums[BLOCKS] - free) * fleet.rule.block


@compiled_helper
def _look_at(requests: Requests, costs: Coefficients, request: int, row: Ints) -> None:
    """Add the tokens that a request has to run, and how long it still takes alone."""
    generated, cached = requests.generated[request], requests.cached[request]
    row[SEEN_PENDING] += requests.input[request] + requests.output[request] - 1 - cached
    if not requests.decoding[request]:
        missing = requests.input[request] + generated - cached
        row[SEEN_WORK] += linear_ps(costs, missing) + prefill_ps(costs, missing, cached)
        generated += 1
    times = requests.output[request] - generated
    if times > 0:
        read = requests.input[request] + generated - 1
        row[SEEN_WORK] += times * (linear_ps(costs, 1) + costs.decode_req + costs.decode_kv * read)
        row[SEEN_WORK] += costs.decode_kv * (times * (times - 1) // 2)
