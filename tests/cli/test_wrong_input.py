"""More than sixty kinds of wrong input to all commands: one line on stderr that says what is wrong, and exit code 2.

Documents and their fields are in `test_bad_input`; here is what is typed, and what other files hold.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from checkout import searching_here
from commands import optsched
from patience import PATIENCE_S

from optsched import save_instance, save_result, simulate
from optsched.library import load_instance

FILES = {
    "mine.csv": "t,prompt,gen\n0,8,4\n1,9,5\n",
    "zero.csv": "t,prompt,gen\n0,8,-4\nx,9,5\n",
    "empty.csv": "",
    "times.csv": "tokens,cached,time_ms\n1,0,1\n",
    "mine.py": "class Lazy:\n    def __init__(self, size): pass\n    def next_batch(self, replica): pass\nNUMBER = 3\n",
    "broken.py": "def (:\n",
    "raising.py": "raise RuntimeError('no luck')\n",
    "leaving.py": "import sys; sys.exit(3)\n",
    "invalid.toml": "name = \n",
    "policy.toml": 'name = "x"\ninstances = ["i.json"]\npolicies = ["vlm"]\n',
    "instance.toml": 'name = "x"\ninstances = ["infermax-fig15-I3"]\npolicies = ["vllm"]\n',
    "field.toml": 'name = "x"\ninstances = ["i.json"]\npolicys = ["vllm"]\n',
    "runner.toml": 'name = "x"\ninstances = ["i.json"]\npolicies = ["vllm"]\nrunner = "spark"\n',
    "claim.toml": 'claim = "x"\n',
    "shape.toml": "hidden = 1\n",
    "profile.json": "{}",
    "text.sqlite": "no database",
    "ledger.jsonl": "{}\n",
    "folder/kept": "",
}
TRACE = "trace mine.csv --format csv --columns arrival=t,input=prompt,output=gen"
KINDS: list[tuple[str, str]] = [
    # what is typed, what the line begins with; … leaves something out
    # Names that are spelled wrongly
    ("solv i.json", "No such command 'solv'. Did you mean 'solve'?"),
    ("plot gant r.json --out f.svg", "No such command 'gant'. Did you mean 'gantt'?"),
    ("solve i.json --objectiv makespan", "No such option '--objectiv'. Did you mean '--objective'?"),
    ("solve infermax-fig51-I8", "INSTANCE: got 'infermax-fig51-I8', … did you mean infermax-fig15-I8?"),
    ("table infermax-fig16", "SUITE: got 'infermax-fig16', expected a file, or one of … did you mean infermax-fig15?"),
    ("simulate i.json --policy sarthi", "--policy: got 'sarthi', … did you mean sarathi?"),
    ("simulate i.json --policies sarthi", "--policy: got 'sarthi', … did you mean sarathi?"),
    ("table i.json --policy sarthi", "--policy: got 'sarthi', … did you mean sarathi?"),
    ("worst --policy sarthi", "--policy: got 'sarthi', … did you mean sarathi?"),
    ("conform sarthi", "NAME: got 'sarthi', … did you mean sarathi?"),
    ("execute i.json --policy sarthi", "--policy: got 'sarthi', … did you mean sarathi?"),
    ("solve i.json --objective makespn", "--objective: got 'makespn', … did you mean makespan?"),
    ("solve i.json --method state_serch", "--method: got 'state_serch', … did you mean state_search?"),
    ("bound i.json --method volum", "--method: got 'volum', … did you mean volume?"),
    ("solve i.json --forbid evicton", "--forbid: got 'evicton', … did you mean eviction?"),
    ("solve i.json --profile a100", "--profile: got 'a100', … did you mean a100-llama2-7b?"),
    ("table i.json --format latx", "--format: got 'latx', … did you mean latex?"),
    ("simulate i.json --policy vllm --router sall --machines 2", "--router: got 'sall', … did you mean sal?"),
    ("simulate i.json --policy vllm --cache lruu", "--cache: got 'lruu', … did you mean lru?"),
    ("simulate i.json --policy sjf --predictor gausian:25", "…--predictor: got 'gausian:25', … did you mean gaussian?"),
    ("simulate i.json --policy vllm --format md --columns polcy", "…--columns: got 'polcy', … did you mean policy?"),
    (f"{TRACE} --arrivals poison:3", "--arrivals: got 'poison:3', … did you mean poisson?"),
    ("trace mine.csv --format cvs", "--format: got 'cvs', … did you mean csv?"),
    ("trace mine.csv --format csv --columns arival=t", "--columns: got 'arival=t', … did you mean arrival?"),
    ("trace sw-chatt --format workload --limit 3", "sw-chatt: workload: got 'sw-chatt', … did you mean sw-chat?"),
    ("instances make randm", "SUITE: got 'randm', … did you mean random?"),
    ("plot gantt r.json --axis bach --out f.svg", "--axis: got 'bach', … did you mean batch?"),
    ("plot gap r.json --over kapa --out f.svg", "--over: got 'kapa', … did you mean kappa?"),
    ("calibrate times.csv --format time", "--format: got 'time', … did you mean times?"),
    ("profile --out new --shape tinny", "--shape: got 'tinny', … did you mean tiny?"),
    ("hypothesis eviction-gain", "eviction-gain: HYPOTHESIS: got 'eviction-gain', … did you mean eviction-gains?"),
    ("study policy.toml", "policy.toml: policy: got 'vlm', … did you mean vllm?"),
    ("study instance.toml", "instance.toml: INSTANCE: got 'infermax-fig15-I3', … did you mean infermax-fig15-I32?"),
    # One thing in the place of another
    (
        "bound infermax-fig15",
        "INSTANCE: got the suite infermax-fig15, expected one of its instances: infermax-",
    ),
    ("execute infermax-fig15 --policy vllm", "INSTANCE: got the suite infermax-fig15, expected one of its instances"),
    ("check i.json", "i.json: format: got 'optsched-instance/1', expected 'optsched-result/1'"),
    ("plot gantt i.json --out f.svg", "i.json: format: got 'optsched-instance/1', expected 'optsched-result/1'"),
    ("check mine.csv", "mine.csv: line 1 column 2: got invalid JSON"),
    ("plot bounds mine.csv --out f.svg", "mine.csv: line 1: got 't,prompt,gen', expected elapsed_s,incumbent,bound"),
    ("study status text.sqlite", "text.sqlite: got file is not a database"),
    ("calibrate mine.csv --format times", "mine.csv: tokens: got nothing, expected a column of this name"),
    ("trace folder --format csv", "folder: got Is a directory, expected a readable file"),
    ("table i.json --results mine.csv", "mine.csv: --results: got File exists, expected a folder to write to"),
    ("simulate i.json --policy vllm --router sal", "i.json: --router: got 'sal', expected none: the instance has one"),
    ("submit i.json", "i.json: format: got 'optsched-instance/1', expected 'optsched-result/1'"),
    # Numbers
    ("solve i.json --time-limit 0", "--time-limit: got 0, expected a number > 0"),
    ("solve i.json --workers many", "--workers: got many, expected an integer from 1 to 1024"),
    ("simulate i.json --policy vllm --machines 0", "--machines: got 0, expected an integer from 1 to 10000"),
    ("solve i.json --fix-order 0,0,1,2", "--fix-order: got (0, 0, 1, 2), expected every request index once"),
    ("solve i.json --fix-order a", "--fix-order: got a, expected request indices joined by commas"),
    (f"{TRACE} --load 0", "--load: got 0, expected a number > 0"),
    (f"{TRACE} --limit -1", "--limit: got -1, expected an integer ≥ 1"),
    (f"{TRACE} --prefill-tokens 100000", "--prefill-tokens: got 100000, expected at most batch_tokens = 16384"),
    (f"{TRACE} --swap x", "--swap: got 'x', expected an integer from 1 to"),
    (f"{TRACE} --unit min", "--unit: got 'min', expected one of s, ms, us, ns, iso"),
    ("worst --policy vllm --seconds inf", "--seconds: got inf, expected a finite number > 0"),
    ("plot gantt r.json --width 0 --out f.svg", "--width: got 0, expected a number from 1 to 100"),
    ("instances make mix --groups LILO", "--groups: got 'LILO', expected two of "),
    # Options that do not go together, and what is missing
    ("simulate i.json", "Missing option '--policy'. (see: optsched simulate --help)"),
    ("trace mine.csv --unit ms", "--format: got --unit with it, expected csv with --columns and --unit"),
    ("trace sw-chat --format workload", "sw-chat: --limit: got nothing, expected the number of requests to draw"),
    ("simulate i.json --policy vllm --format csv --transpose", "--format: got 'csv', … csv has fixed columns"),
    ("table i.json --label tab:x", "--format: got 'text', expected latex with --label or --siunitx"),
    ("simulate i.json --policy vllm --timeline - --json", "--timeline: got '-', expected a file, as the result"),
    ("table i.json --resume", "--resume: got no --results, expected --results FOLDER to resume from"),
    ("solve i.json --solver cbc", "--solver: got 'cbc', expected no solver with method auto"),
    ("solve i.json --export lp", "i.json: --method: got 'auto', expected a method whose model can be exported"),
    ("plot gantt r.json --label a --label b --out f.svg", "--label: got 2 labels, expected 1, one for each result"),
    ("plot gantt r.json --out f.jpg", "--out: got 'f.jpg', expected a file name that ends in .svg, .png, .pdf"),
    ("study export text.sqlite", "--out: got none of --out, --page and --ledger, expected what to write"),
    ("calibrate", "SOURCE: got nothing, expected measurements to fit, or --list"),
    ("execute r.json --predictor truth", "--predictor: got --predictor with it, expected --policy"),
    # Files
    ("check gone.json", "gone.json: RESULT: got No such file or directory, expected a readable file"),
    ("trace gone.csv --format csv", "gone.csv: got No such file or directory, expected a readable file"),
    ("study gone.toml", "gone.toml: got No such file or directory, expected a readable file"),
    ("study diff gone.sqlite", "gone.sqlite: got no such file, expected a store"),
    ("solve i.json --profile gone.json", "gone.json: --profile: got No such file or directory"),
    ("solve i.json --profile profile.json", "profile.json: … got nothing, expected this field"),
    ("profile --out new --shape shape.toml", "shape.toml: layers: got nothing, expected this field"),
    ("profile --out mine.csv", "mine.csv: --out: got File exists, expected a folder to write to"),
    ("solve i.json --out no/such/r.json", "no/such/r.json: --out: got a folder that does not exist"),
    ("solve i.json --history folder", "folder: --history: got a folder, expected a file that can be written"),
    ("bound i.json --ledger ledger.jsonl", "ledger.jsonl:1: instance_sha256: got nothing, expected this field"),
    ("study invalid.toml", "invalid.toml: got invalid TOML ("),
    ("study field.toml", "field.toml: policys: got ['vllm'], expected no field of this name"),
    ("study runner.toml", "…runner: got 'spark', expected processes, dask:ADDRESS, ray:ADDRESS"),
    ("hypothesis claim.toml", "claim.toml: source: got nothing, expected this field"),
    ("trace mine.csv --format csv", "mine.csv: line 1: got 't,prompt,gen', expected the column 'input' once"),
    ("trace empty.csv --format csv", "empty.csv: line 1: got '', expected the column 'input' once"),
    (TRACE.replace("mine", "zero"), "zero.csv: got no usable row (the first of 2: line 2: gen: got '-4', "),
    ("calibrate times.csv --format times", "times.csv: rows: got none, expected a decode step"),
    # A user's own code
    ("simulate i.json --policy gone.py:A", "gone.py: --policy: got No such file or directory"),
    ("simulate i.json --policy mine.py:Lasy", "--policy: got 'mine.py:Lasy', … did you mean Lazy?"),
    ("simulate i.json --policy mine.py", "--policy: got 'mine.py', expected mine.py:NAME, where mine.py defines NAME"),
    ("simulate i.json --policy mine.py:NUMBER", "--policy: got 'mine.py:NUMBER', expected an object with next_batch"),
    ("simulate i.json --policy mine.py:Lazy", "--policy: got 'mine.py:Lazy', expected a class that needs no arguments"),
    ("simulate i.json --policy broken.py:A", "--policy: got 'broken.py:A', … SyntaxError: … (broken.py:1)"),
    ("simulate i.json --policy raising.py:A", "--policy: got 'raising.py:A', … RuntimeError: no luck (raising.py:1)"),
    ("simulate i.json --policy leaving.py:A", "--policy: got 'leaving.py:A', … SystemExit: 3 (leaving.py:1)"),
    ("new polcy mine", "KIND: got 'polcy', … did you mean policy?"),
    ("new policy class", "NAME: got 'class', expected letters, digits and underscores, a letter first"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with good documents and bad files."""
    path: Path = tmp_path_factory.mktemp("wrong")
    instance = load_instance("infermax-fig15-I8")
    save_instance(instance, path / "i.json")
    save_result(simulate(instance, "vllm"), path / "r.json")
    for name, text in FILES.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text)
    return path


