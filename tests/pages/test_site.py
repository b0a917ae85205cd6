"""The site is built without a warning, with a page for all that has a name, and needs no network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT, searching_here

import optsched
from optsched.bounds.catalogue import BOUNDS
from optsched.policies import POLICIES
from optsched.routers import ROUTERS
from optsched_formulations import FORMULATIONS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build as `make site` does: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", str(folder)],
        cwd=ROOT,
        env=searching_here(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


@pytest.mark.parametrize(
    ("kind", "names"),
    [("formulations", FORMULATIONS), ("bounds", BOUNDS), ("policies", POLICIES), ("routers", ROUTERS)],
)
def test_what_has_a_name_is_in_its_catalogue(site: Path, kind: str, names: list[str]) -> None:
    text = (site / "generated" / kind / "index.html").read_text(encoding="utf-8")
    pages = {name: page for page, name in re.findall(r'href="([\w-]+\.html)"><span class="doc">(\w+)<', text)}
    assert set(pages) == set(names)
    for name, page in pages.items():
        assert f">{name}<" in (site / "generated" / kind / page).read_text(encoding="utf-8")


def test_formulas_are_drawn(site: Path) -> None:
    """As MathML, which needs no script; nothing of their source is left."""
    for name in ("generated/bounds/congestion", "generated/formulations/class_flow", "problem", "bounds"):
        text = (site / f"{name}.html").read_text(encoding="utf-8")
        assert text.count("<math") > 5
        assert "<mtable" in text or name == "generated/bounds/congestion"
        visible = re.sub(r"<(math|pre|code)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert not re.findall(r"\\(?:frac|sum|begin|mathrm|quad)|:math:|\$`|```", visible)


def test_no_command_is_left_in_a_formula(site: Path) -> None:
    """Large fences and names with an underscore among them; attributes and annotations are not seen."""
    left: set[tuple[str, str]] = set()
    for page in site.rglob("*.html"):
        formulas = re.findall(r"<math\b.*?</math>", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        left |= {(page.name, text) for text in (re.sub(r"<[^>]+>", "", each) for each in formulas) if "\\" in text}
    assert left == set()


def test_the_interface_is_documented(site: Path) -> None:
    text = (site / "generated" / "api.html").read_text(encoding="utf-8")
    assert [name for name in dir(optsched) if name[0] != "_" and f'id="optsched.{name}"' not in text] == []


def test_no_page_asks_for_anything_from_a_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//', text), page.name
        assert not re.findall(r'<link[^>]+rel="(?:stylesheet|preload)"[^>]+href="(?:https?:)?//', text), page.name
