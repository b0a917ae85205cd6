"""Vidur's runs: with its tables and margins `vllm` and `sarathi` do what it did."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from pathlib import Path

import pytest
from shared_data import HERE, SHARED
from vidur_tables import TableCost, read_vidur_tables

from optsched import Instance, Limits, Request, Rules
from optsched.calibrate.library import cost_model
from optsched.model.errors import InputError
from optsched.model.metrics import tally_of
from optsched.policies.grouped import GroupedPolicy
from optsched.policies.vidur import LIMITS, VIDUR_SARATHI, VIDUR_VLLM, clipped
from optsched.simulator.engine import run_policy
from optsched.traces.azure import read_azure

SECOND = 10**12
RUNS = SHARED / "vidur_runs"
POLICIES = {"vllm": VIDUR_VLLM, "sarathi": VIDUR_SARATHI}


def problem(requests: Sequence[Request], limits: Limits = LIMITS) -> Instance:
    return Instance("vidur", limits, Rules(), cost_model("a100-llama2-7b"), tuple(requests))


# What Vidur does, written down once more --------------------------------------------------------------------


@dataclass
class LoopRequest:
    """A request in Vidur's words: the token that the last chunk of a prompt gives counts as processed."""

    prompt: int
    output: int
    arrival: int
    processed: int = 0
    blocks: int = 0
    first: int = 0
    end: int = 0
    restarts: int = 0

    @property
    def prefilled(self) -> bool:
        return self.processed >= self.prompt

    @property
    def complete(self) -> bool:
        return self.processed == self.prompt + self.output


class Loop:
    """A loop over iterations, from the description of Vidur's runs: floating point, one request at a time."""

    def __init__(self, requests: Sequence[Request], cost: TableCost, blocks: int, chunk: int | None) -> None:
        self.requests = [LoopRequest(r.input, r.output, r.arrival_ps) for r in requests]
        self.cost, self.blocks, self.chunk = cost, blocks, chunk
        self.free = blocks
        self.queue: list[LoopRequest] = []
        self.running: list[LoopRequest] = []
        self.batches = 0

    def run(self) -> None:
        clock, arrived = 0, 0
        while not all(request.complete for request in self.requests):
            while arrived < len(self.requests) and self.requests[arrived].arrival <= clock:
                self.queue.append(self.requests[arrived])
                arrived += 1
            batch = self.prompts_only() if self.chunk is None else self.mixed()
            if not batch:
                clock = self.requests[arrived].arrival
                continue
            clock += self.time(batch)
            self.batches += 1
            for request, tokens in batch:
                filling = not request.prefilled
                request.processed += tokens
                if filling and request.prefilled:
                    request.processed += 1
                    request.first = request.first or clock
                if request.complete:
                    request.end = clock
                    self.free += request.blocks
                    request.blocks = 0
                    self.running.remove(request)

    def time(self, batch: list[tuple[LoopRequest, int]]) -> int:
        decodes = [request.processed for request, _ in batch if request.prefilled]
        prefills = [(request.processed, tokens) for request, tokens in batch if not request.prefilled]
        time = self.cost.linear[8 * ceil(sum(tokens for _, tokens in batch) / 8)]
        if decodes:
            time += self.cost.decode[len(decodes), 64 * ceil(int(sum(decodes) / len(decodes)) / 64)]
        if prefills:
            lasts, times = self.cost.prefill[sum(64 * ceil(done / 64) for done, _ in prefills)]
            root = round(sqrt(sum(tokens**2 for _, tokens in prefills)))
            time += next(time for last, time in zip(lasts, times, strict=True) if root <= last)
        return time

    def admissible(self, request: LoopRequest) -> bool:
        return len(self.running) < 128 and self.free - ceil(request.prompt / 16) >= int(0.01 * self.blocks)

    def admit(self) -> LoopRequest:
        request = self.queue.pop(0)
        request.blocks = ceil(request.prompt / 16)
        self.free -= request.blocks
        self.running.append(request)
        return request

    def prompts_only(self) -> list[tuple[LoopRequest, int]]:
        batch: list[tuple[LoopRequest, int]] = []
        while self.queue and self.admissible(self.queue[0]):
            longest = max([self.queue[0].prompt, *(tokens for _, tokens in batch)])
            if longest * (len(batch) + 1) > 4096:
                break
            request = self.admit()
            batch.append((request, request.prompt))
        return batch or self.decodes()

    def decodes(self) -> list[tuple[LoopRequest, int]]:
        batch: list[tuple[LoopRequest, int]] = []
        todo = [request for request in self.running if request.prefilled]
        while todo:
            request = todo.pop(0)
            while self.free < 1:
                victim = self.running.pop()
                self.restart(victim)
                if victim is request:
                    break
                todo = [other for other in todo if other is not victim]
            else:
                if request.processed > 16 * request.blocks:
                    request.blocks += 1
                    self.free -= 1
                batch.append((request, 1))
        return batch

    def restart(self, request: LoopRequest) -> None:
        self.free += request.blocks
        request.prompt, request.output = request.processed, request.prompt + request.output - request.processed
        request.processed = request.blocks = 0
        request.restarts += 1
        self.queue.insert(0, request)

    def mixed(self) -> list[tuple[LoopRequest, int]]:
        assert self.chunk is not None
        batch = self.decodes()
        left = self.chunk - len(batch)
        for request in [request for request in self.running if not request.prefilled]:
            tokens = min(left, request.prompt - request.processed)
            if tokens > 0:
                batch.append((request, tokens))
                left -= tokens
        while left > 0 and self.queue and self.admissible(self.queue[0]):
            request = self.admit()
            batch.append((request, min(left, request.prompt)))
            left -= batch[-1][1]
        return batch


