"""A decoder-only transformer with random weights: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

With x the residual stream of all tokens of a batch, one row each, a layer is (Touvron et al. 2023, Llama)::

    q, k, v  =  norm(x) W_qkv, q and k turned by their positions
    x       +=  attention(q, K, V) W_o
    x       +=  (silu(norm(x) W_gate) ⊙ norm(x) W_up) W_down

where k and v have been put into the paged cache before. The last rows give the next tokens, greedily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from optsched.hardware.transformer.attention import Attention
from optsched.hardware.transformer.cache import PagedCache
from optsched.hardware.transformer.plan import Plan
from optsched.hardware.transformer.shape import Shape

if TYPE_CHECKING:
    import torch

_BASE = 10_000.0
"""Of the rotary frequencies (Su et al. 2021)."""


class Layer(NamedTuple):
    """Weights of a layer, inputs by outputs."""

    before_attention: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    before_mlp: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class Transformer:
    """The model, or one device's share of it.

    Parameters
    ----------
    shape
        Of the whole model.
    positions
        The most tokens of a request.
    device
        Where the weights lie.
    distinct
        How many layers have weights of their own; the others take these in turn, for models that are larger than
        memory. All of them by default.
    seed
        Of the weights.

    Attributes
    ----------
    shape
        What the device runs.
    layers, embedding, norm, head
        The weights.
    """

    def __init__(
        self, shape: Shape, positions: int, device: torch.device, *, distinct: int | None = None, seed: int = 0
    ) -> None:
        import torch  # noqa: PLC0415  # an extra

        share = self.shape = shape.share
        dtype: torch.dtype = getattr(torch, shape.dtype)
        generator = torch.Generator(device).manual_seed(seed)

        def weights(inputs: int, outputs: int, summed: int) -> torch.Tensor:
            # A sum of that number of products keeps its size.
            drawn = torch.empty((inputs, outputs), dtype=dtype, device=device)
            return drawn.normal_(0, summed**-0.5, generator=generator)

        def product(inputs: int, outputs: int) -> torch.Tensor:
            return weights(inputs, outputs, inputs)

        def norm() -> torch.Tensor:
            return torch.ones(share.hidden, dtype=dtype, device=device)

        width = share.heads * share.head_dim
        self.layers = [
            Layer(
                norm(),
                product(share.hidden, width + 2 * share.kv_heads * share.head_dim),
                product(width, share.hidden),
                norm(),
                product(share.hidden, 2 * share.mlp),
                product(share.mlp, share.hidden),
            )
            for _ in range(share.layers if distinct is None else distinct)
        ]
        self.embedding = weights(share.vocabulary, share.hidden, 1)
        self.norm, self.head = norm(), product(share.hidden, share.vocabulary)
        places = torch.arange(share.head_dim // 2, dtype=torch.float64, device=device)
        steps = _BASE ** (-places / (share.head_dim // 2))
        angles = torch.arange(positions, dtype=torch.float64, device=device)[:, None] * steps
        exact = shape.dtype == "float64"
        self._turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex128 if exact else torch.complex64)

    def next_tokens(self, tokens: torch.Tensor, plan: Plan, cache: PagedCache, attention: Attention) -> torch.Tensor:
        """Run a batch, leaving keys and values in the cache; return the tokens that its last rows give.

        To run it again changes nothing.

        Parameters
        ----------
        tokens
            Of the batch, as ``plan`` has them, shape (T).
        plan
            Their positions.
        cache
            Holds the keys and values.
        attention
            Attends.
        """
        import torch  # noqa: PLC0415  # an extra
        from torch.nn.functional import rms_norm, silu  # noqa: PLC0415  # an extra

        shape, size = self.shape, (self.shape.hidden,)
        heads, both = shape.heads, shape.heads + shape.kv_heads
        x = self.embedding[tokens]
        turns = self._turns[plan.positions][:, None]
        for number in range(shape.layers):
            layer, place = self.layers[number % len(self.layers)], number % len(cache.keys)
            keys, values = cache.keys[place], cache.values[place]
            qkv = (rms_norm(x, size, layer.before_attention, 1e-5) @ layer.qkv).view(len(x), -1, shape.head_dim)
            turned = _turned(qkv[:, :both], turns)
            keys.index_copy_(0, plan.slots, turned[:, heads:])
            values.index_copy_(0, plan.slots, qkv[:, both:])
            mixed = attention(turned[:, :heads].contiguous(), keys, values, plan)
            x = torch.addmm(x, mixed.view(len(x), -1), layer.out)
            gate, up = (rms_norm(x, size, layer.before_mlp, 1e-5) @ layer.gate_up).chunk(2, 1)
            x = torch.addmm(x, silu(gate) * up, layer.down)
        logits = rms_norm(x[plan.last], size, self.norm, 1e-5) @ self.head
        return logits.argmax(1)


def _turned(heads: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Turn each pair of neighbours in every head by its position, as a complex number."""
    import torch  # noqa: PLC0415  # an extra

    pairs = heads.to(turns.real.dtype).unflatten(2, (-1, 2))
    return torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turns).flatten(2).to(heads.dtype)
