"""Trees of shared prefixes: what is refused, and what traces and generators make."""

import gzip
import json
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from commands import optsched
from shared_data import HERE, SHARED

from optsched import CacheMode, CacheRules, Instance, simulate
from optsched.calibrate.library import cost_model
from optsched.model.documents import parse_instance
from optsched.model.errors import InputError
from optsched.model.prefixes import PrefixNode, PrefixTree, path_tokens, read_prefixes
from optsched.routers.simple import Direct
from optsched.traces.preble import PREFIX_WORKLOADS, draw_prefixed
from optsched.traces.prefixed import PrefixedRows, share
from optsched.traces.rows import TraceRow
from optsched.traces.sessions import conversations, read_coding_prefixes, read_mooncake_prefixes

DOCUMENT = {"sys": {"tokens": 40, "parent": None}, "doc3": {"tokens": 900, "parent": "sys"}, "q": {"tokens": 1}}


def test_a_document_is_read_and_written() -> None:
    tree = read_prefixes(DOCUMENT)
    assert tree.nodes == (PrefixNode("sys", 40), PrefixNode("doc3", 900, "sys"), PrefixNode("q", 1))
    assert read_prefixes(tree.document()) == tree
    assert path_tokens(tree.by_name(), ("sys", "doc3"), 940) == 940
    assert path_tokens(tree.by_name(), (), 1) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"a": {"tokens": 1, "parent": "b"}, "b": {"tokens": 1, "parent": "a"}},
            r"prefixes\.a\.parent: .*\(a cycle: a → b → a\)",
        ),
        # c is behind the cycle, not in it.
        (
            {n: {"tokens": 1, "parent": p} for n, p in (("c", "a"), ("a", "b"), ("b", "d"), ("d", "a"))},
            r"prefixes\.a\.parent: got 'b', .*cycle: a → b → d → a\)",
        ),
        (
            {str(n): {"tokens": 1, "parent": str((n + 1) % 9)} for n in range(9)},
            r"prefixes\.0\.parent: got '1', .*cycle: 0 → 1 → 2 → 3 → …\)",
        ),
        ({"a": {"tokens": 1, "parent": "a"}}, r"prefixes\.a\.parent: got 'a', .*cycle: a → a\)"),
        ({"a": {"tokens": 1, "parent": "syss"}}, r"prefixes\.a\.parent: got 'syss', .*did you mean sys\?"),
        ({"a": {"tokens": 0}}, r"prefixes\.a\.tokens: got 0, expected an integer ≥ 1"),
        ({"a": {"parent": "sys"}}, r"prefixes\.a\.tokens: got nothing"),
        ({"a": {"tokens": 1, "parents": ["sys", "q"]}}, r"prefixes\.a\.parents: .*no field of this name"),
        ({"a": {"tokens": 1, "parent": ["sys", "q"]}}, r"prefixes\.a\.parent: .*a node has one parent"),
        ({"a": {"tokens": 1, "name": "b"}}, r"prefixes\.a\.name: .*no field of this name"),
        ({"a": 3}, r"prefixes\.a: got 3, expected an object"),
    ],
)
def test_what_is_no_tree_is_refused_in_one_line(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_prefixes(DOCUMENT | change)
    assert "\n" not in str(caught.value)


def test_no_order_of_nodes_matters_and_long_chains_are_read() -> None:
    """Nodes behind ones that are listed later are what networkx looks at."""
    chain = {str(n): {"tokens": 1, "parent": str(n + 1)} for n in range(20_000)}
    assert len(read_prefixes(chain | {"20000": {"tokens": 1}}).nodes) == 20_001
    with pytest.raises(InputError, match=r"^prefixes\.9990\.parent: .*\(a cycle: 9990 → 9991 → 9992 → 9993 → …\)$"):
        read_prefixes(chain | {"20000": {"tokens": 1, "parent": "9990"}})


def test_start_up_does_not_wait_for_networkx() -> None:
    """Nodes that are listed front first, as we write them, need no graph."""
    code = (
        "import sys; from optsched.model.prefixes import read_prefixes; "
        "read_prefixes({'a': {'tokens': 1}, 'b': {'tokens': 1, 'parent': 'a'}}); assert 'networkx' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ([8, 9], r"line 2: hash_ids\[0\]: got 8, expected this block only behind 7, as before: a block has one parent"),
        ([9, 7], r"line 2: hash_ids\[1\]: got 7, expected this block only as the first, as before: .*"),
        ([9, 8], r"line 2: hash_ids\[1\]: got 8, expected this block only behind 7, as before: .*"),
        ([9, 9], r"line 2: hash_ids\[1\]: got 9, expected this block only as the first, as before: .*"),
    ],
)
def test_a_block_with_two_parents_is_refused(
    second: list[int], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": names} for names in ([7, 8], second)]
    text = "\n".join(map(json.dumps, lines))
    with pytest.raises(InputError, match=f"^{message}$"):
        read_mooncake_prefixes(text)
    turns = [{"t": 0, "in": 130, "out": 3, "hash_ids": names} for names in ([7, 8], second)]
    one = json.dumps({"requests": turns[:1]})
    with pytest.raises(InputError, match=f"^{message}$"):
        read_coding_prefixes(f"{one}\n" + json.dumps({"requests": turns}))
    # Hashes mean something within a conversation.
    assert read_coding_prefixes(f"{one}\n" + json.dumps({"requests": [turns[0] | {"hash_ids": [8, 7]}]})).rows
    trace = tmp_path / "moon.jsonl"
    trace.write_text(text)
    outcome = optsched(capsys, "trace", str(trace), "--format", "mooncake", "--prefixes", "all")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert f"{trace}: line 2: hash_ids[" in outcome.err


def test_two_nodes_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match=r"a: got two nodes, expected one node of this name"):
        PrefixTree((PrefixNode("a", 1), PrefixNode("a", 2)))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (("doc3",), r"prefix\[0\]: got 'doc3', expected a root; the parent of this node is sys"),
        (("sys", "q"), r"prefix\[1\]: got 'q', expected a node behind sys; the parent of this node is none"),
        (("sys", "doc"), r"prefix\[1\]: got 'doc', .*did you mean doc3\?"),
        (("sys", "doc3"), r"prefix: got 940 tokens, expected at most input \+ output = 939"),
    ],
)
def test_what_is_no_path_is_refused(path: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        path_tokens(read_prefixes(DOCUMENT).by_name(), path, 939)


def checked(found: PrefixedRows) -> list[int]:
    """Return the tokens of each path, all of which must be right."""
    nodes = found.tree.by_name()
    return [path_tokens(nodes, path, row.input + row.output) for row, path in zip(found.rows, found.paths, strict=True)]


def test_equal_leading_chunks_are_the_same_nodes() -> None:
    # ab, abc, ad, b: the tree has a; b, d behind it; c behind b; and a root b. Chunks have 2 tokens.
    sequences = [[(name, 2) for name in text] for text in ("ab", "abc", "ad", "b")]
    found = share([TraceRow(0, 10, 1)] * 4, sequences)
    first, second, third, fourth = found.paths
    assert checked(found) == [4, 6, 4, 2]
    assert (second[: len(first)], first[0] == third[0], set(fourth) & set(first)) == (first, True, set())
    assert len(found.tree.nodes) == 5


def test_mooncake_hashes_make_paths() -> None:
    # 600 tokens are a block of 512 and one of 88; the second request shares the first block.
    lines = [
        {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]},
        {"timestamp": 9, "input_length": 700, "output_length": 5, "hash_ids": [7, 9]},
    ]
    found = read_mooncake_prefixes("\n".join(map(json.dumps, lines)))
    assert checked(found) == [600, 700]
    tokens = {node.name: node.tokens for node in found.tree.nodes}
    assert sorted(tokens.values()) == [88, 188, 512]
    assert found.paths[0][0] == found.paths[1][0]


