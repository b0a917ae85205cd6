"""vLLM's own scheduler beside our policies, batch by batch.

    python benchmarks/vllm_scheduler.py [INSTANCE …] [--kv-block 16] [--first-chunk] [--readme docs/vllm.md]

``vllm.v1.core.sched.scheduler.Scheduler``, with its block pool, schedules an instance. Our engine carries out what it
decides, so that our cost model is the clock and our checker the judge; requests get made-up tokens. In every state that
it comes to our policies are asked what they would do, and then they serve the instance themselves. INSTANCE is a suite
or an instance, by name or file; without one the loads of docs/vllm.md are compared. --first-chunk switches
``scheduler_reserve_full_isl`` off.

It needs vLLM, but no GPU, in an environment of its own, with torch's build for CPUs:

    pip install torch==2.13.0 . && pip install --no-deps vllm==0.19.0
    pip install 'transformers<5' aiohttp cachetools cbor2 cloudpickle diskcache fastapi gguf llguidance msgspec openai \
        openai-harmony pillow prometheus_client psutil pybase64 py-cpuinfo pyzmq uvloop xgrammar
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np

from optsched.calibrate.library import cost_model
from optsched.check import check_schedule
from optsched.cli import run_program
from optsched.cli.options import file_option
from optsched.library import load_suite
from optsched.model.documents import instance_document, write_text
from optsched.model.domain import replace
from optsched.model.following import unrolled
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.schedule import Assignment, Schedule
from optsched.policies.infermax import SARATHI_PC, VLLM
from optsched.policies.vllm import VLLM_V1, VLLM_V1_UNRESERVED
from optsched.report.formats import as_markdown, as_text
from optsched.report.sheet import NOT_AVAILABLE, Cell, Column, Sheet
from optsched.simulator.engine import run_policy
from optsched.simulator.replica import Job, NoBatchError, Policy, PolicyFailureError, Replica
from sections import write_section

COST = cost_model("a100-llama2-7b-nocall")
KINDS = ("preempted", "decoding", "prefilling", "tokens", "no batch")
_WIDTH = 140
_TOKEN = 0
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "vocab_size": 32,
    "max_position_embeddings": 2**31,
}
"""A model that is never loaded; its context is long enough for every request."""


# vLLM ---------------------------------------------------------------------------------------------------------


@cache
def vllm_version() -> str:
    """Return vLLM's version; a one-line error if it cannot be imported."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import vllm.v1.core.sched.scheduler  # noqa: PLC0415 - not installed everywhere
    except ImportError as error:
        raise click.ClickException(f"vLLM cannot be imported here ({error}); --help says how") from None
    return str(vllm.__version__)


def vllm_scheduler(limits: Limits, *, context: int, whole_prompts: bool) -> Any:
    """Return vLLM's scheduler for a replica; prefix caching and asynchronous scheduling are off.

    Parameters
    ----------
    limits
        C, N, b, and M; vLLM keeps one more block for itself.
    context
        Longer than every request.
    whole_prompts
        ``scheduler_reserve_full_isl``.
    """
    import torch  # noqa: PLC0415 - not installed everywhere
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig  # noqa: PLC0415  # not installed everywhere
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415  # not installed everywhere
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # noqa: PLC0415  # not installed everywhere
    from vllm.v1.structured_output import StructuredOutputManager  # noqa: PLC0415  # not installed everywhere

    most, blocks = limits.batch_tokens, limits.kv_blocks + 1
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(_MODEL))
        model = ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float16", max_model_len=context)
    cache_config = CacheConfig(block_size=limits.kv_block, enable_prefix_caching=False)
    config = VllmConfig(
        model_config=model,
        cache_config=cache_config,
        device_config=DeviceConfig(device="cpu"),
        scheduler_config=SchedulerConfig(
            max_num_batched_tokens=most,
            # A request that runs takes a token of the budget.
            max_num_seqs=min(limits.batch_requests or most, most),
            max_model_len=context,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            async_scheduling=False,
            scheduler_reserve_full_isl=whole_prompts,
        ),
    )
    cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=limits.kv_block, num_kv_heads=1, head_size=1, dtype=torch.float16)
    return Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=limits.kv_block,
    )


