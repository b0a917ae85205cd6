"""Data that is not ours to commit: tests read it where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parent.parent.parent / "shared/data"
HERE = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here")
