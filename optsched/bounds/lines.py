"""What a number of decodes pay, as a line over what one of them reads: whether another may pay less anywhere."""

from __future__ import annotations

from optsched.compiled import compiled_part
from optsched.model.ints import Ints


@compiled_part
def is_lower(lines: Ints, low: float, high: float) -> bool:
    """Return whether what is concave, with these values at both ends, may be below all of some lines.

    Parameters
    ----------
    lines
        Their values at both ends, shape (lines, 2).
    low, high
        Values at the ends, or less. What is no less than a line at both is nowhere less.
    """
    lower = True
    for line in range(lines.shape[0]):
        lower &= low < lines[line, 0] or high < lines[line, 1]
    return lower
