"""Requests, limits, rules and the instance that they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Annotated

from pydantic import BeforeValidator, FailFast, Field

from optsched.model.cluster import CacheMode, CacheRules, Link, Role, ViewAge
from optsched.model.cost import CostModel
from optsched.model.display import html_table, one_line, spread
from optsched.model.domain import MAX_MACHINES, MAX_REQUESTS, MAX_TOKENS, Name, Picoseconds, Tokens, domain, replace
from optsched.model.errors import InputError, Said
from optsched.model.prefixes import Path, PrefixTree, path_tokens
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
    migration
        A request that holds KV may move to any other machine.
    """

    hybrid: bool = True
    chunked_prefill: bool = True
    eviction: bool = True
    swap: bool = False
    migration: bool = False

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
        What the trace's own predictor says of `output`, in tokens; None where there is none.
    prefix
        The path of nodes of the instance's `prefixes`, from a root on, that its sequence of I + O tokens starts with.
    """

    input: Tokens
    output: Tokens
    arrival_ps: Picoseconds = 0
    weight: Picoseconds = 1
    slo_ttft_ps: Picoseconds | None = None
    slo_e2e_ps: Picoseconds | None = None
    id: Name | None = None
    predicted_output: Tokens | None = None
    prefix: Annotated[Path, FailFast()] = ()

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


_NO_LINK, _NO_CACHE, _EXACT, _NO_PREFIXES = Link(), CacheRules(), ViewAge(), PrefixTree()


@domain
class Machine:
    """One machine of an instance.

    Parameters
    ----------
    limits, rules, cost
        Its capacities, its permissions and its batch-time model.
    role
        What it does.
    name
        For messages.
    cache
        What it caches.
    """

    limits: Limits
    rules: Rules
    cost: CostModel
    role: Role = Role.BOTH
    name: Name | None = None
    cache: CacheRules = _NO_CACHE

    def has_room(self, request: Request) -> bool:
        """Whether its blocks hold all of a request: I + O − 1 tokens."""
        return self.limits.occupied(request.peak_tokens) <= self.limits.kv_capacity


@domain
class MachineGroup:
    """Equal machines, as documents list them; what is None is the instance's own.

    Parameters
    ----------
    count
        How many they are.
    role, limits, rules, cost, name, cache
        Of each of them (`Machine`).
    """

    count: Annotated[int, Field(ge=1, le=MAX_MACHINES)] = 1
    role: Annotated[Role, Field(strict=False)] = Role.BOTH
    limits: Limits | None = None
    rules: Rules | None = None
    cost: Annotated[CostModel | None, BeforeValidator(_found)] = None
    name: Name | None = None
    cache: CacheRules | None = None


@domain
class Instance:
    """One scheduling problem, frozen.

    Its limits, rules and cost are those of the only machine, or of each machine that has none of its own.

    Parameters
    ----------
    name
        What tables and messages call it.
    limits, rules, cost
        Capacities, permissions and the batch-time model, or the name of a shipped profile that has one.
    requests
        At least one; a request's index in schedules is its position here.
    replicas
        Number of equal machines; 1 where machines are listed.
    machine_groups
        The machines, where they are listed; `machines` has every one of them.
    links
        What moves between machines take.
    prefixes
        The nodes that requests' paths name.
    cache
        What the only machine caches, or each that has no rules of its own.
    view
        How old what routers see of the machines is.
    """

    name: Name
    limits: Limits
    rules: Rules
    cost: Annotated[CostModel, BeforeValidator(_found)]
    requests: Annotated[tuple[Request, ...], Field(min_length=1, max_length=MAX_REQUESTS)]
    replicas: Annotated[int, Field(ge=1, le=MAX_MACHINES)] = 1
    machine_groups: Annotated[tuple[MachineGroup, ...], Field(max_length=MAX_MACHINES)] = ()
    links: Link = _NO_LINK
    prefixes: PrefixTree = _NO_PREFIXES
    cache: CacheRules = _NO_CACHE
    view: ViewAge = _EXACT

    def __post_init__(self) -> None:
        groups = self.machine_groups
        if groups and self.replicas > 1:
            raise InputError("replicas", self.replicas, "1 where machines are listed")
        if (count := sum(group.count for group in groups)) > MAX_MACHINES:
            raise InputError("machines", Said(f"{count} machines"), f"at most {MAX_MACHINES}")
        if groups and all(group.role is Role.DECODE for group in groups):
            raise InputError("machines", Said("only machines of role decode"), "one that requests are routed to")
        only_prefill = groups and all(group.role is Role.PREFILL for group in groups)
        if only_prefill and any(request.output > 1 for request in self.requests):
            expected = "one of another role, to which requests with more than 1 output token move"
            raise InputError("machines", Said("only machines of role prefill"), expected)
        self._check_caches()
        self._check_paths()

    def _check_caches(self) -> None:
        """Raise `InputError` if KV could wait on the host where it is cached."""
        for position, group in enumerate(self.machine_groups or (MachineGroup(),)):
            mode = (group.cache or self.cache).mode
            if mode is not CacheMode.NONE and (group.rules or self.rules).swap:
                where = f"machines[{position}].cache.mode" if self.machine_groups else "cache.mode"
                raise InputError(where, mode.value, "none where the rule swap holds")

    def _check_paths(self) -> None:
        """Raise `InputError` for a request whose prefix is no path of `prefixes`, or longer than its I + O tokens."""
        nodes = self.prefixes.by_name()
        known: dict[Path, int] = {}
        for index, request in enumerate(self.requests):
            most = request.input + request.output
            if request.prefix and not known.get(request.prefix, MAX_TOKENS + 1) <= most:
                known[request.prefix] = path_tokens(nodes, request.prefix, most, f"requests[{index}].prefix")

    @property
    def machines(self) -> tuple[Machine, ...]:
        """All machines; a machine's index in schedules is its position here."""
        groups = self.machine_groups or (MachineGroup(self.replicas),)
        made = (
            Machine(
                group.limits or self.limits,
                group.rules or self.rules,
                group.cost or self.cost,
                group.role,
                group.name,
                group.cache or self.cache,
            )
            for group in groups
        )
        return tuple(machine for group, machine in zip(groups, made, strict=True) for _ in range(group.count))

    def on(self, machine: int, requests: Iterable[int] | None = None) -> Instance:
        """Return what one machine has to do: the instance that it, and some requests, are by themselves.

        That is what policies, bounds and formulations work on. There the machine serves its requests from the first
        token to the last, whatever its role.

        Parameters
        ----------
        machine
            Its position in `machines`.
        requests
            Indices of at least one request, which are 0, 1, … in the new instance; None for all.
        """
        machines = self.machines
        if not 0 <= machine < len(machines):
            raise InputError("machine", machine, f"an integer from 0 to {len(machines) - 1}")
        found = machines[machine]
        chosen = self.requests if requests is None else tuple(self.requests[index] for index in requests)
        label = f"{self.name}, machine {machine}" if self.is_distributed else self.name
        return Instance(label, found.limits, found.rules, found.cost, chosen, prefixes=self.prefixes, cache=found.cache)

    @property
    def is_distributed(self) -> bool:
        """Whether it has more than its one own machine."""
        return self.replicas > 1 or bool(self.machine_groups)

    @property
    def is_cluster(self) -> bool:
        """Whether it has several machines, or one with a cache: not all methods cover these."""
        return self.is_distributed or self.is_cached

    def require_one_machine(self) -> None:
        """Raise `InputError` if it has more than its one own machine: what asks covers no others."""
        if self.is_distributed:
            count = len(self.machines)
            found = Said(f"{count} machines" if count > 1 else "a list of machines")
            raise InputError("machines", found, "one machine, and none listed: nothing here covers several yet")

    @property
    def is_cached(self) -> bool:
        """Whether a machine caches prompts."""
        groups = self.machine_groups or (MachineGroup(),)
        return any((group.cache or self.cache).mode is not CacheMode.NONE for group in groups)

    @property
    def has_roles(self) -> bool:
        """Whether a machine only prefills, or only decodes."""
        return any(machine.role is not Role.BOTH for machine in self.machine_groups)

    def require_plain(self) -> None:
        """Raise `InputError` if it has several machines or a cache: what asks covers neither."""
        self.require_one_machine()
        if self.is_cached:
            raise InputError("cache.mode", self.cache.mode.value, "none: nothing here covers cached prefixes yet")

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
    def arrivals_ps(self) -> list[int]:
        """When each request arrives, in ps after the earliest."""
        start = self.start_ps
        return [request.arrival_ps - start for request in self.requests]

    @property
    def kappa(self) -> float:
        """M divided by the mean resident KV of a generating request: the concurrency that memory allows."""
        volume = sum(request.kv_volume for request in self.requests)
        return self.limits.kv_tokens * sum(request.output for request in self.requests) / volume

    def infeasibilities(self) -> tuple[str, ...]:
        """Name every request that no schedule can serve, with the limits that it breaks.

        Of several machines, every one that it may be routed to is named: a request has to fit one of them alone and
        with nothing cached, with all of its tokens, or on a machine of role ``prefill`` with its prompt, if it can then
        move to one that it fits (docs/problem.md, Several machines).
        """
        groups: dict[Machine, int] = {}
        for index, machine in enumerate(self.machines):
            groups.setdefault(machine, index)
        only = None if self.is_distributed else next(iter(groups))
        reasons: dict[tuple[int, int], str] = {}
        for each in self.requests:
            if (each.input, each.output) not in reasons:
                reasons[each.input, each.output] = (
                    _unserved(groups, each) if only is None else ", and ".join(_broken(only, each))
                )
        labelled = ((index, reasons[each.input, each.output]) for index, each in enumerate(self.requests))
        return tuple(f"{self.label(index)} {reason}" for index, reason in labelled if reason)

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


