"""The shipped cost profiles and their documents.

A profile is a cost model together with where it comes from and how wrong it is. This module is imported
wherever a profile is named, so it needs neither numpy nor scipy.
"""

from __future__ import annotations

import functools
import hashlib
import json
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from optsched.model.cost import CostModel
from optsched.model.domain import Tokens, domain, input_error
from optsched.model.errors import InputError

PROFILE_FORMAT: Final = "optsched-profile/1"

Fraction = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Range = tuple[Annotated[int, Field(ge=0)], Tokens]
"""Least and largest measured value, both included."""


@domain
class Source:
    """A data file that coefficients were fitted to, or statistics taken from.

    Parameters
    ----------
    file
        Path within the data folder.
    repository, commit, licence
        Where the file was copied from.
    sha256
        Digest of the file as read.
    """

    file: str
    repository: str
    commit: str
    licence: str
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def file_source(data: Path, file: str, origin: tuple[str, str, str]) -> Source:
    """Return the source of a file in the folder ``data``; ``origin`` is repository, commit and licence."""
    repository, commit, licence = origin
    digest = hashlib.sha256((data / file).read_bytes()).hexdigest()
    return Source(file=file, repository=repository, commit=commit, licence=licence, sha256=digest)


@domain
class Methods:
    """How each part was fitted, a sentence each."""

    non_attention: str
    decode_attention: str
    prefill_attention: str


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
    """

    rows: Annotated[int, Field(ge=1)]
    r2: Annotated[float, Field(le=1, allow_inf_nan=False)]
    mape: Fraction
    worst: Fraction
    cv_mape: Fraction


@domain
class FitErrors:
    """The error of each part, of the rounded coefficients as shipped."""

    non_attention: FitError
    decode_attention: FitError
    prefill_attention: FitError


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
        How each part was fitted.
    sources
        The data files behind it.
    fit
        How well it fits them.
    valid
        The measured ranges.
    notes
        What a user should know before trusting it.
    """

    format: Literal["optsched-profile/1"]
    name: str
    description: str
    coefficients: CostModel
    hardware: str
    model: str
    method: Methods
    sources: tuple[Source, ...]
    fit: FitErrors
    valid: Valid
    notes: tuple[str, ...]

    @property
    def cost(self) -> CostModel:
        """The cost model."""
        return self.coefficients


_PROFILE = TypeAdapter(Profile)
_SUFFIX = ".json"


def parse_profile(text: str, source: str | None = None) -> Profile:
    """Read a profile document; `InputError` names ``source`` and the field that is wrong."""
    try:
        return _PROFILE.validate_json(text)
    except ValidationError as error:
        complaint = input_error(error)
        raise (complaint.located(source) if source else complaint) from None


def render_profile(profile: Profile) -> str:
    """Write a profile document; equal profiles give equal bytes."""
    return json.dumps(_PROFILE.dump_python(profile, mode="json"), indent=2, ensure_ascii=False) + "\n"


@functools.cache
def profile_names() -> tuple[str, ...]:
    """Return the names of the shipped profiles, sorted."""
    entries = (files("optsched.calibrate") / "profiles").iterdir()
    return tuple(sorted(e.name.removesuffix(_SUFFIX) for e in entries if e.name.endswith(_SUFFIX)))


@functools.cache
def load_profile(name: str) -> Profile:
    """Return the shipped profile called ``name``; `InputError` lists the names if there is none."""
    if name not in profile_names():
        raise InputError("profile", name, f"one of {', '.join(profile_names())}")
    resource = files("optsched.calibrate") / "profiles" / f"{name}{_SUFFIX}"
    return parse_profile(resource.read_text(encoding="utf-8"), str(resource))


def cost_model(name: str) -> CostModel:
    """Return the cost model of the shipped profile called ``name``."""
    return load_profile(name).cost
