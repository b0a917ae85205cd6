"""What routers see of machines while these run: exactly now, or as of an earlier moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from optsched.model.cluster import ViewAge
from optsched.routers.router import RoutedRequest
from optsched.routers.views import Snapshot, SnapshotHistory
from optsched.simulator.machine_run import Instant, MachineRun

if TYPE_CHECKING:
    from optsched.simulator.fleet import FleetMachine


class Clock:
    """The time at which routers look at machines."""

    def __init__(self) -> None:
        self.now_ps = 0


class ExactView:
    """A machine as it is now (`optsched.routers.router.MachineView`). The machine runs up to now when it is looked at.

    Parameters
    ----------
    machine
        What the router calls it.
    run
        The machine.
    clock
        What says what time it is.
    """

    def __init__(self, machine: int, run: MachineRun | FleetMachine, clock: Clock) -> None:
        self.machine = machine
        self._run, self._clock = run, clock

    def look(self) -> Instant:
        """Let the machine run up to now, and return when that is."""
        now = self._clock.now_ps
        self._run.advance(now)
        return Instant(now, now)

    @property
    def waiting(self) -> int:
        """Requests there without KV."""
        return self._run.waiting(self.look())

    @property
    def running(self) -> int:
        """Requests there with KV."""
        return self._run.running(self.look())

    @property
    def queued_tokens(self) -> int:
        """Tokens that waiting requests still have to prefill."""
        return self._run.queued_tokens(self.look())

    @property
    def filling_tokens(self) -> int:
        """Tokens that requests with KV still have to prefill."""
        return self._run.filling_tokens(self.look())

    @property
    def pending_tokens(self) -> int:
        """Prompt tokens and output tokens that all requests there still have to run."""
        return self._run.pending_tokens(self.look())

    @property
    def kv_used(self) -> int:
        """Tokens of memory in use."""
        return self._run.kv_used(self.look())

    @property
    def kv_capacity(self) -> int:
        """M, tokens of memory."""
        return self._run.kv_capacity

    @property
    def work_ps(self) -> int:
        """Work left on the cost model."""
        return self._run.work_ps(self.look())

    def cached(self, request: RoutedRequest) -> int:
        """Return the leading prompt tokens of ``request`` that are cached there."""
        return self._run.cached(request, self.look())


class _SeenView:
    """A machine of which a `Snapshot` is seen."""

    machine: int
    kv_capacity: int

    def look(self) -> Snapshot:
        """Return what is seen now."""
        raise NotImplementedError

    @property
    def waiting(self) -> int:
        """Requests there without KV."""
        return self.look().waiting

    @property
    def running(self) -> int:
        """Requests there with KV."""
        return self.look().running

    @property
    def queued_tokens(self) -> int:
        """Tokens that waiting requests still have to prefill."""
        return self.look().queued_tokens

    @property
    def filling_tokens(self) -> int:
        """Tokens that requests with KV still have to prefill."""
        return self.look().filling_tokens

    @property
    def pending_tokens(self) -> int:
        """Prompt tokens and output tokens that all requests there still have to run."""
        return self.look().pending_tokens

    @property
    def kv_used(self) -> int:
        """Tokens of memory in use."""
        return self.look().kv_used

    @property
    def work_ps(self) -> int:
        """Work left on the cost model."""
        return self.look().work_ps

    def cached(self, request: RoutedRequest) -> int:
        """Return the leading prompt tokens of ``request`` that are cached there."""
        return self.look().cached(request)


class AgedView(_SeenView):
    """A machine as it was at the moment that a `ViewAge` names, before any moment as if it were empty.

    A machine that is polled is seen as it was before the requests that arrive at the moment of the poll.

    Parameters
    ----------
    machine, run, clock
        As of `ExactView`. The machine must not be further than the moment when it is looked at.
    age
        How old what is seen is.
    """

    def __init__(self, machine: int, run: MachineRun, clock: Clock, age: ViewAge) -> None:
        self.machine = machine
        self.kv_capacity = run.kv_capacity
        self._run, self._clock, self._age = run, clock, age
        self._moment = -1
        self._seen = Snapshot(machine, kv_capacity=run.kv_capacity)

    def look(self) -> Snapshot:
        """Return what is seen now."""
        moment = self._age.moment(self._clock.now_ps)
        if moment > self._moment:
            self._run.advance(moment)
            arrived = moment - 1 if self._age.every_ps else moment
            self._seen = self._run.snapshot(self.machine, Instant(moment, arrived))
            self._moment = moment
        return self._seen


class RecordedView(_SeenView):
    """A machine as it was at the moment that a `ViewAge` names, among the times at which it was recorded.

    Parameters
    ----------
    machine, run, clock, age
        As of `AgedView`.
    """

    def __init__(self, machine: int, run: MachineRun, clock: Clock, age: ViewAge) -> None:
        self.machine = machine
        self.kv_capacity = run.kv_capacity
        self._clock = clock
        self._history = SnapshotHistory(Snapshot(machine, kv_capacity=run.kv_capacity), age)

    def record(self, run: MachineRun, at: Instant) -> None:
        """Record what the machine is now."""
        self._history.record(at.now_ps, run.snapshot(self.machine, at))

    def look(self) -> Snapshot:
        """Return what is seen now."""
        return self._history.seen(self._clock.now_ps)


View = ExactView | AgedView | RecordedView


def views_of(runs: Sequence[MachineRun | FleetMachine], clock: Clock, age: ViewAge) -> list[View]:
    """Return views of machines, which are called by their place among them."""
    if age.is_aged:
        return [AgedView(place, run, clock, age) for place, run in enumerate(runs) if isinstance(run, MachineRun)]
    return [ExactView(place, run, clock) for place, run in enumerate(runs)]