class RealScheduler:
    """vLLM's scheduler as a policy of ours, for one run.

    Parameters
    ----------
    instance
        What is to be served, all rules allowed and P = C.
    whole_prompts
        ``scheduler_reserve_full_isl``.
    """

    def __init__(self, instance: Instance, *, whole_prompts: bool) -> None:
        vllm_version()
        context = max(request.input + request.output for request in instance.requests) + 1
        self._scheduler = vllm_scheduler(instance.limits, context=context, whole_prompts=whole_prompts)
        self._known: set[int] = set()
        self._pending: Any = None

    def next_batch(self, replica: Replica) -> Assignment:
        """Hand in what the last batch has generated and what has arrived, and let vLLM schedule."""
        self._generate()
        for job in replica.waiting:
            if job.index not in self._known:
                self._known.add(job.index)
                self._scheduler.add_request(_as_request(job))
        free = self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        held = sum(replica.limits.blocks(job.cached) for job in replica.running)
        assert free == replica.limits.kv_blocks - held, f"{free} blocks are free there, {held} are held here"
        self._pending = self._scheduler.schedule()
        rank = {job.index: job.rank for job in replica.running}
        evict = sorted((int(name) for name in self._pending.preempted_req_ids or ()), key=lambda index: -rank[index])
        run = [(int(name), count) for name, count in self._pending.num_scheduled_tokens.items()]
        if not run:
            raise NoBatchError((replica.running or replica.waiting)[0].index, replica.now_ps, "vLLM schedules none")
        return Assignment(run, evict)

    def _generate(self) -> None:
        """Give a token to every request whose tokens have all been computed."""
        if self._pending is None:
            return
        from vllm.v1.outputs import ModelRunnerOutput  # noqa: PLC0415 - not installed everywhere

        names = list(self._pending.num_scheduled_tokens)
        requests = [self._scheduler.requests[name] for name in names]
        tokens = [[_TOKEN] if request.num_computed_tokens == request.num_tokens else [] for request in requests]
        output = ModelRunnerOutput(names, {name: place for place, name in enumerate(names)}, tokens)
        self._scheduler.update_from_output(self._pending, output)


def _as_request(job: Job) -> Any:
    """Return a request as vLLM has it, which ends at its last token and not before."""
    from vllm.sampling_params import SamplingParams  # noqa: PLC0415 - not installed everywhere
    from vllm.v1.request import Request as VllmRequest  # noqa: PLC0415  # not installed everywhere

    return VllmRequest(
        request_id=str(job.index),
        prompt_token_ids=[_TOKEN] * job.request.input,
        sampling_params=SamplingParams(max_tokens=job.request.output, ignore_eos=True),
        pooling_params=None,
        arrival_time=job.rank,
    )


# Side by side ---------------------------------------------------------------------------------------------------


@dataclass
class Agreement:
    """What a policy would have done in the states that another one came to: batches alike, and kinds of difference."""

    alike: int = 0
    differences: Counter[str] = field(default_factory=Counter)
    first: str = ""

    def count(self, theirs: Assignment, ours: Assignment | None, replica: Replica) -> None:
        """Count a batch."""
        kind = difference(theirs, ours, replica)
        if kind is None:
            self.alike += 1
            return
        if not self.differences:
            place = f"batch {self.alike + 1:,} at {replica.now_ps / 1e12:.3f} s"
            self.first = f"{place}: vLLM {described(theirs, replica)}, the policy {described(ours, replica)}"
        self.differences[kind] += 1


def difference(theirs: Assignment, ours: Assignment | None, replica: Replica) -> str | None:
    """Say what differs first: what is preempted, decodes, prefills, how many tokens; None if nothing does."""
    if ours is None:
        return KINDS[-1]
    decoding = {job.index for job in replica.running if job.decoding}

    def parts(assignment: Assignment) -> tuple[set[int], set[int], set[int], set[tuple[int, int]]]:
        ran = {index for index, _ in assignment.run}
        return set(assignment.evict), ran & decoding, ran - decoding, set(assignment.run)

    triples = zip(KINDS, parts(theirs), parts(ours), strict=False)
    return next((kind for kind, one, other in triples if one != other), None)


