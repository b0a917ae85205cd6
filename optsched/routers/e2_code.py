"""``e2_code``: Preble's global scheduler as its program does it.

Source: WukLab/preble 8e7906a, `GlobalSchedulerWithTime`. What it does differently from the paper's E2 (`e2`):

- It exploits if the deepest node of the prompt has fewer tokens than there are before it. Candidates are the machines
  on which the nearest ancestor *was placed*, whether they still cache it or not.
- The load of a machine is that of the *large* nodes placed there (own tokens more than all before), over the window:
  miss rate × requests × prefill time / machines, plus requests there now × output × median TPOT. The request's own
  prefill is not part of it, and the miss rate is that of all machines together.
- Of several candidates it returns the *position* of the cheapest among them, not the machine (`position`).
- Eviction keeps no order of leaves: any node without requests there, by the number of its requests on every machine and
  the last use. A node is evicted while those behind it are not.
- Depths of nodes are not kept right when nodes are split: one more is counted for what is inserted at that moment, and
  one less for what was behind. They limit rebalancing to chains of less than `chain` nodes.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from optsched.cache.prompt_tree import PromptNode, PromptTree
from optsched.routers.router import MachineView, RoutedRequest, Router, RouterSetting, UnsuitableError, least

SECOND_PS = 10**12


@dataclass(frozen=True)
class E2CodeOptions:
    """Constants and parts of the rule; the defaults are the program's.

    Parameters
    ----------
    window_ps
        How long a request counts towards loads.
    eviction
        Add the cost of what a request would evict, and evict from the router's picture of the machines.
    capacity
        Tokens that a machine caches, for `eviction`.
    rebalancing
        Move or copy nodes from loaded to less loaded machines.
    shift
        Rebalance where the largest load is at least this factor times the smallest, as (numerator, denominator).
    settled
        Number of requests for each machine before the first rebalancing.
    least_requests
        Only nodes with at least this number of requests in the window are rebalanced.
    chain
        Do not rebalance for requests that end this number of nodes or more below their large node.
    first_tpot_ps, tpots
        TPOT of a machine before any is known, in ps; and how many are kept.
    position
        Return the position among the candidates instead of the machine, as the program does.
    hit_share
        Prefill/decode balance: explore at the machine with the best hit ratio within `hit_window_ps` if it is at least
        this; None for not at all.
    hit_window_ps
        See `hit_share`.
    """

    window_ps: int = 180 * SECOND_PS
    eviction: bool = False
    capacity: int = 198_516
    rebalancing: bool = True
    shift: tuple[int, int] = (3, 2)
    settled: int = 50
    least_requests: int = 2
    chain: int = 3
    first_tpot_ps: int = 150 * 10**9
    tpots: int = 200
    position: bool = True
    hit_share: float | None = None
    hit_window_ps: int = 30 * SECOND_PS


@dataclass(slots=True)
class _Data:
    """What is known of a node."""

    requests: list[int]
    """Requests on each machine that pass here and have not ended."""
    number: int
    depth: int = 0
    last_use: int = 0
    placed: set[int] = field(default_factory=set)
    """Machines on which it was placed, unless it has been moved with a node before it since (`E2Code._settle`)."""
    settled: int = 0
    """How many moves `placed` takes into account."""
    moved: tuple[int, int] = (0, 0)
    """Number and target of the last move of this node and all behind it; the first move is number 1."""
    cached: set[int] = field(default_factory=set)
    record: _Record | None = None
    ttfts: dict[int, deque[tuple[int, int]]] = field(default_factory=dict)
    """Machine → (time, TTFT), both in ps."""


_Node = PromptNode[_Data]


@dataclass(slots=True, eq=False)
class _Record:
    """The requests of the window whose nearest large node a node was when they came."""

    node: _Node
    requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    prompts_now: int = 0
    """Prompt tokens of the requests still in the window."""
    missed: tuple[int, int] = (0, 1)
    """The miss rate when the last of them came, as (numerator, denominator)."""
    output: int = 0
    prefill_ps: int = 0
    """Its part of the load of each machine on which the node is placed, as entered."""
    entered: tuple[tuple[int, int], ...] = ()
    """(machine, decode tokens) as entered into the loads."""
    counted: bool = False
    """Whether it is entered into the loads of rebalancing, too."""


@dataclass(slots=True)
class _ByUse:
    """A node in the order of eviction: by its requests on all machines, and by its last use.

    Nodes may be equal in that order, those of one path above all. Then a heap's own order decides, as in the program.
    """

    node: _Node

    def __lt__(self, other: _ByUse) -> bool:
        left, right = self.node.data, other.node.data
        if left.requests == right.requests:
            return left.last_use < right.last_use
        return left.requests < right.requests


def _queue(nodes: Iterable[_Node]) -> list[_ByUse]:
    """Return a heap as the program makes it, which decides between equal nodes: one after another, then as a whole."""
    heap: list[_ByUse] = []
    for node in nodes:
        heapq.heappush(heap, _ByUse(node))
    heapq.heapify(heap)
    return heap


class _Tpots:
    """The last TPOTs of a machine, and their median."""

    def __init__(self, first_ps: int, most: int) -> None:
        self._last = deque([first_ps])
        self._sorted = [first_ps]
        self._most = most

    def add(self, tpot_ps: int) -> None:
        """Add one; the oldest goes when there are too many."""
        if len(self._last) == self._most:
            del self._sorted[bisect_left(self._sorted, self._last.popleft())]
        self._last.append(tpot_ps)
        insort(self._sorted, tpot_ps)

    @property
    def doubled_median(self) -> int:
        """Twice the median, which is an integer."""
        middle = len(self._sorted) // 2
        if len(self._sorted) % 2:
            return 2 * self._sorted[middle]
        return self._sorted[middle - 1] + self._sorted[middle]


class _Loads:
    """The loads of all machines, as sums that change with their nodes."""

    def __init__(self, machines: int) -> None:
        self.prefill_ps = [0] * machines
        self.decode_tokens = [0] * machines

    def add(self, prefill_ps: int, entered: Iterable[tuple[int, int]], sign: int) -> None:
        """Add the part of one node, or take it away with sign −1."""
        for machine, tokens in entered:
            self.prefill_ps[machine] += sign * prefill_ps
            self.decode_tokens[machine] += sign * tokens


class E2Code(Router):
    """E2 as Preble's program runs it.

    Parameters
    ----------
    setting
        What it is made for: machines, and the time of a prefill.
    options
        Constants and parts.
    """

    def __init__(self, setting: RouterSetting, options: E2CodeOptions) -> None:
        self._machines = machines = setting.machines
        self._prefill_ps = setting.prefill_ps
        self._options = options
        self._numbers = count()
        self._moves = 0
        self._tree: PromptTree[_Data] = PromptTree(self._new_data, self._split_data)
        self._tree.root.data.requests = [1] * machines
        self._loads = _Loads(machines)
        self._counted_loads = _Loads(machines)
        self._tpots = [_Tpots(options.first_tpot_ps, options.tpots) for _ in range(machines)]
        self._window: deque[tuple[int, _Record, _Node]] = deque()
        self._records: dict[_Record, None] = {}
        self._hits: deque[tuple[int, int, int, int]] = deque()
        self._routed = 0
        self._now = 0
        self.cached_tokens = [0] * machines
        """Tokens that each machine caches, as the router believes."""

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        self._now = request.arrival_ps
        leaf = self._insert(request)
        large = self._large(leaf)
        machine = self._chosen(leaf)
        for node in self._up(leaf):
            node.data.placed.add(machine)
            node.data.requests[machine] += 1
            if machine not in node.data.cached:
                node.data.cached.add(machine)
                self.cached_tokens[machine] += node.tokens
        self._enter(large, leaf, request.output)
        for node in self._up(leaf):
            self._refresh(node)
        self._routed += 1
        if self._options.eviction:
            self._evict(machine)
        if (
            self._options.rebalancing
            and leaf.data.depth - large.data.depth < self._options.chain
            and self._routed >= self._options.settled * self._machines
        ):
            self._rebalance()
        return machine

    def first_token(self, request: RoutedRequest, machine: int, now_ps: int, hit: int) -> None:
        """Remember how much of a prompt was cached."""
        if self._options.hit_share is not None:
            self._hits.append((now_ps, machine, hit, request.input))

    def finished(self, request: RoutedRequest, machine: int, now_ps: int, ttft_ps: int, tpot_ps: int | None) -> None:
        """Take note that a request has ended."""
        self._now = now_ps
        leaf, _ = self._tree.find(request.prompt)
        large = self._large(leaf)
        ttfts = large.data.ttfts.setdefault(machine, deque())
        ttfts.append((now_ps, ttft_ps))
        while ttfts[0][0] < now_ps - self._options.window_ps:
            ttfts.popleft()
        for node in self._up(leaf):
            node.data.last_use = now_ps
            if node.parent is not None:
                node.data.requests[machine] -= 1
                self._refresh(node)
        if tpot_ps:
            self._tpots[machine].add(tpot_ps)

    def loads_ps(self) -> list[int]:
        """Return the load of each machine, in ps."""
        return self._totals(self._loads)

    # ---- the tree ----

    def _new_data(self) -> _Data:
        return _Data([0] * self._machines, next(self._numbers), settled=self._moves)

    def _split_data(self, data: _Data) -> _Data:
        requests, placed, cached = list(data.requests), set(data.placed), set(data.cached)
        head = _Data(requests, next(self._numbers), data.depth, self._now, placed, data.settled, cached=cached)
        data.depth += 1
        return head

    def _insert(self, request: RoutedRequest) -> _Node:
        before, _ = self._tree.find(request.prompt)
        self._settle(before)
        leaf, divided = self._tree.insert(request.prompt)
        passed = list(self._up(leaf))
        # A prompt that ends where one did before does not refresh that node.
        for node in passed[leaf is before :]:
            node.data.last_use = self._now
        if leaf is not before and not (divided and leaf is divided[0]):
            leaf.data.depth = len(passed) - 1 + (divided is not None)
        if divided:
            self._divided(*divided)
        return leaf

    def _divided(self, head: _Node, tail: _Node) -> None:
        """Hand over to the head of a divided node what belongs to it."""
        if self._is_large(head) and not self._is_large(tail):
            head.data.record, tail.data.record = tail.data.record, None
            if head.data.record is not None:
                record = head.data.record
                record.node = head
                del self._records[record]
                self._records[record] = None
            for machine in tail.data.placed & tail.data.ttfts.keys():
                head.data.ttfts[machine] = tail.data.ttfts.pop(machine)
        self._refresh(head)
        self._refresh(tail)

    def _settle(self, node: _Node) -> None:
        """Let the nodes from the root to this one take the moves of nodes before them into account."""
        last = (0, 0)
        for each in [*self._up(node)][::-1]:
            last = max(last, each.data.moved)
            if last[0] > each.data.settled:
                each.data.placed = {last[1]}
            each.data.settled = self._moves

    @staticmethod
    def _up(node: _Node) -> Iterator[_Node]:
        """Iterate from a node to the root, which is the last."""
        at: _Node | None = node
        while at is not None:
            yield at
            at = at.parent

    @staticmethod
    def _is_large(node: _Node) -> bool:
        return node.tokens > node.before

    def _large(self, node: _Node) -> _Node:
        """Return the nearest large node; what begins at the root is always large."""
        return next(each for each in self._up(node) if self._is_large(each))

    # ---- the choice ----

    def _chosen(self, leaf: _Node) -> int:
        everywhere = range(self._machines)
        if leaf.tokens < leaf.before:
            candidates = next((node.data.placed for node in self._up(leaf) if node.data.placed), set(everywhere))
            return self._cheapest(leaf, sorted(candidates))
        if (best := self._best_hits()) is not None:
            return best
        return self._cheapest(leaf, everywhere)

    def _cheapest(self, leaf: _Node, candidates: Sequence[int]) -> int:
        if len(candidates) == 1:
            return candidates[0]
        loads = self.loads_ps()
        costs = [loads[machine] for machine in candidates]
        if self._options.eviction:
            costs = [cost + self._eviction_ps(leaf, machine) for cost, machine in zip(costs, candidates, strict=True)]
        position = least(costs)
        return position if self._options.position else candidates[position]

    def _best_hits(self) -> int | None:
        """Return the machine that has found the largest share of its prompts in the cache of late, if it is enough."""
        if self._options.hit_share is None:
            return None
        while self._hits and self._hits[0][0] < self._now - self._options.hit_window_ps:
            self._hits.popleft()
        found, asked = [0] * self._machines, [0] * self._machines
        for _, machine, hit, tokens in self._hits:
            found[machine] += hit
            asked[machine] += tokens
        shares = [hit / tokens if tokens else 0.0 for hit, tokens in zip(found, asked, strict=True)]
        best = shares.index(max(shares))
        return best if shares[best] >= self._options.hit_share else None

    # ---- loads ----

    def _totals(self, loads: _Loads) -> list[int]:
        return [
            prefill + tokens * tpots.doubled_median // 2
            for prefill, tokens, tpots in zip(loads.prefill_ps, loads.decode_tokens, self._tpots, strict=True)
        ]

    def _enter(self, large: _Node, leaf: _Node, output: int) -> None:
        """Count a request for its large node, and take out those that left the window."""
        record = large.data.record
        if record is None:
            record = large.data.record = _Record(large)
            self._records[record] = None
        self._window.append((self._now, record, leaf))
        record.requests += 1
        record.output = output
        record.hit_tokens += leaf.before
        record.prompt_tokens += leaf.end
        record.missed = record.prompt_tokens - record.hit_tokens, record.prompt_tokens
        while self._window[0][0] < self._now - self._options.window_ps:
            _, old, its_leaf = self._window.popleft()
            old.requests -= 1
            old.prompt_tokens -= its_leaf.end
            # The leaf may have been split since: what is taken away is not always what was added, as there.
            old.hit_tokens -= its_leaf.before
            if not old.requests:
                self._withdraw(old)
                del self._records[old]
                old.node.data.record = None
                old.node.data.placed = set()
            else:
                self._refresh(old.node)

    def _refresh(self, node: _Node) -> None:
        """Enter the part of a node into the loads anew."""
        record = node.data.record
        if record is None:
            return
        self._withdraw(record)
        record.prefill_ps = self._node_prefill_ps(record) // max(len(node.data.placed), 1)
        record.entered = tuple((machine, node.data.requests[machine] * record.output) for machine in node.data.placed)
        record.counted = record.requests >= self._options.least_requests
        self._loads.add(record.prefill_ps, record.entered, 1)
        if record.counted:
            self._counted_loads.add(record.prefill_ps, record.entered, 1)

    def _withdraw(self, record: _Record) -> None:
        self._loads.add(record.prefill_ps, record.entered, -1)
        if record.counted:
            self._counted_loads.add(record.prefill_ps, record.entered, -1)
        record.entered, record.counted = (), False

    def _node_prefill_ps(self, record: _Record) -> int:
        missed, asked = record.missed
        node = record.node
        return missed * record.requests * self._prefill_ps(node.tokens, node.end) // asked

    # ---- eviction, in the router's picture ----

    def _nodes(self) -> Iterator[_Node]:
        """Iterate over the tree, each node before those behind it, these in the order in which they came."""
        pending = [self._tree.root]
        while pending:
            node = pending.pop()
            yield node
            pending += [*node.children.values()][::-1]

    def _eviction_ps(self, leaf: _Node, machine: int) -> int:
        """Return the prefill time of what as many tokens as the leaf's would push out of a machine that is full."""
        heap = _queue(
            sorted((node for node in self._nodes() if machine in node.data.cached), key=lambda node: node.data.number)
        )
        tokens, victims = 0, dict[int, _Node]()
        while tokens < leaf.tokens and heap:
            node = heapq.heappop(heap).node
            if node.parent is None:
                break
            tokens += node.tokens
            victims[node.data.number] = node
            if all(
                machine not in each.data.cached or each.data.number in victims for each in node.parent.children.values()
            ):
                heapq.heappush(heap, _ByUse(node.parent))
        return sum(self._victim_ps(node, machine) for node in victims.values() if self._is_large(node))

    def _victim_ps(self, node: _Node, machine: int) -> int:
        if node.data.record is None:
            return node.data.requests[machine] * self._prefill_ps(node.tokens, node.end)
        return self._node_prefill_ps(node.data.record)

    def _evict(self, machine: int) -> None:
        excess = self.cached_tokens[machine] - self._options.capacity
        if excess <= 0:
            return
        cached = [node for node in self._nodes() if machine in node.data.cached]
        heap = _queue(node for node in cached if not node.data.requests[machine])
        while excess > 0 and heap:
            node = heapq.heappop(heap).node
            if node.parent is None:
                break
            if node.data.requests[machine] or machine not in node.data.cached:
                continue
            node.data.cached.remove(machine)
            self.cached_tokens[machine] -= node.tokens
            excess -= node.tokens
            if all(machine not in each.data.cached for each in node.parent.children.values()):
                heapq.heappush(heap, _ByUse(node.parent))

    # ---- rebalancing ----

    def _rebalance(self) -> None:
        """Go from the most loaded machine down, each time beside the least loaded one."""
        loads = self._totals(self._counted_loads)
        order = sorted(range(self._machines), key=lambda machine: -loads[machine])
        for machine in order[:-1]:
            if not self._shifted(loads, machine, order[-1]):
                return
            nodes = self._movable(machine)
            if len(nodes) == 1:
                self._copy(nodes[0], machine, order[-1], loads)
            else:
                self._move(nodes, machine, order[-1], loads)

    def _shifted(self, loads: Sequence[int], largest: int, smallest: int) -> bool:
        times, of = self._options.shift
        return loads[largest] * of >= times * loads[smallest]

    def _movable(self, machine: int) -> list[tuple[int, _Node]]:
        """Return the nodes on a machine that may move, with their part of its load, the cheapest first."""
        doubled = self._tpots[machine].doubled_median
        nodes = []
        for record in self._records:
            node = record.node
            if record.counted and machine in node.data.placed and self._is_large(node):
                tokens = node.data.requests[machine] * record.output
                nodes.append((record.prefill_ps + tokens * doubled // 2, node))
        return sorted(nodes, key=lambda pair: (pair[0], _ByUse(pair[1])))

    def _copy(self, only: tuple[int, _Node], machine: int, target: int, loads: list[int]) -> None:
        cost, node = only
        if target in node.data.placed or not self._slower(node.data.ttfts.get(machine)):
            return
        loads[machine] -= cost // 2
        loads[target] += cost // 2
        node.data.placed.add(target)
        del node.data.ttfts[machine]
        self._refresh(node)

    def _slower(self, ttfts: deque[tuple[int, int]] | None) -> bool:
        """Whether TTFTs of the window's second half are on average at least twice those of its first."""
        half = self._now - self._options.window_ps // 2
        early = [ttft for time, ttft in ttfts or () if time < half]
        late = [ttft for time, ttft in ttfts or () if time >= half]
        return bool(early and late) and sum(late) * len(early) >= 2 * sum(early) * len(late)

    def _move(self, nodes: Iterable[tuple[int, _Node]], machine: int, target: int, loads: list[int]) -> None:
        for cost, node in nodes:
            if loads[machine] - cost < loads[target] + cost:
                return
            loads[machine] -= cost
            loads[target] += cost
            # What is behind the node moves, too: nodes with a part in the loads now, others when they are used.
            self._moves += 1
            node.data.moved = self._moves, target
            for record in self._records:
                if record.node.end >= node.end and node in self._up(record.node):
                    self._settle(record.node)
                    self._refresh(record.node)
            if not self._shifted(loads, machine, target):
                return


def e2_code(setting: RouterSetting) -> E2Code:
    """Return the router with the program's constants.

    Raises
    ------
    UnsuitableError
        If machines are unlike: one load of a node counts for all of them.
    """
    if setting.each:
        raise UnsuitableError(
            "Preble's program assumes equal machines, and these differ in limits or cost; e2 does not"
        )
    return E2Code(setting, E2CodeOptions())
