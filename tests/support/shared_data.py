"""Data that is not ours to commit: tests read it where it is."""

from __future__ import annotations

import pytest
from checkout import ROOT

SHARED = ROOT.parent / "shared/data"
HERE = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here")
