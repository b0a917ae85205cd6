"""Decode attention on paged keys and values in Triton, with as many parts a request as its length has.

One program takes one request, one KV head with all query heads that share it, and `SPLIT` keys, and leaves a partial
result with the logarithm of its sum of exponentials; a second kernel adds the parts up ("flash decoding", Dao et al.
2023). Keys are read where they lie, once. How a request is cut depends on nothing but its own length, and nothing is
compiled anew for another batch.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

SPLIT = 256
"""Keys of a part."""
_KEYS = 64
"""Keys that are looked at together."""
_LEAST_ROWS = 16
"""Rows of the smallest matrix product."""


@triton.jit(do_not_specialize=["most_keys", "parts"])  # type: ignore[untyped-decorator, unused-ignore]
def _parts(  # type: ignore[no-untyped-def]
    queries, keys, values, slots, lengths, mixed, sums, scale, most_keys, parts, heads,
    GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, SPLIT: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    request, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    kv_heads = tl.num_programs(1)
    end = tl.minimum(tl.load(lengths + request), (part + 1) * SPLIT)
    row, dim = tl.arange(0, ROWS), tl.arange(0, WIDE)
    head = kv_head * GROUP + row
    inside = (row < GROUP)[:, None] & (dim < DIM)[None, :]
    query = tl.load(queries + (request * heads + head)[:, None] * DIM + dim[None, :], mask=inside, other=0.0)
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, WIDE], tl.float32)
    for begin in range(part * SPLIT, end, KEYS):
        place = begin + tl.arange(0, KEYS)
        slot = tl.load(slots + request * most_keys + place, mask=place < end, other=0)
        there = (place < end)[:, None] & (dim < DIM)[None, :]
        where = (slot * kv_heads + kv_head)[:, None] * DIM + dim[None, :]
        key = tl.load(keys + where, mask=there, other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        score = tl.where((place < end)[None, :], score, float("-inf"))
        higher = tl.maximum(highest, tl.max(score, 1))
        share = tl.exp(score - higher[:, None])
        fade = tl.exp(highest - higher)
        value = tl.load(values + where, mask=there, other=0.0)
        total = total * fade + tl.sum(share, 1)
        result = result * fade[:, None] + tl.dot(share.to(value.dtype), value, input_precision="ieee")
        highest = higher
    if part * SPLIT < end:
        slice_ = (request * parts + part) * heads + head
        tl.store(mixed + slice_[:, None] * DIM + dim[None, :], result / total[:, None], mask=inside)
        tl.store(sums + slice_, highest + tl.log(total), mask=row < GROUP)


@triton.jit(do_not_specialize=["parts"])  # type: ignore[untyped-decorator, unused-ignore]
def _add_up(  # type: ignore[no-untyped-def]
    mixed, sums, lengths, out, parts, heads, DIM: tl.constexpr, WIDE: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    request, head = tl.program_id(0), tl.program_id(1)
    dim = tl.arange(0, WIDE)
    used = tl.cdiv(tl.load(lengths + request), SPLIT)
    highest = float("-inf")
    total = 0.0
    result = tl.zeros([WIDE], tl.float32)
    for part in range(0, used):
        slice_ = (request * parts + part) * heads + head
        weight = tl.load(sums + slice_)
        higher = tl.maximum(highest, weight)
        share, fade = tl.exp(weight - higher), tl.exp(highest - higher)
        found = tl.load(mixed + slice_ * DIM + dim, mask=dim < DIM, other=0.0)
        result = result * fade + found * share
        total = total * fade + share
        highest = higher
    tl.store(out + (request * heads + head) * DIM + dim, result / total, mask=dim < DIM)


def attend_paged(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    lengths: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Attend from one token of each request to all its keys.

    Parameters
    ----------
    queries
        Shape (requests, heads, head_dim), contiguous.
    keys, values
        Shape (slots, kv_heads, head_dim), contiguous.
    slots
        Of each request's keys, shape (requests, most keys).
    lengths
        How many of these count, at least 1, shape (requests).
    out
        Takes the result; as ``queries``.
    """
    requests, heads, dim = queries.shape
    kv_heads, most_keys = keys.shape[1], slots.shape[1]
    parts, group = triton.cdiv(most_keys, SPLIT), heads // kv_heads
    sizes: dict[str, Any] = {"DIM": dim, "WIDE": max(triton.next_power_of_2(dim), 16), "SPLIT": SPLIT}
    mixed = torch.empty((requests, parts, heads, dim), dtype=torch.float32, device=queries.device)
    sums = torch.empty((requests, parts, heads), dtype=torch.float32, device=queries.device)
    rows = max(triton.next_power_of_2(group), _LEAST_ROWS)
    _parts[(requests, kv_heads, parts)](
        queries, keys, values, slots, lengths, mixed, sums, dim**-0.5, most_keys, parts, heads,
        GROUP=group, ROWS=rows, KEYS=_KEYS, **sizes,
    )  # fmt: skip
    _add_up[(requests, heads)](mixed, sums, lengths, out, parts, heads, **sizes)
