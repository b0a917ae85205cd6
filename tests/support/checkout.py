"""Where things are in this checkout."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"


def searching_here() -> dict[str, str]:
    """Return an environment in which another Python finds the modules that this one does."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
