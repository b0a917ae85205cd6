"""Attention of one layer over paged keys and values.

Two implementations of one protocol: `StepByStep` for CPUs, `OnCuda` for GPUs, where a kernel a step would cost
more to launch than to run. What either takes grows as the cost model says: decode steps with the keys that they read,
prefill steps with c² + 2 c m, as keys after a query are never looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from optsched.hardware.transformer.plan import Plan

if TYPE_CHECKING:
    import torch

_BLOCK = 64
"""Queries of a prefill step that are taken together; up to that number of keys after each are computed for nothing."""


class Attention(Protocol):
    """Attends from every token of a batch to all tokens of its request up to itself."""

    def __call__(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: Plan) -> torch.Tensor:
        """Return the mixed values, shape (T, heads, head_dim), as that of ``queries``.

        Parameters
        ----------
        queries
            Of every token, shape (T, heads, head_dim).
        keys, values
            The layer's cache, shape (slots, kv_heads, head_dim).
        plan
            The batch.
        """
        ...


class NoAttention:
    """Leaves attention out: what is measured then is everything else."""

    def __call__(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: Plan) -> torch.Tensor:
        """Return the queries (see `Attention`)."""
        return queries


class StepByStep:
    """Gathers the pages of one step after the other and lets PyTorch's own kernel attend.

    Parameters
    ----------
    most_keys
        The most keys that a step attends to.
    like
        A tensor of the model's dtype on its device.
    """

    def __init__(self, most_keys: int, like: torch.Tensor) -> None:
        import torch  # noqa: PLC0415  # an extra

        # Of a block of queries with n keys, the last n columns are the mask.
        mask = torch.full((_BLOCK, most_keys + _BLOCK), -torch.inf, dtype=like.dtype, device=like.device)
        self._mask, self._keys = mask.triu(most_keys + 1), most_keys

    def __call__(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: Plan) -> torch.Tensor:
        """Return the mixed values (see `Attention`)."""
        import torch  # noqa: PLC0415  # an extra
        from torch.nn.functional import scaled_dot_product_attention as attend  # noqa: PLC0415  # an extra

        mixed = torch.empty_like(queries)
        for first, count, slots in plan.prefills:
            near, far = _gathered(keys, slots), _gathered(values, slots)
            cached = slots.numel() - count
            for begin in range(0, count, _BLOCK):
                size = min(_BLOCK, count - begin)
                end = cached + begin + size
                rows = slice(first + begin, first + begin + size)
                query = queries[rows].transpose(0, 1)[None]
                mask = self._mask[:size, self._keys + size - end : self._keys + size]
                found = attend(query, near[:, :, :end], far[:, :, :end], attn_mask=mask, enable_gqa=True)
                mixed[rows] = found[0].transpose(0, 1)
        # A decode step's query heads that share a KV head are as good as queries of their own: nothing need be
        # repeated.
        groups = (1, keys.shape[1], -1, keys.shape[2])
        for row, length in enumerate(plan.lengths):
            slots = plan.decode_slots[row, :length]
            query = queries[plan.first_decode + row].view(groups)
            near, far = _gathered(keys, slots), _gathered(values, slots)
            mixed[plan.first_decode + row] = attend(query, near, far).view(queries.shape[1:])
        return mixed


class OnCuda:
    """Prefill steps by flash attention on gathered pages; all decode steps at once, on pages where they lie."""

    def __call__(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: Plan) -> torch.Tensor:
        """Return the mixed values (see `Attention`)."""
        import torch  # noqa: PLC0415  # an extra
        from torch.nn.attention.bias import causal_lower_right  # noqa: PLC0415  # an extra
        from torch.nn.functional import scaled_dot_product_attention as attend  # noqa: PLC0415  # an extra

        mixed = torch.empty_like(queries)
        for first, count, slots in plan.prefills:
            near, far = _gathered(keys, slots), _gathered(values, slots)
            query = queries[first : first + count].transpose(0, 1)[None]
            mask = causal_lower_right(count, slots.numel())
            mixed[first : first + count] = attend(query, near, far, attn_mask=mask, enable_gqa=True)[0].transpose(0, 1)
        if plan.lengths:
            from optsched.hardware.transformer.decode_kernel import attend_paged  # noqa: PLC0415  # it needs Triton

            rows = slice(plan.first_decode, None)
            attend_paged(queries[rows], keys, values, plan.decode_slots, plan.decode_keys, mixed[rows])
        return mixed


def _gathered(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Return the keys or values in some slots, in PyTorch's order: shape (1, kv_heads, len(slots), head_dim)."""
    return cache.index_select(0, slots).transpose(0, 1)[None]
