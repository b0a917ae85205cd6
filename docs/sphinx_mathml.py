"""Formulas as MathML, which browsers draw and screen readers read without a script or a network."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert

_FENCES = MappingProxyType({r"\lceil": "⌈", r"\rceil": "⌉", r"\lfloor": "⌊", r"\rfloor": "⌋", r"\{": "{", r"\}": "}"})
"""What latex2mathml prints as it is written behind ``\\big`` and its kin, and the sign that is meant."""
_LARGE_FENCE = re.compile(r"(\\[bB]igg?[lrm]?)\s*(" + "|".join(map(re.escape, _FENCES)) + ")")
_TEXT = re.compile(r"\\text\{[^}]*\}")


def setup(app: Any) -> dict[str, bool]:
    """Register the renderer ``mathml``."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(convert(_spelled_out(node.astext())))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    text = node.astext().strip()
    if r"\\" in text and r"\begin" not in text:
        text = rf"\begin{{align*}}{text}\end{{align*}}"
    # latex2mathml knows the environment only under this name.
    text = text.replace("{aligned}", "{align*}")
    translator.body.append(f'<div class="math">{convert(_spelled_out(text), display="block")}</div>\n')
    raise nodes.SkipNode


def _spelled_out(text: str) -> str:
    r"""Return a formula without the commands that latex2mathml would print: large fences, and ``\_`` within text."""
    text = _LARGE_FENCE.sub(lambda found: found[1] + _FENCES[found[2]], text)
    return _TEXT.sub(lambda found: found[0].replace(r"\_", "_"), text)
