"""Arrays of integers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
"""Times in ps, tokens, requests: whatever is exact."""
