"""Families of small instances, drawn at random: what claims about all instances are tried on."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from random import Random
from typing import Annotated

from pydantic import Field

from optsched.calibrate.library import find_profile
from optsched.model.documents import Suite
from optsched.model.domain import Tokens, domain
from optsched.model.errors import InputError
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.traces.infermax import GROUPS

_SMALL_GROUPS = {"S": (1, 2), "L": (6, 8)}
"""Output lengths of a small mix; small inputs are InferMax's 8 and 16, large ones 64 and 128."""
_SMALL_INPUTS = {"S": (8, 16), "L": (64, 128)}
_FEW = 8
"""Up to this many requests a mix is small, so that it can be solved."""


class Generator(StrEnum):
    """How instances are drawn (`Family`)."""

    RANDOM = "random"
    MIX = "mix"


@domain
class Family:
    """Instances that a generator draws; the same parameters draw the same ones.

    Parameters
    ----------
    generator
        ``random``: input and output lengths uniform from 1 to their maxima. ``mix``: half of the requests from each of
        two of InferMax's groups (section 4.6), small or large inputs with small or large outputs; up to 8 requests with
        shorter lengths, 8 and 16 or 64 and 128 with 1 and 2 or 6 and 8.
    n, seed
        How many instances, and the random seed.
    requests
        Requests of each instance, which arrive together.
    max_input, max_output
        The largest lengths of ``random``.
    groups
        The two groups of ``mix``, of SISO, SILO, LISO, LILO.
    kv_tokens
        M; None to draw it uniformly between the largest request's peak and the sum of all peaks.
    batch_tokens
        C, and P.
    chunked_prefill, eviction, hybrid
        The rules.
    profile
        Name of the cost profile.
    """

    generator: Annotated[Generator, Field(strict=False)]
    n: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    seed: Annotated[int, Field(ge=0)] = 0
    requests: Annotated[int, Field(ge=1, le=100_000)] = 4
    max_input: Tokens = 16
    max_output: Tokens = 8
    groups: tuple[str, str] = ("LILO", "SISO")
    kv_tokens: Tokens | None = None
    batch_tokens: Tokens = 4096
    chunked_prefill: bool = False
    eviction: bool = True
    hybrid: bool = True
    profile: str = "a100-llama2-7b-nocall"

    def __post_init__(self) -> None:
        for name in self.groups:
            if name not in GROUPS:
                raise InputError("groups", name, f"two of {', '.join(GROUPS)}")

    def instances(self) -> Iterator[Instance]:
        """Draw the instances one by one."""
        rules = Rules(self.hybrid, self.chunked_prefill, self.eviction)
        cost = find_profile(self.profile).cost
        kind = self.generator.value if self.generator is Generator.RANDOM else "+".join(self.groups)
        for number in range(self.n):
            chance = Random(f"{self.seed} {kind} {self.requests} {number}")
            requests = self._random(chance) if self.generator is Generator.RANDOM else self._mix(chance)
            peaks = [request.input + request.output - 1 for request in requests]
            tokens = self.kv_tokens or chance.randint(max(peaks), sum(peaks))
            if tokens < max(peaks):
                raise InputError("kv_tokens", tokens, f"at least {max(peaks)}, the peak of a request that is drawn")
            limits = Limits(tokens, self.batch_tokens, self.batch_tokens)
            yield Instance(f"{kind}-{self.requests}-s{self.seed}-{number}", limits, rules, cost, requests)

    def suite(self) -> Suite:
        """Return the instances as a suite."""
        found = tuple(self.instances())
        name = found[0].name.rpartition("-")[0]
        return Suite(name, f"{self.n} instances of {self.requests} requests, drawn with seed {self.seed}.", found)

    def _random(self, chance: Random) -> tuple[Request, ...]:
        return tuple(
            Request(chance.randint(1, self.max_input), chance.randint(1, self.max_output)) for _ in range(self.requests)
        )

    def _mix(self, chance: Random) -> tuple[Request, ...]:
        requests = []
        for position in range(self.requests):
            group = self.groups[position % 2]
            inputs, outputs = GROUPS[group]
            if self.requests <= _FEW:
                inputs, outputs = _SMALL_INPUTS[group[0]], _SMALL_GROUPS[group[2]]
            requests.append(Request(chance.choice(inputs), chance.choice(outputs)))
        chance.shuffle(requests)
        return tuple(requests)
