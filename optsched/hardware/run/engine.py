"""The engine: runs one batch after the other, exactly as decided, on a real model."""

from __future__ import annotations

from statistics import median_low
from typing import Protocol

import numpy as np

from optsched.hardware.machine import Machine
from optsched.hardware.transformer.attention import Attention, OnCuda, StepByStep
from optsched.hardware.transformer.cache import PagedCache
from optsched.hardware.transformer.model import Transformer
from optsched.hardware.transformer.plan import Run, make_plan
from optsched.hardware.transformer.shape import Shape
from optsched.model.errors import InputError, Said
from optsched.model.instance import Instance
from optsched.model.schedule import Assignment
from optsched.model.state import MachineState, initial

_PS_PER_NS = 1000
_WARM_UPS = 3


class Engine(Protocol):
    """What really runs batches."""

    def run(self, batch: Assignment) -> int:
        """Evict, then run the steps of one batch; return how long that took, in ps."""
        ...


class TorchEngine:
    """A transformer with random weights, on the prompts that the seed decides, greedy.

    A batch is one forward pass of all its tokens together. Its time is that of the pass, from the tokens to the next
    ones on the device; what the host does before (finding pages, making index tensors) is left out, as it overlaps
    with the batch before in serving systems. Every batch may be run several times, which changes nothing, and the
    median counts.

    Parameters
    ----------
    instance
        Whose requests are served, with pages of its block size, as many as its cache has.
    shape
        Of the model.
    machine
        Where it runs.
    repeats
        How often every batch is run.
    seed
        Of weights and prompts.

    Raises
    ------
    InputError
        If model and cache do not fit into memory.
    """

    def __init__(self, instance: Instance, shape: Shape, machine: Machine, *, repeats: int = 1, seed: int = 0) -> None:
        import torch  # noqa: PLC0415  # an extra

        requests, limits, device = instance.requests, instance.limits, machine.device
        longest = max(request.peak_tokens for request in requests)
        pages = _pages(instance)
        _require_room(shape, pages * limits.kv_block, machine)
        self._machine, self._repeats = machine, repeats
        self._model = Transformer(shape, longest, device, seed=seed)
        self._cache = PagedCache(shape.share, shape.layers, pages, limits.kv_block, device)
        self._attention = attention_of(machine, self._model, longest)
        self._states = initial(instance)
        self._played = MachineState(self._states, self._cache)
        lengths = [request.input + request.output for request in requests]
        self._starts = np.cumsum([0, *lengths])
        prompts = np.random.default_rng(seed).integers(self._model.shape.vocabulary, size=int(self._starts[-1]))
        self._text = torch.from_numpy(prompts).to(device)
        self._warm_up(min(limits.batch_tokens, pages * limits.kv_block, longest))

    def run(self, batch: Assignment) -> int:
        """Run one batch (see `Engine`)."""
        import torch  # noqa: PLC0415  # an extra

        self._played.act(batch.actions)
        # Prefill steps come first in a plan.
        steps = sorted(batch.run, key=lambda step: self._states[step[0]].decoding)
        runs, places, nexts = [], [], []
        for index, count in steps:
            state = self._states[index]
            run = Run(
                count, self._cache.hold(index, state.cached + count), state.decoding, generates=count == state.missing
            )
            runs.append(run)
            begin = int(self._starts[index]) + run.cached
            places.append(np.arange(begin, begin + count))
            if run.generates:
                nexts.append(begin + count)
        source = torch.from_numpy(np.concatenate(places)).to(self._machine.device)
        target = torch.tensor(nexts, dtype=torch.int64, device=self._machine.device)
        plan = make_plan(runs, self._machine.device)

        def forward() -> None:
            given = self._model.next_tokens(self._text[source], plan, self._cache, self._attention)
            self._text[target] = given

        with torch.inference_mode():
            taken = median_low(self._machine.clock.times(forward, self._repeats))
        self._played.finish(self._played.carry_out((), steps).finished)
        return taken * _PS_PER_NS

    def prompt(self, index: int) -> list[int]:
        """Return a request's prompt, as tokens."""
        return self._tokens(index, 0, self._states[index].request.input)

    def output(self, index: int) -> list[int]:
        """Return the tokens that a request has generated."""
        state = self._states[index]
        return self._tokens(index, state.request.input, state.request.input + state.generated)

    def _tokens(self, index: int, begin: int, end: int) -> list[int]:
        start = int(self._starts[index])
        return [int(token) for token in self._text[start + begin : start + end].tolist()]

    def _warm_up(self, tokens: int) -> None:
        """Run batches of no request, so that libraries load, and kernels are compiled, before anything is timed."""
        import torch  # noqa: PLC0415  # an extra

        warming, device = -1, self._machine.device
        slots = self._cache.hold(warming, tokens)
        with torch.inference_mode():
            for run in (Run(tokens, slots, decodes=False, generates=True), Run(1, slots, decodes=True, generates=True)):
                plan = make_plan([run], device)
                for _ in range(_WARM_UPS):
                    self._model.next_tokens(self._text[:1].expand(run.tokens), plan, self._cache, self._attention)
        self._cache.release(warming)


def attention_of(machine: Machine, model: Transformer, most_keys: int) -> Attention:
    """Return the attention for a machine."""
    return OnCuda() if machine.device.type == "cuda" else StepByStep(most_keys, model.norm)


def _pages(instance: Instance) -> int:
    """Return the cache's pages; no more than all requests together could ever use."""
    limits = instance.limits
    return min(limits.kv_blocks, sum(limits.blocks(request.peak_tokens) for request in instance.requests))


def _require_room(shape: Shape, kv_tokens: int, machine: Machine) -> None:
    share = shape.share
    need, free = share.weight_bytes + kv_tokens * share.kv_bytes, machine.free_bytes
    if need > free:
        expected = f"at most the {free / 2**30:.1f} GiB that are free, for weights and {kv_tokens} KV tokens"
        raise InputError("shape", Said(f"{shape.name}, which needs {need / 2**30:.1f} GiB"), expected)
