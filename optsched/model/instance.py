"""Requests, limits, rules and the instance that they make."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated

from pydantic import BeforeValidator, Field

from optsched.model.cost import CostModel
from optsched.model.display import html_table, one_line, spread
from optsched.model.domain import MAX_REQUESTS, Name, Picoseconds, Tokens, domain, replace
from optsched.model.errors import InputError
from optsched.model.profiles import shipped_cost


@domain
class Limits:
    """Capacities of one replica.

    Parameters
    ----------
    kv_tokens
        M, the KV-cache capacity in tokens.
    batch_tokens
        C, the token budget of one batch.
    prefill_tokens
        P ≤ C, the budget of the prefill steps of one batch.
    batch_requests
        N, the most requests that run in one batch; None for no limit.
    kv_block
        b, the KV block size in tokens: m cached tokens occupy ceil(m/b) b.
    """

    kv_tokens: Tokens
    batch_tokens: Tokens
    prefill_tokens: Tokens
    batch_requests: Tokens | None = None
    kv_block: Tokens = 1

    def __post_init__(self) -> None:
        if self.prefill_tokens > self.batch_tokens:
            raise InputError("prefill_tokens", self.prefill_tokens, f"at most batch_tokens = {self.batch_tokens}")

    @property
    def kv_blocks(self) -> int:
        """Whole blocks of the cache: floor(M/b)."""
        return self.kv_tokens // self.kv_block

    @property
    def kv_capacity(self) -> int:
        """Tokens that the whole blocks of the cache hold: floor(M/b) b."""
        return self.kv_blocks * self.kv_block

    def blocks(self, cached: int) -> int:
        """Return the blocks that ``cached`` tokens take: ceil(m/b)."""
        return -(-cached // self.kv_block)

    def occupied(self, cached: int) -> int:
        """Return the capacity in tokens that ``cached`` tokens take: ceil(m/b) b."""
        return -(-cached // self.kv_block) * self.kv_block


@domain
class Rules:
    """What a schedule may do.

    Parameters
    ----------
    hybrid
        A batch may mix prefill and decode steps.
    chunked_prefill
        A prefill may be split over batches.
    eviction
        A running request may lose its KV cache and be recomputed.
    swap
        The KV cache of a running request may wait on the host, and come back.
    """

    hybrid: bool = True
    chunked_prefill: bool = True
    eviction: bool = True
    swap: bool = False

    @property
    def added(self) -> tuple[str, ...]:
        """Names of the rules beyond the first three that are not at their defaults; not all methods cover them."""
        return tuple(rule.name for rule in fields(self)[3:] if getattr(self, rule.name) != rule.default)


@domain
class Request:
    """One request.

    Parameters
    ----------
    input, output
        I, prompt tokens; O, output tokens, the last one (EOS) included.
    arrival_ps
        T, arrival time in ps.
    weight
        w, the weight in the objective ``weighted_e2e``.
    slo_ttft_ps, slo_e2e_ps
        Service-level objectives in ps; None for none.
    id
        A name for messages.
    predicted_output
        What the trace's own predictor says of `output`, in tokens; None where nobody predicts.
    """

    input: Tokens
    output: Tokens
    arrival_ps: Picoseconds = 0
    weight: Picoseconds = 1
    slo_ttft_ps: Picoseconds | None = None
    slo_e2e_ps: Picoseconds | None = None
    id: Name | None = None
    predicted_output: Tokens | None = None

    @property
    def peak_tokens(self) -> int:
        """KV tokens in the request's last batch: I + O − 1. Also the tokens that every schedule must run."""
        return self.input + self.output - 1

    @property
    def kv_volume(self) -> int:
        """V = Σ_k (I + k − 1): the KV tokens held in the batches that generate its tokens, summed."""
        return self.output * self.input + self.output * (self.output - 1) // 2


