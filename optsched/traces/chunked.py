"""Small instances in which the prefill budget P matters: every prompt is longer than P, so that prefills are split.

Small enough for exact methods to hope for the optimum: two to six requests of at most four output tokens. A prompt of
I tokens takes at least ⌈I/P⌉ prefill steps, which must share P tokens a batch with the other prompts, and C with the
decode steps; the prompts alone take more batches than whole schedules do with a large P and C.
"""

from __future__ import annotations

from random import Random

from optsched.calibrate.library import cost_model
from optsched.model.documents import Suite
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.traces.ladder import kv_tokens_for

SIZES = (2, 3, 4, 5, 6)
KAPPAS = (2, 3)
PREFILL_TOKENS, BATCH_TOKENS = 6, 8
INPUTS = (12, 20)
OUTPUTS = (2, 3, 4)


def chunked_small(profile: str, seed: int = 1) -> Suite:
    """Return the suite on a cost profile; ``seed`` draws the lengths."""
    instances = []
    for count in SIZES:
        rng = Random(f"{seed} {count} chunked")
        requests = tuple(Request(rng.choice(INPUTS), rng.choice(OUTPUTS)) for _ in range(count))
        instances += [
            Instance(
                name=f"chunked-small-n{count}-k{kappa}",
                limits=Limits(kv_tokens_for(requests, kappa), BATCH_TOKENS, PREFILL_TOKENS),
                rules=Rules(),
                cost=cost_model(profile),
                requests=requests,
            )
            for kappa in KAPPAS
        ]
    return Suite(
        "chunked-small",
        "Chunked prefill where P matters: n = 2 to 6 requests, prompts of 12 or 20 tokens and 2 to 4 output tokens, "
        "P = 6, C = 8; kappa = 2 and 3, all rules allowed.",
        tuple(instances),
    )
