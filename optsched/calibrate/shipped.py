"""How the shipped profiles are made from the public tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from optsched.calibrate.assemble import Calibration, Choices, calibrate
from optsched.calibrate.library import Profile, Source, file_source
from optsched.calibrate.llmservingsim import read_llmservingsim
from optsched.calibrate.timings import Array, Measurements, SourceOptions, Timings
from optsched.calibrate.vidur import read_attention, read_vidur
from optsched.model.cost import CostModel

LAYERS = 32
"""Of Llama-2-7B, and of Llama-3.1-8B."""
LAYERS_70B = 80

DENSE_FILE = "vidur/profiling/compute/a100/meta-llama/Llama-2-7b-hf/mlp.csv.gz"
ATTENTION_FILE = "vidur/profiling/a100/attention_llama2_7b_tp1_selected_rows.csv"
CHECK_FILE = "frontier/profiling/compute/a800/meta-llama/Llama-2-7b-hf/attention.csv.gz"
DENSE_70B_FILE = "vidur/profiling/compute/a100/meta-llama/Meta-Llama-3-70B/mlp.csv.gz"
ATTENTION_70B_FILE = "vidur/profiling/a100/attention_70b_tp2.csv.gz"
NETWORK_FILE = "vidur/profiling/network/a100_dgx/all_reduce.csv.gz"
RTX_FOLDER = "llmservingsim/RTXPRO6000/Llama-3.1-8B/profile_bf16_tp1"
RTX_KV_TOKENS = 560_000
"""What vLLM has left for KV on this GPU: 0.9 of 95 GiB, less 15 GiB of weights and 2 GiB of activations, at 128 KiB a
token (32 layers × K and V × 8 heads × 128 numbers × 2 bytes)."""
_VIDUR = ("microsoft/vidur", "7d47513363ec447a741ac5e47241580b47724fbf", "MIT")
_FRONTIER = ("NetX-lab/Frontier", "a4b22df82118", "MIT")
_LLMSERVINGSIM = ("casys-kaist/LLMServingSim", "5daddb21a545", "MIT")


_LEFT_OUT = "LM head, sampling, writing the KV cache and CPU time are not in the tables, nor in the profile."
_WHOLE_MODEL = "Times are those of a layer's operators (medians, `add` once) for every layer, plus the embedding once."


@dataclass(frozen=True, slots=True)
class _Recipe:
    name: str
    description: str
    choices: Choices
    read: Callable[[Path], Measurements]
    notes: tuple[str, ...]
    compared: bool = False
    """With the A800's attention kernels."""


def build_profiles(data: Path) -> tuple[Profile, ...]:
    """Fit the shipped profiles to the tables in the folder ``data``."""
    return tuple(build(name, data).profile for name in RECIPES)


def build(name: str, data: Path) -> Calibration:
    """Fit one of the shipped profiles."""
    recipe = RECIPES[name]
    measured = recipe.read(data)
    found = calibrate(measured, recipe.name, recipe.description, recipe.choices, recipe.notes)
    if not recipe.compared:
        return found
    more = _comparison(data, measured, found.profile.cost, recipe.choices)
    profile = dataclasses.replace(found.profile, notes=(*found.profile.notes, more))
    return dataclasses.replace(found, profile=profile)


def _sources(data: Path, files: tuple[str, ...], origin: tuple[str, str, str]) -> tuple[Source, ...]:
    return tuple(file_source(data, file, origin) for file in files)


def _llama2_7b(data: Path) -> Measurements:
    options = SourceOptions(layers=LAYERS, attention=str(data / ATTENTION_FILE))
    return dataclasses.replace(
        read_vidur(str(data / DENSE_FILE), options),
        hardware="NVIDIA A100 80 GB, tensor parallel 1",
        model="meta-llama/Llama-2-7b-hf, 32 layers, 16 bit",
        sources=(
            *_sources(data, (DENSE_FILE, ATTENTION_FILE), _VIDUR),
            *_sources(data, (CHECK_FILE,), _FRONTIER),
        ),
        notes=(_LEFT_OUT, _WHOLE_MODEL),
    )


def _llama3_70b(data: Path) -> Measurements:
    options = SourceOptions(
        layers=LAYERS_70B,
        tensor_parallel=2,
        attention=str(data / ATTENTION_70B_FILE),
        network=str(data / NETWORK_FILE),
    )
    return dataclasses.replace(
        read_vidur(str(data / DENSE_70B_FILE), options),
        hardware="2 × NVIDIA A100 80 GB (DGX), tensor parallel 2",
        model="meta-llama/Meta-Llama-3-70B, 80 layers, 16 bit",
        sources=_sources(data, (DENSE_70B_FILE, ATTENTION_70B_FILE, NETWORK_FILE), _VIDUR),
        notes=(_LEFT_OUT, f"{_WHOLE_MODEL[:-1]}, and two all-reduces a layer."),
    )


def _rtx(data: Path) -> Measurements:
    found = read_llmservingsim(str(data / RTX_FOLDER), SourceOptions(layers=LAYERS))
    files = tuple(f"{RTX_FOLDER}/{source.file}" for source in found.sources)
    return dataclasses.replace(
        found,
        hardware=f"{found.hardware}, tensor parallel 1",
        sources=_sources(data, files, _LLMSERVINGSIM),
    )


