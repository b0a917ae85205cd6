"""The engine generates what a plain forward pass does, whatever the schedule, and follows it batch by batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from random import Random

import numpy as np
import pytest
from commands import optsched
from hypothesis import assume, event, given, reject, settings
from hypothesis import strategies as st
from strategies import instances

pytest.importorskip("torch")

import torch

from optsched.check import check_schedule
from optsched.hardware.compare.batches import ALL, Errors
from optsched.hardware.compare.execute import execute_policy, execute_schedule
from optsched.hardware.machine import HostClock, Machine, open_machine
from optsched.hardware.run.engine import TorchEngine
from optsched.hardware.run.following import BatchKind, follow_policy, follow_schedule
from optsched.hardware.transformer.attention import Attention, OnCuda, StepByStep
from optsched.hardware.transformer.cache import FullCacheError, PagedCache
from optsched.hardware.transformer.model import Transformer
from optsched.hardware.transformer.plan import Run, make_plan
from optsched.hardware.transformer.shape import SHAPES, Shape, read_shape
from optsched.methods.simulate import simulate
from optsched.model.cost import CostModel
from optsched.model.documents import dump, instance_document, result_document
from optsched.model.domain import replace
from optsched.model.errors import InputError
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.restrictions import Restrictions
from optsched.model.schedule import Assignment, Schedule
from optsched.model.state import RequestState
from optsched.policies.infermax import SARATHI, VLLM
from optsched.report.execution_plot import plot_execution
from optsched.simulator.engine import run_policy
from optsched.simulator.replica import PolicyFailureError, Replica

COST = CostModel(100, 10, decode_kv=1, prefill_sq=1)
SMALL = Shape("small", 16, 2, 4, 2, 8, 24, 50, "float64")
"""Rounding decides about no token."""
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
    # Matrix units have no 64 bits.
    shape = replace(SMALL, dtype="float32") if machine.device.type == "cuda" else SMALL
    return TorchEngine(instance, shape, machine, seed=seed), Transformer(shape, longest, machine.device, seed=seed)


class Whim:
    """A policy that runs, chunks, leaves alone and evicts at random, within the limits."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def next_batch(self, replica: Replica) -> Assignment:
        random, limits = self._random, replica.limits
        jobs = [*replica.running, *replica.waiting]
        random.shuffle(jobs)
        gone = {job.index for job in replica.running if random.random() < 0.1}
        held = {job.index: limits.occupied(job.cached) for job in jobs if job.index not in gone}
        run: list[tuple[int, int]] = []
        for job in jobs:
            count = min(random.randint(1, job.missing), limits.batch_tokens - sum(count for _, count in run))
            need = limits.occupied(job.cached + count) - held.get(job.index, 0)
            left_alone = job.index in gone or random.random() < 0.2
            if not left_alone and count and need <= limits.kv_capacity - sum(held.values()):
                held[job.index] += need
                run.append((job.index, count))
        if run:
            return Assignment(run, sorted(gone))
        others = [job.index for job in replica.running if job is not jobs[0]]
        return Assignment([(jobs[0].index, 1)], others)


