r"""Best-first search over what requests of a small instance hold, in plain Python: done before a solver is loaded.

As `state_search` it covers instances in which only memory binds, and its *states* are the same: after a batch each
request waits for a token, having no KV, or holds KV. In the next batch, which begins at once or at a later arrival,
each that holds KV decodes, or is evicted, or pauses; some of those that wait and have arrived are filled. Pauses are
left out offline: the argument of `resident_graph` ends no batch later, and moves no request's last token. A batch that
waits for an arrival fills a request that arrives just then: else it could begin earlier. Requests that differ in their
arrival alone are filled in the order in which they arrive.

*Labels.* For the makespan a state has the earliest moment at which it is reached: whatever follows then, batches
beginning when they did, also follows from an earlier one. For weighted sums of latencies it has the least sum, over
the time so far, of the weights that are not completed; with arrivals the moment is part of the state.

*Estimate*, with b the base of a batch and M blocks. A request r needs a batch for each of the :math:`l_r` tokens that
it has left, the blocks that it holds in these, :math:`s_r` together, and time of its own, :math:`w_r`: its decodes,
and a fill first if it waits. So what is left at a moment t ends no earlier than

.. math:: t + \sum_r w_r + b \max\Big(\max_r l_r, \Big\lceil \sum_r s_r / M \Big\rceil\Big),

nor than any request does that is alone once it has arrived. As to sums, let the i-th completion be at the end of the
J-th batch from now. What i requests have left is in these batches, so that it is no earlier than t, b times the larger
one of the i-th fewest tokens and of the i least :math:`s_r` over M, rounded up, and the i least :math:`w_r`, together;
nor than the i-th of the moments at which requests would be done alone. Of different weights only the latter count.

The first finished state whose turn comes is optimal, for no estimate of another is less. The checker confirms it by a
search of its own (``request_search``).
"""

from __future__ import annotations

from optsched.solvers.declaration import Declaration, Turn
from optsched.solvers.formulation import Outcome, Task, UnsupportedError
from optsched_formulations.batching.memory_only import require_memory_only

_MOST_REQUESTS, _MOST_TOKENS = 8, 64
"""Of a small instance."""


class SmallSearch:
    """The method of this module, as `optsched.solvers.formulation.Formulation`."""

    declaration = Declaration(at_once=True, sequential=True, turns=(Turn(5, 1.0),))
    """It proves the optimum of what is small in less time than policies take for a start, or gives up."""

    def solve(self, task: Task) -> Outcome:
        """Minimise the makespan or a sum of e2e latencies of a small instance in which only memory binds.

        It looks at so few batches that it ends in a fraction of a second, and finds nothing if they do not do. With the
        restriction ``at_most``, ``INFEASIBLE`` says that every schedule exceeds it.

        Raises
        ------
        UnsupportedError
            For any other instance, more than 8 requests or 64 output tokens, or if the best schedule ends beyond 64
            bits.
        """
        requests = task.instance.requests
        if len(requests) > _MOST_REQUESTS or sum(request.output for request in requests) > _MOST_TOKENS:
            raise UnsupportedError(f"more than {_MOST_REQUESTS} requests or {_MOST_TOKENS} output tokens")
        require_memory_only(task)
        from optsched_formulations.batching.search.small_states import SmallStates  # noqa: PLC0415  # loads numpy

        return SmallStates(task).outcome()
