"""``oracle_partition``: key portions divided among the machines with all requests known (Preble, section 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from optsched.cache.prompt_tree import PromptNode, PromptTree
from optsched.routers.router import MachineView, RoutedRequest, Router, RouterSetting, least


class OraclePartition(Router):
    """The router.

    All requests of one key portion (the deepest node of the tree of all prompts that has more tokens than are before
    it) go to one machine. Key portions are placed in the order of their work, the largest first, each on the machine
    with the least work so far. The work of a key portion is one prefill of it, the prefills of what is behind it, and
    the decodes.

    Parameters
    ----------
    machines
        How many there are.
    requests
        All requests.
    prefill_ps
        Time of prefilling ``new`` tokens that end a context of ``context`` tokens.
    decode_ps
        Time of one token of a decode.
    """

    def __init__(
        self,
        machines: int,
        requests: Sequence[RoutedRequest],
        prefill_ps: Callable[[int, int], int],
        decode_ps: int,
    ) -> None:
        tree: PromptTree[None] = PromptTree(lambda: None, lambda _: None)
        for request in requests:
            tree.insert(request.prompt)
        work: dict[PromptNode[None], int] = {}
        keys: list[PromptNode[None]] = []
        for request in requests:
            node, _ = tree.find(request.prompt)
            while node.tokens <= node.before:
                assert node.parent is not None
                node = node.parent
            keys.append(node)
            rest = request.input - node.end
            own = (prefill_ps(rest, request.input) if rest else 0) + decode_ps * request.output
            work[node] = work.get(node, prefill_ps(node.tokens, node.end)) + own
        loads = [0] * machines
        placed: dict[PromptNode[None], int] = {}
        for node in sorted(work, key=lambda each: -work[each]):
            placed[node] = least(loads)
            loads[placed[node]] += work[node]
        self._machines = {request.index: placed[node] for request, node in zip(requests, keys, strict=True)}

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        return self._machines[request.index]


def oracle_partition(setting: RouterSetting) -> Router:
    """Return the router for all requests of the setting."""
    return OraclePartition(setting.machines, setting.requests, setting.prefill_ps, setting.decode_ps)