@st.composite
def tight(draw: st.DrawFn) -> Instance:
    """Draw an instance in which hardly two requests fit the cache."""
    size = st.integers(1, 9)
    requests = tuple(Request(draw(size), draw(size), draw(st.integers(0, 900))) for _ in range(draw(st.integers(1, 4))))
    block, tokens = draw(st.integers(1, 3)), draw(size)
    peak = max(-(-request.peak_tokens // block) * block for request in requests)
    limits = Limits(peak + draw(st.integers(0, 9)), tokens, tokens, kv_block=block)
    return Instance("tight", limits, Rules(), COST, requests)


@pytest.mark.slow
@given(tight(), st.randoms(use_true_random=False))
@settings(max_examples=41)
def test_any_schedule_generates_what_a_plain_model_does(instance: Instance, random: Random) -> None:
    """Chunks of any size, evictions at any time with recomputation, hybrid batches, blocks, arrivals."""
    try:
        schedule = run_policy(instance, Whim(random))
    except PolicyFailureError:
        reject()  # it evicted too often to get anywhere
    assert check_schedule(instance, schedule, Restrictions())[0] == []
    event(f"{min(schedule.evictions, 3)} evictions or more")
    engine, model = engine_and_model(instance, open_machine("cpu"))
    follow_schedule(instance, schedule, engine)
    assert_plain(engine, model, instance)


MIXED = Instance(
    "mixed",
    Limits(kv_tokens=200, batch_tokens=48, prefill_tokens=48, kv_block=4),
    Rules(),
    COST,
    tuple(Request(20 + 30 * (index % 4), 12 + 9 * index, arrival_ps=2_000 * index) for index in range(6)),
)


@pytest.mark.slow
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
    assert {batch.kind for batch in followed.batches} >= {BatchKind.PREFILL, BatchKind.DECODE}
    if policy is SARATHI:
        assert any(len(batch.prefills) > 0 and batch.prefills[0][1] > 0 for batch in followed.batches)
    assert_plain(engine, model, instance)


def test_a_batch_may_be_run_again(machine: Machine) -> None:
    shape = replace(SMALL, dtype="float32")
    once, thrice = (TorchEngine(MIXED, shape, machine, repeats=repeats) for repeats in (1, 3))
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_half_precision_on_a_gpu_is_close() -> None:
    """bfloat16 has 8 bits: relative errors of some 2**-8, of flash attention and of the decode kernel."""
    slots = np.arange(600)
    runs = [Run(128, slots[:400], decodes=False, generates=True)]
    runs += [Run(1, slots[:length], decodes=True, generates=True) for length in (5, 600)]
    draw = torch.Generator().manual_seed(2)
    queries = torch.randn((130, 32, 128), generator=draw)
    keys, values = torch.randn((2, 600, 8, 128), generator=draw)
    half = (tensor.to("cuda", torch.bfloat16) for tensor in (queries, keys, values))
    attend: Callable[..., torch.Tensor] = OnCuda()
    found = attend(*half, make_plan(runs, torch.device("cuda"))).float().cpu()
    exact = written_out(queries, keys, values, runs)
    assert (found - exact).norm() < 0.01 * exact.norm()


DECODE_KERNEL = """
import sys, torch
from optsched.hardware.transformer.decode_kernel import attend_paged
generator = torch.Generator().manual_seed(1)
lengths = torch.tensor([2, 64, 256, 257, 700, 1, 513])
for heads, kv_heads, width in ((8, 2, 16), (4, 4, 32), (3, 1, 24)):
    keys, values = torch.randn((2, 1000, kv_heads, width), generator=generator)
    queries = torch.randn((7, heads, width), generator=generator)
    slots = torch.stack([torch.randperm(1000, generator=generator)[:700] for _ in range(7)])
    out = torch.full_like(queries, torch.nan)
    attend_paged(queries, keys, values, slots, lengths, out)
    for request, length in enumerate(lengths.tolist()):
        seen = slots[request, :length]
        for head in range(heads):
            kv = head * kv_heads // heads
            weights = (keys[seen, kv] @ queries[request, head] / width**0.5).softmax(0)
            error = (out[request, head] - weights @ values[seen, kv]).abs().max()
            if not error < 1e-5:
                sys.exit(f"{heads} {kv_heads} {width} {length}: {error}")
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton comes with PyTorch for CUDA")
def test_decode_kernel_is_the_formula() -> None:
    """In Triton's interpreter, which needs no GPU."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", DECODE_KERNEL], env=environment, check=True)


# The cache


def test_pages_are_held_released_and_never_shared() -> None:
    cache = PagedCache(SMALL, layers=1, pages=4, page_tokens=3, device=torch.device("cpu"))
    first = cache.hold(7, 4)
    second = cache.hold(8, 1)
    # 4 tokens take 2 pages, 1 token takes one.
    assert (len(first), len(second), cache.free_pages) == (4, 1, 1)
    grown = cache.hold(7, 6)
    assert grown[:4].tolist() == first.tolist()
    assert cache.free_pages == 1
    everything = {*cache.hold(7, 6), *cache.hold(8, 3)}
    assert len(everything) == 9
    with pytest.raises(FullCacheError, match="request 7 needs 2 more pages, 1 are free"):
        cache.hold(7, 12)
    cache.release(7)
    assert cache.free_pages == 3
    assert not everything - {*cache.hold(9, 9), *cache.hold(8, 3)}


# Following


class CostEngine:
    """An engine that takes exactly as long as a cost model says, by a count of its own of what requests have cached."""

    def __init__(self, instance: Instance, cost: CostModel) -> None:
        self._states, self._cost = [RequestState(request) for request in instance.requests], cost
        self.seen: list[Assignment] = []

    def run(self, batch: Assignment) -> int:
        self.seen.append(batch)
        for index in batch.evict:
            self._states[index].evict()
        tokens = sum(count for _, count in batch.run)
        states = [(self._states[index], count) for index, count in batch.run]
        read = [state.cached for state, _ in states if state.decoding]
        prefills = [(count, state.cached) for state, count in states if not state.decoding]
        for state, count in states:
            state.run(count)
        return self._cost.batch_ps(tokens, len(read), sum(read), prefills)


def batches(schedule: Schedule) -> list[tuple[list[tuple[int, int]], list[int]]]:
    return [(list(assignment.run), list(assignment.evict)) for assignment in schedule.assignments()]


@pytest.mark.slow
@given(instances(online=True), st.sampled_from(["vllm", "sarathi", "planner", "rr"]))
@settings(max_examples=60)
def test_an_engine_as_fast_as_predicted_gives_the_simulators_schedule(instance: Instance, policy: str) -> None:
    assume(simulate(instance, policy).schedule is not None)
    execution = execute_policy(instance, policy, CostEngine(instance, instance.cost), {})
    assert execution.followed.schedule == run_policy_one_by_one(instance, policy)
    assert execution.followed.schedule == execution.predicted
    if all(measured for _, measured in execution.pairs):
        assert execution.batch_errors()[ALL] == Errors(len(execution.pairs), 0, 0, 0, 0, 0)
        assert {first == second for first, second in execution.request_metrics().values()} == {True}


def run_policy_one_by_one(instance: Instance, policy: str) -> Schedule:
    """Return the schedule of a result document, its repeated batches one by one, with the simulator's times."""
    found = simulate(instance, policy).schedule
    assert found is not None
    clock, schedule = 0, []
    engine = CostEngine(instance, instance.cost)
    for batch in found.batches:
        clock = batch.start_ps
        for _ in range(batch.repeat):
            end = clock + engine.run(Assignment(batch.run, batch.evict))
            schedule.append(replace(batch, start_ps=clock, end_ps=end, repeat=1))
            clock = end
    return Schedule(tuple(schedule))


@given(instances(online=True))
@settings(max_examples=40)
def test_a_slower_engine_runs_the_schedules_batches_in_order(instance: Instance) -> None:
    """Each batch starts when the one before has ended and its requests have arrived, not before, not later."""
    assume(simulate(instance, "vllm").schedule is not None)
    schedule = run_policy(instance, VLLM)
    slow = replace(instance.cost, base=instance.cost.base + 1000)
    engine = CostEngine(instance, slow)
    execution = execute_schedule(instance, schedule, "vllm", engine, {})
    assert (
        batches(execution.followed.schedule)
        == batches(schedule)
        == [(list(assignment.run), list(assignment.evict)) for assignment in engine.seen]
    )
    end = 0
    for placed, batch in zip(execution.followed.schedule.batches, execution.followed.batches, strict=True):
        arrival = max(instance.requests[index].arrival_ps for index, _ in placed.run)
        assert placed.start_ps == max(end, arrival, instance.start_ps)
        end = placed.end_ps
        assert end - placed.start_ps == batch.measured_ps >= batch.predicted_ps(instance.cost)


def test_a_policy_decides_anew_when_batches_take_longer_than_predicted() -> None:
    """Predicted, the first request is alone from 0 to 100, before the other arrives; measured, they share a batch.

    One prompt token takes 10, and one batch 100 more: at 110 the first prefill ends, at 220 the only decode, and the
    second request, which arrives at 250, prefills alone. If all takes twice as long, its arrival lies before 440.
    """
    cost = CostModel(100, 10)
    instance = Instance("two", Limits(64, 64, 64), Rules(), cost, (Request(1, 3), Request(1, 1, arrival_ps=250)))
    execution = execute_policy(instance, "sarathi", CostEngine(instance, CostModel(200, 20)), {})
    assert batches(execution.predicted) == [([(0, 1)], []), ([(0, 1)], []), ([(0, 1)], []), ([(1, 1)], [])]
    assert batches(execution.followed.schedule) == [([(0, 1)], []), ([(0, 1)], []), ([(0, 1), (1, 1)], [])]


def test_errors_are_worked_out_by_hand() -> None:
    """Predicted 110, 110 and 110 ps; measured 200, 110 and 55: errors 90/200, 0 and 55/55."""
    instance = Instance("one", Limits(64, 64, 64), Rules(), CostModel(100, 10), (Request(1, 3),))

    class Uneven:
        def __init__(self) -> None:
            self.times = [200, 110, 55]

        def run(self, batch: Assignment) -> int:
            return self.times.pop(0)

    execution = execute_policy(instance, "vllm", Uneven(), {})
    prefill, decode, every = (execution.batch_errors()[name] for name in (BatchKind.PREFILL, BatchKind.DECODE, ALL))
    assert prefill == pytest.approx((1, 0.45, 0.45, 0.45, 0.45, -0.45))
    assert decode == pytest.approx((2, 0.5, 0, 1, 1, 220 / 165 - 1))
    assert every == pytest.approx((3, 1.45 / 3, 0.45, 1, 1, 330 / 365 - 1))
    seen = execution.request_metrics()
    assert seen["makespan"] == (330, 365)
    assert seen["mean TTFT"] == (110, 200)
    # Two more tokens in 220 ps, in 165 ps.
    assert seen["mean TPOT"] == (110, 82.5)


@pytest.mark.slow
def test_plot(tmp_path: Path) -> None:
    execution = execute_policy(MIXED, "sarathi", CostEngine(MIXED, replace(COST, base=150)), ABOUT)
    for name in ("one.svg", "two.svg"):
        plot_execution(execution, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert "hybrid" in (tmp_path / "one.svg").read_text(encoding="utf-8")


ABOUT = {"shape": {"name": "small"}, "dtype": "float64", "device": "no device"}


# Shapes


def test_sizes_are_those_of_the_models() -> None:
    """Llama 2 7B has 6,738,415,616 parameters, Llama 3 8B 8,030,261,248 (their model cards' weights)."""
    assert SHAPES["llama2-7b"].weight_bytes == 2 * 6_738_415_616
    assert SHAPES["llama3-8b"].weight_bytes == 2 * 8_030_261_248
    # 2 sides, 32 layers, 8 heads of 128, 2 bytes.
    assert SHAPES["llama3-8b"].kv_bytes == 131_072


def test_devices_share_heads_and_width() -> None:
    share = replace(SHAPES["llama3-8b"], tensor_parallel=16).share
    assert (share.heads, share.kv_heads, share.mlp, share.vocabulary) == (2, 1, 896, 8016)


TOML = """
hidden = 64
layers = 2
heads = 4
kv_heads = 2
head_dim = 16
mlp = 128
vocabulary = 100
dtype = "float32"
"""


def test_a_shape_from_a_file_is_named_after_it(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(TOML, encoding="utf-8")
    shape = read_shape(str(tmp_path / "mine.toml"))
    assert shape == Shape("mine", 64, 2, 4, 2, 16, 128, 100, "float32")
    (tmp_path / "mine.json").write_text(dump(shape.document()), encoding="utf-8")
    assert read_shape(str(tmp_path / "mine.json")) == shape


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("kv_heads = 2", "kv_heads = 3"), "kv_heads: got 3, expected a divisor of heads = 4"),
        (("head_dim = 16", "head_dim = 15"), "head_dim: got 15, expected an even number"),
        (("mlp = 128", "mlp = 0"), "mlp: got 0, expected an integer ≥ 1"),
        (("layers = 2", "layer = 2"), "expected"),
        (("float32", "float8"), "dtype: got 'float8'"),
        (("hidden = 64", "hidden ="), "expected TOML"),
        (('"float32"', '"float32"\ntensor_parallel = 3'), "heads: got 4, expected a multiple of tensor_parallel = 3"),
    ],
)
def test_a_wrong_shape_is_named(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(TOML.replace(*change), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_shape(str(file))
    assert str(caught.value).startswith(str(file))
    assert complaint in str(caught.value)


def test_a_model_that_does_not_fit_is_refused() -> None:
    huge = replace(SMALL, hidden=10**6, mlp=10**7, layers=1000)
    with pytest.raises(InputError, match=r"small, which needs .* GiB, expected at most the .* GiB that are free"):
        TorchEngine(MIXED, huge, open_machine("cpu"))


def test_the_clock_counts_work_and_not_what_is_done_before() -> None:
    clock = HostClock(threads=1)

    def spin(number: int = 200_000) -> int:
        return sum(range(number))

    alone = clock.times(spin, 5)
    beside = clock.times(spin, 5, before=lambda: spin(4_000_000))
    assert len(alone) == 5
    # Twenty times the work stands before, and does not count.
    assert min(beside) < 5 * min(alone)


# The command


@pytest.fixture
def instance_file(tmp_path: Path) -> str:
    file = tmp_path / "mixed.json"
    file.write_text(dump(instance_document(MIXED)), encoding="utf-8")
    return str(file)


@pytest.mark.slow
def test_execute_a_policy(capsys: pytest.CaptureFixture[str], instance_file: str, tmp_path: Path) -> None:
    out, plot = tmp_path / "run.json", tmp_path / "run.svg"
    ended = optsched(
        capsys,
        "execute",
        instance_file,
        "--policy",
        "sarathi",
        "--repeats",
        "1",
        "--out",
        str(out),
        "--plot",
        str(plot),
    )
    assert (ended.code, ended.err) == (0, "")
    assert "sarathi on mixed, online" in ended.out
    assert "hybrid" in ended.out
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["format"] == "optsched-execution/1"
    assert document["engine"]["shape"]["name"] == "tiny"
    assert document["engine"]["threads"] == 1
    assert sum(len(batch["evict"]) for batch in document["batches"]) > 0
    assert all(batch["end_ps"] > batch["start_ps"] for batch in document["batches"])
    assert plot.exists()


def test_execute_a_schedule(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = simulate(MIXED, "sarathi")
    file = tmp_path / "schedule.json"
    file.write_text(dump(result_document(result)), encoding="utf-8")
    ended = optsched(capsys, "execute", str(file), "--repeats", "1", "--json")
    assert (ended.code, ended.err) == (0, "")
    document = json.loads(ended.out)
    assert result.schedule is not None
    ran = [([tuple(step) for step in batch["run"]], batch["evict"]) for batch in document["batches"]]
    assert ran == batches(result.schedule)
    assert document["decided"] == "schedule"
    predicted = sum(batch["predicted_ps"] for batch in document["batches"])
    assert predicted == sum(batch.end_ps - batch.start_ps for batch in result.schedule.batches)


def test_an_illegal_schedule_is_not_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = simulate(MIXED, "sarathi")
    assert result.schedule is not None
    file = tmp_path / "schedule.json"
    broken = replace(result, schedule=Schedule(result.schedule.batches[1:]))
    file.write_text(dump(result_document(broken)), encoding="utf-8")
    ended = optsched(capsys, "execute", str(file))
    assert ended.code == 1
    assert str(file) in ended.out


def test_a_policy_that_fails_says_why(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    whole = replace(MIXED, rules=Rules(eviction=False), limits=Limits(160, 128, 128))
    file = tmp_path / "whole.json"
    file.write_text(dump(instance_document(whole)), encoding="utf-8")
    ended = optsched(capsys, "execute", str(file), "--policy", "vllm", "--repeats", "1")
    assert ended.code == 1
    assert ended.err.startswith("optsched: vllm: request ")
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--policy", "unknown"), "--policy: got 'unknown'"),
        (("--policy", "vllm", "--engine", "vllm"), "--engine: got 'vllm', expected one of torch"),
        (("--policy", "vllm", "--shape", "huge"), "--shape: got 'huge', expected a .toml or .json file, or one of"),
        (("--policy", "vllm", "--device", "tpu"), "--device: got 'tpu', expected one of cpu, cuda"),
        (("--policy", "vllm", "--repeats", "0"), "--repeats: got 0"),
        (("--policy", "vllm", "--profile", "mine"), "got 'mine', expected one of a100-llama2-7b"),
        (("--policy", "vllm", "--plot", "x.gif"), "--plot: got 'x.gif'"),
        (("--predictor", "truth"), "--predictor: got --predictor with it, expected --policy"),
    ],
)
def test_wrong_arguments_are_named(
    capsys: pytest.CaptureFixture[str], instance_file: str, arguments: tuple[str, ...], complaint: str
) -> None:
    ended = optsched(capsys, "execute", instance_file, *arguments)
    assert ended.code == 2
    assert complaint in ended.err
    assert ended.err.count("\n") == 1


def test_an_instance_without_a_policy_is_no_schedule(capsys: pytest.CaptureFixture[str], instance_file: str) -> None:
    ended = optsched(capsys, "execute", instance_file)
    assert ended.code == 2
    assert "got 'optsched-instance/1', expected 'optsched-result/1'" in ended.err


@pytest.mark.parametrize("command", ["profile", "execute"])
def test_without_torch_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str],
    instance_file: str,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    tmp_path: Path,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    rest = ["--out", str(tmp_path)] if command == "profile" else [instance_file, "--policy", "vllm"]
    ended = optsched(capsys, command, *rest)
    assert ended.code == 2
    assert ended.err == "optsched: got no PyTorch, expected it installed: pip install 'optsched[profile]'\n"
