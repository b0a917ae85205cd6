"""Driving trials: what is in the store is taken from there, the rest is run, and what is finished is kept at once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from optsched.model.domain import replace
from optsched.model.errors import DefectError
from optsched.model.result import Result
from optsched.study.execute import Outcome, record_of
from optsched.study.record import Ended, Record
from optsched.study.runner import Runner
from optsched.study.store import ANSWER, Attempt, Store, Wanted
from optsched.study.trial import Trial

TRIES = 3
"""How often a trial is tried whose worker is lost."""
_WAIT_S = 0.5
"""How long to wait at a time for runners, and for other drivers."""


@dataclass(frozen=True)
class Done:
    """A trial, what came of it, and the attempt in the store that gave it; None if it was run now."""

    trial: Trial
    outcome: Outcome
    kept: Attempt | None = None

    @property
    def result(self) -> Result | None:
        """What the method says of the trial's instance; None if it says nothing."""
        found = self.outcome.result
        return None if found is None else replace(found, instance=self.trial.instance)

    def record(self, suite: str) -> Record:
        """Return what is known of it, as part of a suite or a study."""
        if self.kept is None:
            return record_of(self.trial, self.outcome, suite=suite)
        return replace(self.kept.record, suite=suite, instance=self.trial.instance.name)

    def required(self) -> Result:
        """Return the result, or raise what was raised instead."""
        if self.result is not None:
            return self.result
        raise self.outcome.error or DefectError(
            f"{self.trial.label} on {self.trial.instance.name}: {self.outcome.message}"
        )


def run(
    trials: Sequence[Trial], runner: Runner, store: Store | None = None, *, again: bool = False, wanted: Wanted = ANSWER
) -> Iterator[Done]:
    """Yield every trial with its outcome, in the order in which they end.

    Parameters
    ----------
    trials
        What to run, by the installed code. Equal trials are run once.
    runner
        What runs them. It is not closed.
    store
        Where outcomes are kept and found; a result with defects is not kept, so that it is searched again.
    again
        Run also what is finished.
    wanted
        What counts as finished.

    Raises
    ------
    KeyboardInterrupt
        At Ctrl-C, and where a trial was cut short by it; what is finished is kept.
    """
    twins: dict[str, list[Trial]] = {}
    for trial in trials:
        twins.setdefault(trial.identity, []).append(trial)
    waiting = deque(found[0] for found in twins.values())
    tries: dict[str, int] = {}
    running = 0
    while waiting or running:
        elsewhere: list[Trial] = []
        while waiting and running < runner.slots:
            trial = waiting.popleft()
            kept = None if store is None or again or trial.identity in tries else store.find(trial, wanted)
            if kept is not None:
                yield from (Done(twin, kept.outcome, kept) for twin in twins[trial.identity])
            elif store is None or store.claim(trial, wanted, again=again):
                tries[trial.identity] = tries.get(trial.identity, 0) + 1
                runner.start(trial)
                running += 1
            else:
                elsewhere.append(trial)
        waiting.extend(elsewhere)
        if elsewhere and not running:
            time.sleep(_WAIT_S)  # another driver has all that is left
        for trial, outcome in runner.finished(_WAIT_S) if running else ():
            running -= 1
            _keep(store, trial, outcome)
            if outcome.ended is Ended.LOST and tries[trial.identity] < TRIES:
                waiting.append(trial)
                continue
            yield from (Done(twin, outcome) for twin in twins[trial.identity])
            if outcome.ended is Ended.INTERRUPTED:
                raise KeyboardInterrupt


def in_order(trials: Sequence[Trial], ended: Iterable[Done]) -> Iterator[Done]:
    """Yield what `run` yields of trials in their order, each as soon as all before it have ended."""
    places = {id(trial): place for place, trial in enumerate(trials)}
    early: dict[int, Done] = {}
    following = 0
    for done in ended:
        early[places[id(done.trial)]] = done
        while following in early:
            yield early.pop(following)
            following += 1


def _keep(store: Store | None, trial: Trial, outcome: Outcome) -> None:
    if store is None:
        return
    if outcome.defects:
        outcome = Outcome(Ended.FAILED, "; ".join(outcome.defects), outcome.points)
    store.add(trial, outcome)