def _broken(machine: Machine, request: Request) -> list[str]:
    """Return the limits that a request breaks alone on a machine: one of role ``prefill`` holds its prompt only."""
    limits, broken = machine.limits, []
    prompt_only = machine.role is Role.PREFILL
    peak = limits.occupied(request.input if prompt_only else request.peak_tokens)
    if peak > limits.kv_capacity:
        tokens = f"input {request.input}" + ("" if prompt_only else f" + output {request.output} - 1")
        broken.append(
            f"needs {peak} KV tokens ({tokens}, in blocks of {limits.kv_block}), the cache holds "
            f"{limits.kv_capacity} (kv_tokens = {limits.kv_tokens})"
        )
    if not machine.rules.chunked_prefill and request.input > limits.prefill_tokens:
        broken.append(
            f"has a prompt of {request.input} tokens, more than "
            f"prefill_tokens = {limits.prefill_tokens}, and chunked prefill is forbidden"
        )
    return broken


def _unserved(machines: Mapping[Machine, int], request: Request) -> str:
    """Say why a request fits none of the machines, of which each has the index of the first like it; "" if it does."""
    found = []
    for machine, index in machines.items():
        if machine.role is Role.DECODE:
            continue
        broken = _broken(machine, request)
        if not broken and machine.role is Role.PREFILL and request.output > 1:
            targets = [other for other in machines if other.role is not Role.PREFILL]
            if all(other.limits.occupied(request.peak_tokens) > other.limits.kv_capacity for other in targets):
                broken = [f"finds no machine to move to with room for its {request.peak_tokens} KV tokens"]
        if not broken:
            return ""
        found.append(f"on machine {index} it {' and '.join(broken)}")
    return f"fits no machine that it may be routed to: {', '.join(found)}"


def entries_of(machines: Sequence[Machine], request: Request) -> tuple[int, ...]:
    """Return the machines that a request may be routed to: those that it fits alone, with one to move to."""
    fits = {id(machine): not _broken(machine, request) for machine in machines}
    may_move = request.output == 1 or any(
        machine.role is not Role.PREFILL and machine.has_room(request) for machine in machines
    )
    return tuple(
        index
        for index, machine in enumerate(machines)
        if machine.role is not Role.DECODE and fits[id(machine)] and (may_move or machine.role is not Role.PREFILL)
    )