def described(assignment: Assignment | None, replica: Replica) -> str:
    """Say in short what a batch does."""
    if assignment is None:
        return "finds no batch"
    decoding = {job.index for job in replica.running if job.decoding}
    decodes = sum(index in decoding for index, _ in assignment.run)
    prefills = [f"{count:,} of #{index}" for index, count in assignment.run if index not in decoding]
    if len(prefills) > 3:
        prefills[2:] = [f"{len(prefills) - 2} more"]
    evicted = [f"preempts {', '.join(f'#{index}' for index in assignment.evict)}"] if assignment.evict else []
    runs = ([f"decodes {decodes}"] if decodes else []) + ([f"prefills {', '.join(prefills)}"] if prefills else [])
    return " and ".join(runs + evicted)


class SideBySide:
    """A policy that follows one and asks others what they would do."""

    def __init__(self, leader: Policy, others: Mapping[str, Policy]) -> None:
        self._leader, self._others = leader, others
        self.agreements = {name: Agreement() for name in others}

    def next_batch(self, replica: Replica) -> Assignment:
        """Do what the leader says."""
        found = self._leader.next_batch(replica)
        for name, other in self._others.items():
            try:
                ours: Assignment | None = other.next_batch(replica)
            except PolicyFailureError:
                ours = None
            self.agreements[name].count(found, ours, replica)
        return found


@dataclass(frozen=True)
class Load:
    """Instances that make one line of the table, with ``scheduler_reserve_full_isl`` or not."""

    name: str
    instances: tuple[Instance, ...]
    whole_prompts: bool = True

    @property
    def policies(self) -> dict[str, Policy]:
        """What is compared."""
        if not self.whole_prompts:
            return {"vllm_v1, first chunk": VLLM_V1_UNRESERVED}
        return {"vllm_v1": VLLM_V1, "sarathi_pc": SARATHI_PC, "vllm": VLLM}


@dataclass(frozen=True)
class Compared:
    """A policy beside vLLM on one instance; metrics None where it fails."""

    policy: str
    agreement: Agreement
    theirs: dict[str, Any]
    ours: dict[str, Any] | None
    same: bool


def compare(instance: Instance, load: Load) -> Iterator[Compared]:
    """Let vLLM schedule an instance, and every policy beside it and alone."""
    beside = SideBySide(RealScheduler(instance, whole_prompts=load.whole_prompts), load.policies)
    schedule = run_policy(instance, beside, jumps=False)
    theirs = _metrics(instance, schedule)
    for name, policy in load.policies.items():
        try:
            alone = run_policy(instance, policy)
        except PolicyFailureError:
            yield Compared(name, beside.agreements[name], theirs, None, same=False)
            continue
        same = unrolled(instance, alone) == schedule
        yield Compared(name, beside.agreements[name], theirs, _metrics(instance, alone), same)


def _metrics(instance: Instance, schedule: Schedule) -> dict[str, Any]:
    violations, found = check_schedule(instance, schedule)
    assert not violations, violations[0]
    assert found is not None
    return found


# Loads ----------------------------------------------------------------------------------------------------------


def vllm_limits(instance: Instance, **limits: int | None) -> Instance:
    """Return an instance under rules that vLLM knows (all allowed, P = C), some of its limits changed."""
    given = {name: value for name, value in limits.items() if value is not None}
    batch_tokens = given.get("batch_tokens", instance.limits.batch_tokens)
    changed = replace(instance.limits, **(given | {"batch_tokens": batch_tokens, "prefill_tokens": batch_tokens}))
    return replace(instance, limits=changed, rules=Rules())


