"""``e2``: Preble's E2 as the paper describes it (section 4.2, Algorithms 1 and 2); `e2_code` is what its program does.

The router keeps a window of the last H requests for each machine, counted over all machines: of a window for each by
itself the load would say how long a request of a machine takes, and not that it gets more of them. The cost of sending
a request to machine i is L + M + P, all in ps:

- L, the load: for each request of the window that went to i the prefill time of what was not cached there, plus the
  time that the mean output of requests that ended at i takes to decode alone (the paper's times are profiled offline);
- M, what would have to be evicted: for each node j that is evicted first (least recently used) until as many tokens are
  free as the prompt has, its prefill time times N_j, the requests of the window there that use it;
- P, the prefill time of what is not cached at i.

It *exploits* if the cached part of the prompt is longer than the rest: candidates are the machines that cache the key
portion, which is the longest node of the matched path. Else it *explores*: all machines are candidates. The candidate
of the least cost is taken.

Parts that can be switched: prefill/decode balance (explore at the machine with the largest share of decode time if it
exceeds a limit), rebalancing (what would go to the most loaded machine goes to the least loaded one while their loads
differ by more than a factor), autoscaling (a key portion whose requests wait twice as long as before is given a second
machine, and what is behind it is divided between both by load), the eviction cost, and Algorithm 1 as printed, which
exploits whenever anything is cached.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from optsched.cache.prompt_tree import PromptNode, PromptTree
from optsched.routers.router import MachineView, Piece, RoutedRequest, Router, RouterSetting, least


@dataclass(frozen=True)
class E2Options:
    """Constants and parts of the rule.

    Parameters
    ----------
    history
        H, requests of the window for each machine; and ended requests of each whose outputs count.
    as_printed
        Exploit whenever a token is cached, as Algorithm 1 is printed.
    eviction_cost
        Count M.
    rebalancing
        See the module.
    imbalance
        Th_bal: the factor between the largest and the smallest load, as (numerator, denominator).
    autoscaling
        See the module.
    waits
        Requests whose waiting times are compared, the later half with the earlier.
    decode_share
        IMBAL_R, the limit of decode time / (prefill + decode time) of a machine's requests in the window, as
        (numerator, denominator); None for no prefill/decode balance.
    """

    history: int = 200
    as_printed: bool = False
    eviction_cost: bool = True
    rebalancing: bool = True
    imbalance: tuple[int, int] = (3, 2)
    autoscaling: bool = True
    waits: int = 32
    decode_share: tuple[int, int] | None = (7, 10)


@dataclass(slots=True, eq=False)
class _Data:
    """What is known of a node."""

    cached: set[int] = field(default_factory=set)
    """Machines that cache it."""
    placed: set[int] = field(default_factory=set)
    """Machines that it is to be replicated on."""
    users: dict[int, int] = field(default_factory=dict)
    """Machine → requests of the window there that use this node."""
    coming: dict[int, int] = field(default_factory=dict)
    """Machine → requests sent there that use this node and have no token yet: it is cached when they have."""
    waits: deque[int] = field(default_factory=deque)
    """Waiting times of the last requests of which it was the key portion."""


def _split(data: _Data) -> _Data:
    return _Data(set(data.cached), set(data.placed), dict(data.users), dict(data.coming))


_Node = PromptNode[_Data]


def _count_down(counted: dict[int, int], machine: int) -> None:
    counted[machine] -= 1
    if not counted[machine]:
        del counted[machine]


@dataclass(slots=True)
class _Machine:
    """The requests of the window that went to a machine, as sums that change with each."""

    requests: int = 0
    prefill_ps: int = 0
    outputs: deque[int] = field(default_factory=deque)
    """Outputs of the last requests that ended."""
    output: int = 0
    order: OrderedDict[_Node, None] = field(default_factory=OrderedDict)
    """Cached nodes, the least recently used first; no node is before one behind it."""

    def decoded(self, guess: int) -> int:
        """Return the output tokens of the requests: their number times the mean, or a guess before any has ended."""
        mean = self.output // len(self.outputs) if self.outputs else guess
        return mean * self.requests


class E2(Router):
    """E2 as the paper describes it.

    Parameters
    ----------
    setting
        What it is made for: machines, and times of a prefill and of a decode.
    options
        Constants and parts.
    """

    def __init__(self, setting: RouterSetting, options: E2Options) -> None:
        self._machines = [_Machine() for _ in range(setting.machines)]
        own = setting.of_all()
        self._prefills = [each.prefill_ps for each in own]
        self._token_ps = [each.decode_ps for each in own]
        self._all = range(setting.machines)
        self._options = options
        self._window: deque[tuple[int, int, _Node]] = deque()
        """Machine, prefill time of what was not cached there, and the node at which the prompt ends."""
        self._tree: PromptTree[_Data] = PromptTree(_Data, _split)
        self._sent: dict[int, tuple[_Node, _Node]] = {}
        """Requests without a token: the key portion, and the node at which the prompt ends."""

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        leaf, divided = self._tree.insert(request.prompt)
        if divided is not None:
            for machine in divided[0].data.cached:
                self._enter_head(machine, *divided)
        path = [*self._up(leaf)][::-1]
        # Where machines are unlike, not every request fits all of them.
        if len(views) == len(self._all):
            shown: Sequence[int] = self._all
            matched = [node for node in path if node.data.cached]
        else:
            shown = [view.machine for view in views]
            matched = [node for node in path if not node.data.cached.isdisjoint(shown)]
        decodes = [
            machine.decoded(request.output) * token_ps
            for machine, token_ps in zip(self._machines, self._token_ps, strict=True)
        ]
        loads = [machine.prefill_ps + time_ps for machine, time_ps in zip(self._machines, decodes, strict=True)]
        cached = matched[-1].end if matched else 0
        if cached > (0 if self._options.as_printed else request.input - cached):
            key = max(matched, key=lambda node: node.tokens)
            machine = self._exploit(request, path, key, loads, shown)
        else:
            key = leaf
            machine = self._explore(request, path, loads, decodes, shown)
        self._sent[request.index] = key, leaf
        self._send(machine, path, request.input)
        return machine

    def first_token(self, request: RoutedRequest, machine: int, now_ps: int, hit: int) -> None:
        """Take note of how long a request of a key portion has waited, and that its prompt is cached."""
        key, leaf = self._sent.pop(request.index)
        for node in self._up(leaf):
            _count_down(node.data.coming, machine)
        waits = key.data.waits
        waits.append(now_ps - request.arrival_ps)
        if len(waits) > self._options.waits:
            waits.popleft()

    def finished(self, request: RoutedRequest, machine: int, now_ps: int, ttft_ps: int, tpot_ps: int | None) -> None:
        """Take note of a request's output."""
        there = self._machines[machine]
        there.outputs.append(request.output)
        there.output += request.output
        if len(there.outputs) > self._options.history:
            there.output -= there.outputs.popleft()

    def dropped(self, machine: int, prompt: Sequence[Piece], kept: int, now_ps: int) -> None:
        """Forget what a machine has dropped, and nodes that neither a machine caches nor a request uses.

        What a request that waits there uses is cached again when it has run.
        """
        node, found = self._tree.find(prompt)
        if found <= kept:
            return
        gone = [each for each in self._up(node) if each.end > kept and machine not in each.data.coming]
        if not gone or machine not in gone[-1].data.cached:
            return
        if gone[-1].before < kept:
            self._divide(gone[-1], kept, machine)
        pending = gone[-1:]
        while pending:
            each = pending.pop()
            if machine in each.data.cached:
                each.data.cached.remove(machine)
                del self._machines[machine].order[each]
                pending += each.children.values()
        self._prune(node)

    # ---- the tree ----

    @staticmethod
    def _up(node: _Node) -> Iterator[_Node]:
        """Iterate from a node up to the root, which is left out."""
        while node.parent is not None:
            yield node
            node = node.parent

    def _enter_head(self, machine: int, head: _Node, tail: _Node) -> None:
        """Enter the head of a divided node into a machine's order of eviction.

        Both parts and what is before them count as used now, as in SGLang.
        """
        order = self._machines[machine].order
        for node in (tail, *self._up(head)):
            order[node] = None
            order.move_to_end(node)

    def _divide(self, node: _Node, end: int, machine: int) -> None:
        """Divide a node of which a machine has dropped all behind ``end``: what it keeps is evicted there next."""
        head = self._tree.divide(node, end - node.before)
        for other in head.data.cached - {machine}:
            self._enter_head(other, head, node)
        order = self._machines[machine].order
        order[head] = None
        order.move_to_end(head, last=False)

    def _prune(self, node: _Node) -> None:
        while node.parent is not None and not (node.children or node.data.cached or node.data.users):
            parent = node.parent
            self._tree.remove(node)
            node.parent = None
            node = parent

    def _send(self, machine: int, path: Sequence[_Node], tokens: int) -> None:
        """Count a request at a machine, which caches its prompt from now on."""
        there = self._machines[machine]
        time_ps = self._own_ps(machine, path, tokens)
        self._window.append((machine, time_ps, path[-1]))
        there.requests += 1
        there.prefill_ps += time_ps
        for node in reversed(path):
            data = node.data
            data.cached.add(machine)
            data.placed.discard(machine)
            for counted in (data.users, data.coming):
                counted[machine] = counted.get(machine, 0) + 1
            there.order[node] = None
            there.order.move_to_end(node)
        if len(self._window) > self._options.history * len(self._machines):
            old, old_ps, leaf = self._window.popleft()
            self._machines[old].requests -= 1
            self._machines[old].prefill_ps -= old_ps
            for node in self._up(leaf):
                _count_down(node.data.users, old)
            self._prune(leaf)

    # ---- costs ----

    @staticmethod
    def _prefix(machine: int, path: Sequence[_Node]) -> int:
        """Return the leading tokens of a path that a machine caches."""
        end = 0
        for node in path:
            if machine not in node.data.cached:
                break
            end = node.end
        return end

    def _own_ps(self, machine: int, path: Sequence[_Node], tokens: int) -> int:
        """Return P."""
        new = tokens - self._prefix(machine, path)
        return self._prefills[machine](new, tokens) if new else 0

    def _eviction_ps(self, machine: int, path: Sequence[_Node], tokens: int) -> int:
        """Return M. What the prompt itself finds at the machine is not evicted for it."""
        needed = tokens - self._prefix(machine, path)
        prefill_ps, cost = self._prefills[machine], 0
        for node in self._machines[machine].order:
            if needed <= 0:
                break
            if node in path:
                continue
            needed -= node.tokens
            if users := node.data.users.get(machine):
                cost += users * prefill_ps(node.tokens, node.end)
        return cost

    def _cheapest(
        self, request: RoutedRequest, path: Sequence[_Node], candidates: Sequence[int], loads: Sequence[int]
    ) -> int:
        if len(candidates) == 1:
            return candidates[0]
        costs = []
        for machine in candidates:
            cost = loads[machine] + self._own_ps(machine, path, request.input)
            if self._options.eviction_cost:
                cost += self._eviction_ps(machine, path, request.input)
            costs.append(cost)
        return candidates[least(costs)]

    # ---- the choice ----

    def _exploit(
        self, request: RoutedRequest, path: Sequence[_Node], key: _Node, loads: Sequence[int], shown: Sequence[int]
    ) -> int:
        candidates = [machine for machine in sorted(key.data.cached | key.data.placed) if machine in shown]
        machine = self._cheapest(request, path, candidates, loads)
        if not self._options.rebalancing and not self._options.autoscaling:
            return machine
        lightest = min(shown, key=lambda each: loads[each])
        largest, smallest = max(loads[each] for each in shown), loads[lightest]
        times, of = self._options.imbalance
        if loads[machine] < largest or largest * of <= times * smallest:
            return machine
        if self._options.autoscaling and self._slower(key) and lightest not in candidates:
            self._replicate(key, machine, lightest)
        return lightest if self._options.rebalancing else machine

    def _explore(
        self,
        request: RoutedRequest,
        path: Sequence[_Node],
        loads: Sequence[int],
        decodes: Sequence[int],
        shown: Sequence[int],
    ) -> int:
        if self._options.decode_share is not None:
            times, of = self._options.decode_share
            # The largest share decode/load is the largest decode/prefill; shares are compared as fractions.
            best = shown[0]
            for machine in shown[1:]:
                if decodes[machine] * loads[best] > decodes[best] * loads[machine]:
                    best = machine
            if decodes[best] * of > times * loads[best]:
                return best
        return self._cheapest(request, path, shown, loads)

    # ---- autoscaling ----

    def _slower(self, key: _Node) -> bool:
        """Whether the later half of the last requests of a key portion has waited twice as long as the earlier."""
        waits = key.data.waits
        if len(waits) < self._options.waits:
            return False
        half = len(waits) // 2
        return sum(islice(waits, half, 2 * half)) >= 2 * sum(islice(waits, half))

    @staticmethod
    def _replicate(key: _Node, machine: int, other: int) -> None:
        """Let another machine take a key portion, too, and divide what is behind it by the requests that use it."""
        key.data.placed.add(other)
        key.data.waits.clear()
        loads = {machine: 0, other: 0}
        children = list(key.children.values())
        for child in sorted(children, key=lambda each: sum(each.data.users.values()), reverse=True):
            lighter = min(loads, key=lambda each: loads[each])
            loads[lighter] += sum(child.data.users.values())
            if lighter == other:
                child.data.placed.add(other)


def e2(setting: RouterSetting) -> E2:
    """Return the router with all its parts."""
    return E2(setting, E2Options())
