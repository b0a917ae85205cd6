"""What is known of all machines during a replay."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from optsched.check.cluster.memory import Hold
from optsched.check.schedule.over_time import Progression
from optsched.model.instance import Request


@dataclass(slots=True)
class Underway:
    """A move that has started and not ended.

    ``ends`` are the stated ends of its stages, ``stage`` the one under way, of which ``reached`` tokens are at the
    target when it ends at ``due_ps``; ``hold`` is what is held at the target, ``sent`` the tokens copied so far.
    """

    number: int
    request: int
    source: int
    target: int
    end_ps: int
    ends: tuple[int, ...]
    aborted: bool
    hold: Hold
    reached: int
    stage: int = 0
    due_ps: int = 0
    sent: int = 0

    @property
    def in_last_stage(self) -> bool:
        """Whether its request may not run any more until it ends."""
        return not self.aborted and self.stage >= len(self.ends) - 1


@dataclass(slots=True)
class State:
    """One request: where it is, g, what it holds there (m), its phase, its last batch, and when its tokens came.

    ``ran_ps`` is the end of that batch, ``ran`` the tokens that it runs there. ``fill_ps`` is the time of the batches
    with prefill steps of its fill, and ``fill_tokens`` are those that it held after the last of them. ``lost`` is the
    most that it held when it was evicted.
    """

    index: int
    request: Request
    machine: int
    hold: Hold
    generated: int = 0
    swapped: int = 0
    filling: bool = True
    started: bool = False
    finished: bool = False
    ran_ps: int = -1
    ran: int = 0
    fill_ps: int = 0
    fill_tokens: int = 0
    lost: int = 0
    first_token_ps: int = 0
    last_token_ps: int = 0
    move: Underway | None = None

    @property
    def missing(self) -> int:
        """Tokens that exist and are not cached, S − m."""
        return self.request.input + self.generated - self.hold.tokens

    @property
    def computed_ps(self) -> int:
        """How long the prefill took that has computed what it holds; 0 if it has run a decode step, or moved, since."""
        return self.fill_ps if self.fill_tokens == self.hold.tokens else 0

    def held_at(self, now_ps: int) -> int:
        """Return its KV tokens when the batches that have ended by now count."""
        return self.hold.tokens - (self.ran if self.ran_ps > now_ps else 0)


@dataclass(slots=True)
class Totals:
    """Sums over batches and moves of all machines."""

    batches: int = 0
    evictions: int = 0
    hit_tokens: int = 0
    computed_tokens: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    saved_ps: int = 0
    moves: int = 0
    moved_tokens: int = 0


@dataclass(slots=True)
class Record:
    """What machines and moves write down; ``states`` is empty of requests whose route is wrong."""

    states: dict[int, State] = field(default_factory=dict)
    requests: int = 0
    violations: list[str] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    gaps: Counter[int] = field(default_factory=Counter)
    repeated_gaps: list[Progression] = field(default_factory=list)
    aborts: list[tuple[State, str, int]] = field(default_factory=list)
