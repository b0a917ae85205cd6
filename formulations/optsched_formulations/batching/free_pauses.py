r"""Pauses for free: a bound on the makespan with arrivals, exact where the memory hardly binds, and a schedule.

*Relaxation.* Only memory binds (`memory_only`). Let a request that does not run in a batch hold nothing, and go on
later with a decode. A batch is then a set of unfinished requests that have arrived; request r generates its next token
k in it, which needs the blocks of I + k − 1 tokens and takes the own time of a first fill (k = 1) or of a decode; the
batch takes the base and its own times. Every schedule is one of the relaxation that ends no later, since refills are no
cheaper than decodes, and since what a batch holds of those that run is no more than all it holds.

*Waste.* All own times add up to a constant W. So a schedule ends, counted from the first arrival, at W and its *waste*:
a base for every batch, and idle time. A state after a batch is p, the tokens that every request has generated, and the
waste w so far; its clock is w and the own time of p.

*More for less.* If p ≥ p' for every request and w ≤ w', the best schedule from (p, w) ends no later than the best
from (p', w'), *also where its clock is later*. Proof: take a schedule σ' from (p', w') and leave out the tokens that p
has already, and batches that then run nothing; let the others begin when they did, or when the batch before has ended.
What they run has arrived, since they begin no earlier, and is a part of what they ran, so that it fits. With D the own
time of p less that of p', the batches take t_i ≤ t'_i, and together at least D less. Look at the last batch i that
begins when it did, at s'_i: the schedule ends at s'_i + Σ_{l ≥ i} t_l, no later than σ'. Or there is none: it ends
at the clock of (p, w), which is at most D after that of (p', w'), and the sum of all t_l, at most that of the t'_l less
D: no later either. ∎

So of the sets that a batch could run only those matter to which nothing can be added: running more wastes no more. If
everything fits there is one. A batch begins at the end of the one before, or at an arrival; but not at an arrival by
which some batch with one request that is there could have ended: that one wastes a base, no more than the wait.

*Equal inputs.* Of two requests that have arrived, with equal inputs and as many tokens k, r with no more output tokens
than s: if one of them runs, it may be s. For let r generate token k + i in batch b_i and s in c_i, b_1 < c_1. Give s
the batches min(b_i, c_i) and r the batches max(b_i, c_i) for all i up to r's last, and s its other c_i: each is in
order, sizes and own times are those of the same tokens, and the last of both does not change. Requests of equal
outputs, too, may exchange names when both have arrived, so that the one that arrived first has the most tokens.

*Bounds of a state.* From a moment t on, now or an arrival later: batches that begin before t do so at least a base
apart, which limits the tokens that each request can have by then, and what all have together, in weights of which a
batch holds at most W' (blocks, and those of `packing`). What is left needs as many batches as the longest of those that
have arrived by t has tokens, and as its weight says; and all its own time. If t is an arrival, the requests that arrive
from t on take as long as they do alone: without the runs of others batches take no longer.

*Search.* States are looked at by growing waste, so that one is left out if a former one has as many tokens of every
request; those make the *front*, seldom more than a few. All states are looked at whose bound is below a threshold; if
no schedule is found, the least bound of those left out holds for all, and the threshold grows. The last requests alone
come first, as in `last_arrivals`: their makespan bounds that of all, for without the runs of others no batch takes
longer.

*Pauses that hold.* Where memory binds a second search knows which requests are *resident*: they have run, and have not
been evicted since. One that pauses holds its prompt. To evict one takes time, between two batches: its *price*, the
least over its tokens k ≥ 2 of what a refill takes beyond a decode; the refill then takes what a decode takes. This is a
relaxation, too: KV that pauses is no less than the prompt, and with d_i the prices of those that are evicted and not
refilled yet after batch i, no batch i ends later than d_i after it did, since what a refill takes less makes up for its
price. Nothing is evicted at the end. The waste has the prices in it. Where all unfinished requests fit with all their
tokens, pauses are free again.

Here (p, w) with residents R is at least as good as (p', w') with residents R' if p ≥ p' and w, with the prices of R
less R', is at most w'. Evict those of R less R'; then do as above: run what p does not have yet when σ' runs it, evict
what is resident when σ' evicts it. So one is resident only if it is in σ', where it holds its prompt or more; those
that run hold what they held; and the price of a request is always the same, however far it is. Prices take time as
batches do, begin no earlier than in σ', and are part of those of σ', so that the end is no later, by the same argument.
(Were the price to grow with the tokens, being ahead could be worse.) Where nothing may be evicted R must be part of R'.

So nothing is chosen where a resident request pauses, or one waits that would finish, and has room to run: running it
gives more tokens and no other residents. Nor, if the machine does not wait, where one is evicted that has room to
pause: that can follow later at the same price. While the machine waits evictions may take time that is left anyway, so
there they are all tried. A first fill takes memory from then on, so all sets of those are tried. The machine does not
wait for an arrival if there is time before it for the evictions and for a batch that runs one resident, or one that
finishes with it, while the residents pause: that one is ahead for a base, no more than the wait, and the evictions
follow in time.

*Schedule.* One of a relaxation becomes one of the problem: requests that do not run keep their KV as far as it fits,
others are evicted, and refilled. Where it takes no longer it is optimal. A search in which those that pause hold all
that they have finds better ones. There being ahead may be worse, so that it bounds nothing.
"""

from __future__ import annotations

from optsched.model.objectives import Objective
from optsched.solvers.declaration import Declaration, Regime, Turn
from optsched.solvers.formulation import Outcome, Task, UnsupportedError
from optsched_formulations.batching.memory_only import require_memory_only


class FreePauses:
    """The method of this module, as `optsched.solvers.formulation.Formulation`.

    Parameters
    ----------
    held
        Whether to search again with pauses that hold something.
    """

    declaration = Declaration(
        sequential=True, turns=(Turn(25, 0.08, (Regime.FEW_ARRIVING,)), Turn(25, 0.35, (Regime.MANY_ARRIVING,)))
    )
    """It takes little time wherever the memory hardly binds, and then ends the search."""

    def __init__(self, held: bool = True) -> None:
        self._held = held

    def solve(self, task: Task) -> Outcome:
        """Bound the makespan of an instance with arrivals in which only memory binds, and look for a schedule.

        Raises
        ------
        UnsupportedError
            For any other instance or objective, or if numbers are too large.
        """
        if task.objective != Objective.MAKESPAN:
            raise UnsupportedError(f"objective {task.objective.value}, it bounds the makespan")
        if task.instance.offline:
            raise UnsupportedError("requests that arrive together, it is for arrivals")
        require_memory_only(task)
        from optsched_formulations.batching.search.pauses import PauseSearch  # noqa: PLC0415  # loads compiled code

        return PauseSearch(task, self._held).solve()
