"""DistServe's simulator: prefill and decode workers apart, or vLLM's way together; every start, worker and end.

A worker prefills whole prompts, first come, first served, up to a number of tokens; else it decodes what waits for it
in turn, up to 50,000 context tokens in a batch. A request goes to the prefill worker with the fewest requests, running
and waiting, and then to the decode worker with the fewest *waiting*. No transfer takes time. Its output is our O − 1:
the first token comes with the prefill and is not counted.

Workers are machines of `optsched.simulator.cluster`, on which moves take no time; their policy, their router and the
times of their batches are here. What they hold is not limited.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster.outcome import Outcome, Sources, compared
from optsched.model.cluster import Role
from optsched.model.cost import CostModel
from optsched.model.errors import InputError
from optsched.model.instance import Instance, Limits, MachineGroup, Request, Rules
from optsched.model.schedule import Assignment, Schedule
from optsched.routers.router import MachineView, RoutedRequest, Router
from optsched.simulator.cluster import run_cluster
from optsched.simulator.replica import Job, NoBatchError, Replica

_CONTEXT = 50_000
"""Most context tokens of a decode batch."""
_SAME_MS = 0.1
_MS = 10**9


def recognises(document: Any) -> bool:
    """Whether a document is such a run."""
    return isinstance(document, dict) and {"runs", "requests", "time_model_ms"} <= document.keys()


def outcomes(document: Mapping[str, Any], _: Sources) -> Iterator[Outcome]:
    """Replay all runs of a file."""
    for name, run in document["runs"].items():
        engine = name.split("-")[0]
        instance = _instance(document["requests"], _machines(name))
        schedule = _served(instance, run["max_tokens"], _Times(document[f"profile_{engine}"]))
        pairs = list(zip(run["requests"], _requests(instance, schedule), strict=True))
        workers = [(f"request {index}", *_workers(*pair)) for index, pair in enumerate(pairs)]
        starts = [(f"request {index}, prefill, decodes and end", *_starts(*pair)) for index, pair in enumerate(pairs)]
        yield compared(name, "workers", workers)
        yield compared(name, "requests", starts)


# What is simulated ----------------------------------------------------------------------------------------------


def _machines(name: str) -> tuple[MachineGroup, ...]:
    if match := re.fullmatch(r"vllm-(\d+)", name):
        return (MachineGroup(int(match[1])),)
    if not (match := re.fullmatch(r"distserve-(\d+)P(\d+)D", name)):
        raise InputError("runs", name, "vllm-N or distserve-NPMD")
    return MachineGroup(int(match[1]), Role.PREFILL), MachineGroup(int(match[2]), Role.DECODE)


def _instance(rows: Sequence[Sequence[float]], machines: tuple[MachineGroup, ...]) -> Instance:
    requests = tuple(Request(int(prompt), int(output) + 1, round(arrival * _MS)) for arrival, prompt, output in rows)
    room = sum(request.peak_tokens for request in requests)
    rules = Rules(hybrid=False, chunked_prefill=False, eviction=False)
    return Instance("distserve", Limits(room, room, room), rules, CostModel(0, 0), requests, machine_groups=machines)


@dataclass(frozen=True)
class _Times:
    """The times of a profile, with the simulator's overhead: 2 ms and 0.0001 ms for each context token."""

    profile: Mapping[str, Any]

    def batch_ps(self, tokens: int, decodes: int, decode_kv_tokens: int, prefills: Iterable[tuple[int, int]]) -> int:
        """Return how long a batch takes (`optsched.model.cost.BatchCost`)."""
        if not decodes:
            base, token, square = self.profile["prefill"]
            delay = base + token * tokens + square * sum(prompt**2 for prompt, _ in prefills)
            milliseconds: float = delay + 1 + (2 + tokens * 0.0001)
            return round(milliseconds * _MS)
        small = decodes < self.profile["decoding_large_small_bs_threshold"]
        first, each_token, each = self.profile["decoding_smallbs" if small else "decoding_largebs"]
        delay = first + each_token * (decode_kv_tokens + decodes) + each * decodes
        milliseconds = delay + (2 + decode_kv_tokens * 0.0001)
        return round(milliseconds * _MS)


