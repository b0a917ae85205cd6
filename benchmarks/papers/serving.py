"""What the papers' modules share: their seeds, the cost model of their instances, and the metrics of a policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from optsched.calibrate.library import cost_model
from optsched.methods.simulate import simulate
from optsched.model.instance import Instance
from optsched.simulator.replica import Policy, Preparing

SEEDS = (1, 2, 3)
"""Of the draws over which a spread is shown."""
COST = cost_model("a100-llama2-7b-nocall")
"""The profile of the suites: Llama-2-7B on an A100, no cost of a call."""


def metrics_of(instance: Instance, policy: str | Policy | Preparing) -> dict[str, Any]:
    """Return the metrics of a policy on an instance."""
    found = simulate(instance, policy).metrics
    assert found is not None
    return found


def over_seeds(value: Callable[[int], float]) -> tuple[float, ...]:
    """Return a value for each seed."""
    return tuple(float(value(seed)) for seed in SEEDS)
