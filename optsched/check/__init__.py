"""The independent checker: replays schedules and re-proves bounds from the problem's text alone.

It takes from `optsched.model` only data, none of the behaviour that simulators, formulations and bounds
build on: batch times, block counts, metrics, feasibility and restrictions are written here a second time,
from docs/problem.md. A mistake must then be made twice, in two styles, to go unnoticed.

Batches and requests are numbered from 0, as in documents.

`problem` says what is permitted, for both halves: `schedule` plays schedules, and `certificates` has a file with its
proof for each kind of certificate, named as the file of the bound or formulation that states it. `document` checks
results with both.
"""

from optsched.check.certificates.proofs import proved_bound
from optsched.check.document import Report, check_result
from optsched.check.reading import UnprovedError
from optsched.check.schedule.check import check_schedule

__all__ = ["Report", "UnprovedError", "check_result", "check_schedule", "proved_bound"]