def _found(cost: object) -> object:
    """Find a shipped cost model by its profile's name."""
    return shipped_cost(cost) if isinstance(cost, str) else cost


@domain
class Instance:
    """One scheduling problem on one replica, frozen.

    Parameters
    ----------
    name
        What tables and messages call it.
    limits, rules, cost
        Capacities, permissions and the batch-time model, or the name of a shipped profile that has one.
    requests
        At least one; a request's index in schedules is its position here.
    replicas
        Number of replicas; 1 so far.
    """

    name: Name
    limits: Limits
    rules: Rules
    cost: Annotated[CostModel, BeforeValidator(_found)]
    requests: Annotated[tuple[Request, ...], Field(min_length=1, max_length=MAX_REQUESTS)]
    replicas: Annotated[int, Field(ge=1, le=1)] = 1

    def facts(self) -> dict[str, str]:
        """Return what a line or a row of a table says of it, by column."""
        limits = self.limits
        return {
            "requests": str(len(self.requests)),
            "input": spread([request.input for request in self.requests]),
            "output": spread([request.output for request in self.requests]),
            "kv_tokens": str(limits.kv_tokens),
            "batch_tokens": str(limits.batch_tokens),
            "prefill_tokens": str(limits.prefill_tokens),
            "batch_requests": "" if limits.batch_requests is None else str(limits.batch_requests),
            "kv_block": str(limits.kv_block),
        }

    def __repr__(self) -> str:
        return one_line("Instance", self.name, self.facts())

    def _repr_html_(self) -> str:
        return html_table([{"instance": self.name} | self.facts()])

    def label(self, index: int) -> str:
        """Name request ``index`` for a message."""
        given = self.requests[index].id
        return f"request {index}" + (f" ({given})" if given is not None else "")

    @property
    def offline(self) -> bool:
        """Whether all requests arrive at the same time."""
        return len({request.arrival_ps for request in self.requests}) == 1

    @property
    def start_ps(self) -> int:
        """The earliest arrival, in ps."""
        return min(request.arrival_ps for request in self.requests)

    @property
    def kappa(self) -> float:
        """M divided by the mean resident KV of a generating request: the concurrency that memory allows."""
        volume = sum(request.kv_volume for request in self.requests)
        return self.limits.kv_tokens * sum(request.output for request in self.requests) / volume

    def infeasibilities(self) -> tuple[str, ...]:
        """Name every request that no schedule can serve, with the limits that it breaks."""
        limits, found = self.limits, []
        for index, request in enumerate(self.requests):
            broken = []
            peak = limits.occupied(request.peak_tokens)
            if peak > limits.kv_capacity:
                broken.append(
                    f"needs {peak} KV tokens (input {request.input} + output "
                    f"{request.output} - 1, in blocks of {limits.kv_block}), the cache holds "
                    f"{limits.kv_capacity} (kv_tokens = {limits.kv_tokens})"
                )
            if not self.rules.chunked_prefill and request.input > limits.prefill_tokens:
                broken.append(
                    f"has a prompt of {request.input} tokens, more than "
                    f"prefill_tokens = {limits.prefill_tokens}, and chunked prefill is forbidden"
                )
            if broken:
                found.append(f"{self.label(index)} {', and '.join(broken)}")
        return tuple(found)

    def sufficient_limits(self) -> Limits:
        """Return the limits with M (in whole blocks), C and P raised to the least that serves every request.

        What suffices already stays; C is raised only where P would exceed it.
        """
        limits = self.limits
        peak = max(limits.occupied(request.peak_tokens) for request in self.requests)
        prompt = 1 if self.rules.chunked_prefill else max(request.input for request in self.requests)
        prefill = max(limits.prefill_tokens, prompt)
        return replace(
            limits,
            kv_tokens=limits.kv_tokens if peak <= limits.kv_capacity else peak,
            batch_tokens=max(limits.batch_tokens, prefill),
            prefill_tokens=prefill,
        )