def random_instance(
    seed: int, count: int, prompts: tuple[int, int], outputs: tuple[int, int], limits: Limits, mean_gap_ms: float
) -> Instance:
    """Return requests of random lengths, equally likely, that arrive by a Poisson process."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(mean_gap_ms * 1e9, count)).astype(np.int64)
    requests = tuple(
        Request(int(rng.integers(*prompts, endpoint=True)), int(rng.integers(*outputs, endpoint=True)), int(arrival))
        for arrival in arrivals
    )
    return Instance("random", limits, Rules(), COST, requests)


def small_instances(count: int) -> Iterator[Instance]:
    """Return small instances: memory for one request to a few, blocks of 1 to 16, long and short chunks."""
    rng = np.random.default_rng(0)
    for number in range(count):
        block = int(rng.choice([1, 2, 4, 16]))
        longest = int(rng.choice([8, 40, 160]))
        fits = -(-2 * longest // block) * block
        memory = fits + int(rng.integers(0, 3 * fits))
        budget = int(rng.integers(2, 2 * longest))
        limits = Limits(memory, budget, budget, int(rng.integers(1, 12)), block)
        gap_ms = float(rng.choice([0, 10, 100]))
        yield random_instance(number, int(rng.integers(2, 40)), (1, longest), (1, longest), limits, gap_ms)


def standard_loads() -> Iterator[Load]:
    """Return what docs/vllm.md shows."""
    small = tuple(small_instances(1000))
    pressure = random_instance(1, 500, (1, 1500), (1, 400), Limits(8192, 512, 512, 64, 16), 50)
    long_prompts = random_instance(2, 200, (1000, 16_000), (1, 300), Limits(40_000, 512, 512, 128, 16), 500)
    equal = Instance("equal", Limits(100_000, 4096, 4096, None, 16), Rules(), COST, (Request(128, 128),) * 2000)
    yield Load("1,000 small instances", small)
    yield Load("1,000 small instances", small, whole_prompts=False)
    for name, instance in (("little memory", pressure), ("long prompts", long_prompts)):
        yield Load(name, (instance,))
        yield Load(name, (instance,), whole_prompts=False)
    yield Load("128 + 128", (equal,))
    conversations = load_suite("azure-conv").instances
    yield from (Load(instance.name, (vllm_limits(instance, kv_block=16),)) for instance in conversations)
    for instance in conversations[1:]:
        chunked = vllm_limits(instance, kv_block=16, batch_tokens=2048, batch_requests=128)
        yield Load(f"{instance.name}, C = 2,048", (chunked,))


# Report ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A policy on a load."""

    load: Load
    policy: str
    compared: tuple[Compared, ...]

    @property
    def batches(self) -> int:
        """Batches of vLLM."""
        return sum(one.theirs["batches"] for one in self.compared)

    @property
    def alike(self) -> int:
        """Those in which the policy would have done the same."""
        return sum(one.agreement.alike for one in self.compared)

    @property
    def differences(self) -> str:
        """How many differ in what."""
        total = sum((one.agreement.differences for one in self.compared), Counter[str]())
        return ", ".join(f"{kind} {total[kind]:,}" for kind in KINDS if total[kind]) or "–"

    @property
    def same(self) -> int:
        """Instances on which the whole schedule is the same, to the picosecond."""
        return sum(one.same for one in self.compared)

    def excess(self, objective: str) -> float | None:
        """Return how much larger an objective is than vLLM's, as a share; None if the policy fails somewhere."""
        ours = [one.ours for one in self.compared if one.ours is not None]
        if len(ours) < len(self.compared):
            return None
        return _total(ours, objective) / _total([one.theirs for one in self.compared], objective) - 1


def _total(found: Iterable[dict[str, Any]], objective: str) -> int:
    return sum(metrics["objectives"][objective] for metrics in found)


def lines(loads: Iterable[Load]) -> Iterator[Line]:
    """Compare on every load."""
    for load in loads:
        started = time.perf_counter()
        compared = [one for instance in load.instances for one in compare(instance, load)]
        found = [Line(load, name, tuple(one for one in compared if one.policy == name)) for name in load.policies]
        seconds = time.perf_counter() - started
        click.echo(f"{load.name}: {found[0].alike:,} of {found[0].batches:,} batches, {seconds:.1f} s", err=True)
        yield from found


