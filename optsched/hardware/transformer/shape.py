"""The shape of a decoder-only transformer: all that its kernels' times depend on."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from optsched.model.documents import read_bytes
from optsched.model.domain import Name, domain, input_error, replace
from optsched.model.errors import InputError, Said, one_of
from optsched.model.json_text import load_json

Size = Annotated[int, Field(ge=1, le=10**7)]
_BYTES = MappingProxyType({"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2})


@domain
class Shape:
    """A decoder-only transformer of the Llama kind: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

    Parameters
    ----------
    name
        What it is called.
    hidden, layers
        Width of the residual stream, number of layers.
    heads, kv_heads, head_dim
        Query heads; key and value heads, each shared by ``heads / kv_heads`` query heads; width of a head, even.
    mlp
        Inner width of the gated MLP.
    vocabulary
        Tokens; embedding and LM head are separate.
    dtype
        Of weights, activations and KV.
    tensor_parallel
        Number of devices that share every layer; one device's share of heads, MLP and vocabulary is run, and no
        collectives.
    """

    name: Name
    hidden: Size
    layers: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    mlp: Size
    vocabulary: Size
    dtype: Literal["float64", "float32", "bfloat16", "float16"] = "bfloat16"
    tensor_parallel: Size = 1

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise InputError("kv_heads", self.kv_heads, f"a divisor of heads = {self.heads}")
        if self.head_dim % 2:
            raise InputError("head_dim", self.head_dim, "an even number, for rotary positions")
        for field in ("heads", "mlp", "vocabulary"):
            if getattr(self, field) % self.tensor_parallel:
                raise InputError(field, getattr(self, field), f"a multiple of tensor_parallel = {self.tensor_parallel}")
        if self.kv_heads % self.tensor_parallel and self.tensor_parallel % self.kv_heads:
            expected = f"a multiple or a divisor of kv_heads = {self.kv_heads}"
            raise InputError("tensor_parallel", self.tensor_parallel, expected)

    @property
    def share(self) -> Shape:
        """What one of the devices runs; with more devices than KV heads, several hold the same one."""
        devices = self.tensor_parallel
        return replace(
            self,
            heads=self.heads // devices,
            kv_heads=max(self.kv_heads // devices, 1),
            mlp=self.mlp // devices,
            vocabulary=self.vocabulary // devices,
            tensor_parallel=1,
        )

    @property
    def element_bytes(self) -> int:
        """Bytes of a number."""
        return _BYTES[self.dtype]

    @property
    def layer_bytes(self) -> int:
        """Bytes of a layer's weights, of all devices together."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.element_bytes * (attention + 3 * self.hidden * self.mlp + 2 * self.hidden)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        ends = 2 * self.vocabulary * self.hidden + self.hidden
        return self.layers * self.layer_bytes + self.element_bytes * ends

    @property
    def kv_bytes(self) -> int:
        """Bytes of a token's keys and values in all layers."""
        return 2 * self.element_bytes * self.layers * self.kv_heads * self.head_dim

    def document(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        shape.name: shape
        for shape in (
            Shape("tiny", 256, 4, 8, 2, 32, 768, 256, "float32"),
            # Touvron et al. 2023, Llama 2; Grattafiori et al. 2024, The Llama 3 Herd of Models, table 3.
            Shape("llama2-7b", 4096, 32, 32, 32, 128, 11008, 32000),
            Shape("llama3-8b", 4096, 32, 32, 8, 128, 14336, 128256),
        )
    }
)
"""Shapes that have a name; ``tiny`` is for CPUs and tests."""

_SHAPE = TypeAdapter(Shape)


def read_shape(source: str) -> Shape:
    """Return a shape by name, or from a ``.toml`` or ``.json`` file with the fields of `Shape`.

    Raises
    ------
    InputError
        If there is no such shape, or the file does not describe one.
    """
    if source in SHAPES:
        return SHAPES[source]
    suffix = Path(source).suffix
    if suffix not in {".toml", ".json"}:
        raise InputError("shape", source, f"a .toml or .json file, or {one_of(source, SHAPES)}")
    data = read_bytes(source)
    try:
        fields = tomllib.loads(data.decode()) if suffix == ".toml" else load_json(data)
    except InputError as error:
        raise error.located(source) from None
    except (ValueError, RecursionError) as error:
        raise InputError("", Said(str(error)), "TOML", source) from None
    if isinstance(fields, dict):
        fields.setdefault("name", Path(source).stem)
    try:
        return _SHAPE.validate_json(json.dumps(fields, default=str))
    except ValidationError as error:
        raise input_error(error).located(source) from None
