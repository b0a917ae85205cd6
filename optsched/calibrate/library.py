"""The shipped cost profiles and their documents.

A profile is a cost model together with where it comes from and how wrong it is. This module is imported
wherever a profile is named, so it needs neither numpy nor scipy.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter

from optsched.model.cost import CostModel
from optsched.model.documents import cost_document, read_text
from optsched.model.domain import Name, Picoseconds, domain
from optsched.model.errors import InputError, require_type
from optsched.model.json_text import parse_json
from optsched.model.profiles import profile_file, shipped_cost

PROFILE_FORMAT: Final = "optsched-profile/1"

Fraction = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Range = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]]
"""Least and largest measured value, both included."""


@domain
class Source:
    """A data file that coefficients were fitted to, or statistics taken from.

    Parameters
    ----------
    file
        Path within the data folder.
    repository, commit, licence
        Where the file was copied from; None for a user's own.
    sha256
        Digest of the file as read.
    """

    file: Name
    repository: Name | None
    commit: Name | None
    licence: Name | None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def file_source(data: Path, file: str, origin: tuple[str | None, str | None, str | None]) -> Source:
    """Return the source of a file in the folder ``data``; ``origin`` is repository, commit and licence."""
    repository, commit, licence = origin
    digest = hashlib.sha256((data / file).read_bytes()).hexdigest()
    return Source(file=file, repository=repository, commit=commit, licence=licence, sha256=digest)


class Part(StrEnum):
    """What is measured and fitted by itself."""

    NON_ATTENTION = "non_attention"
    DECODE_ATTENTION = "decode_attention"
    PREFILL_ATTENTION = "prefill_attention"
    HYBRID_ATTENTION = "hybrid_attention"
    PER_SEQUENCE = "per_sequence"
    CPU_OVERHEAD = "cpu_overhead"
    SWAP_OUT = "swap_out"
    SWAP_IN = "swap_in"
    BATCH = "batch"


@domain
class FitError:
    """How far predictions p are from n measured times y.

    Parameters
    ----------
    rows
        n.
    r2
        ``1 − Σ (p − y)² / Σ (y − ȳ)²``: about the mean, also for models without an intercept.
    mape
        Mean of ``|p − y| / y``, a fraction (0.03 is 3 %).
    worst
        Maximum of ``|p − y| / y``.
    cv_mape
        ``mape`` of rows that the fit had not seen (cross-validation).
    batch_mape
        Mean of ``|p − y|`` over the time of the whole batch that the row belongs to, all parts together: what an
        error of this part means to a schedule. None where there is no such batch.
    """

    rows: Annotated[int, Field(ge=1)]
    r2: Annotated[float, Field(le=1, allow_inf_nan=False)]
    mape: Fraction
    worst: Fraction
    cv_mape: Fraction
    batch_mape: Fraction | None = None


@domain
class Component:
    """A fitted number, in ps per what it multiplies, of which coefficients are put together.

    Parameters
    ----------
    value
        As fitted, rounded.
    low, high
        Its confidence interval of 95 %: how well the rows determine it, not how right the form is. Null where they do
        not.
    """

    value: Picoseconds
    low: Picoseconds | None = None
    high: Picoseconds | None = None


@domain
class Check:
    """Where the form of the cost model was put to the test: pairs of times that it takes to be equal.

    Parameters
    ----------
    claim
        What would be equal, and what was compared.
    rows
        Number of pairs.
    mean, low, high
        Mean, 1st and 99th percentile of (the form's time / the measured one).
    mape
        Mean of ``|ratio − 1|``, a fraction.
    """

    claim: Name
    rows: Annotated[int, Field(ge=1)]
    mean: Fraction
    low: Fraction
    high: Fraction
    mape: Fraction


@domain
class Valid:
    """What was measured; outside these ranges a profile extrapolates.

    Parameters
    ----------
    tokens
        Tokens of a batch.
    decode_batch, decode_kv
        Requests of a decode batch, and cached tokens of each.
    prefill_chunk, prefill_kv
        Tokens that a prefill step runs, and tokens cached before it.
    """

    tokens: Range
    decode_batch: Range
    decode_kv: Range
    prefill_chunk: Range
    prefill_kv: Range


@domain
class Profile:
    """A cost model with its provenance (format ``optsched-profile/1``).

    Parameters
    ----------
    format, name, description
        The document's format, and what the profile is called and is for.
    coefficients
        The cost model, in integer ps.
    hardware, model
        What was measured.
    method
        How each part was fitted, a sentence each.
    sources
        The data files behind it.
    fit
        The error of each part, of the rounded coefficients as shipped.
    valid
        The measured ranges.
    notes
        What a user should know before trusting it.
    components
        What was fitted, part by part, and of which the coefficients are sums: a base holds all that a batch takes once
        (``…base``, ``attention.call``), decode_req and prefill_req hold ``….request`` too.
    checks
        Where the form was put to the test.
    """

    format: Literal["optsched-profile/1"]
    name: Name
    description: Name
    coefficients: CostModel
    hardware: Name
    model: Name
    method: Mapping[Part, Name]
    sources: tuple[Source, ...]
    fit: Mapping[Part, FitError]
    valid: Valid
    notes: tuple[Name, ...]
    components: Mapping[str, Component] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()

    @property
    def cost(self) -> CostModel:
        """The cost model."""
        return self.coefficients


_PROFILE, _COST, _OBJECT = TypeAdapter(Profile), TypeAdapter(CostModel), TypeAdapter(dict[str, Any])
_SUFFIX = ".json"


def parse_profile(text: str, source: str | None = None) -> Profile:
    """Read a profile document; `InputError` names ``source`` and the field that is wrong."""
    try:
        return parse_json(_PROFILE, text)
    except InputError as error:
        raise (error.located(source) if source else error) from None


def render_profile(profile: Profile) -> str:
    """Write a profile document; equal profiles give equal bytes."""
    document = _PROFILE.dump_python(profile, mode="json") | {"coefficients": cost_document(profile.cost)}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


@functools.cache
def load_profile(name: str) -> Profile:
    """Return the shipped profile called ``name``; `InputError` lists the names if there is none."""
    resource = profile_file(name)
    return parse_profile(resource.read_text(encoding="utf-8"), str(resource))


def find_profile(name: str) -> Profile:
    """Return the shipped profile called ``name``, or read the document if it is a file's name (``.json``)."""
    if not name.endswith(_SUFFIX):
        return load_profile(name)
    return parse_profile(read_text(name), name)


def find_cost(name: str, folder: Path | None = None) -> CostModel:
    """Return the cost model of a shipped profile, or of a file (``.json``): a profile, or coefficients alone.

    Parameters
    ----------
    name
        The profile's name, or the file.
    folder
        Where a relative file is; None for the current folder.
    """
    require_type("profile", name, str, "the name of a profile, or a file")
    if not name.endswith(_SUFFIX):
        return shipped_cost(name)
    file = name if folder is None else str(folder / name)
    text = read_text(file)
    try:
        if "format" in parse_json(_OBJECT, text):
            return parse_profile(text).cost
        return parse_json(_COST, text)
    except InputError as error:
        raise error.located(file) from None


def cost_model(name: str) -> CostModel:
    """Return the cost model of the shipped profile called ``name``."""
    require_type("profile", name, str, "the name of a profile")
    return shipped_cost(name)
