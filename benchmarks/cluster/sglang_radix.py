"""SGLang's radix cache: every operation of every run, with the tree after each eviction and at the end."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from cluster.outcome import Outcome, Sources, compared, together
from optsched.cache.evictors import Evictor, SegmentedLru, evictor
from optsched.cache.radix import RadixNode, RadixTree

_NUMBERS = ("matched", "already", "evicted", "evictable", "protected", "tree")
UNIT = "operations"


def recognises(document: Any) -> bool:
    """Whether a document's first line is such a run."""
    return isinstance(document, list) and {"policy", "page", "ops", "final"} <= document[0].keys()


def outcomes(runs: Sequence[Mapping[str, Any]], _: Sources) -> Iterator[Outcome]:
    """Replay all runs of a file."""
    return together(UNIT, (_replay(run) for run in runs))


def _replay(run: Mapping[str, Any]) -> Outcome:
    page = run["page"]
    tree = RadixTree(_evictor(run["policy"], run.get("config") or {}), whole_nodes=True)
    pinned: dict[int, RadixNode] = {}

    def pairs() -> Iterator[tuple[str, object, object]]:
        for index, operation in enumerate(run["ops"]):
            theirs = {name: operation[name] for name in _NUMBERS if name in operation}
            yield f"operation {index}, {operation['op']}", theirs, _do(tree, page, pinned, operation)
        yield "the tree at the end", run["final"], _preorder(tree.root, page)

    return compared(f"{run['policy']}, page {page}, seed {run['seed']}", UNIT, pairs())


def _evictor(policy: str, config: Mapping[str, int]) -> Evictor:
    if policy == "slru" and config:
        return SegmentedLru(config["protected_threshold"])
    return evictor(policy)


def _do(tree: RadixTree, page: int, pinned: dict[int, RadixNode], operation: Mapping[str, Any]) -> dict[str, object]:
    """Carry out one operation; return what theirs is compared with."""
    ours: dict[str, object] = {}
    match operation["op"]:
        case "match_and_lock":
            node = tree.match(_pages(operation["tokens"], page))
            tree.pin(node)
            pinned[operation["request"]] = node
            ours["matched"] = page * node.depth
        case "insert_and_unlock":
            before, _ = tree.insert(_pages(operation["tokens"], page), operation["priority"])
            tree.unpin(pinned.pop(operation["request"]))
            ours["already"] = page * before
        case "evict":
            ours["evicted"] = page * len(tree.drop(-(-operation["want"] // page)))
            ours["tree"] = _preorder(tree.root, page)
    return ours | {"evictable": page * tree.droppable, "protected": page * tree.pinned}


def _pages(tokens: Sequence[int], page: int) -> list[Hashable]:
    whole = len(tokens) // page * page
    return [tuple(tokens[start : start + page]) for start in range(0, whole, page)]


def _preorder(root: RadixNode, page: int) -> list[list[int]]:
    """Return [end, length, first token, last token, pins] of each node, children by first token."""
    listed = []
    pending = [root]
    while pending:
        node = pending.pop()
        if node is not root:
            first, last = _page(node.blocks[0]), _page(node.blocks[-1])
            listed.append([page * node.depth, page * len(node.blocks), first[0], last[-1], node.pins])
        # Children whose first token is the same stay in the order in which they came.
        pending += sorted(node.children.values(), key=lambda child: _page(child.blocks[0])[0])[::-1]
    return listed


def _page(block: Hashable) -> tuple[int, ...]:
    assert isinstance(block, tuple)
    return block
