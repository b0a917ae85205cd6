"""The independent checker: replays schedules and re-proves bounds from the problem's text alone.

It takes from `optsched.model` only data, none of the behaviour that simulators, formulations and bounds
build on: batch times, block counts, metrics, feasibility and restrictions are written here a second time,
from docs/problem.md. A mistake must then be made twice, in two styles, to go unnoticed.

Batches and requests are numbered from 0, as in documents.

`problem` says what is permitted, `replay` plays schedules, `document` checks results, and every kind of certificate
has a file of its own with its proof: `alone`, `machine`, `late`, `percentile`, `congestion`, `volume`, `ramp`, `walk`,
`search`, `patterns`, `last_arrivals`. `walk` and `search` have a graph in common, which `contents` describes and
`least` measures; bounds on what requests take of batches are in `work`.
"""

from optsched.check.document import Report, check_result, proved_bound
from optsched.check.reading import UnprovedError
from optsched.check.replay import check_schedule

__all__ = ["Report", "UnprovedError", "check_result", "check_schedule", "proved_bound"]
