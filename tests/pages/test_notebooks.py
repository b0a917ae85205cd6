"""Every notebook runs, and prints what it shows."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from checkout import ROOT
from nbclient import NotebookClient

pytestmark = pytest.mark.slow

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def _outputs(notebook: nbformat.NotebookNode) -> list[str]:
    return ["".join(output.get("text", "") for output in cell.get("outputs", [])) for cell in notebook.cells]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_notebook(path: Path) -> None:
    shown = nbformat.read(path, as_version=4)
    run = nbformat.read(path, as_version=4)
    NotebookClient(run, timeout=300, kernel_name="python3").execute()
    assert _outputs(run) == _outputs(shown)
    assert any(_outputs(run))
