"""Two requests of which one has to be evicted, with the arithmetic of their best schedule."""

from __future__ import annotations

from optsched.model.cost import CostModel
from optsched.model.instance import Instance, Limits, Request, Rules

COST = CostModel(base=100, token=10, decode_kv=1, decode_req=5, prefill_sq=2, prefill_kv=3, prefill_req=7)
WHOLE = Rules(chunked_prefill=False)
STAY = Rules(chunked_prefill=False, eviction=False)

# A request holds 2 tokens, then 3. Filling 2 takes 20 + 2·4 + 7 = 35; then a decode takes 10 + 2 + 5 = 17, and a refill
# of 3 takes 30 + 2·9 + 7 = 55, 38 more. The 4 tokens of memory hold two requests only in their first batches. The best
# schedule starts both, evicts one, and refills it after the other: three batches and 38.
PAIR = Instance("pair", Limits(4, 100, 100), WHOLE, COST, (Request(2, 2), Request(2, 2)))
WORK = 2 * (35 + 17)
BEST = WORK + 338
