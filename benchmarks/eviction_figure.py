"""The README's figure: four requests for which evicting is optimal, beside the best schedule without eviction.

``python benchmarks/eviction_figure.py`` writes ``docs/eviction-is-optimal.svg``.
"""

from __future__ import annotations

from pathlib import Path

import optsched
from optsched import plot

FIGURE = Path(__file__).resolve().parents[1] / "docs" / "eviction-is-optimal.svg"


def draw(target: Path) -> None:
    """Solve the instance twice and draw both schedules."""
    instance = optsched.load_instance("infermax-fig15-I8")
    whole = optsched.Restrictions(("eviction",))
    results = [optsched.solve(instance, workers=1, restrictions=each) for each in (optsched.Restrictions(), whole)]
    labels = ["Optimal schedule", "Best schedule without eviction"]
    title = "Four requests, I = 8, O = 4, on a KV cache of M = 16 tokens: evicting is optimal"
    plot.save(plot.gantt_figure(results, labels=labels, title=title), target)


if __name__ == "__main__":
    draw(FIGURE)
