"""What depends on an edited source gets another fingerprint, and nothing else does: tried on a copy of the package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT

POLICIES = ("vllm", "sarathi", "larry", "sjf", "fcfs")
ASK = """
import json, sys
from optsched.study.fingerprint import *
policies = {name: code_of_policy(name, False) for name in %r}
methods = {name: code_of_method(name) for name in ("auto", "token_cpsat", "infermax_milp")}
print(json.dumps(policies | methods | {"bound": code_of_bound(), "mine": code_of_policy("mine.py:P", False)}))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the sources of both packages, and a user's policy."""
    folder = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "optsched", folder / "optsched", ignore=ignored)
    shutil.copytree(ROOT / "formulations/optsched_formulations", folder / "optsched_formulations", ignore=ignored)
    shutil.copytree(ROOT / "instances", folder / "instances")
    (folder / "mine.py").write_text(
        "from optsched import Assignment, export_model\nimport parts\nfrom optsched.policies.larry import P\n"
    )
    (folder / "parts.py").write_text("X = 1\n")
    return folder


def fingerprints(folder: Path) -> dict[str, str]:
    path = os.pathsep.join([str(folder), *sys.path])
    command = [sys.executable, "-c", ASK % (POLICIES,)]
    ended = subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(ended.stdout)
    return found


@pytest.fixture(scope="module")
def before(copy: Path) -> dict[str, str]:
    """Return the fingerprints of the copy as it is."""
    return fingerprints(copy)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("optsched/policies/larry.py", {"larry", "mine"}),
        ("optsched/policies/infermax.py", {*POLICIES, "auto", "token_cpsat", "infermax_milp", "mine"}),
        ("optsched/policies/__init__.py", set()),
        ("optsched/bounds/congestion.py", {"auto", "token_cpsat", "infermax_milp", "bound"}),
        ("optsched_formulations/batching/infermax_milp.py", {"auto", "infermax_milp"}),
        ("optsched/simulator/engine.py", {*POLICIES, "auto", "token_cpsat", "infermax_milp", "mine"}),
        ("optsched/study/store.py", set()),
        ("optsched/methods/export.py", {"mine"}),  # by the name that the package offers
        ("parts.py", {"mine"}),
    ],
)
def test_only_what_depends_on_an_edit_changes(file: str, changed: set[str], copy: Path, before: dict[str, str]) -> None:
    source = copy / file
    text = source.read_text()
    source.write_text(text + "\n# edited\n")
    after = fingerprints(copy)
    source.write_text(text)
    assert {name for name in before if before[name] != after[name]} == changed
    assert len(set(before.values())) >= len(before) - 1
