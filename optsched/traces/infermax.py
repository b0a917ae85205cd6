"""The workloads of InferMax (Kim et al., sections 4.1, 4.6 and 5.1)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from random import Random
from types import MappingProxyType

from optsched.calibrate.library import cost_model
from optsched.model.documents import Suite
from optsched.model.instance import Instance, Limits, Request, Rules

CONTEXT = 4096
"""Llama-2-7B's context size: the token budget C, and P."""
KV_TOKENS = 100_000
"""M of an A100 with Llama-2-7B, as the paper rounds it."""
LENGTHS = (1, 32, 128, 256, 512, 1024)
"""Input and output lengths of section 4."""
SWEPT_KV_TOKENS = (100, 1000, 10_000, 1_000_000)
"""M of section 4.5, but for 100,000, which the grid of section 4.3 has."""
Groups = Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
"""Group of section 4.6 → (input lengths, output lengths)."""
_SMALL, _LARGE = (8, 16), (512, 1024)
GROUPS: Groups = MappingProxyType(
    {
        "SISO": (_SMALL, _SMALL),
        "SILO": (_SMALL, _LARGE),
        "LISO": (_LARGE, _SMALL),
        "LILO": (_LARGE, _LARGE),
    }
)
MIXES = (
    ("SILO", "SISO"),
    ("LILO", "SISO"),
    ("LISO", "SISO"),
    ("SILO", "LISO"),
    ("LILO", "SILO"),
    ("LILO", "LISO"),
)
"""The six pairs of groups."""


def figure_15(profile: str, *, chunked: bool = False) -> Suite:
    """Return the instances of section 5.1, "Can evictions be optimal?".

    Four requests of four output tokens; M lets two prompts in together, but only one request can finish. ``chunked``
    allows to split prefills, as the paper's equation 2 does, which lets a prompt fill what memory is left. Without it
    they run whole, which differs from the paper, because that is proved faster and the eleven optima are the same.
    """
    count = output = 4
    name = "infermax-fig15-chunked" if chunked else "infermax-fig15"
    instances = tuple(
        Instance(
            name=f"{name}-I{size}",
            limits=Limits(max(2 * size, size + output - 1), CONTEXT, CONTEXT),
            rules=Rules(chunked_prefill=chunked),
            cost=cost_model(profile),
            requests=(Request(size, output),) * count,
        )
        for size in (2**power for power in range(11))
    )
    return Suite(
        name,
        "InferMax, section 5.1 and Figure 15: O = B = 4, I = 1 to 1024, M = max(2I, I + O - 1), C = P = 4096, "
        f"hybrid batches and eviction allowed, {'chunked' if chunked else 'whole'} prefills.",
        instances,
    )


def _equal(name: str, kv_tokens: int, request: Request, count: int, profile: str) -> Instance:
    """Return ``count`` equal requests, all rules allowed."""
    return Instance(name, Limits(kv_tokens, CONTEXT, CONTEXT), Rules(), cost_model(profile), (request,) * count)


def uniform_grid(count: int, profile: str) -> Suite:
    """Return section 4.2's (B = 32) or 4.3's (B = 1024) instances: ``count`` equal requests."""
    instances = tuple(
        _equal(f"infermax-b{count}-I{size}-O{output}", KV_TOKENS, Request(size, output), count, profile)
        for output, size in product(LENGTHS, LENGTHS)
    )
    return Suite(
        f"infermax-b{count}",
        f"InferMax, section 4: B = {count} equal requests, I, O in {{1, 32, 128, 256, 512, 1024}}, M = 100,000, "
        "C = P = 4096, all rules allowed.",
        instances,
    )


def memory_sweep(profile: str) -> Suite:
    """Return section 4.5's instances, "Is increasing M a silver bullet?" (Figure 9), where a request fits M."""
    count, output = 1024, 32
    instances = tuple(
        _equal(f"infermax-m-M{tokens}-I{size}", tokens, Request(size, output), count, profile)
        for tokens, size in product(SWEPT_KV_TOKENS, LENGTHS)
        if size + output - 1 <= tokens
    )
    return Suite(
        "infermax-m",
        "InferMax, section 4.5 and Figure 9: B = 1024 equal requests, O = 32, M = 100 to 1,000,000, I in {1, 32, 128, "
        "256, 512, 1024} as far as I + O - 1 fits, C = P = 4096, all rules allowed; M = 100,000 is in infermax-b1024.",
        instances,
    )


def draw_mix(mix: tuple[str, str], groups: Groups, count: int, rng: Random) -> tuple[Request, ...]:
    """Draw half of the requests from each group of a mix, and shuffle them.

    InferMax shuffles them too; equal numbers of both groups, and lengths drawn independently and uniformly,
    are our choice: the paper does not say.
    """
    requests = [
        Request(rng.choice(inputs), rng.choice(outputs))
        for inputs, outputs in (groups[name] for name in mix)
        for _ in range(count // 2)
    ]
    rng.shuffle(requests)
    return tuple(requests)


def mixes(count: int, profile: str, seed: int = 1) -> Suite:
    """Return section 4.6's mixes of two groups, of ``count`` requests (`draw_mix`); ``seed`` draws them."""
    name = f"infermax-mix-b{count}"
    instances = tuple(
        Instance(
            name=f"{name}-{'+'.join(mix)}",
            limits=Limits(KV_TOKENS, CONTEXT, CONTEXT),
            rules=Rules(),
            cost=cost_model(profile),
            requests=draw_mix(mix, GROUPS, count, Random(f"{seed} {name} {mix}")),
        )
        for mix in MIXES
    )
    return Suite(
        name,
        f"InferMax, section 4.6: B = {count} requests in random order, half of each of two groups: small (8, 16) or "
        "large (512, 1024) I with small or large O; M = 100,000, C = P = 4096, all rules allowed.",
        instances,
    )
