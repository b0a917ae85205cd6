"""What flows cover."""

from __future__ import annotations

from optsched.model.objectives import Objective
from optsched.solvers.formulation import Task, UnsupportedError


def require_flows(task: Task) -> None:
    """Raise `UnsupportedError` for a task that flows do not cover."""
    if task.objective != Objective.MAKESPAN:
        raise UnsupportedError(f"objective {task.objective.value}, it minimises the makespan")
    if not task.instance.offline:
        raise UnsupportedError("requests that arrive at different times, it is offline")
    if task.instance.rules.chunked_prefill:
        raise UnsupportedError("chunked prefill, it runs prefills whole (forbid chunked)")