def require_one_line(err: str, expected: str) -> None:
    """Require a line that has every part of what is expected, in this order."""
    line, position = err.removesuffix("\n"), 0
    assert "\n" not in line
    for part in ("optsched: ", *(each.strip() for each in expected.split("…"))):
        found = line.find(part, position)
        assert found >= 0, f"{part!r} does not follow in {line!r}"
        position = found + len(part)


def test_there_are_sixty_kinds_and_more() -> None:
    assert len({typed for typed, _ in KINDS}) == len(KINDS) >= 60


@pytest.mark.parametrize(("typed", "expected"), KINDS, ids=[typed for typed, _ in KINDS])
def test_wrong_input_is_said_in_one_line(
    typed: str, expected: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    outcome = optsched(capsys, *typed.split())
    assert (outcome.code, outcome.out) == (2, "")
    require_one_line(outcome.err, expected)
    made = {path.name for path in folder.rglob("*")} - {path.name for path in before}
    assert made <= {"__pycache__", "new", "runner.sqlite"}, "nothing is written"


@pytest.mark.slow
@pytest.mark.parametrize("typed", ["solve gone.json", "plot gantt r.json --out f.jpg", "new policy class"])
def test_a_process_says_the_same(typed: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-c", "from optsched.cli import main; main()", *typed.split()]
    ended = subprocess.run(
        command, cwd=folder, env=searching_here(), capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 1)
    assert ended.stderr.startswith("optsched: ")
