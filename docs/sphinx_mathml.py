"""Formulas as MathML, which browsers draw and screen readers read without a script or a network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert


def setup(app: Any) -> dict[str, bool]:
    """Register the renderer ``mathml``."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    text = node.astext().strip()
    if r"\\" in text and r"\begin" not in text:
        text = rf"\begin{{align*}}{text}\end{{align*}}"
    # latex2mathml knows the environment only under this name.
    text = text.replace("{aligned}", "{align*}")
    translator.body.append(f'<div class="math">{convert(text, display="block")}</div>\n')
    raise nodes.SkipNode