def test_coding_sessions_share_within_a_conversation_only() -> None:
    turns = [{"t": 0, "in": 130, "out": 3, "hash_ids": [1, 2]}, {"t": 1, "in": 200, "out": 3, "hash_ids": [1, 2, 3]}]
    found = read_coding_prefixes("\n".join(json.dumps({"requests": turns}) for _ in range(2)))
    assert checked(found) == [128, 192, 128, 192]
    assert found.paths[1][: len(found.paths[0])] == found.paths[0]
    assert not set(found.paths[0]) & set(found.paths[2])


def test_a_turn_begins_with_all_that_was_said_before() -> None:
    turns = [TraceRow(0, 10 * (index + 1), index + 1) for index in range(40)]
    found = conversations(turns, mean_turns=4, think_s=30, rate=1, seed=1)
    tokens = checked(found)
    assert sorted(row.output for row in found.rows) == [row.output for row in turns]
    last: dict[int | None, int] = {}
    for row, total in zip(found.rows, tokens, strict=True):
        # The path covers prompt and output; what is new is ten times the output.
        assert total == row.input + row.output
        assert row.input == last.get(row.conversation, 0) + 10 * row.output
        last[row.conversation] = total
    assert 4 <= len(last) <= 20
    assert [row.arrival_ps for row in found.rows] == sorted(row.arrival_ps for row in found.rows)


