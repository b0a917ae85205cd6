"""How wide what is printed may be."""

from __future__ import annotations

import os
import shutil
import sys

WIDE = 120
"""Columns of a table that is not printed to a terminal."""


def terminal_width() -> int:
    """Return the columns that a table may have: those of the terminal, or what COLUMNS says."""
    told = sys.stdout.isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size((WIDE, 24)).columns if told else WIDE
