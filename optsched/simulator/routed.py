"""Requests on their way to machines: routers that look at these, and are notified of what happens there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from optsched.cache.blocks import CacheSetting, uses_of
from optsched.cache.contents import Piece
from optsched.model.cluster import Role
from optsched.model.cost import BatchCost
from optsched.model.errors import shown
from optsched.model.instance import Instance, Request, entries_of
from optsched.model.schedule import Batch, Schedule
from optsched.routers.router import MachineSetting, RoutedRequest, Router, RouterFactory, RouterSetting, prefill_time
from optsched.simulator.machine_run import Happening, Instant, MachineRun, Notice
from optsched.simulator.replica import COMPILED_TOKENS, Compiled, Policy, PolicyFailureError
from optsched.simulator.router_code import RouterCode
from optsched.simulator.sight import Clock, View, views_of

if TYPE_CHECKING:
    from optsched.simulator.fleet import FleetMachine, FleetRun

    RoutedMachine = MachineRun | FleetMachine

PolicyMaker = Callable[[Instance], Policy]
"""Makes the policy of one machine, given what the machine would have to do alone (`Instance.on`)."""


class Decision(NamedTuple):
    """What a router has decided for one request, beside what was best by the work left on the cost model.

    Parameters
    ----------
    request, machine
        Their indices.
    best
        The machine with the least work at that moment.
    regret_ps
        How much more work the chosen one has.
    """

    request: int
    machine: int
    best: int
    regret_ps: int


@dataclass
class DecisionRecord:
    """What is written down of a router's decisions.

    Attributes
    ----------
    decisions
        In the order in which they are made.
    seconds
        Processor time of all of them, with what the router looks at.
    """

    decisions: list[Decision]
    seconds: float = 0.0

    @property
    def per_second(self) -> float | None:
        """Decisions per second of processor time; None if none took any."""
        return len(self.decisions) / self.seconds if self.seconds else None

    @property
    def mean_regret_ps(self) -> float | None:
        """Mean of the regrets, rounded once; None without a decision."""
        found = self.decisions
        return sum(decision.regret_ps for decision in found) / len(found) if found else None

    @property
    def max_regret_ps(self) -> int | None:
        """The largest regret; None without a decision."""
        return max((decision.regret_ps for decision in self.decisions), default=None)

    @property
    def best_share(self) -> float | None:
        """Share of the decisions without regret; None without a decision."""
        found = self.decisions
        return sum(not decision.regret_ps for decision in found) / len(found) if found else None


def routed_requests(instance: Instance) -> list[RoutedRequest]:
    """Return all requests as routers see them.

    The output is the prediction, if there is one, else the truth. The session is the root of the request's path.
    """
    nodes = instance.prefixes.by_name()
    lengths = {name: node.tokens for name, node in nodes.items()}
    return [_routed(index, request, lengths) for index, request in enumerate(instance.requests)]


def _routed(index: int, request: Request, lengths: Mapping[str, int]) -> RoutedRequest:
    prompt = _leading(index, request, lengths, request.input)
    output = request.output if request.predicted_output is None else request.predicted_output
    session = request.prefix[0] if request.prefix else None
    return RoutedRequest(index, request.input, output, prompt, session, request.arrival_ps)


def sequences_of(instance: Instance) -> list[tuple[Piece, ...]]:
    """Return prompt and output of each request in pieces: a prompt that continues a conversation has both."""
    lengths = {name: node.tokens for name, node in instance.prefixes.by_name().items()}
    return [
        _leading(index, request, lengths, request.input + request.output)
        for index, request in enumerate(instance.requests)
    ]


def _leading(index: int, request: Request, lengths: Mapping[str, int], tokens: int) -> tuple[Piece, ...]:
    """Return the first tokens of a request in pieces."""
    pieces: list[Piece] = []
    left = tokens
    for name in request.prefix:
        if left:
            pieces.append((name, 0, min(lengths[name], left)))
            left -= pieces[-1][2]
    if left:
        pieces.append((index, 0, left))
    return tuple(pieces)


def router_setting(
    instance: Instance, requests: Sequence[RoutedRequest], machines: Sequence[int], rng: Random
) -> RouterSetting:
    """Return what a router of these machines is made for."""
    own = [instance.machines[machine] for machine in machines]
    tokens = sum(request.input for request in instance.requests) // len(instance.requests)
    first, *others = (
        MachineSetting(
            machine.limits.kv_capacity,
            machine.limits.batch_tokens,
            prefill_time(machine.cost),
            machine.cost.batch_ps(1, 1, tokens, ()),
            machine.limits.kv_block,
        )
        for machine in own
    )
    are_equal = all((machine.limits, machine.cost) == (own[0].limits, own[0].cost) for machine in own)
    return RouterSetting(
        machines=len(machines),
        rng=rng,
        capacity=first.capacity,
        batch_tokens=first.batch_tokens,
        prefill_ps=first.prefill_ps,
        decode_ps=first.decode_ps,
        block=first.block,
        requests=requests,
        each=() if are_equal else (first, *others),
    )


class RoutedCluster:
    """All machines and routers while requests arrive."""

    def __init__(
        self,
        instance: Instance,
        policy: PolicyMaker,
        router: RouterFactory,
        setting: CacheSetting,
        *,
        seed: int,
        routers: int,
        jumps: bool,
        record: DecisionRecord | None = None,
        costs: Sequence[BatchCost] | None = None,
        compiled: bool = False,
    ) -> None:
        machines = instance.machines
        self._instance, self._machines = instance, machines
        self._equal = len(set(map(id, machines))) == 1
        self._entries = [index for index, machine in enumerate(machines) if machine.role is not Role.DECODE]
        requests = routed_requests(instance)
        self._requests = requests
        settings = [
            router_setting(instance, requests, self._entries, Random(f"{seed} router {number}"))
            for number in range(routers)
        ]
        self._router_code = RouterCode()
        with self._router_code:
            self._routers = [router(each) for each in settings]
        self._notifies = any(_listens(each) for each in self._routers)
        self._sequences = sequences_of(instance) if self._notifies and instance.is_cached else []
        alone = alone_instances(instance)
        self._policies = [policy(problem) for problem in alone]
        self._fleet = self._fleet_of(alone[0], setting) if compiled else None
        self._runs: Sequence[RoutedMachine] = (
            self._fleet.machines
            if self._fleet is not None
            else [
                MachineRun(
                    problem,
                    own,
                    machine,
                    setting,
                    uses,
                    cost=costs[machine] if costs is not None else None,
                    jumps=jumps,
                    notices=self._notifies,
                    remembers=instance.view.is_aged,
                    moves=has_moves(instance),
                    layerwise=instance.links.layerwise,
                    prefills=machines[machine].role is Role.PREFILL,
                )
                for machine, (problem, own, uses) in enumerate(
                    zip(alone, self._policies, uses_of(alone, setting), strict=True)
                )
            ]
        )
        self._clock = Clock()
        self._views = self._views_of(self._entries)
        self._routes = [-1] * len(requests)
        self._sender = [0] * len(requests)
        self._first_ps: dict[int, int] = {}
        self._turn = 0
        self._record = record
        # Compiled policies know no other costs than the instance's.
        self._may_compile = jumps and costs is None

    def run(self, order: Sequence[int]) -> Schedule:
        """Let all requests arrive, in this order, and all machines finish."""
        for index in order:
            self._clock.now_ps = self._requests[index].arrival_ps
            if self._notifies:
                self._notify()
            self._arrive(index)
        return self._schedule()

    def _fleet_of(self, alone: Instance, setting: CacheSetting) -> FleetRun | None:
        """Return all machines in machine code; None if they are not of one kind that it knows, or routers ask more."""
        if not (self._equal and self._instance.is_cached) or self._instance.view.is_aged:
            return None
        if any(_overrides(each, "dropped") for each in self._routers):
            return None
        # Compiled code takes a while to load.
        from optsched.simulator.fleet import fleet_of  # noqa: PLC0415

        return fleet_of(alone, self._policies, setting)

    def _arrive(self, index: int) -> None:
        """Route a request at its arrival."""
        number, record = self._turn % len(self._routers), self._record
        self._turn += 1
        begin = time.process_time() if record is not None else 0.0
        machine = self._entry(index, number)
        if record is not None:
            record.seconds += time.process_time() - begin
            record.decisions.append(self._decision(index, machine))
        self._routes[index], self._sender[index] = machine, number
        self._runs[machine].submit(index)

    def _views_of(self, machines: Sequence[int]) -> Sequence[View]:
        """Return views of machines, which routers call by their places among these."""
        return views_of([self._runs[machine] for machine in machines], self._clock, self._instance.view)

    def _entry(self, index: int, number: int) -> int:
        """Return the machine that a router chooses of those that can serve a request."""
        places = self._places(index)
        views = self._views if len(places) == len(self._entries) else [self._views[place] for place in places]
        with self._router_code:
            place = self._routers[number].route(self._requests[index], views)
        if place not in places:
            reason = f"the router answers {shown(place)}, expected one of {list(places)}, where it can be served"
            raise PolicyFailureError(index, self._clock.now_ps, reason)
        return self._entries[place]

    def _places(self, index: int) -> Sequence[int]:
        """Return the places, among the machines that requests are routed to, of those that can serve a request."""
        if self._equal:
            return range(len(self._entries))
        can = entries_of(self._machines, self._instance.requests[index])
        return [place for place, machine in enumerate(self._entries) if machine in can]

    def _schedule(self) -> Schedule:
        """Let all machines finish, and return the schedule."""
        if self._fleet is not None:
            self._fleet.advance()
            return Schedule.of_machines(self._fleet.tables(), self._routes if self._instance.is_distributed else ())
        lists = [self._batches(machine) for machine in range(len(self._runs))]
        batches = sorted((batch for batches in lists for batch in batches), key=lambda batch: batch.start_ps)
        return Schedule(tuple(batches), tuple(self._routes) if self._instance.is_distributed else ())

    def _batches(self, machine: int) -> Iterable[Batch]:
        """Return the batches of a machine, which has to do nothing but what it has been sent."""
        run, policy = self._runs[machine], self._policies[machine]
        assert isinstance(run, MachineRun)
        mine = sorted(run.submitted)
        # Loading compiled code once serves all machines.
        tokens = sum(request.output for request in self._instance.requests)
        if (
            self._may_compile
            and mine
            and not run.is_begun
            and isinstance(policy, Compiled)
            and tokens >= COMPILED_TOKENS
        ):
            record = policy.serve(self._instance.on(machine, mine))
            if record is not None:
                return record.batches(machine, mine)
        run.advance()
        return run.batches

    def _decision(self, index: int, machine: int) -> Decision:
        now = self._clock.now_ps
        work = {}
        for entry in self._entries:
            self._runs[entry].advance(now)
            work[entry] = self._runs[entry].work_ps(Instant(now, now))
        best = min(work, key=lambda entry: work[entry])
        return Decision(index, machine, best, work[machine] - work[best])

    def _notify(self) -> None:
        """Let routers know of what has happened, up to the moment that is known now."""
        for notice in sorted(self._happened()):
            with self._router_code:
                self._tell(notice)

    def _happened(self) -> list[Notice]:
        """Return what is known now and was not before."""
        if self._fleet is not None:
            return self._fleet.notices(self._clock.now_ps)
        for view in self._views:
            view.look()
        known = self._clock.now_ps - self._instance.view.delay_ps
        notices: list[Notice] = []
        for run in self._runs if known >= 0 else ():
            assert isinstance(run, MachineRun)
            run.advance(known)
            notices += run.notices(known)
        return notices

    def _tell(self, notice: Notice) -> None:
        request = self._requests[notice.request]
        if notice.happening is Happening.DROPPED:
            if notice.machine not in self._entries:
                return
            place, tokens = self._entries.index(notice.machine), self._sequences[notice.request]
            for router in self._routers:
                router.dropped(place, tokens, notice.tokens, notice.time_ps)
            return
        router, place = self._routers[self._sender[notice.request]], self._entries.index(self._routes[notice.request])
        if notice.happening is Happening.FIRST_TOKEN:
            self._first_ps[notice.request] = notice.time_ps
            router.first_token(request, place, notice.time_ps, notice.tokens)
            return
        first, output = self._first_ps.pop(notice.request), self._instance.requests[notice.request].output
        tpot = (notice.time_ps - first) // (output - 1) if output > 1 else None
        router.finished(request, place, notice.time_ps, first - request.arrival_ps, tpot)


def alone_instances(instance: Instance) -> list[Instance]:
    """Return for each machine what it would have to do alone, with all requests; equal machines share it."""
    made: dict[int, Instance] = {}
    machines = instance.machines
    for index, machine in enumerate(machines):
        if id(machine) not in made:
            made[id(machine)] = instance.on(index)
    return [made[id(machine)] for machine in machines]


def has_moves(instance: Instance) -> bool:
    """Whether requests may move between machines."""
    machines = instance.machines
    return any(machine.role is Role.PREFILL or machine.rules.migration for machine in machines)


def _listens(router: Router) -> bool:
    """Whether a router takes note of anything."""
    return any(_overrides(router, name) for name in ("first_token", "finished", "dropped"))


def _overrides(router: Router, name: str) -> bool:
    return getattr(type(router), name) is not getattr(Router, name)
