"""The warm-ups by name: together they run every compiled loop with the types that it gets in use.

Each reaches loops of its own, so that processes can share them out. A new loop needs nothing here if a warm-up reaches
it, and a warm-up if none does: `tests/cli/test_compile.py` names it then.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_QUESTIONS, _FORMULATIONS = "optsched.ahead.warm_ups", "optsched_formulations.warm_ups"
WARM_UPS: Mapping[str, str] = MappingProxyType(
    {
        "states": f"{_FORMULATIONS}:states",
        "planner": f"{_QUESTIONS}:planner",
        "cached machines": f"{_QUESTIONS}:cached_machines",
        "checked labels": f"{_QUESTIONS}:checked_labels",
        "checked pairs": f"{_QUESTIONS}:checked_pairs",
        "checked layers": f"{_QUESTIONS}:checked_layers",
        "queue prices": f"{_QUESTIONS}:queue_prices",
        "simulation": f"{_QUESTIONS}:simulation",
        "pauses": f"{_FORMULATIONS}:pauses",
        "patterns": f"{_FORMULATIONS}:patterns",
        "layers": f"{_FORMULATIONS}:layers",
        "latency prices": f"{_QUESTIONS}:latency_prices",
        "reinsertions": f"{_FORMULATIONS}:reinsertions",
        "beginnings": f"{_FORMULATIONS}:beginnings",
        "clocks": f"{_FORMULATIONS}:clocks",
        "machines": f"{_FORMULATIONS}:machines",
        "makespan prices": f"{_QUESTIONS}:makespan_prices",
    }
)
"""Name → ``module:function``; what takes longest to compile comes first."""
