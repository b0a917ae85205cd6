"""What a prefix cache saves for a given order of service: hits that a cache can give, and certificates of the bound.

Requests are served one after the other, each with a path of blocks. Everything is computed from the paths, block by
block; `optsched_formulations.eviction` works on runs of blocks instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

from optsched.check.reading import UnprovedError, shown


@dataclass(frozen=True)
class Service:
    """Requests in the order of service, and the cache.

    Parameters
    ----------
    paths
        The blocks of every request that can be shared, from the root.
    findable
        How many leading blocks each may find.
    occupied
        Blocks that each occupies while it is served, its path among them.
    capacity
        K, blocks of the cache.
    linear, square
        Finding h leading blocks is worth ``linear h + square h²``.
    """

    paths: Sequence[Sequence[int]]
    findable: Sequence[int]
    occupied: Sequence[int]
    capacity: int
    linear: int
    square: int

    def worth(self, blocks: int) -> int:
        """Return what finding ``blocks`` leading blocks is worth."""
        return self.linear * blocks + self.square * blocks**2


def saved_bound(service: Service, certificate: Mapping[str, Any]) -> int:
    """Return the most that any cache saves, by a certificate of kind ``prefix_cache``.

    It has ``prices``, an integer ≥ 0 for every request. What request k finds has been cached since its previous use,
    beside what each request strictly between occupies. Charged there by the prices, each request is charged for no more
    blocks than fit beside its own; and what k finds is worth no more than its charges and the largest difference of
    value and charges over all leading runs. Values do not fall with depth (``square`` ≥ 0), so over blocks of the same
    previous use the difference is convex, and largest at an end.
    """
    prices = certificate.get("prices")
    if certificate.get("kind") != "prefix_cache" or not isinstance(prices, list):
        raise UnprovedError(f"certificate is {shown(certificate)}, expected kind prefix_cache with a list of prices")
    if len(prices) != len(service.paths):
        raise UnprovedError(f"there are {len(prices)} prices, expected one for each of {len(service.paths)} requests")
    for request, price in enumerate(prices):
        if type(price) is not int or price < 0:
            raise UnprovedError(f"prices[{request}] is {shown(price)}, expected an integer ≥ 0")
    if service.square < 0:
        raise UnprovedError(f"square is {service.square}, values that fall with depth are not covered")
    rooms = [service.capacity - taken for taken in service.occupied]
    if min(rooms, default=0) < 0:
        raise UnprovedError(f"a request occupies more than the {service.capacity} blocks of the cache")
    before = [0, *accumulate(prices)]
    total: int = sum(price * room for price, room in zip(prices, rooms, strict=True))
    for request, groups in enumerate(_previous_uses(service)):
        best = depth = charged = 0
        for last, count in groups:
            if last < 0:
                break
            depth += count
            charged += count * (before[request] - before[last + 1])
            best = max(best, service.worth(depth) - charged)
        total += best
    return total


def largest_load_bound(pooled: Service, total: int, machines: int, certificate: Mapping[str, Any]) -> int:
    """Return the least that one of some machines recomputes, of prompts that take ``total`` on nothing.

    ``pooled`` has the blocks of all machines together. What a request finds on its machine has been cached there at
    least since its previous use on any machine, beside what each request between occupies, on whatever machine. So
    all machines together save no more than the pooled cache, and the largest load is no less than their mean.
    """
    if machines < 1:
        raise UnprovedError(f"there are {machines} machines, expected at least one")
    return -(-(total - saved_bound(pooled, certificate)) // machines)


def hits_violations(service: Service, hits: Sequence[int]) -> Iterator[str]:
    """Say why requests cannot find ``hits`` leading blocks.

    A block that is found has been kept from its previous use on. Blocks kept beside a request fit beside what it
    occupies; and while a block is kept, so is the one in front of it: what was recomputed in between had been dropped.
    """
    if len(hits) != len(service.paths):
        yield f"there are {len(hits)} hits, expected one for each of {len(service.paths)} requests"
        return
    change = [0] * (len(hits) + 1)
    last: dict[int, int] = {}
    recomputed: dict[int, int] = {}
    for request, (path, most, found) in enumerate(zip(service.paths, service.findable, hits, strict=True)):
        if not 0 <= found <= most:
            yield f"request {request} finds {found} blocks, it may find {most}"
            return
        for depth, block in enumerate(path[:found]):
            if block not in last:
                yield f"request {request} finds a block at depth {depth} that was never used"
                return
            if depth and recomputed[path[depth - 1]] > last[block]:
                yield f"request {request} finds a block at depth {depth} that was kept behind a dropped one"
            if last[block] + 1 < request:
                change[last[block] + 1] += 1
                change[request] -= 1
        last.update(dict.fromkeys(path, request))
        recomputed.update(dict.fromkeys(path[found:], request))
    for request, (kept, taken) in enumerate(zip(accumulate(change), service.occupied, strict=False)):
        if kept + taken > service.capacity:
            yield f"request {request} occupies {taken} blocks beside {kept} others, the cache has {service.capacity}"


def _previous_uses(service: Service) -> Iterator[list[tuple[int, int]]]:
    """Yield for every request the previous uses of what it may find, from the root: request, or −1, and blocks."""
    last: dict[int, int] = {}
    for request, (path, most) in enumerate(zip(service.paths, service.findable, strict=True)):
        uses = [last.get(block, -1) for block in path[:most]]
        yield [(use, sum(1 for _ in group)) for use, group in groupby(uses)]
        last.update(dict.fromkeys(path, request))
