"""Every notebook runs, and prints what it shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from checkout import ROOT
from nbclient import NotebookClient

pytestmark = pytest.mark.slow

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FRESH = """
import sys
for name in [name for name in sys.modules if name.startswith("optsched")]:
    del sys.modules[name]
%reset -f
"""
"""What a kernel runs before a notebook: none sees what another has defined, or imported of optsched."""


@pytest.fixture(scope="module")
def client() -> Iterator[NotebookClient]:
    """One process for all notebooks: starting it, and importing what optsched needs, takes as long as many of them."""
    client = NotebookClient(nbformat.v4.new_notebook(), timeout=300, kernel_name="python3", shutdown_kernel="immediate")
    with client.setup_kernel():
        yield client


def _outputs(notebook: nbformat.NotebookNode) -> list[str]:
    return ["".join(output.get("text", "") for output in cell.get("outputs", [])) for cell in notebook.cells]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_notebook(path: Path, client: NotebookClient) -> None:
    shown = nbformat.read(path, as_version=4)
    run = nbformat.read(path, as_version=4)
    run.cells.insert(0, nbformat.v4.new_code_cell(FRESH))
    client.nb = run
    for number, cell in enumerate(run.cells):
        client.execute_cell(cell, number)
    assert _outputs(run)[1:] == _outputs(shown)
    assert any(_outputs(shown))
