"""The mathematics of docstrings as GitHub renders it: reStructuredText in, Markdown out."""

from __future__ import annotations

import re
from inspect import cleandoc

_HEADING = re.compile(r"^(.+)\n-{3,}$", flags=re.MULTILINE)
_DISPLAYED = re.compile(r"^\.\. math::[ \n]*\n?((?:.+\n?)+)", flags=re.MULTILINE)
_INLINE = re.compile(r":math:`([^`]+)`")


def as_markdown(docstring: str) -> str:
    """Return a docstring as Markdown; headings become bold, formulas ``$`…`$`` and blocks of ``math``."""
    text = _HEADING.sub(r"**\1.**\n", cleandoc(docstring))
    text = _DISPLAYED.sub(lambda found: f"```math\n{_aligned(found[1])}\n```\n", text)
    return _INLINE.sub(lambda found: f"$`{' '.join(found[1].split())}`$", text)


def _aligned(formula: str) -> str:
    """Return the lines of a formula without their indentation; as Sphinx does, aligned if there are several."""
    lines = "\n".join(line.strip() for line in formula.strip().splitlines())
    return f"\\begin{{aligned}}\n{lines}\n\\end{{aligned}}" if r"\\" in lines else lines