class _Worker:
    """The policy of a worker, with its queue of those that decode.

    Parameters
    ----------
    most_tokens
        Of a batch of prompts.
    """

    keeps_records = True

    def __init__(self, most_tokens: int) -> None:
        self.decodes: deque[Job] = deque()
        self.prefilling = 0
        """Requests of its latest batch, if that prefills."""
        self.coming = 0
        """Requests that have been sent here to decode, and have not come."""
        self._most_tokens = most_tokens
        self._batch: list[Job] = []

    def next_batch(self, replica: Replica) -> Assignment:
        """Prefill whole prompts; if none waits, decode."""
        # What has been prefilled here decodes here, unless it has moved.
        self.decodes += (job for job in self._batch if job.cached)
        self._batch = self._whole_prompts(replica.waiting)
        self.prefilling = len(self._batch)
        if not replica.waiting:
            self._batch = self._in_turn()
        if not self._batch:
            raise NoBatchError((replica.waiting or replica.running)[0].index, replica.now_ps, "it fits no batch")
        return Assignment([(job.index, job.missing) for job in self._batch], [])

    def _whole_prompts(self, waiting: Iterable[Job]) -> list[Job]:
        left, batch = self._most_tokens, list[Job]()
        for job in waiting:
            if job.missing > left:
                break
            left -= job.missing
            batch.append(job)
        return batch

    def _in_turn(self) -> list[Job]:
        left, batch = _CONTEXT, list[Job]()
        while self.decodes and self.decodes[0].cached < left:
            left -= self.decodes[0].cached + 1
            batch.append(self.decodes.popleft())
        return batch

    def come(self, job: Job, _: int) -> None:
        """Let a request wait for its turn."""
        self.coming -= 1
        self.decodes.append(job)

    def go(self, job: Job) -> None:
        """Forget a request, which has been prefilled in the last batch."""
        self._batch.remove(job)

    def resize(self, _: int) -> None:
        """Do nothing: what workers hold is not limited."""

    def has_room(self, _: Job, __: int) -> bool:
        """Do nothing: what workers hold is not limited."""
        return True


class _Fewest(Router):
    """To the worker with the fewest requests that are or wait to be prefilled; then where the fewest wait to decode.

    Parameters
    ----------
    workers
        All of them.
    prefills
        How many of them, the first, only prefill; 0 if all do both.
    """

    def __init__(self, workers: Sequence[_Worker], prefills: int) -> None:
        self._workers, self._prefills = workers, prefills

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        return min(views, key=self._to_prefill).machine

    def _to_prefill(self, view: MachineView) -> int:
        # Where both is done, a batch of prompts is followed by one that decodes at once.
        waiting = view.waiting
        return waiting + (view.running if self._prefills else self._workers[view.machine].prefilling)

    def move(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine where a request decodes."""
        decoding = self._workers[self._prefills :]
        view = min(views, key=lambda view: len(decoding[view.machine].decodes) + decoding[view.machine].coming)
        decoding[view.machine].coming += 1
        return view.machine


def _served(instance: Instance, most_tokens: int, times: _Times) -> Schedule:
    roles = [machine.role for machine in instance.machines]
    workers = [_Worker(most_tokens) for _ in roles]
    unused = iter(workers)
    return run_cluster(
        instance,
        lambda _: next(unused),
        lambda _: _Fewest(workers, roles.count(Role.PREFILL)),
        costs=[times] * len(roles),
    )


# What is compared -----------------------------------------------------------------------------------------------


@dataclass
class _Served:
    """Where and when a request was served, in ms."""

    prefill_worker: int
    decode_worker: int
    times: list[float] = field(default_factory=list)
    end: float = -1.0


def _requests(instance: Instance, schedule: Schedule) -> list[_Served]:
    found = [_Served(route, route) for route in schedule.routes or (0,) * len(instance.requests)]
    for move in schedule.moves:
        found[move.request].decode_worker = move.target
    for batch in schedule.batches:
        for index, _ in batch.run:
            served = found[index]
            served.times.append(batch.start_ps / _MS)
            if len(served.times) == 1:
                served.times.append(batch.end_ps / _MS)
            served.end = batch.end_ps / _MS
    return found


def _workers(row: Mapping[str, Any], served: _Served) -> tuple[object, object]:
    theirs = str(row["prefill_worker"]), str(row["decode_worker"])
    return theirs, (str(served.prefill_worker), str(served.decode_worker))


def _starts(row: Mapping[str, Any], served: _Served) -> tuple[object, object]:
    """Compare all starts and the end of a request, which are equal within 0.1 ms."""
    theirs = [row["prefill_start"], row["prefill_end"], *row["decode_starts"], row["end"]]
    ours = [*served.times, served.end]
    same = len(theirs) == len(ours) and all(
        abs(their - mine) <= _SAME_MS for their, mine in zip(theirs, ours, strict=True)
    )
    return theirs, theirs if same else ours
