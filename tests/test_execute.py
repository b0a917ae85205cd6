"""The engine generates what a plain forward pass does, whatever the schedule, and follows it batch by batch."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import instances

from optsched.check import check_schedule
from optsched.execute.cache import FullCacheError, PagedCache
from optsched.execute.following import Followed, Kind, follow_policy, follow_schedule
from optsched.execute.shape import SHAPES, Shape, read_shape
from optsched.methods.simulate import simulate
from optsched.model.cost import CostModel
from optsched.model.domain import replace
from optsched.model.errors import InputError
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.restrictions import Restrictions
from optsched.model.schedule import Assignment, Schedule
from optsched.policies.infermax import SARATHI, VLLM
from optsched.simulate.engine import run_policy
from optsched.simulate.replica import PolicyFailureError

pytest.importorskip("torch")

import torch  # noqa: E402

from optsched.execute.attention import Attention, OnCuda, StepByStep  # noqa: E402
from optsched.execute.engine import TorchEngine  # noqa: E402
from optsched.execute.machine import Machine, open_machine  # noqa: E402
from optsched.execute.model import Transformer  # noqa: E402
from optsched.execute.plan import Run, make_plan  # noqa: E402

COST = CostModel(100, 10, decode_kv=1, prefill_sq=1)
SMALL = Shape("small", 16, 2, 4, 2, 8, 24, 50, "float64")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


@pytest.fixture(params=DEVICES)
def machine(request: pytest.FixtureRequest) -> Machine:
    return open_machine(request.param)


# Correctness


def plain_tokens(model: Transformer, prompt: list[int], output: int) -> list[int]:
    """Generate greedily without a cache: everything anew for every token, attention written out.

    Written from the papers' formulas, real numbers only; only the weights are the engine's.
    """
    shape, text = model.shape, list(prompt)
    half = shape.head_dim // 2
    group = shape.heads // shape.kv_heads
    while len(text) < len(prompt) + output:
        x = model.embedding[text]
        places = np.arange(len(text))[:, None] * 10_000.0 ** (-np.arange(half) / half)
        cos, sin = (torch.from_numpy(array).to(x)[:, None] for array in (np.cos(places), np.sin(places)))

        def norm(x: torch.Tensor) -> torch.Tensor:
            return x / (x.pow(2).mean(1, keepdim=True) + 1e-5).sqrt()

        def turn(heads: torch.Tensor, cos: torch.Tensor = cos, sin: torch.Tensor = sin) -> torch.Tensor:
            even, odd = heads[..., 0::2], heads[..., 1::2]
            return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(2)

        for layer in model.layers:
            parts = (norm(x) @ layer.qkv).view(len(text), -1, shape.head_dim)
            query, key, value = parts.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
            query, key = turn(query), turn(key)
            mixed = []
            for head in range(shape.heads):
                scores = query[:, head] @ key[:, head // group].T / shape.head_dim**0.5
                later = torch.ones_like(scores).triu(1).bool()
                mixed.append(scores.masked_fill(later, -torch.inf).softmax(1) @ value[:, head // group])
            x = x + torch.cat(mixed, 1) @ layer.out
            gate, up = (norm(x) @ layer.gate_up).split(shape.mlp, 1)
            x = x + (gate / (1 + torch.exp(-gate)) * up) @ layer.down
        text.append(int((norm(x[-1:]) @ model.head).argmax()))
    return text[len(prompt) :]


def assert_plain(engine: TorchEngine, model: Transformer, instance: Instance) -> None:
    for index, request in enumerate(instance.requests):
        assert engine.output(index) == plain_tokens(model, engine.prompt(index), request.output)


def engine_and_model(instance: Instance, machine: Machine, seed: int = 0) -> tuple[TorchEngine, Transformer]:
    longest = max(request.peak_tokens for request in instance.requests)
    return TorchEngine(instance, SMALL, machine, seed=seed), Transformer(SMALL, longest, machine.device, seed=seed)


@given(instances(online=True), st.sampled_from(["vllm", "sarathi", "vllm_hy", "rr", "planner", "srtf"]))
@settings(max_examples=60)
def test_any_schedule_generates_what_a_plain_model_does(instance: Instance, policy: str) -> None:
    """Chunks, evictions with recomputation, hybrid batches, blocks, arrivals: whatever policies make of them."""
    result = simulate(instance, policy)
    if result.schedule is None:
        return
    engine, model = engine_and_model(instance, open_machine("cpu"))
    follow_schedule(instance, result.schedule, engine)
    assert_plain(engine, model, instance)


MIXED = Instance(
    "mixed",
    Limits(kv_tokens=200, batch_tokens=48, prefill_tokens=48, kv_block=4),
    Rules(),
    COST,
    tuple(Request(20 + 30 * (index % 4), 12 + 9 * index, arrival_ps=2_000 * index) for index in range(6)),
)


@pytest.mark.parametrize("policy", [SARATHI, VLLM])
def test_evicted_and_chunked_requests_of_many_blocks_generate_what_a_plain_model_does(
    policy: object, machine: Machine
) -> None:
    """Prompts of up to 110 tokens: more than one block of queries, cached tokens before it, refills."""
    engine, model = engine_and_model(MIXED, machine, seed=3)
    chosen = SARATHI if policy is SARATHI else VLLM
    instance = MIXED if policy is SARATHI else replace(MIXED, limits=Limits(200, 128, 128, kv_block=4))
    followed = follow_policy(instance, chosen, engine)
    assert followed.schedule.evictions > 0
    assert {batch.kind for batch in followed.batches} >= {Kind.PREFILL, Kind.DECODE}
    if policy is SARATHI:
        assert any(len(batch.prefills) > 0 and batch.prefills[0][1] > 0 for batch in followed.batches)
    assert_plain(engine, model, instance)


def test_a_batch_may_be_run_again(machine: Machine) -> None:
    once, thrice = (TorchEngine(MIXED, SMALL, machine, repeats=repeats) for repeats in (1, 3))
    schedule = run_policy(MIXED, SARATHI)
    for engine in (once, thrice):
        follow_schedule(MIXED, schedule, engine)
    assert [once.output(index) for index in range(6)] == [thrice.output(index) for index in range(6)]


def written_out(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, runs: list[Run]) -> torch.Tensor:
    """Attend head by head, query by query."""
    group, rows, first = queries.shape[1] // keys.shape[1], [], 0
    for run in runs:
        for place in range(run.tokens):
            seen = torch.from_numpy(run.slots[: run.cached + place + 1]).to(keys.device)
            heads = []
            for head in range(queries.shape[1]):
                scores = keys[seen, head // group] @ queries[first + place, head] / queries.shape[2] ** 0.5
                heads.append(scores.softmax(0) @ values[seen, head // group])
            rows.append(torch.stack(heads))
        first += run.tokens
    return torch.stack(rows)


@pytest.mark.parametrize("heads", [(8, 2), (4, 4), (3, 1)])
def test_attention_is_the_formula(heads: tuple[int, int], machine: Machine) -> None:
    generator = np.random.default_rng(1)

    def slots(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return generator.permutation(1000)[:count]

    runs = [Run(1, slots(1), False, True), Run(64, slots(64), False, True), Run(65, slots(130), False, True)]
    runs += [Run(7, slots(600), False, False), Run(1, slots(300), False, True)]
    runs += [Run(1, slots(length), True, True) for length in (2, 64, 256, 257, 700)]
    tokens = sum(run.tokens for run in runs)
    draw = torch.Generator().manual_seed(2)
    queries = torch.randn((tokens, heads[0], 16), generator=draw).to(machine.device)
    keys, values = torch.randn((2, 1000, heads[1], 16), generator=draw).to(machine.device)
    attention: Attention = OnCuda() if machine.device.type == "cuda" else StepByStep(700, queries)
    found = attention(queries, keys, values, make_plan(runs, machine.device))
    assert torch.allclose(found, written_out(queries, keys, values, runs), atol=1e-5)
