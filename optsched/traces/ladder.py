"""The ladder: instances of growing size for exact methods, from InferMax's mixes (Kim et al., section 4.6).

For each number of requests n there are twenty instances. Sixteen are offline: two kinds of identical requests and
the six mixes of two groups, each with κ = 2 and 8. Four have Poisson arrivals: two mixes, each with both κ. A group
combines small or large inputs with small or large outputs, scaled down from the paper's; half of the requests belong
to each group, their lengths drawn uniformly. M is κ times the mean of V/O, the mean KV that a request holds in the
batches that generate its tokens, and at least the largest need. Requests arrive at the rate n / (volume bound of all
of them at time 0).
"""

from __future__ import annotations

from random import Random

from optsched.bounds.volume import volume_bound
from optsched.calibrate.library import cost_model
from optsched.model.documents import Suite
from optsched.model.domain import replace
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.traces.infermax import CONTEXT, MIXES, Groups, draw_mix

SIZES = (4, 6, 8, 12, 16, 24, 32)
KAPPAS = (2, 8)
GROUPS: Groups = {
    "SISO": ((4, 8), (2, 4)),
    "SILO": ((4, 8), (8, 16)),
    "LISO": ((32, 64), (2, 4)),
    "LILO": ((32, 64), (8, 16)),
}
"""Group → (input lengths, output lengths)."""
ONLINE_MIXES = (("LILO", "SISO"), ("SILO", "LISO"))
IDENTICAL, IDENTICAL_HELD_OUT = ((4, 8), (32, 8)), ((6, 8), (48, 8))


def kv_tokens_for(requests: tuple[Request, ...], kappa: int) -> int:
    """Return κ · mean(V/O) = κ · mean(I + (O − 1)/2), rounded down to whole tokens, at least the largest need."""
    twice = sum(2 * request.input + request.output - 1 for request in requests)
    needed = max(request.peak_tokens for request in requests)
    return max(kappa * twice // (2 * len(requests)), needed)


def _instance(name: str, requests: tuple[Request, ...], kappa: int, profile: str) -> Instance:
    limits = Limits(kv_tokens_for(requests, kappa), CONTEXT, CONTEXT)
    return Instance(f"{name}-k{kappa}", limits, Rules(chunked_prefill=False), cost_model(profile), requests)


def _with_arrivals(instance: Instance, seed: int) -> Instance:
    """Let the requests arrive by a Poisson process at the rate of the volume bound."""
    rng = Random(f"{seed} {instance.name} arrivals")
    mean_ps = volume_bound(instance).value / len(instance.requests)
    now = 0
    requests = []
    for request in instance.requests:
        requests.append(replace(request, arrival_ps=now))
        now += round(rng.expovariate(1.0) * mean_ps)
    return replace(instance, name=f"{instance.name}-poisson", requests=tuple(requests))


def ladder(profile: str, seed: int = 1) -> Suite:
    """Return the ladder on a cost profile; ``seed`` draws the lengths and arrivals."""
    return Suite(
        "ladder",
        "Exact methods' ladder: n = 4 to 32 requests, twenty instances each: identical requests and InferMax's six "
        "mixes (section 4.6, scaled down) offline, two mixes with Poisson arrivals; kappa = 2 and 8; C = P = 4096, "
        "whole prefills.",
        _instances("ladder", IDENTICAL, profile, seed),
    )


def ladder_b(profile: str, seed: int = 2) -> Suite:
    """Return instances like those of the ladder, of other lengths and arrivals, that no method was tuned on."""
    return Suite(
        "ladder-b",
        "The ladder once more, held out: other lengths and arrivals, to show that methods are not tuned to the first.",
        _instances("ladder-b", IDENTICAL_HELD_OUT, profile, seed),
    )


def _instances(suite: str, identical: tuple[tuple[int, int], ...], profile: str, seed: int) -> tuple[Instance, ...]:
    instances = []
    for count in SIZES:
        for input_tokens, output_tokens in identical:
            requests = (Request(input_tokens, output_tokens),) * count
            name = f"{suite}-n{count:02}-I{input_tokens}-O{output_tokens}"
            instances += [_instance(name, requests, kappa, profile) for kappa in KAPPAS]
        for mix in MIXES:
            requests = draw_mix(mix, GROUPS, count, Random(f"{seed} {count} {mix[0]} {mix[1]}"))
            name = f"{suite}-n{count:02}-{'+'.join(mix)}"
            offline = [_instance(name, requests, kappa, profile) for kappa in KAPPAS]
            instances += offline
            if mix in ONLINE_MIXES:
                instances += [_with_arrivals(instance, seed) for instance in offline]
    return tuple(instances)
