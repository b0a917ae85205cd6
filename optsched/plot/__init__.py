"""Figures of results; needs matplotlib (``pip install 'optsched[plot]'``).

Every function draws into the axes that ``ax=`` gives it, or into a new figure, and returns the axes; `save` writes
their figure. `gantt_figure` stacks several schedules. `trace_events` is for Perfetto and needs no matplotlib.
"""

from optsched.plot.bounds_plot import bounds
from optsched.plot.common import save
from optsched.plot.distribution import cdf
from optsched.plot.events import trace_events
from optsched.plot.gantt import gantt, gantt_figure, kv_strip
from optsched.plot.gap_plot import gap
from optsched.plot.pareto import pareto
from optsched.plot.profile import performance
from optsched.plot.router_map import router_map
from optsched.solvers.history import History

__all__ = [
    "History",
    "bounds",
    "cdf",
    "gantt",
    "gantt_figure",
    "gap",
    "kv_strip",
    "pareto",
    "performance",
    "router_map",
    "save",
    "trace_events",
]
