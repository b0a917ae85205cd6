"""The least cost of each request by itself at given prices, whenever it runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optsched.bounds.queued.worths import LARGEST, POINTS, UNIT, DecodeWorths, Floats, Terms, Worths
from optsched.compiled import compiled, compiled_part
from optsched.model.instance import Instance
from optsched.model.ints import Ints

_WIDTHS = 64, 8
"""Windows of which it is found out together what first tokens in them cost at least."""
_AHEAD = 8
"""Z of which costs are computed together."""
_NEXT, _REACH, _BEYOND, _LEAST, _LEAST_AT, _LEAST_LAST, _REFILL, _REFILLED_AT, _CHOSEN = range(9)
"""Of a block of decodes: the next window to look at; the last one that it may go to, and how far into it; the least
worth of its first decode in parts of a stretch, where, and that of its last one; the cheapest refill of a token, and
where; where the block goes."""


@dataclass(frozen=True)
class Least:
    """The least cost of all requests.

    Parameters
    ----------
    value
        The bound, ps.
    change
        How it changes with θ, by window, ps.
    visits
        Windows that were looked at, a measure of time.
    """

    value: int
    change: Floats
    visits: int


class RequestCosts:
    """Requests as they bear on the bound.

    Parameters
    ----------
    instance
        The problem.
    worths
        What decodes are worth.
    """

    def __init__(self, instance: Instance, worths: DecodeWorths) -> None:
        requests = instance.requests
        self.arrival = np.array(instance.arrivals_ps, np.int64)
        prompt = np.array([request.input for request in requests], np.int64)
        output = np.array([request.output for request in requests], np.int64)
        self.most_output = int(output.max())
        self.need = worths.token * prompt + instance.cost.prefill_sq * prompt**2
        self._rows = np.stack([self.arrival, self.need, prompt, output])
        self._single = instance.cost.linear_ps(1)

    def largest(self, worths: Worths, terms: Terms) -> int:
        """Return what no number that `least` computes exceeds."""
        end = terms.window * worths.price.size + int(self.arrival.max()) + 2 * int(self.need.max())
        worth = min(int(worths.decode.max()), LARGEST)
        refill = 0 if int(worths.refill.max()) == LARGEST else int(worths.refill.max()) * worths.step * (POINTS + 1)
        request = UNIT * end + int(worths.price.max()) * int(self.need.max())
        return max(
            2 * worths.step * worth,
            request + self.most_output * (worth + UNIT * (self._single + terms.parts * terms.short)),
            terms.parts * UNIT * (end + self.most_output * terms.short),
            refill,
        )

    def least(self, worths: Worths, terms: Terms, most: int, apart: int = 1) -> Least | None:
        """Return the bound of prices, and how it changes; None if more windows than ``most`` are looked at.

        With ``apart`` above 1 it is an estimate: one request is looked at for that number.
        """
        later = tuple(np.minimum.accumulate(each[::-1])[::-1].copy() for each in (worths.decode, worths.refill))
        # What is looked at together, one point of windows that follow each other, stands together.
        windows = tuple(np.ascontiguousarray(each.T) for each in (worths.decode, later[0]))
        change = np.zeros(worths.price.size)
        room = int(self.need.max()) // terms.window + 4
        costs, visits = _cheapest(
            self._rows[:, ::apart],
            (worths.price, windows[0], worths.refill, worths.rise, windows[1], later[1]),
            (*terms, self._single, worths.step, most),
            np.zeros((2, room), np.int64),
            change,
        )
        if visits > most:
            return None
        change *= apart
        change[:-1] -= terms.window
        total = apart * sum(costs.tolist()) - terms.window * int(worths.price.sum())
        return Least(max(total, 0) // UNIT, change, visits)


@compiled_part
def _split(prompt: int, count: int, most_parts: int, step: int, split: tuple[Ints, Ints]) -> int:
    """Cut a request's decodes into blocks and return how many.

    The first array of ``split`` receives the first decode of each and how many there are, the second one what the
    first and the last one are worth: by which point and the next one, in what parts of a stretch; and the tokens of a
    refill in its place.
    """
    (spans, ends), parts = split, min(most_parts, count)
    for b in range(parts):
        first, final = count * b // parts + 1, count * (b + 1) // parts
        spans[b, 0], spans[b, 1] = first, final - first + 1
        for side in range(2):
            read = prompt + (final if side else first) - 1
            ends[b, side, 0], ends[b, side, 1] = read // step, step - read % step
            ends[b, side, 2], ends[b, side, 3] = read % step, read + 1
    return parts


@compiled_part
def _later(  # noqa: PLR0917 - compiled functions take positions
    start: int,
    end: int,
    limit: int,
    split: tuple[Ints, Ints],
    worths: tuple[Ints, Ints, Ints, Floats, Ints, Ints],
    terms: tuple[int, int, int, int, int, int, int, int],
    room: tuple[Ints, Ints, Ints],
) -> tuple[int, int]:
    """Return the least cost of decodes after a first token, and how many windows were looked at.

    It comes from ``start`` to ``end``. Of ``room`` the first array receives for each block where it goes. Costs of
    ``limit`` or more do not count.

    Of several Z, each a part of εW larger than the one before, the costs of a block are computed one after the other,
    then those of the next block: what does not change stays at hand.
    """
    (spans, ends), (blocks, totals, wheres) = split, room
    _, decode, refill, _, decode_on, refill_on = worths
    length, kept, short, _, finer, single, step, _ = terms
    last, parts, evicts = decode.shape[1] - 1, spans.shape[0], refill[0] < LARGEST
    floor, apart = 0, finer * kept * length
    for b in range(parts):
        low = min((start + (spans[b, 0] - 1) * single) // length, last)
        both = 0
        for side in range(2):
            point, before, after, tokens = ends[b, side]
            worth = (before * decode_on[point, low] + after * decode_on[point + 1, low]) // step
            both += min(worth, refill_on[low] * tokens) if evicts else worth
        floor += spans[b, 1] * (both // 2)
        blocks[b, _NEXT] = blocks[b, _LEAST_AT] = blocks[b, _REFILLED_AT] = low
        blocks[b, _LEAST] = blocks[b, _LEAST_LAST] = blocks[b, _REFILL] = LARGEST
        # The last window that begins before F + (Z + kδ)/ε.
        blocks[b, _REACH], blocks[b, _BEYOND] = last, 0
        if kept > 0:
            until = finer * (kept * end + 64 * (spans[b, 0] + spans[b, 1] - 1) * short) - 1
            blocks[b, _REACH], blocks[b, _BEYOND] = until // apart, until % apart
    best, visits, pause, opens = limit, 0, 0, True
    while opens and pause * kept * length // finer + floor < best:
        opens = False
        for ahead in range(_AHEAD):
            totals[ahead] = (pause + ahead) * kept * length // finer
        for b in range(parts):
            (point, before, after, tokens), (final, final_before, final_after, final_tokens) = ends[b, 0], ends[b, 1]
            at, reach, beyond = blocks[b, _NEXT], blocks[b, _REACH], blocks[b, _BEYOND]
            least, least_at, least_last = blocks[b, _LEAST], blocks[b, _LEAST_AT], blocks[b, _LEAST_LAST]
            cheapest, refilled_at, count = blocks[b, _REFILL], blocks[b, _REFILLED_AT], spans[b, 1]
            visits -= at
            paid, paid_at, known = LARGEST, least_at, -1
            for ahead in range(_AHEAD):
                beyond += kept * length
                if beyond >= apart > 0:
                    reach, beyond = reach + 1, beyond - apart
                while at <= reach and at <= last:
                    worth = before * decode[point, at] + after * decode[point + 1, at]
                    if worth < least:
                        least, least_at = worth, at
                    least_last = min(least_last, final_before * decode[final, at] + final_after * decode[final + 1, at])
                    if refill[at] < cheapest:
                        cheapest, refilled_at = refill[at], at
                    at += 1
                if at > known and least < LARGEST:
                    worth, worth_last, paid_at, known = least // step, least_last // step, least_at, at
                    if evicts:
                        worth_last = min(worth_last, cheapest * final_tokens)
                        if cheapest * tokens < worth:
                            worth, paid_at = cheapest * tokens, refilled_at
                    # The first and the last one may go to different windows; those in between are worth the mean.
                    paid = count * ((worth + worth_last) // 2)
                wheres[b, ahead] = paid_at
                if paid < LARGEST and totals[ahead] < LARGEST:
                    totals[ahead] += paid
                else:
                    totals[ahead] = LARGEST
            visits += at
            opens |= at <= last
            blocks[b, _NEXT], blocks[b, _REACH], blocks[b, _BEYOND] = at, reach, beyond
            blocks[b, _LEAST], blocks[b, _LEAST_AT], blocks[b, _LEAST_LAST] = least, least_at, least_last
            blocks[b, _REFILL], blocks[b, _REFILLED_AT] = cheapest, refilled_at
        for ahead in range(_AHEAD):
            if totals[ahead] < best:
                best = totals[ahead]
                for b in range(parts):
                    blocks[b, _CHOSEN] = wheres[b, ahead]
        pause += _AHEAD
    return best, visits


@compiled
def _cheapest(
    requests: Ints,
    worths: tuple[Ints, Ints, Ints, Floats, Ints, Ints],
    terms: tuple[int, int, int, int, int, int, int, int],
    held: Ints,
    change: Floats,
) -> tuple[Ints, int]:
    """Return the least cost of every request, and how many windows were looked at, until these are more than allowed.

    ``held`` is room. For each end of the prompt's window the cheapest part of the time so far is kept: windows, and how
    much of each.
    """
    price, _, _, rise, _, _ = worths
    length, _, _, most_parts, _, _, step, most = terms
    last, visits = price.size - 1, 0
    known, floors = np.zeros((2, 2), np.int64), np.full((2, last // _WIDTHS[1] + 1), LARGEST)
    for level in range(2):
        for w in range(last + 1):
            floors[level, w // _WIDTHS[level]] = min(floors[level, w // _WIDTHS[level]], price[w])
    costs = np.full(requests.shape[1], LARGEST)
    blocks, placed = np.zeros((most_parts, _CHOSEN + 1), np.int64), np.zeros(most_parts, np.int64)
    scratch = blocks, np.zeros(_AHEAD, np.int64), np.zeros((most_parts, _AHEAD), np.int64)
    spans, ends = np.zeros((most_parts, 2), np.int64), np.zeros((most_parts, 2, 4), np.int64)
    chosen = np.zeros_like(held)
    for r in range(costs.size):
        if visits > most:
            break
        arrival, need, prompt, output = requests[:, r]
        parts = _split(prompt, output - 1, most_parts, step, (spans, ends))
        split = spans[:parts], ends[:parts]
        w, size, filled, paid, members = min(arrival // length, last), 0, 0, 0, 0
        cheapest = price[w]
        known[:] = 0
        while w <= last and 64 * (w * length - arrival) < costs[r]:
            visits += 1
            cheapest = min(cheapest, price[w])
            start = max(w * length, arrival)
            room = (w + 1) * length - start if w < last else need
            taken = min(room, need - filled)
            filled, paid, room = filled + taken, paid + taken * price[w], room - taken
            if filled == need:
                # From there on P falls no more: F may as well be there, and Z larger.
                latest = start + taken + need
                if w < last:
                    latest = min(latest, (w + 1) * length)
                end, cost, here, settled = start + taken, paid, taken, False
                while True:
                    dearest = -1
                    if room > 0:
                        for k in range(size):
                            if price[held[0, k]] > price[w] and (
                                dearest < 0 or price[held[0, k]] > price[held[0, dearest]]
                            ):
                                dearest = k
                    gain = price[held[0, dearest]] - price[w] if dearest >= 0 else 0
                    if gain <= 64 and not settled:
                        # Later ends in this window cost more than they save: this is the one that counts.
                        settled = True
                        cost += 64 * (end - arrival)
                        least = 0
                        for level in range(2):
                            if output == 1 or cost + least >= costs[r]:
                                break
                            if w >= known[level, 0]:
                                width = _WIDTHS[level]
                                low = 64 * (start - arrival) + need * min(cheapest, floors[level, w // width])
                                known[level, 0] = min((w // width + 1) * width, last + 1)
                                known[level, 1], seen = _later(
                                    start, known[level, 0] * length, costs[r] - low, split, worths, terms, scratch
                                )
                                visits += seen
                            least = max(least, known[level, 1])
                        if cost + least < costs[r]:
                            after = 0
                            if output > 1:
                                after, seen = _later(start, latest, costs[r] - cost, split, worths, terms, scratch)
                                visits += seen
                            if cost + after < costs[r]:
                                costs[r] = cost + after
                                members = size + 1
                                chosen[:, :size] = held[:, :size]
                                chosen[0, size], chosen[1, size] = w, here
                                placed[:] = blocks[:, _CHOSEN]
                    if dearest < 0:
                        break
                    moved = min(room, held[1, dearest])
                    paid, room, here = paid - moved * gain, room - moved, here + moved
                    if not settled:
                        end, cost = end + moved, paid
                    held[1, dearest] -= moved
                    if held[1, dearest] == 0:
                        size -= 1
                        held[:, dearest] = held[:, size]
                taken = here
            if taken > 0:
                held[0, size], held[1, size] = w, taken
                size += 1
            w += 1
        for k in range(members):
            change[chosen[0, k]] += chosen[1, k]
        for b in range(parts):
            point = (prompt + spans[b, 0] - 1 + step // 2) // step
            change[placed[b]] += spans[b, 1] * rise[placed[b], point]
    return costs, visits
