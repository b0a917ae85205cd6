"""Paged KV cache (Kwon et al., "PagedAttention", SOSP 2023): pages of a fixed size, a page table for each request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from optsched.hardware.transformer.shape import Shape

if TYPE_CHECKING:
    import torch

Slots = npt.NDArray[np.int64]
"""Places in the cache, a token each, in the order of the request's tokens."""


class FullCacheError(RuntimeError):
    """No page is free: the request holds more than the cache's capacity."""


class PagedCache:
    """Keys and values of all requests.

    Parameters
    ----------
    shape
        Of the model; what one device holds of it.
    layers
        How many layers have a cache of their own; the others take these in turn.
    pages, page_tokens
        Number of pages, and tokens of each.
    device
        Where they lie.

    Attributes
    ----------
    keys, values
        By layer, slot, KV head and place in the head; slot s is in page ``s // page_tokens``.
    """

    def __init__(self, shape: Shape, layers: int, pages: int, page_tokens: int, device: torch.device) -> None:
        import torch  # noqa: PLC0415  # an extra

        size = (layers, pages * page_tokens, shape.kv_heads, shape.head_dim)
        dtype: torch.dtype = getattr(torch, shape.dtype)
        # Zeros, and so memory that is really there, not only promised.
        self.keys = torch.zeros(size, dtype=dtype, device=device)
        self.values = torch.zeros(size, dtype=dtype, device=device)
        self._page_tokens = page_tokens
        self._free = list(range(pages - 1, -1, -1))
        self._held: dict[int, Slots] = {}

    @property
    def free_pages(self) -> int:
        """Free pages."""
        return len(self._free)

    def hold(self, request: int, tokens: int) -> Slots:
        """Let a request hold at least ``tokens`` tokens; return the slots of the first ones.

        Raises
        ------
        FullCacheError
            If too few pages are free.
        """
        held = self._held.get(request, np.empty(0, np.int64))
        missing = -(-(tokens - len(held)) // self._page_tokens)
        if missing > len(self._free):
            raise FullCacheError(f"request {request} needs {missing} more pages, {len(self._free)} are free")
        if missing > 0:
            pages = np.array([self._free.pop() for _ in range(missing)], np.int64)
            fresh = pages[:, None] * self._page_tokens + np.arange(self._page_tokens)
            held = self._held[request] = np.concatenate([held, fresh.ravel()])
        return held[:tokens]

    def release(self, request: int) -> None:
        """Free what a request holds."""
        held = self._held.pop(request, np.empty(0, np.int64))
        self._free.extend((held[:: self._page_tokens] // self._page_tokens).tolist()[::-1])
