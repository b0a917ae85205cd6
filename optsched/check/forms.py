"""What the form of a batch breaks, on one machine and on each of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations

from optsched.model.schedule import Batch


def broken_form(batch: Batch) -> Iterator[str]:
    """Say what is wrong with a batch whatever its requests have done before."""
    if not batch.run:
        yield "has 0 runs, at least 1 is required"
    named = [*(index for index, _ in batch.run), *batch.evict, *batch.swap_out, *batch.swap_in]
    if len(set(named)) == len(named):
        return
    running = Counter(index for index, _ in batch.run)
    evicted, left, back = Counter(batch.evict), Counter(batch.swap_out), Counter(batch.swap_in)
    actions = [("runs", running), ("is evicted", evicted), ("is swapped out", left), ("is swapped in", back)]
    for action, found in actions:
        for index, times in found.items():
            if times > 1:
                yield f"request {index} {action} {times} times, at most 1 is allowed"
    for (action, found), (other, others) in combinations(reversed(actions), 2):
        for index in found:
            if index in others and {action, other} != {"runs", "is swapped in"}:
                yield f"request {index} {action} and {other}, only 1 of both is allowed"


def broken_repeats(batch: Batch, times: int, to_generate: Callable[[int], int | None]) -> str:
    """Say why a batch cannot be repeated that often; nothing if it can.

    ``to_generate`` returns how many tokens a request still has to generate whose next step here is a decode step; None
    for any other request.
    """
    others = {
        "evicts": batch.evict,
        "swaps out": batch.swap_out,
        "swaps in": batch.swap_in,
        "drops blocks of": [request for request, _ in batch.drop],
        "has hits of": [request for request, _ in batch.hits],
    }
    wrong = next((f"it {name} request {indices[0]}" for name, indices in others.items() if indices), "")
    seen: set[int] = set()
    for index, count in batch.run:
        left = to_generate(index)
        if left is None or count != 1 or index in seen:
            wrong = wrong or f"it runs {count} tokens of request {index} in what is no decode step"
        elif left < times:
            wrong = wrong or f"request {index} has only {left} tokens to generate"
        seen.add(index)
    return f"is repeated {times} times, but {wrong}" if wrong else ""