TABLE_1 = {
    # prompt, output, shared share (mean), share of the key portion (mean), requests of a key portion (mean)
    "preble-toolbench": ((1835, 742), (43, 16), 0.85, 0.76, 39),
    "preble-embodied-agent": ((2285, 471), (16, 13), 0.97, 0.76, 48),
    "preble-programming": ((3871, 1656), (190, 343), 0.97, 0.78, 126),
    "preble-video-qa": ((9865, 5976), (4, 1.5), 0.88, 0.99, 8.6),
    "preble-loogle": ((23474, 6105), (16, 9.9), 0.91, 0.94, 18),
}


@pytest.mark.parametrize("name", sorted(TABLE_1))
def test_workloads_have_the_statistics_of_table_1(name: str) -> None:
    """Means within 10 %, shares within 4 points, deviations within 20 %; a key portion of one request is not shared."""
    prompt, output, shared, key, sharing = TABLE_1[name]
    found = draw_prefixed(name, 8000, seed=0, rate=5)
    checked(found)
    tokens = {node.name: node.tokens for node in found.tree.nodes}
    users = Counter(node for path in found.paths for node in path)
    key_users: Counter[object] = Counter()
    shared_shares, key_shares = [], []
    for index, (row, path) in enumerate(zip(found.rows, found.paths, strict=True)):
        end = together = 0
        portion: tuple[object, int] = (None, 0)
        for node in path:
            part = min(tokens[node], row.input - end)
            together += part if users[node] > 1 else 0
            portion = (node, part) if part > end else portion
            end += part
        portion = (index, row.input - end) if row.input - end > end else portion
        key_users[portion[0]] += 1
        shared_shares.append(together / row.input)
        key_shares.append(portion[1] / row.input)
    for values, (mean, deviation) in (
        ([row.input for row in found.rows], prompt),
        ([row.output for row in found.rows], output),
    ):
        assert statistics.mean(values) == pytest.approx(mean, rel=0.1)
        assert statistics.pstdev(values) == pytest.approx(deviation, rel=0.2)
    assert statistics.mean(shared_shares) == pytest.approx(shared, abs=0.04)
    assert statistics.mean(key_shares) == pytest.approx(key, abs=0.04)
    mean_users = statistics.mean(count for count in key_users.values() if count > 1)
    assert mean_users == pytest.approx(sharing, rel=0.2)


def test_zipf_tools_are_as_popular_as_the_law_says() -> None:
    # The share of the most popular of 100 tools is 1 / Σ k^−1.1.
    found = draw_prefixed("preble-toolbench-zipf", 20_000, seed=0, rate=5)
    users = Counter(path[1] for path in found.paths)
    share_of_first = 1 / sum(rank**-1.1 for rank in range(1, 101))
    assert max(users.values()) / 20_000 == pytest.approx(share_of_first, rel=0.05)
    assert len(users) == 100


def test_an_unknown_workload_is_named() -> None:
    with pytest.raises(InputError, match=r"workload: got 'preble-tools', expected one of preble-toolbench"):
        draw_prefixed("preble-tools", 1, 0, 1)
    assert PREFIX_WORKLOADS["preble-loogle"].source == "Preble, Table 1: LooGLE"