_PREFILL_NOTE = (
    "Prefill attention of this kernel is about (5.7 c² + 4.2 c m) ns + 1.2 ms (mean error 5.7 %). "
    "The form c² + 2 c m, whose sum does not depend on how a prompt is cut, ties the two terms: no "
    "coefficients bring the mean error below 19.9 %, and prefill_kv is 0. Prefills on an empty cache "
    "are underestimated, late chunks overestimated, both by up to 60 %."
)
_DECODE_NOTE = (
    "Decode attention was measured at 32 and 1216 cached tokens only, all requests of a batch alike. "
    "The kernel has a fixed cost of about 0.2 ms per batch, which this profile leaves out: one to three requests at 32 "
    "tokens take 1.9 to 5.9 times as long as it says, and no coefficients bring the mean error below 6.8 %. "
    "a100-llama2-7b has it in its base."
)


def _comparison(data: Path, measured: Measurements, cost: CostModel, choices: Choices) -> str:
    """Say how far the A800's attention times, and the same fit to them, are from ours."""
    ours = measured.attention
    check = read_attention(data / CHECK_FILE, LAYERS)
    if ours is None:
        raise TypeError("nothing to compare")
    theirs = calibrate(dataclasses.replace(measured, attention=check), "check", "", choices).profile.cost
    coefficients = []
    for name in ("decode_kv", "decode_req", "prefill_sq", "prefill_kv", "prefill_req"):
        own, other = getattr(cost, name), getattr(theirs, name)
        coefficients.append(f"{name} {other} ({f'{other / own:.2f} of ours' if own else 'ours is 0'})")
    decode, decodes = _median_ratio(ours[ours.only_decodes], check[check.only_decodes])
    prefill, prefills = _median_ratio(ours[ours.only_prefills], check[check.only_prefills])
    return (
        f"Cross-check with {len(check)} attention times of FlashInfer's kernels on an A800 (an A100 with slower "
        f"NVLink): at shapes in both tables they take {decode:.2f} (decode, {decodes} shapes) and "
        f"{prefill:.2f} (prefill, {prefills} shapes) of our time in the median; the same fit gives "
        f"{', '.join(coefficients)}."
    )


def _median_ratio(ours: Timings, others: Timings) -> tuple[float, int]:
    """Return the median of (their time / our time) over the shapes in both tables, and their number."""
    known, theirs = _by_shape(ours), _by_shape(others)
    ratios = [theirs[shape] / time for shape, time in known.items() if shape in theirs]
    return median(ratios), len(ratios)


def _by_shape(timings: Timings) -> dict[tuple[float, ...], float]:
    columns: tuple[Array, ...] = (
        timings.decodes,
        timings.decode_kv,
        timings.chunk,
        timings.prefill_kv,
    )
    shapes = zip(*(column.tolist() for column in columns), strict=True)
    return dict(zip(shapes, timings.times.tolist(), strict=True))


RECIPES = {
    recipe.name: recipe
    for recipe in (
        _Recipe(
            name="a100-llama2-7b",
            description="Llama-2-7B on one A100 80 GB: three affine pieces, small relative errors at any size.",
            choices=Choices(pieces=3),
            read=_llama2_7b,
            notes=(
                "Decode attention was measured at 32 and 1216 cached tokens only, all requests of a batch alike. "
                "Decode and prefill "
                "steps have kernels of their own, so that a hybrid batch takes one call's 0.2 ms more than this "
                "profile says.",
                _PREFILL_NOTE,
            ),
            compared=True,
        ),
        _Recipe(
            name="a100-llama2-7b-nocall",
            description=(
                "Llama-2-7B on one A100 80 GB: as a100-llama2-7b, without what an attention call takes once; the "
                "suites are on it."
            ),
            choices=Choices(pieces=3, call=False),
            read=_llama2_7b,
            notes=(_DECODE_NOTE, _PREFILL_NOTE),
            compared=True,
        ),
        _Recipe(
            name="a100-llama2-7b-linear",
            description="Llama-2-7B on one A100 80 GB: InferMax's linear model, one affine piece.",
            choices=Choices(pieces=1, relative=False, call=False),
            read=_llama2_7b,
            notes=(
                "Ordinary least squares follow the large batches: small ones take up to 2.6 times as long as "
                "this profile says, and its base lies below the time of reading the weights once. Use "
                "a100-llama2-7b where decode batches matter.",
                _DECODE_NOTE,
                _PREFILL_NOTE,
            ),
            compared=True,
        ),
        _Recipe(
            name="a100-llama3-70b-tp2",
            description="Llama-3-70B on two A100 80 GB with tensor parallelism: kernels and two all-reduces a layer.",
            choices=Choices(pieces=3),
            read=_llama3_70b,
            notes=(
                "Attention was measured with two GPUs only (32 query and 4 KV heads each); what four would take "
                "cannot be derived from "
                "that, so there is no profile of four. Two GPUs hold the weights and little else.",
                "The prefill kernel's c² and c m terms are not in the ratio 1 : 2 of the form c² + 2 c m (about 1 : "
                "0.84), whose sum does "
                "not depend on how a prompt is cut: whole prompts are underestimated, late chunks overestimated.",
            ),
        ),
        _Recipe(
            name="rtxpro6000-llama31-8b",
            description=(
                "Llama-3.1-8B on one RTX PRO 6000 (96 GB): kernels of vLLM 0.19, hybrid attention calls, LM head and "
                "sampler."
            ),
            choices=Choices(pieces=3, kv_tokens=RTX_KV_TOKENS),
            read=_rtx,
            notes=(
                "One attention call serves decode and prefill steps together, and takes longer than its halves (see "
                "the checks): no "
                "coefficients fit pure and hybrid calls at once, and the errors of attention are those of a "
                "compromise (batch_mape says "
                f"what they mean to a batch). Calls on more than the {RTX_KV_TOKENS:,} KV tokens that the GPU holds "
                "are left out.",
            ),
        ),
    )
}
