"""``e2``: Preble's E2 as the paper describes it (section 4.2, Algorithms 1 and 2); `e2_code` is what its program does.

For each machine i the router keeps the last H requests that it sent there. The cost of sending a request to i is
L + M + P, all in ps:

- L, the load: for each of the H requests the prefill time of what was not cached at i, plus the mean decode time seen
  at i;
- M, what would have to be evicted: for each node j that is evicted first (least recently used) until as many tokens are
  free as the prompt has, its prefill time times N_j, the requests of the H that use it;
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
        H, requests of each machine.
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
        IMBAL_R, the limit of decode time / (prefill + decode time) of a machine's H requests, as (numerator,
        denominator); None for no prefill/decode balance.
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
    """Machine → those of its H requests that use this node."""
    waits: deque[int] = field(default_factory=deque)
    """Waiting times of the last requests of which it was the key portion."""


def _split(data: _Data) -> _Data:
    return _Data(set(data.cached), set(data.placed), dict(data.users))


_Node = PromptNode[_Data]


@dataclass(slots=True)
class _Machine:
    """The H requests of a machine, as sums that change with each."""

    history: deque[tuple[int, _Node]] = field(default_factory=deque)
    """Prefill time of what was not cached, and the node at which the prompt ends."""
    prefill_ps: int = 0
    decodes: deque[int] = field(default_factory=deque)
    """Decode times of the last requests that ended."""
    decode_ps: int = 0
    order: OrderedDict[_Node, None] = field(default_factory=OrderedDict)
    """Cached nodes, the least recently used first; no node is before one behind it."""

    def decode_total_ps(self, guess_ps: int) -> int:
        """Return the decode time of the H requests: their number times the mean."""
        mean = self.decode_ps // len(self.decodes) if self.decodes else guess_ps
        return mean * len(self.history)


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
        self._tree: PromptTree[_Data] = PromptTree(_Data, _split)
        self._keys: dict[int, _Node] = {}

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        leaf, divided = self._tree.insert(request.prompt)
        if divided is not None:
            self._enter_head(*divided)
        path = [*self._up(leaf)][::-1]
        # Where machines are unlike, not every request fits all of them.
        if len(views) == len(self._all):
            shown: Sequence[int] = self._all
            matched = [node for node in path if node.data.cached]
        else:
            shown = [view.machine for view in views]
            matched = [node for node in path if not node.data.cached.isdisjoint(shown)]
        decodes = [
            machine.decode_total_ps(token_ps * request.output)
            for machine, token_ps in zip(self._machines, self._token_ps, strict=True)
        ]
        loads = [machine.prefill_ps + decode for machine, decode in zip(self._machines, decodes, strict=True)]
        cached = matched[-1].end if matched else 0
        if cached > (0 if self._options.as_printed else request.input - cached):
            key = max(matched, key=lambda node: node.tokens)
            machine = self._exploit(request, path, key, loads, shown)
        else:
            key = leaf
            machine = self._explore(request, path, loads, decodes, shown)
        self._keys[request.index] = key
        self._send(machine, path, request.input)
        return machine

    def first_token(self, request: RoutedRequest, machine: int, now_ps: int, hit: int) -> None:
        """Take note of how long a request of a key portion has waited."""
        waits = self._keys.pop(request.index).data.waits
        waits.append(now_ps - request.arrival_ps)
        if len(waits) > self._options.waits:
            waits.popleft()

    def finished(self, request: RoutedRequest, machine: int, now_ps: int, ttft_ps: int, tpot_ps: int | None) -> None:
        """Take note of how long a request has decoded."""
        there = self._machines[machine]
        time_ps = now_ps - request.arrival_ps - ttft_ps
        there.decodes.append(time_ps)
        there.decode_ps += time_ps
        if len(there.decodes) > self._options.history:
            there.decode_ps -= there.decodes.popleft()

    def dropped(self, machine: int, prompt: Sequence[Piece], kept: int, now_ps: int) -> None:
        """Forget what a machine has dropped, and nodes that neither a machine caches nor a request uses."""
        node, _ = self._tree.find(prompt)
        gone = [each for each in self._up(node) if each.end > kept]
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

    def _enter_head(self, head: _Node, tail: _Node) -> None:
        """Enter the head of a divided node into the orders of eviction.

        Both parts and what is before them count as used now, as in SGLang.
        """
        for machine in head.data.cached:
            order = self._machines[machine].order
            for node in (tail, *self._up(head)):
                order[node] = None
                order.move_to_end(node)

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
        there.history.append((time_ps, path[-1]))
        there.prefill_ps += time_ps
        for node in reversed(path):
            data = node.data
            data.cached.add(machine)
            data.placed.discard(machine)
            data.users[machine] = data.users.get(machine, 0) + 1
            there.order[node] = None
            there.order.move_to_end(node)
        if len(there.history) > self._options.history:
            old_ps, leaf = there.history.popleft()
            there.prefill_ps -= old_ps
            for node in self._up(leaf):
                users = node.data.users
                users[machine] -= 1
                if not users[machine]:
                    del users[machine]
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
