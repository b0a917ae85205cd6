"""Routers that give each machine a cost made of its load and of what it caches of the prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp
from random import Random

from optsched.routers.active import ActivePrompts
from optsched.routers.router import MachineView, RoutedRequest, Router, RouterSetting, least
from optsched.routers.simple import requests_there


class DynamoKv(Router):
    """NVIDIA Dynamo's KV router.

    The cost of a machine is scale × max(0, (P + I)/b − credit × overlap) + D: P are the uncached prompt tokens of the
    requests that it was sent and that have no first token yet, overlap the blocks of the prompt that it caches, and D
    the different full prompt blocks of the requests there that have not ended, this one included.

    Source: ai-dynamo-runtime 1.6.1.

    Parameters
    ----------
    machines
        How many there are.
    block
        b, tokens of a block.
    rng
        Breaks ties, and draws if there is a temperature.
    scale, credit
        See above.
    temperature
        T: a machine is drawn with a probability in proportion to exp(−cost / ((max − min) T)); 0 takes the least cost.
    """

    def __init__(
        self,
        machines: int,
        block: int,
        rng: Random,
        *,
        scale: float = 1.0,
        credit: float = 1.0,
        temperature: float = 0.0,
    ) -> None:
        self._block = block
        self._rng = rng
        self._scale = scale
        self._credit = credit
        self._temperature = temperature
        self._prefill = [0] * machines
        self._active = [ActivePrompts(block) for _ in range(machines)]
        self._uncached: dict[int, int] = {}

    def cost(self, request: RoutedRequest, machine: int, cached: int) -> float:
        """Return the cost of a machine that caches ``cached`` tokens of the prompt."""
        overlap = cached // self._block
        prefill = max(0.0, (self._prefill[machine] + request.input) / self._block - self._credit * overlap)
        active = self._active[machine]
        return self._scale * prefill + active.blocks + active.more(request.prompt, request.input)

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        cached = [view.cached(request) for view in views]
        costs = [self.cost(request, view.machine, hit) for view, hit in zip(views, cached, strict=True)]
        place = self._draw(costs)
        self.sent(request, views[place].machine, cached[place])
        return views[place].machine

    def sent(self, request: RoutedRequest, machine: int, cached: int) -> None:
        """Take note that a request was sent to a machine that caches ``cached`` tokens of its prompt."""
        self._uncached[request.index] = request.input - cached
        self._prefill[machine] += request.input - cached
        self._active[machine].add(request.prompt, request.input)

    def first_token(self, request: RoutedRequest, machine: int, now_ps: int, hit: int) -> None:
        """Take the request out of those that prefill."""
        self._prefill[machine] -= self._uncached.pop(request.index)

    def finished(self, request: RoutedRequest, machine: int, now_ps: int, ttft_ps: int, tpot_ps: int | None) -> None:
        """Take the request out of those that have not ended."""
        self._active[machine].remove(request.prompt, request.input)

    def _draw(self, costs: Sequence[float]) -> int:
        spread = max(costs) - min(costs)
        if not self._temperature or not spread:
            return least(costs, self._rng)
        smallest = min(costs)
        weights = [exp((smallest - cost) / (spread * self._temperature)) for cost in costs]
        return self._rng.choices(range(len(costs)), weights)[0]


class ScoreMix(Router):
    """llm-d's weighted scorers: the machine with the largest sum.

    Scores in [0, 1]: queue (max − q)/(max − min) of waiting requests, memory 1 − usage, and the matched share of the
    prompt.

    Parameters
    ----------
    weights
        Of queue, memory and match; llm-d has (2, 2, 3), before that (2, 1, 1).
    """

    def __init__(self, weights: tuple[float, float, float] = (2, 2, 3)) -> None:
        self._weights = weights

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        longest, shortest = (choose(view.waiting for view in views) for choose in (max, min))
        costs = []
        for view in views:
            queue = (longest - view.waiting) / (longest - shortest) if longest > shortest else 1.0
            memory = 1 - view.kv_used / view.kv_capacity
            matched = view.cached(request) / request.input
            scores = (queue, memory, matched)
            costs.append(-sum(weight * score for weight, score in zip(self._weights, scores, strict=True)))
        return views[least(costs)].machine


class VllmDp(Router):
    """vLLM's data-parallel coordinator.

    The cost of a machine is max(clients × in flight, waiting + running) + 6 × waiting × max(0, usage − 1/2); the scan
    starts one machine further each time. Between two snapshots of the machines each choice counts as one more waiting.

    Source: vLLM 0.33; before it was 4 × waiting + running (`weight`).

    Parameters
    ----------
    clients
        How many routers there are.
    weight
        The older rule's weight of waiting requests; None for the newer rule.
    """

    def __init__(self, clients: int = 1, weight: int | None = None) -> None:
        self._clients = clients
        self._weight = weight
        self._start = 0
        self._in_flight: dict[int, int] = {}
        self._seen: dict[int, tuple[int, int]] = {}
        self._added: dict[int, int] = {}

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        for view in views:
            snapshot = view.waiting, view.running
            if self._seen.get(view.machine) != snapshot:
                self._seen[view.machine] = snapshot
                self._added[view.machine] = 0
        start = self._start % len(views)
        order = [*views[start:], *views[:start]]
        self._start += 1
        machine = order[least([self._cost(view) for view in order])].machine
        self._added[machine] += 1
        self._in_flight[machine] = self._in_flight.get(machine, 0) + 1
        return machine

    def finished(self, request: RoutedRequest, machine: int, now_ps: int, ttft_ps: int, tpot_ps: int | None) -> None:
        """Take note that a request has ended."""
        self._in_flight[machine] -= 1

    def _cost(self, view: MachineView) -> float:
        waiting = view.waiting + self._added[view.machine]
        if self._weight is not None:
            return self._weight * waiting + view.running
        load = max(self._clients * self._in_flight.get(view.machine, 0), waiting + view.running)
        return load + 6 * waiting * max(0.0, view.kv_used / view.kv_capacity - 0.5)


class Lmetric(Router):
    """Least uncached tokens × (requests there + 1); ties by requests there, then uncached tokens, then index.

    Source: sglang.
    """

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""

        def order(view: MachineView) -> tuple[int, int, int, int]:
            load, uncached = requests_there(view), request.input - view.cached(request)
            return uncached * (load + 1), load, uncached, view.machine

        return min(views, key=order).machine


class AibrixPrefix(Router):
    """AIBrix's prefix cache router.

    If the largest number of requests exceeds the smallest by more than `most_apart`, the least loaded machine. Else the
    one that caches most of the prompt among those whose load is at most the mean plus one standard deviation.

    Parameters
    ----------
    most_apart
        In requests; 8 there.
    """

    def __init__(self, most_apart: int = 8) -> None:
        self._most_apart = most_apart

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        loads = [requests_there(view) for view in views]
        if max(loads) - min(loads) > self._most_apart:
            return views[least(loads)].machine
        # load ≤ μ + σ is compared without a root: n load − Σ ≤ √(n Σ load² − Σ²).
        count, total = len(loads), sum(loads)
        variance = count * sum(load * load for load in loads) - total * total
        fitting = [
            (view.cached(request), load, view.machine)
            for view, load in zip(views, loads, strict=True)
            if count * load <= total or (count * load - total) ** 2 <= variance
        ]
        return min(fitting, key=lambda each: (-each[0], each[1], each[2]))[2]


class Conductor(Router):
    """Mooncake's conductor: least queueing and prefill time, with the prefix here or the best one elsewhere.

    The time of a machine is its work left plus the prefill of what it does not cache. If the longest cached prefix of
    all machines is more than `threshold` times its own, that prefix may be copied first, which takes `transfer_ps`.

    Source: Qin et al., *Mooncake*, FAST 2025, Algorithm 1. It also rejects requests that would miss their SLO; here
    none is refused.

    Parameters
    ----------
    prefill_ps
        Time of prefilling ``new`` tokens that end a context of ``context`` tokens; or that of each machine, where they
        are unlike.
    transfer_ps
        Time of copying tokens of KV; None if prefixes cannot be copied.
    threshold
        See above.
    """

    def __init__(
        self,
        prefill_ps: Callable[[int, int], int] | Sequence[Callable[[int, int], int]],
        transfer_ps: Callable[[int], int] | None = None,
        threshold: float = 2.0,
    ) -> None:
        self._prefills = [prefill_ps] if callable(prefill_ps) else prefill_ps
        self._transfer_ps = transfer_ps
        self._threshold = threshold

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        cached = [min(view.cached(request), request.input - 1) for view in views]
        best = max(cached)
        costs = []
        for view, own in zip(views, cached, strict=True):
            copied = self._transfer_ps is not None and best > self._threshold * own
            prefill_ps = self._prefills[view.machine if len(self._prefills) > 1 else 0]
            time_ps = view.work_ps + prefill_ps(request.input - (best if copied else own), request.input)
            if self._transfer_ps is not None and copied:
                time_ps += self._transfer_ps(best - own)
            costs.append(time_ps)
        return views[least(costs)].machine


def dynamo_kv(setting: RouterSetting) -> Router:
    """Return `DynamoKv` with its defaults."""
    return DynamoKv(setting.machines, setting.block, setting.rng)


def score_mix(_: RouterSetting) -> Router:
    """Return `ScoreMix` with llm-d's weights."""
    return ScoreMix()


def vllm_dp(_: RouterSetting) -> Router:
    """Return `VllmDp` with one client."""
    return VllmDp()


def lmetric(_: RouterSetting) -> Router:
    """Return `Lmetric`."""
    return Lmetric()


def aibrix_prefix(_: RouterSetting) -> Router:
    """Return `AibrixPrefix` with its default."""
    return AibrixPrefix()


def conductor(setting: RouterSetting) -> Router:
    """Return `Conductor` without copies."""
    return Conductor([each.prefill_ps for each in setting.each] or setting.prefill_ps)
