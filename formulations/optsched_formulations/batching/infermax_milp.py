r"""InferMax's own mixed-integer programme, indexed by requests × batches with big-M rows: the baseline.

Kim et al. (section 5) index everything by request i and batch j = 1, …, J and linearise conditions with big-M
rows. Here are their variables and constraints (1) to (5), and what they leave out, completed as docs/problem.md
decides. It is the model that the other formulations are measured against: faithful and general, not clever.

Variables of the paper (integer; j = 0 is the initial state)
    - :math:`S_{ij}`: tokens of i, prompt and generated, after batch j; :math:`S_{i0} = I_i`.
    - :math:`m_{ij}`: tokens of i cached after the steps of batch j, before finished requests are freed;
      :math:`m_{i0} = 0`. At most :math:`D_i = I_i + O_i - 1`, which is the big M of (1).
    - :math:`c_{ij}`: tokens of i that batch j runs.
    - :math:`g_{ij}, e_{ij} ∈ \{0, 1\}`: i generates a token, is evicted, in batch j.

Completing variables (binary unless said otherwise)
    - :math:`p_{ij}, q_{ij}`: i takes a prefill step, a decode step, in batch j.
    - :math:`d_{ij}`: the KV that i holds after batch j has generated a token (decoding; else filling).
    - :math:`f_{ij}`: i is finished after batch j. :math:`a_{ij}`: i has its first token (TTFT and its SLO only).
    - :math:`u_j`: batch j is used. :math:`w_j`: it takes prefill steps (without hybrid batching only).
    - :math:`n_{ij}`: KV blocks that i occupies, integer (b > 1 only).
    - :math:`t_j`: time of batch j. :math:`E_j`: when it ends, counted from the earliest arrival. Continuous.

Constraints of the paper
    - Termination: everyone generates all tokens: :math:`\sum_j g_{ij} = O_i`.
    - Sequence length: a generated token joins the others: :math:`S_{ij} = S_{i,j-1} + g_{ij}`.
    - (1), as (5) has it: KV is dropped by an eviction, grows by what runs otherwise. Completed: it is freed after
      the request's last batch, in which it still counts.

      .. math::
          m_{ij} ≤ D_i (1 - e_{ij}), \quad m_{ij} ≤ D_i (1 - f_{i,j-1}), \quad
          m_{ij} ≤ m_{i,j-1} + c_{ij} + D_i e_{ij}, \quad
          m_{ij} ≥ m_{i,j-1} + c_{ij} - D_i (e_{ij} + f_{i,j-1})
    - (2) An evicted request runs nothing, another one no more than it lacks, a finished one nothing:
      :math:`c_{ij} ≤ D_i (1 - e_{ij})`, :math:`c_{ij} ≤ S_{i,j-1} - m_{i,j-1}`,
      :math:`p_{ij} + q_{ij} ≤ c_{ij} ≤ D_i (p_{ij} + q_{ij})`, :math:`p_{ij} + q_{ij} ≤ 1 - f_{i,j-1}`.
    - (3) A token is generated exactly if everything that lacks is run:
      :math:`S_{i,j-1} - m_{i,j-1} - (I_i + O_i)(1 - g_{ij}) ≤ c_{ij} ≤ S_{i,j-1} - m_{i,j-1} - 1 + g_{ij}`.
    - (4) Batch limits: :math:`\sum_i c_{ij} ≤ C` and :math:`\sum_i m_{ij} ≤ M`; with blocks of b > 1 tokens
      :math:`m_{ij} ≤ b\, n_{ij}` and :math:`\sum_i n_{ij} ≤ ⌊M/b⌋`.

Completions
    - Phase: generating makes i decoding, an eviction makes it filling again, nothing else changes it:
      :math:`g_{ij} ≤ d_{ij}`, :math:`d_{i,j-1} - e_{ij} ≤ d_{ij} ≤ 1 - e_{ij}`,
      :math:`d_{ij} ≤ d_{i,j-1} + g_{ij}`. The phase before the batch says which step it is:
      :math:`q_{ij} ≤ d_{i,j-1}`, :math:`p_{ij} ≤ 1 - d_{i,j-1}`. A decoding request lacks one token, so (2) makes
      c = 1 in its steps, and :math:`c_{ij} - q_{ij}` are the tokens of a prefill step.
    - Finished: :math:`O_i f_{ij} ≤ S_{ij} - I_i ≤ O_i - 1 + f_{ij}`. First token: :math:`a_{ij} ≤ S_{ij} - I_i`.
    - Only KV that exists, of an unfinished request, is evicted: :math:`e_{ij} ≤ m_{i,j-1}`,
      :math:`e_{ij} ≤ 1 - f_{i,j-1}`; without eviction :math:`e_{ij} = 0`.
    - Budgets: :math:`\sum_i (c_{ij} - q_{ij}) ≤ P`, :math:`\sum_i (p_{ij} + q_{ij}) ≤ N`. Without hybrid batching
      :math:`p_{ij} ≤ w_j`, :math:`q_{ij} ≤ 1 - w_j`. Without chunked prefill a prefill step ends in a token:
      :math:`p_{ij} ≤ g_{ij}`.
    - Batches are used from the first on, none is empty, and nothing happens in an unused one:
      :math:`u_{j+1} ≤ u_j ≤ \sum_i (p_{ij} + q_{ij})`, :math:`p_{ij} + q_{ij} + e_{ij} ≤ u_j`.
    - Policy classes: :math:`\sum_{ij} e_{ij} ≤ q`; if a's first run must be in no later batch than b's, b runs only
      when a has: :math:`p_{bj} + q_{bj} ≤ \sum_{k ≤ j} (p_{ak} + q_{ak})`; objective ≤ the value not to exceed.

Time
    A batch takes at least every piece of the convex cost, for all k:

    .. math:: t_j ≥ \mathrm{base}_k u_j + \mathrm{token}_k \sum_i c_{ij} + \sum_i (\mathrm{decode\_kv}\, x_{ij}
              + \mathrm{decode\_req}\, q_{ij} + \mathrm{prefill\_sq}\, z_{ij} + \mathrm{prefill\_kv}\, y_{ij}
              + \mathrm{prefill\_req}\, p_{ij})

    with products that need a lower limit only, since coefficients are not negative and time is minimised:
    :math:`x_{ij} ≥ m_{i,j-1} - D_i (1 - q_{ij})` for :math:`m q`, likewise y for :math:`m p`. The quadratic cost
    :math:`z = c² + 2mc` of a prefill step is exact on integers. Chunked: with :math:`c_{ij} - q_{ij} =
    \sum_l 2^l β_{ijl}`, β binary, :math:`z_{ij} = \sum_l 2^l ζ_{ijl}`, where ζ is β times (c + 2m):
    :math:`ζ_{ijl} ≥ c_{ij} - q_{ij} + 2 m_{i,j-1} - 2 D_i (1 - β_{ijl})`. Whole: m = 0 and the step runs 0 or
    I, …, D tokens, so z is the convex piecewise-linear function through the squares of these: :math:`z ≥ I (c - q)` and
    :math:`z ≥ (2v + 1)(c - q) - v (v + 1)` for v = I, …, D − 1.

    With arrivals, or another objective than the makespan, batches have ends (the paper's Acc):
    :math:`E_j ≥ E_{j-1} + t_j`, and a request runs after its arrival: :math:`E_j ≥ T_i (p_{ij} + q_{ij}) + t_j`.

Objective
    Makespan: :math:`\sum_j t_j` (the paper's), with arrivals :math:`E_J`. E2e :math:`F_i ≥ E_j - T_i - H f_{i,j-1}` for
    all j, TTFT :math:`≥ E_j - T_i - H a_{i,j-1}`: the end of each batch before which i had not got there, with H an
    upper limit of the last end. Means are their sums, weighted or not, maxima one variable for all i; a miss
    :math:`v_i ∈ \{0, 1\}` relaxes :math:`E_j - T_i ≤ \mathrm{SLO}_i` by H.

Number of batches J
    Every used batch costs at least a base. So where the best value known, or the sequential schedule's, limits the
    last end, J is (limit − least work) / base. Whatever the costs, some optimal schedule has at most J batches:

    - whole prefills: every run generates a token, so :math:`J = \sum_i O_i`;
    - without eviction every batch runs one of the :math:`\sum_i (I_i + O_i - 1)` tokens that exist to be run;
    - else a token k ≥ 2 may be refilled, which runs I + k − 2 tokens more than its decode, and takes a batch to pause
      in. Other batches run only KV that is dropped before it generates anything. Leave such batches out, but for the
      last one of each uninterrupted group of them that some refill pauses in; evict earlier instead. So J grows by
      I + k − 1 per refill. With an order of first runs the batch of a dropped first run, and one to drop it, may be
      needed too: 2 per request.

Numbers
    Times are divided by a whole number of ps, the *unit*: the greatest common divisor of all times, d, or a multiple
    of it that brings the last end to about 10⁴. The schedule is rebuilt from the rounded c and e and timed exactly.
    The solvers compute with floats: `optsched.solvers.claims` lowers their bound by a margin that it argues, and a
    schedule is called optimal only where that meets its exact value. Values are whole multiples of d. Of the makespan
    offline with one affine piece more is known: with whole prefills it is base × J and, for each token, the time of a
    decode or of a fill; chunked, without eviction, all but base × J, the number of prefill steps and what they read is
    a constant.
"""