def sheet(found: Sequence[Line]) -> Sheet:
    """Lay the comparison out, a policy on a load in a row."""

    def column(header: str, name: str, cells: Iterable[Cell], *, key: bool = False, left: bool = False) -> Column:
        return Column(header, name, tuple(cells), key, left)

    def excess(line: Line, objective: str) -> Cell:
        value = line.excess(objective)
        shown = NOT_AVAILABLE if value is None else f"{value:+z.2%}" if value else "0"
        return Cell(shown, value)

    def total(line: Line, name: str) -> int:
        return sum(one.theirs[name] for one in line.compared)

    def requests(line: Line) -> int:
        return sum(len(instance.requests) for instance in line.load.instances)

    objectives = {"TTFT": "mean_ttft", "e2e": "mean_e2e", "makespan": "makespan"}
    notes = [
        f"{line.load.name}, {line.policy}: {first}."
        for line in found
        if (first := next((one.agreement.first for one in line.compared if one.agreement.first), ""))
    ]
    return Sheet(
        f"vLLM {vllm_version()}'s scheduler and our policies",
        "",
        (
            column("load", "load", (Cell(line.load.name, line.load.name) for line in found), key=True, left=True),
            column("requests", "requests", (Cell(f"{requests(line):,}", requests(line)) for line in found)),
            column("batches", "batches", (Cell(f"{line.batches:,}", line.batches) for line in found)),
            column(
                "preemptions",
                "preemptions",
                (Cell(f"{total(line, 'evictions'):,}", total(line, "evictions")) for line in found),
            ),
            column("policy", "policy", (Cell(line.policy, line.policy) for line in found), key=True, left=True),
            column("alike", "alike", (Cell(f"{line.alike:,}", line.alike) for line in found)),
            column(
                "first difference",
                "differences",
                (Cell(line.differences, line.differences) for line in found),
                left=True,
            ),
            column(
                "same schedules",
                "same",
                (Cell(f"{line.same:,} of {len(line.compared):,}", line.same) for line in found),
            ),
            *(
                column(header, objective, (excess(line, objective) for line in found))
                for header, objective in objectives.items()
            ),
        ),
        tuple(notes),
    )


def recorded(instance: Instance) -> str:
    """Return vLLM's decisions on an instance as JSON, a batch (runs, preemptions) a line."""
    settings = {"whole_prompts": True, "first_chunk": False}
    decisions = {
        name: ",\n".join(
            json.dumps([batch.run, batch.evict])
            for batch in run_policy(instance, RealScheduler(instance, whole_prompts=whole), jumps=False).batches
        )
        for name, whole in settings.items()
    }
    parts = ",\n".join(f'"{name}": [\n{batches}\n]' for name, batches in decisions.items())
    head = f'"vllm": "{vllm_version()}",\n"instance": {json.dumps(instance_document(instance))}'
    return f"{{{head},\n{parts}}}\n"


@click.command(help=__doc__)
@click.argument("sources", nargs=-1, metavar="[INSTANCE]...")
@click.option("--kv-tokens", type=click.IntRange(1), help="M, if not the instance's.")
@click.option("--kv-block", type=click.IntRange(1), help="b, if not the instance's.")
@click.option("--batch-tokens", type=click.IntRange(1), help="C, if not the instance's.")
@click.option("--batch-requests", type=click.IntRange(1), help="N, if not the instance's.")
@click.option("--first-chunk", is_flag=True, help="Admit a request whose first chunk fits.")
@file_option("--record", "Write vLLM's decisions on one INSTANCE there, and compare nothing.")
@file_option("--readme", "Put the table into this Markdown file.")
def main(
    sources: tuple[str, ...], first_chunk: bool, record: str | None, readme: str | None, **limits: int | None
) -> None:
    """Compare and report."""
    vllm_version()
    instances = [vllm_limits(instance, **limits) for source in sources for instance in load_suite(source).instances]
    if record is not None:
        if len(instances) != 1:
            raise click.UsageError(f"--record takes one instance, not {len(instances)}")
        write_text(record, recorded(instances[0]))
        return
    given = [Load(instance.name, (instance,), whole_prompts=not first_chunk) for instance in instances]
    table = sheet(list(lines(given or standard_loads())))
    click.echo(as_text(table, _WIDTH))
    write_section("--readme", readme, "vllm", as_markdown(table))


if __name__ == "__main__":
    run_program(main, "vllm_scheduler.py")