def made_up_tables() -> TableCost:
    """Return tables of this test's own: flat in places, with steps in others."""
    nano = 1000
    linear = {tokens: nano * (8_000_000 + max(0, tokens - 64) * 55_000) for tokens in range(8, 4097, 8)}
    decode = {
        (steps, tokens): nano * (250_000 + steps * tokens * 280)
        for steps in range(1, 301)
        for tokens in range(0, 4161, 64)
    }
    chunks = [*range(16, 4097, 16)]
    prefill = {
        cached: (chunks, [nano * (450_000 + 3 * chunk * (chunk + 2 * cached)) for chunk in chunks])
        for cached in range(0, 20_000, 64)
    }
    return TableCost(linear, decode, prefill)


def excerpt(seed: int) -> list[Request]:
    """Return conversations in a burst, as long as those of the Azure trace."""
    rng = random.Random(seed)
    clock, found = 0, []
    for _ in range(120):
        clock += rng.randrange(SECOND // 8)
        size = int(rng.lognormvariate(6.5, 0.9)) + 1
        found.append(clipped(Request(size, rng.randrange(2, 500), arrival_ps=clock)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("name", "chunk"), [("vllm", None), ("sarathi", 512)])
def test_a_loop_of_its_own_does_the_same(name: str, chunk: int | None, seed: int) -> None:
    """With a tenth of the memory, so that requests start again and wait for the watermark."""
    requests, cost, blocks = excerpt(seed), made_up_tables(), 742
    loop = Loop(requests, cost, blocks, chunk)
    loop.run()
    instance = problem(requests, memory_of(blocks))
    schedule = run_policy(instance, POLICIES[name], cost=cost)
    found = tally_of(instance, schedule)
    assert schedule.length == loop.batches
    assert schedule.evictions == sum(request.restarts for request in loop.requests) > 0
    assert found.first == [request.first for request in loop.requests]
    assert found.last == [request.end for request in loop.requests]


def memory_of(blocks: int) -> Limits:
    return Limits(16 * blocks, LIMITS.batch_tokens, LIMITS.prefill_tokens, kv_block=16)


@pytest.mark.parametrize("margins", [{"residents": None}, {"watermark": 0}, {"spare_block": False}, {"padded": False}])
def test_every_margin_matters(margins: dict[str, object]) -> None:
    cost = made_up_tables()
    without = replace(VIDUR_VLLM, margins=replace(VIDUR_VLLM.margins, **margins))  # type: ignore[arg-type]
    # Short prompts fill the cap of 128 requests, long ones the memory.
    many = problem([Request(40 + i % 3, 60) for i in range(300)])
    tight = problem(excerpt(0), memory_of(742))
    assert any(
        run_policy(instance, without, cost=cost) != run_policy(instance, VIDUR_VLLM, cost=cost)
        for instance in (many, tight)
    )


# Vidur's own results ----------------------------------------------------------------------------------------


def conversations() -> list[Request]:
    text = (SHARED / "azure_llm_2023/AzureLLMInferenceTrace_conv.csv").read_text()
    rows = read_azure(text).rows[:2000]
    return [clipped(Request(row.input, row.output, arrival_ps=row.arrival_ps - rows[0].arrival_ps)) for row in rows]


def rows_of(file: str) -> Iterator[dict[str, str]]:
    with (RUNS / file).open() as lines:
        yield from csv.DictReader(lines)


@pytest.mark.slow
@HERE
@pytest.mark.parametrize("workload", ["fixed", "conv2000"])
@pytest.mark.parametrize("name", POLICIES)
def test_its_runs_are_reproduced(workload: str, name: str) -> None:
    """Batches and restarts exactly, TTFT and e2e latency of every request to 10 µs; its files round to 1 µs."""
    requests = [Request(128, 128)] * 1000 if workload == "fixed" else conversations()
    instance = problem(requests)
    runner: GroupedPolicy = POLICIES[name]
    schedule = run_policy(instance, runner, cost=read_vidur_tables(RUNS))
    found = tally_of(instance, schedule)
    theirs = list(rows_of(f"requests_{workload}_{name}.csv"))
    assert schedule.length == sum(1 for _ in rows_of(f"batches_{workload}_{name}.csv"))
    restarts = [0] * len(requests)
    for batch in schedule.batches:
        for index in batch.evict:
            restarts[index] += 1
    assert restarts == [int(row["restarts"]) for row in theirs]
    for ours, column in ((found.first, "ttft_s"), (found.last, "e2e_s")):
        apart = [
            abs(end - request.arrival_ps - round(float(row[column]) * SECOND))
            for end, request, row in zip(ours, requests, theirs, strict=True)
        ]
        assert max(apart) <= SECOND / 100_000


# The tables -------------------------------------------------------------------------------------------------


def write_tables(folder: Path, **files: str) -> None:
    contents = {
        "linear": "num_tokens,linear_ms\n8,1.5\n16,2\n",
        "decode_attention": "batch_size,kv_cache_size,decode_attention_ms\n1,64,0.25\n2,64,0.5\n",
        "prefill_attention": "kv_cache_size,chunk_from,chunk_to,prefill_attention_ms\n0,1,4,0.125\n0,5,9,0.75\n",
    } | files
    for name, text in contents.items():
        (folder / f"costmodel_{name}.csv").write_text(text)


def test_worked_batch_times(tmp_path: Path) -> None:
    write_tables(tmp_path)
    cost, ms = read_vidur_tables(tmp_path), 10**9
    # 9 tokens count as 16; two steps read (30 + 40 + 2) / 2 = 36 tokens, which count as 64; 7 tokens of a prompt.
    assert cost.batch_ps(9, 2, 70, [(7, 0)]) == 2 * ms + ms // 2 + 3 * ms // 4
    # The root of 3² + 3² is 4.24, and of 4² + 2² is 4.47: 4; of 4² + 3² it is 5.
    assert [cost.batch_ps(8, 0, 0, [(a, 0), (b, 0)]) for a, b in ((3, 3), (4, 2), (4, 3))] == [
        3 * ms // 2 + share * ms // 8 for share in (1, 1, 6)
    ]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((17, 0, 0, [(7, 0)]), "tokens: got 24"),
        ((3, 3, 10, []), "decode steps and tokens: got (3, 64)"),
        ((8, 0, 0, [(8, 1)]), "cached tokens of prefills: got 64"),
        ((10, 0, 0, [(10, 0)]), "chunk: got 10, expected at most 9 tokens with 0 cached ones"),
    ],
)
def test_what_the_tables_do_not_have_is_named(
    tmp_path: Path, batch: tuple[int, int, int, list[tuple[int, int]]], message: str
) -> None:
    write_tables(tmp_path)
    with pytest.raises(InputError) as error:
        read_vidur_tables(tmp_path).batch_ps(*batch)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"linear": "tokens,ms\n8,1\n"}, "costmodel_linear.csv: line 1: got "),
        ({"linear": "num_tokens,linear_ms\n8,fast\n"}, "costmodel_linear.csv: line 2: got "),
        ({"decode_attention": "batch_size,kv_cache_size,decode_attention_ms\n1,0.1\n"}, "line 2: got "),
        (
            {"prefill_attention": "kv_cache_size,chunk_from,chunk_to,prefill_attention_ms\n0,2,4,0.1\n"},
            "chunk_from: got 2, expected chunks after the row before",
        ),
    ],
)
def test_wrong_tables_are_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    write_tables(tmp_path, **files)
    with pytest.raises(InputError) as error:
        read_vidur_tables(tmp_path)
    assert message in str(error.value)
