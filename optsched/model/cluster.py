"""What several machines have beside their limits: roles, links, caches, and how old a router's view of them is."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from optsched.model.domain import Picoseconds, Tokens, domain


class Role(StrEnum):
    """What a machine does (docs/problem.md, Several machines).

    ``both``: all of a request. ``prefill``: its prefill steps up to the first token. ``decode``: what moves there.
    """

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"


class CacheMode(StrEnum):
    """What a machine's cache keeps: nothing, path blocks, or all whole blocks, generated ones included."""

    NONE = "none"
    PREFIX = "prefix"
    ALL = "all"


@domain
class CacheRules:
    """What a machine caches of prompts (docs/problem.md, Several machines, Prefixes).

    Parameters
    ----------
    mode
        What is cached.
    share_in_batch
        A run finds the blocks that earlier runs of its batch complete.
    """

    mode: Annotated[CacheMode, Field(strict=False)] = CacheMode.NONE
    share_in_batch: bool = False


@domain
class Link:
    """What moving KV from one machine to another takes (docs/problem.md, Several machines).

    Parameters
    ----------
    base_ps, kv_ps
        Time of a copy: ps, and ps per KV token.
    exclusive
        Each ordered pair of machines has one move at a time.
    live
        A request may run at the source while it is copied, in stages.
    stages
        The most stages of a live move.
    layerwise
        KV is copied layer by layer while prefills compute it: their time is taken off that of the copy.
    kv_bytes
        Bytes of a KV token, for the metric ``moved_bytes``; None if they are not known.
    """

    base_ps: Picoseconds = 0
    kv_ps: Picoseconds = 0
    exclusive: bool = False
    live: bool = False
    stages: Tokens = 3
    layerwise: bool = False
    kv_bytes: Tokens | None = None

    def copy_ps(self, tokens: int, prefill_ps: int = 0) -> int:
        """Return how long a stage takes that copies ``tokens`` tokens, the first one after a prefill.

        Parameters
        ----------
        tokens
            What is copied.
        prefill_ps
            How long the prefill took that has just computed it; 0 if nothing is known of that.
        """
        return self.base_ps + max(0, self.kv_ps * tokens - (prefill_ps if self.layerwise else 0))


@domain
class ViewAge:
    """How old what a router sees is, and how many routers there are.

    Parameters
    ----------
    every_ps
        Machines are polled at multiples of this; 0 for always.
    delay_ps
        What happens at a machine, or is polled there, is seen this much later.
    routers
        Number of routers. Requests go to them in turn, and each is notified of its own requests only.
    """

    every_ps: Picoseconds = 0
    delay_ps: Picoseconds = 0
    routers: Tokens = 1

    @property
    def is_aged(self) -> bool:
        """Whether machines are not seen as they are now."""
        return bool(self.every_ps or self.delay_ps)

    def moment(self, now_ps: int) -> int:
        """Return the time as of which machines are seen at ``now_ps``; below 0 nothing is seen yet."""
        seen = now_ps - self.delay_ps
        return seen - seen % self.every_ps if self.every_ps else seen
