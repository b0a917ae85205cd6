"""What all figures share; they need matplotlib (``pip install 'optsched[plot]'``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from optsched.model.documents import check_writable
from optsched.model.errors import InputError, Said

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's, which people with any colour vision tell apart."""
_SUFFIXES = (".svg", ".png", ".pdf")


def check_plot(path: Path) -> None:
    """Raise `InputError` if it is clear beforehand that a figure cannot be written."""
    if path.suffix not in _SUFFIXES:
        raise InputError("", str(path), f"a file name that ends in {', '.join(_SUFFIXES)}")
    check_writable(path)
    try:
        import matplotlib as mpl  # noqa: PLC0415, F401  # an extra
    except ImportError:
        raise InputError("", Said("no matplotlib"), "it installed: pip install 'optsched[plot]'") from None


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches, that needs no screen."""
    # matplotlib is an extra.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  # an extra
    from matplotlib.figure import Figure  # noqa: PLC0415  # an extra

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Save a figure; equal ones give equal bytes."""
    import matplotlib as mpl  # noqa: PLC0415  # an extra

    timeless = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with mpl.rc_context({"svg.hashsalt": "optsched"}):
        figure.savefig(path, dpi=150, metadata=timeless.get(path.suffix, {}))