from __future__ import annotations

from optsched.solvers.declaration import Declaration
from optsched.solvers.formulation import ModelFormat, Outcome, Task, require_seconds


class InfermaxMilp:
    """The formulation of this module, as `optsched.solvers.formulation.Formulation`.

    Parameters
    ----------
    solver
        A name from `optsched.solvers.milp.SOLVERS`. HiGHS and CBC come with PuLP, the others have to be installed.

    Raises
    ------
    InputError
        For an unknown solver, or one that is not installed.
    """

    declaration = Declaration(baseline=True)

    def __init__(self, solver: str = "highs") -> None:
        from optsched.solvers.milp import require_solver  # noqa: PLC0415  # loads PuLP

        require_solver(solver)
        self.solver = solver

    def solve(self, task: Task) -> Outcome:
        """Minimise any objective but percentiles and times between tokens, of an instance with any rules.

        Raises
        ------
        UnsupportedError
            For any other objective, a limit in deterministic time, or if the model would be too large to build.
        """
        require_seconds(task)
        from optsched_formulations.batching.infermax.minimize import minimize  # noqa: PLC0415  # as above

        return minimize(task, self.solver)

    def export(self, task: Task, style: ModelFormat) -> str:
        """Return the model as the text of an LP or MPS file; its name says what its unit of time is.

        Raises
        ------
        UnsupportedError
            For any other objective, or if the model would be too large to build.
        """
        from optsched_formulations.batching.infermax.minimize import written  # noqa: PLC0415  # as above

        return written(task, self.solver, style)
