"""The report of a study says what its store says, works from disk, and fits."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import Browser, browser
from commands import optsched
from playing import problem

from optsched import compare, simulate
from optsched.cli import main
from optsched.model.activity import activities
from optsched.model.domain import replace
from optsched.model.instance import Request
from optsched.pages.report import MOST_BYTES, fitting, report_page
from optsched.pages.view import packed_view, unpacked_view
from optsched.study.store import Attempt, Store

# Every batch takes 10 ps. Both requests fit: 3 batches for the 3 tokens of request 0 are the least.
EASY = replace(problem(Request(4, 3), Request(2, 2), kv=8, budget=8), name="easy")
# Both prompts fill the memory: from the second batch on there is room for one request only. Request 0 takes 4 batches;
# request 1, filled with it, evicted and refilled, 3 more.
HARD = replace(problem(Request(6, 4), Request(6, 4), kv=12, budget=12), name="<hard & last>")
OPTIMA = {"easy": 30, "<hard & last>": 70}
POLICIES = ("vllm", "vllm_ef", "sarathi")


class _Tables(HTMLParser):
    """The texts of all tables, by identifier, row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.addresses: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.addresses += [given[name] or "" for name in ("src", "href") if name in given]
        if tag == "table":
            self._inside = given["id"] or ""
            self.tables[self._inside] = []
        elif self._inside and tag == "tr":
            self.tables[self._inside].append([])
        elif self._inside and tag in {"td", "th"}:
            self.tables[self._inside][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside and self.tables[self._inside] and self.tables[self._inside][-1]:
            self.tables[self._inside][-1][-1] += data.strip()


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two instances, three policies, and a method."""
    path = tmp_path_factory.mktemp("study") / "small.sqlite"
    compare([EASY, HARD], POLICIES, time_limit=60, workers=1, store=path)
    return path


@pytest.fixture(scope="module")
def page(study: Path) -> Path:
    with pytest.raises(SystemExit) as ended:
        main(["report", str(study)])
    assert ended.value.code == 0
    return study.with_suffix(".html")


def _attempts(study: Path) -> list[Attempt]:
    with Store(study) as store:
        return list(store.attempts())


def test_every_number_is_the_stores(study: Path, page: Path) -> None:
    found = _Tables()
    found.feed(page.read_text(encoding="utf-8"))
    attempts = _attempts(study)
    assert len(attempts) == 8
    values = {(each.trial.instance.name, each.trial.method): each.record.value for each in attempts}
    assert {name: values[name, "auto"] for name in OPTIMA} == OPTIMA

    def gap(instance: str, method: str) -> str:
        value = values[instance, method]
        assert value is not None
        lost = value - OPTIMA[instance]
        return f"{100 * lost / value:.1f} %" if lost else "0"

    assert gap("<hard & last>", "vllm_ef") == "12.5 %"  # 80 ps: one request after the other
    header, *rows = found.tables["p1-instances"]
    assert header == ["instance", "requests", "κ", "best value (ps)", "best bound (ps)", "auto", *POLICIES]
    shown = {row[0]: (row[1], row[3], row[4].split()[0], *row[5:]) for row in rows}
    assert shown == {
        name: ("2", f"{optimum}.000", f"{optimum}.000", *(gap(name, method) for method in ("auto", *POLICIES)))
        for name, optimum in OPTIMA.items()
    }
    header, *rows = found.tables["all"]
    told = [dict(zip(header, row, strict=True)) for row in rows]
    assert [(each["key"], each["value"], each["badge"], each["method"]) for each in told] == [
        (each.trial.key, f"{each.record.value}.000 ps", each.record.badge.value, each.trial.method) for each in attempts
    ]
    assert all(each["date"] == one.record.date for each, one in zip(told, attempts, strict=True))
    means = {row[0]: row[1] for row in found.tables["p1-methods"][1:]}
    expected = sum(1 - OPTIMA[name] / (values[name, "vllm"] or 1) for name in OPTIMA) / 2
    assert means["vllm"] == f"{100 * expected:.2f}"
    assert means["auto"] == "0.00"


def test_it_needs_nothing_else(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = _Tables()
    found.feed(text)
    assert found.addresses
    assert all(address.startswith("#") for address in found.addresses)
    targets = {address[1:] for address in found.addresses if not address.startswith("#s-")}
    assert targets <= set(re.findall(r'id="([^"]+)"', text))
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}
    assert "<hard" not in text


def test_a_view_is_the_schedule() -> None:
    """Times are ps: the schedule is short. Evicted requests are counted, and M is the capacity."""
    result = simulate(HARD, "vllm")
    packed = packed_view(result)
    assert result.schedule is not None
    assert packed is not None
    view = unpacked_view(packed)
    assert (view["tick_ps"], view["end"], view["batches"]) == (1, result.value, result.schedule.length)
    drawn = []
    for machine, request, name, _, flat in view["rows"]:
        assert (machine, name) == (0, f"{request}  6+4")
        clock = 0
        for activity, wait, length in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
            drawn.append((request, view["activities"][activity], clock + wait, clock + wait + length))
            clock += wait + length
    spans = activities(HARD, result.schedule, each=True).spans
    assert sorted(drawn) == sorted((each.request, each.activity.value, each.start_ps, each.end_ps) for each in spans)
    assert sum(row[3] for row in view["rows"]) == result.metrics["evictions"] > 0 if result.metrics else False
    assert view["kv"]["capacity"] == 12
    assert max(view["kv"]["points"][1::2]) == 12
    assert packed_view(replace(result, schedule=None, value=None)) is None


def test_five_hundred_trials_fit(study: Path) -> None:
    """Each with its schedule; a table of 250 rows and one of 500 columns beside."""
    kept = [each for each in _attempts(study) if each.trial.method == "vllm"]
    many = [
        dataclasses.replace(each, trial=dataclasses.replace(each.trial, seed=seed))
        for seed in range(250)
        for each in kept
    ]
    text = report_page("many", many, 3, "command")
    assert len(text.encode()) <= MOST_BYTES
    views = re.search(r'id="data">(.*?)</script>', text)
    assert views is not None
    assert len(json.loads(views[1])) == len({each.trial.key for each in many}) == 500
    assert "too large" not in text
    assert "3 trials have not run yet" in text


def test_small_schedules_come_first_if_not_all_fit() -> None:
    """An entry takes 400 bytes beside its schedule: 401 + 402 of 1000 are taken, and 590 more would not fit."""
    assert fitting({"a": 190, "b": 1, "c": 2}, 1000) == {"b", "c"}
    assert fitting({"a": 190, "b": 1}, 1000) == {"a", "b"}
    assert fitting({"a": 190}, 100) == set()


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser_from_disk(window: Browser, study: Path, page: Path, width: int) -> None:
    window.open(page.as_uri(), width)
    window.wait_for("document.querySelectorAll('#view rect').length > 1")
    # No part of the page is wider than the window; wide tables scroll on their own.
    assert window.evaluate("document.documentElement.scrollWidth") <= width
    # A number leads to its trial, and that to its schedule.
    key = next(
        each.trial.key for each in _attempts(study) if each.trial.instance == HARD and each.trial.method == "vllm"
    )
    window.evaluate(f"document.querySelector('#p1-instances a[href=\"#t-{key[:16]}\"]').click()")
    window.wait_for(f"document.activeElement.id === 't-{key[:16]}'")
    window.evaluate("document.activeElement.querySelector('a').click()")
    window.wait_for("document.activeElement.id === 'view'")
    assert window.evaluate("document.getElementById('which').value") == key[:16]
    result = simulate(HARD, "vllm")
    assert result.schedule is not None
    spans = activities(HARD, result.schedule, each=True).spans
    assert window.evaluate("document.querySelectorAll('#view g rect').length") == len(spans)
    title = window.evaluate("document.getElementById('view-title').textContent")
    assert title.endswith(f"{result.schedule.length} batches, ends at {result.value} ps")
    # Keys zoom and move, and the status says what is seen.
    window.press("+")
    assert window.evaluate("document.getElementById('said').textContent").startswith(
        f"{result.value / 4:g} to {3 * result.value / 4:g} of {result.value} ps" if result.value else "?"
    )
    window.press("0")
    assert window.evaluate("document.getElementById('said').textContent").startswith(f"0 to {result.value} of")
    # Tables are sorted by the keyboard, too, and say so.
    for expected in ("ascending", "descending"):
        window.evaluate("document.querySelectorAll('#p1-instances th button')[3].focus()")
        window.press("Enter")
        assert window.evaluate("document.querySelectorAll('#p1-instances thead th')[3].ariaSort") == expected
        order = window.evaluate(
            "[...document.querySelectorAll('#p1-instances tbody th')].map(each => each.textContent)"
        )
        assert order == list(OPTIMA)[:: 1 if expected == "ascending" else -1]
    window.evaluate("document.querySelector('input[data-table=all]').focus()")
    for letter in "sarathi":
        window.press(letter)
    assert window.evaluate("document.querySelector('output[for=all]').textContent") == "2 of 8 rows"
    # What a screen reader is told: every control and picture has a name.
    nodes = window.send("Accessibility.getFullAXTree")["nodes"]
    named = {"button", "link", "image", "combobox", "searchbox", "region", "figure", "table"}
    controls = [node for node in nodes if not node.get("ignored") and node["role"]["value"] in named]
    assert len(controls) > 30
    assert [node for node in controls if not node["name"]["value"].strip()] == []
    assert window.errors == []
    assert [address for address in window.requests if not address.startswith(("file:", "about:"))] == []


def test_wrong_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    missing = optsched(capsys, "report", str(tmp_path / "none.sqlite"))
    assert (missing.code, missing.err) == (
        2,
        f"optsched: {tmp_path}/none.sqlite: got no such file, expected a store\n",
    )
    with Store(tmp_path / "empty.sqlite"):
        pass
    empty = optsched(capsys, "report", str(tmp_path / "empty.sqlite"))
    assert empty.code == 2
    assert "got no attempt at a trial of empty, expected a study that has run" in empty.err
    assert empty.err.count("\n") == 1
    assert not (tmp_path / "empty.html").exists()