@HERE
def test_mooncake_conversations_share_as_their_hashes_do() -> None:
    text = gzip.decompress((SHARED / "mooncake/conversation_trace.jsonl.gz").read_bytes()).decode()
    lines = text.splitlines()[:400]
    found = read_mooncake_prefixes("\n".join(lines))
    assert checked(found) == [row.input for row in found.rows]
    different = {name for line in lines for name in json.loads(line)["hash_ids"]}
    blocks = {node.name: -(-node.tokens // 512) for node in found.tree.nodes}
    assert sum(blocks.values()) == len(different)


def traced(capsys: pytest.CaptureFixture[str], *arguments: str) -> Instance:
    """Return the instance that ``optsched trace`` writes."""
    code, out, err = optsched(capsys, "trace", *arguments)
    assert code == 0, err
    return parse_instance(out.encode(), cost_model)


def test_a_trace_keeps_its_prefixes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = [
        {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]},
        {"timestamp": 90_000, "input_length": 700, "output_length": 5, "hash_ids": [7, 9]},
    ]
    file = tmp_path / "mooncake.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    command = str(file), "--format", "mooncake"
    assert traced(capsys, *command).prefixes == PrefixTree()
    instance = traced(capsys, *command, "--prefixes", "all", "--machines", "2")
    assert (instance.replicas, instance.cache) == (2, CacheRules(CacheMode.ALL))
    # Both on one machine: the second finds the block of 512 tokens that both begin with.
    found = simulate(instance, "vllm_v1", router=lambda _: Direct([1, 1])).metrics
    assert found is not None
    assert (found["hit_tokens"], found["prefill_tokens"]) == (512, 600 + 188)
    first = traced(capsys, *command, "--prefixes", "prefix", "--limit", "1")
    assert first.cache == CacheRules(CacheMode.PREFIX)
    # Of the tree only what the first request names.
    assert sum(node.tokens for node in first.prefixes.nodes) == 600


def test_single_turns_are_made_conversations(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "sharegpt.csv"
    columns = "num_prefill_tokens,num_decode_tokens,num_predicted_decode_tokens"
    file.write_text("\n".join([columns, *["10,3,4"] * 30]))
    command = str(file), "--format", "sharegpt", "--prefixes", "all", "--turns", "3,5", "--seed", "2"
    instance = traced(capsys, *command)
    # In each conversation turns have 10, 10 + 13, 10 + 26, … prompt tokens; all conversations begin at 0.
    begun = [request for request in instance.requests if len(request.prefix) == 1]
    assert {request.arrival_ps for request in begun} == {0}
    assert all(request.input == 13 * len(request.prefix) - 3 for request in instance.requests)
    assert 4 <= len(begun) < 30
    assert {request.predicted_output for request in instance.requests} == {4}
    started = traced(capsys, *command, "--arrivals", "poisson:1")
    assert len({request.arrival_ps for request in started.requests if len(request.prefix) == 1}) == len(begun)


def test_workloads_with_prefixes(capsys: pytest.CaptureFixture[str]) -> None:
    command = "preble-toolbench-zipf", "--format", "workload", "--limit", "50", "--seed", "3", "--prefixes", "all"
    instance = traced(capsys, *command)
    drawn = draw_prefixed("preble-toolbench-zipf", 50, 3, rate=1)
    assert [(request.input, request.output, request.prefix) for request in instance.requests] == [
        (row.input, row.output, path) for row, path in zip(drawn.rows, drawn.paths, strict=True)
    ]
    assert {request.arrival_ps for request in instance.requests} == {0}
    assert len({request.arrival_ps for request in traced(capsys, *command, "--arrivals", "poisson:2").requests}) == 50


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--format", "azure", "--prefixes", "all"], "--prefixes: got --format azure, expected a format of which"),
        (["x", "--format", "sharegpt", "--turns", "3,5"], "--prefixes: got --turns with it, expected sharegpt with"),
        (
            ["x", "--format", "sharegpt", "--prefixes", "all", "--turns", "0.5,3"],
            "--turns: got '0.5,3', expected MEAN,",
        ),
        (["x", "--format", "sharegpt", "--prefixes", "all", "--turns", "5"], "--turns: got '5', expected MEAN,"),
        (["preble-tools", "--format", "workload", "--prefixes", "all", "--limit", "3"], "got 'preble-tools', expected"),
    ],
)
def test_prefixes_that_a_trace_cannot_have(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = optsched(capsys, "trace", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
