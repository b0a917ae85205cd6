"""The KV memory of one machine: cached blocks, which count once, and what residents hold besides."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from optsched.check.cluster.contents import Contents, Segment


@dataclass(slots=True)
class Hold:
    """What a request holds on a machine: ``tokens`` (m), of which the first ``shared`` blocks are pinned in the cache.

    The other ``private`` blocks count for this request alone, also while they are whole and not published yet.
    ``place`` is the segment of the last pinned block.
    """

    request: int
    segments: tuple[Segment, ...]
    tokens: int = 0
    shared: int = 0
    private: int = 0
    place: int = 0


def _first(segment: Segment) -> int:
    return segment.first


class Memory:
    """Blocks of one machine.

    Cached blocks are leading runs of sequences, so that of every segment the first few are cached, and those after it
    only if all of it are: a count per segment says it all.

    Parameters
    ----------
    contents
        The segments of requests.
    share
        Whether later runs of a batch match what earlier ones complete.
    """

    def __init__(self, contents: Contents, share: bool) -> None:
        self.contents, self._share = contents, share
        self._block = contents.block
        self._cached: dict[int, int] = {}
        self._fresh: dict[int, int] = {}
        self._behind: Counter[int] = Counter()
        self._pinning: defaultdict[int, dict[int, Hold]] = defaultdict(dict)
        self.cached_blocks = self.private_blocks = 0

    @property
    def used(self) -> int:
        """Blocks that are occupied."""
        return self.cached_blocks + self.private_blocks

    def hold_of(self, request: int) -> Hold:
        """Return what a request holds that holds nothing yet."""
        return Hold(request, self.contents.segments(request))

    def match(self, segments: Sequence[Segment], most: int) -> int:
        """Return the longest leading run of cached blocks, at most ``most``.

        In a batch with ``share_in_batch``, blocks that its earlier runs complete are among them.
        """
        found = 0
        for segment in segments:
            have = max(self._cached.get(segment.node, 0), self._fresh.get(segment.node, 0))
            found = segment.first + have
            if found < segment.end or found >= most:
                break
        return min(found, most)

    def pin(self, hold: Hold, blocks: int) -> None:
        """Let a request that holds nothing hold a matched run of cached blocks."""
        hold.tokens = blocks * self._block
        hold.shared = blocks
        for segment in hold.segments:
            if segment.first >= blocks:
                break
            self._pinning[segment.node][hold.request] = hold

    def grow(self, hold: Hold, tokens: int) -> None:
        """Let a request hold ``tokens`` tokens; the blocks that are new are its own until they are published."""
        private = (tokens + self._block - 1) // self._block - hold.shared
        self.private_blocks += private - hold.private
        hold.tokens, hold.private = tokens, private

    def announce(self, hold: Hold) -> None:
        """Let later runs of the batch match the whole blocks that a run has completed, where that is allowed."""
        if self._share:
            for segment in hold.segments:
                upto = min(hold.tokens // self._block, segment.end) - segment.first
                if upto <= 0:
                    break
                self._fresh[segment.node] = max(self._fresh.get(segment.node, 0), upto)

    def end_matches(self) -> None:
        """End the runs of a batch: from now on only cached blocks are matched."""
        self._fresh.clear()

    def publish(self, hold: Hold) -> None:
        """Put the whole blocks of a request into the cache, in which those that are there already are not doubled."""
        if not hold.segments:
            return
        whole = min(hold.tokens // self._block, hold.segments[-1].end)
        if whole <= hold.shared:
            return
        while hold.segments[hold.place].end <= hold.shared:
            hold.place += 1
        for place in range(hold.place, len(hold.segments)):
            segment = hold.segments[place]
            if segment.first >= whole:
                break
            hold.place = place
            upto, have = min(whole, segment.end) - segment.first, self._cached.get(segment.node, 0)
            if upto > have:
                self._cached[segment.node] = upto
                self.cached_blocks += upto - have
                if have == 0 and place > 0:
                    self._behind[hold.segments[place - 1].node] += 1
            self._pinning[segment.node][hold.request] = hold
        self.private_blocks -= whole - hold.shared
        hold.private -= whole - hold.shared
        hold.shared = whole

    def release(self, hold: Hold) -> None:
        """Free what a request holds, and its pins; what is cached stays."""
        for segment in hold.segments:
            if segment.first >= hold.shared:
                break
            self._pinning[segment.node].pop(hold.request, None)
        self.private_blocks -= hold.private
        hold.tokens = hold.shared = hold.private = hold.place = 0

    def drop(self, blocks: Sequence[tuple[int, int]]) -> Iterator[str]:
        """Drop a set of blocks, each a request that has it and its number in the sequence; yield what is wrong.

        What is cached goes, also where it must not.
        """
        named: dict[int, set[int]] = {}
        places: dict[int, tuple[Segment, Segment | None]] = {}
        # Most blocks are of the same request and segment as the one before.
        last, first, end, numbers = -1, 0, 0, set[int]()
        for request, number in blocks:
            if request != last or not first <= number < end:
                segments = self.contents.segments(request)
                place = bisect_right(segments, number, key=_first) - 1
                cached = self._cached.get(segments[place].node, 0) if place >= 0 else 0
                if place < 0 or number >= segments[place].first + cached:
                    yield f"block {number} of request {request} is dropped, but it is not cached"
                    continue
                segment = segments[place]
                last, first, end = request, segment.first, segment.first + cached
                places[segment.node] = segment, segments[place - 1] if place else None
                numbers = named.setdefault(segment.node, set())
            if number in numbers:
                yield f"block {number} of request {request} is dropped twice"
            numbers.add(number)
        for node, numbers in named.items():
            segment, parent = places[node]
            least, top = min(numbers), segment.first + self._cached[node]
            if len(numbers) < top - least:
                kept = next(number for number in range(least, top) if number not in numbers)
                yield (
                    f"block {least} of {self.contents.named(node)} is dropped, but block {kept} behind it stays cached"
                )
            for hold in self._pinning[node].values():
                if hold.shared > least:
                    yield (
                        f"block {least} of {self.contents.named(node)} is dropped, but request {hold.request} pins its "
                        f"first {hold.shared} blocks"
                    )
                    break
            self._cached[node] = least - segment.first
            self.cached_blocks -= top - least
            if least == segment.first and parent is not None:
                self._behind[parent.node] -= 1
        for node, numbers in named.items():
            if self._behind[node] > 0:
                yield (
                    f"block {min(numbers)} of {self.contents.named(node)} is dropped, but a block behind the node "
                    "stays cached"
                )
