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
        change = np.zeros(worths.price.size)
        room = int(self.need.max()) // terms.window + 4
        costs, visits = _cheapest(
            self._rows[:, ::apart],
            (worths.price, worths.decode, worths.refill, worths.rise, later[0], later[1]),
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
def _worth(decode: Ints, refill: int, read: int, step: int) -> int:
    """Return what a decode, or a refill in its place, is worth by its window's points."""
    place, after = read // step, read % step
    worth: int = ((step - after) * decode[place] + after * decode[place + 1]) // step
    if refill < LARGEST:
        worth = min(worth, refill * (read + 1))
    return worth


@compiled_part
def _later(  # noqa: PLR0917 - compiled functions take positions
    start: int,
    end: int,
    limit: int,
    request: tuple[int, int],
    worths: tuple[Ints, Ints, Ints, Floats, Ints, Ints],
    terms: tuple[int, int, int, int, int, int, int, int],
    blocks: Ints,
) -> tuple[int, int]:
    """Return the least cost of decodes after a first token, and how many windows were looked at.

    It comes from ``start`` to ``end``. ``blocks`` receives for each block where it goes. Costs of ``limit`` or more do
    not count.
    """
    prompt, count = request
    _, decode, refill, _, decode_on, refill_on = worths
    length, kept, short, most_parts, finer, single, step, _ = terms
    last, parts = decode.shape[0] - 1, min(most_parts, count)
    floor = 0
    for b in range(parts):
        first, final = count * b // parts + 1, count * (b + 1) // parts
        low = min((start + (first - 1) * single) // length, last)
        ends = _worth(decode_on[low], refill_on[low], prompt + first - 1, step)
        ends += _worth(decode_on[low], refill_on[low], prompt + final - 1, step)
        floor += (final - first + 1) * (ends // 2)
        blocks[b, 0], blocks[b, 1], blocks[b, 2], blocks[b, 4] = low, LARGEST, low, LARGEST
    best, visits, pause, unit = limit, 0, 0, finer * kept
    while pause * kept * length // finer + floor < best:
        total, opens = pause * kept * length // finer, False
        for b in range(parts):
            first, final = count * b // parts + 1, count * (b + 1) // parts
            reach = last
            if kept > 0:
                # The last that begins before F + (Z + kδ)/ε.
                until = unit * end + (pause + 1) * kept * length + finer * 64 * final * short
                reach = min(last, (until - 1) // (unit * length))
            while blocks[b, 0] <= reach:
                at = blocks[b, 0]
                worth = _worth(decode[at], refill[at], prompt + first - 1, step)
                blocks[b, 4] = min(blocks[b, 4], _worth(decode[at], refill[at], prompt + final - 1, step))
                visits += 1
                if worth < blocks[b, 1]:
                    blocks[b, 1], blocks[b, 2] = worth, at
                blocks[b, 0] += 1
            opens |= reach < last
            if blocks[b, 1] == LARGEST or total >= best:
                total = best
            else:
                # The first and the last one may go to different windows; those in between are worth the mean.
                total += (final - first + 1) * ((blocks[b, 1] + blocks[b, 4]) // 2)
        if total < best:
            best = total
            for b in range(parts):
                blocks[b, 3] = blocks[b, 2]
        if not opens:
            break
        pause += 1
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
    blocks, placed = np.zeros((most_parts, 5), np.int64), np.zeros(most_parts, np.int64)
    chosen = np.zeros_like(held)
    for r in range(costs.size):
        if visits > most:
            break
        arrival, need, prompt, output = requests[:, r]
        later = prompt, output - 1
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
                                    start, known[level, 0] * length, costs[r] - low, later, worths, terms, blocks
                                )
                                visits += seen
                            least = max(least, known[level, 1])
                        if cost + least < costs[r]:
                            after = 0
                            if output > 1:
                                after, seen = _later(start, latest, costs[r] - cost, later, worths, terms, blocks)
                                visits += seen
                            if cost + after < costs[r]:
                                costs[r] = cost + after
                                members = size + 1
                                chosen[:, :size] = held[:, :size]
                                chosen[0, size], chosen[1, size] = w, here
                                placed[:] = blocks[:, 3]
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
        parts = min(most_parts, output - 1)
        for b in range(parts):
            first, final = (output - 1) * b // parts + 1, (output - 1) * (b + 1) // parts
            point = (prompt + first - 1 + step // 2) // step
            change[placed[b]] += (final - first + 1) * rise[placed[b], point]
    return costs, visits
