"""Measuring a whole grid, point by point, so that nothing measured is ever lost."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from optsched.calibrate.measurements import ENVIRONMENT, FORMAT, SIZES, TABLE
from optsched.hardware.machine import Machine
from optsched.hardware.measure.bench import COLD_BYTES, PAGE_TOKENS, Bench
from optsched.hardware.measure.grid import Extent, Point, grid
from optsched.hardware.measure.samples import Samples, Summary, table_text
from optsched.hardware.transformer.shape import Shape
from optsched.model.documents import dump, read_bytes, write_text
from optsched.model.domain import replace
from optsched.model.errors import InputError, Said
from optsched.model.json_text import NotJSONError, load_json

SAMPLES = "samples.csv"
_USABLE = 0.9
"""Share of the memory that a serving system takes (vLLM's gpu_memory_utilization)."""
_WEIGHTS = 0.5
"""Share of the memory that weights may take here; a larger model has fewer layers of its own."""
_FILLED = 0.8
"""Share of the memory that weights and cache may take here together; activations need some, too."""
_WARM_UPS = 1
ROUNDS = 3
"""Rounds of samples that a row summarises, with the rest of the grid between them: what else a machine does, and how
warm it is, changes over seconds."""
_MORE = 4
"""Further rounds for points whose samples spread too much, which then count instead of the first ones."""


@dataclass(frozen=True)
class Task:
    """What is to be measured.

    Parameters
    ----------
    shape
        Of the model.
    extent
        How far the grid goes.
    samples
        Of each point in each of the `ROUNDS`.
    max_spread
        By how much the medians of a point's rounds may differ, in their median.
    kv_budget
        Bytes of the KV cache, from which the capacity M follows; None for what the device has left.
    seed
        Of weights, inputs, pages and order.
    """

    shape: Shape
    extent: Extent
    samples: int
    max_spread: float
    kv_budget: int | None = None
    seed: int = 0


Watcher = Callable[[int, int, str], None]
"""Called before each round of samples: how many are done, of how many, and which one comes."""


def measure(task: Task, machine: Machine, folder: Path, watch: Watcher) -> list[Summary]:
    """Measure what the folder does not hold yet, and write the table; or return the rows that spread too much for it.

    Raises
    ------
    InputError
        If the folder holds measurements of something else, or the model does not fit.
    """
    free = machine.free_bytes
    distinct = _distinct_layers(task.shape, free)
    share = replace(task.shape.share, layers=distinct)
    capacity = (int(_FILLED * free) - share.weight_bytes) // share.kv_bytes
    points = grid(task.extent, capacity, task.seed)
    room = min(capacity, max(COLD_BYTES // share.kv_bytes, *(point.held for point in points)))
    environment = _environment(task, machine, distinct)
    folder.mkdir(parents=True, exist_ok=True)
    _require_same(folder / ENVIRONMENT, environment)
    samples = Samples(folder / SAMPLES)
    missing = _missing(task, samples, points)
    if missing:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        about = environment | {"date": date, "kv_tokens": kv_capacity(task, free)}
        write_text(folder / ENVIRONMENT, dump(about))
        bench = Bench(task.shape, machine, room, task.extent.context, distinct=distinct, seed=task.seed)
        done, total = sum(samples.rounds(point, ROUNDS) for point in points), ROUNDS * len(points)
        for _ in range(ROUNDS + _MORE):
            for point in missing:
                watch(done, total, _named(point))
                samples.add(point, _sample(task, machine, bench, point))
                done += 1
            missing = _missing(task, samples, missing)
            total = max(total, done + len(missing))
    rows = [row for point in points if (row := samples.row(point, ROUNDS)) is not None]
    noisy = [row for row in rows if row.spread > task.max_spread]
    if not noisy:
        write_text(folder / TABLE, table_text(rows))
    return noisy


def _missing(task: Task, samples: Samples, points: list[Point]) -> list[Point]:
    """Return the points that have no row, or one that spreads too much."""
    rows = ((point, samples.row(point, ROUNDS)) for point in points)
    return [point for point, row in rows if row is None or row.spread > task.max_spread]


def _named(point: Point) -> str:
    sizes = zip(SIZES[1:], point[1:], strict=True)
    return " ".join([point.kind, *(f"{name} {size}" for name, size in sizes if size)])


def kv_capacity(task: Task, free_bytes: int) -> int:
    """Return M: the tokens whose KV fits what the weights leave of the usable memory, or the budget."""
    share = task.shape.share
    budget = int(_USABLE * free_bytes) - share.weight_bytes if task.kv_budget is None else task.kv_budget
    return max(budget, 0) // share.kv_bytes


def _sample(task: Task, machine: Machine, bench: Bench, point: Point) -> list[int]:
    """Time a point a few times, each time on other pages; in ns."""
    import torch  # noqa: PLC0415  # an extra

    with torch.inference_mode():
        machine.clock.times(bench.work(point), _WARM_UPS)
        return [machine.clock.times(bench.work(point), 1, bench.sweep)[0] for _ in range(task.samples)]


def _distinct_layers(shape: Shape, free_bytes: int) -> int:
    share = shape.share
    ends = share.weight_bytes - share.layers * share.layer_bytes
    fitting = (int(_WEIGHTS * free_bytes) - ends) // share.layer_bytes
    if fitting < 1:
        need = f"{shape.name}, of which one layer and the embedding need {(ends + share.layer_bytes) / 2**30:.1f} GiB"
        raise InputError("shape", Said(need), f"at most half of the {free_bytes / 2**30:.1f} GiB that are free")
    return min(shape.layers, fitting)


def _environment(task: Task, machine: Machine, distinct: int) -> dict[str, Any]:
    """Return all that a resumed run must have in common with what it resumes."""
    return {
        "format": FORMAT,
        **machine.facts(),
        "shape": task.shape.document(),
        "dtype": task.shape.dtype,
        "tensor_parallel": task.shape.tensor_parallel,
        "distinct_layers": distinct,
        "page_tokens": PAGE_TOKENS,
        "extent": asdict(task.extent),
        "max_spread": task.max_spread,
        "seed": task.seed,
    }


def _require_same(path: Path, environment: dict[str, Any]) -> None:
    if not path.exists():
        return
    try:
        known = load_json(read_bytes(path))
        kept = {field: known.get(field) for field in environment}
    except (NotJSONError, AttributeError):
        raise InputError("", Said("no measurements"), "a folder of an earlier run, or a new one", str(path)) from None
    for field, value in environment.items():
        if field != "distinct_layers" and kept[field] != value:
            raise InputError(field, kept[field], f"{value}, as in this run, or another --out", str(path))
