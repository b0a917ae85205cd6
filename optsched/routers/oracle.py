"""``oracle_partition``: key portions divided among the machines with all requests known (Preble, section 5)."""

from __future__ import annotations

from collections.abc import Sequence

from optsched.cache.prompt_tree import PromptNode, PromptTree
from optsched.routers.router import MachineSetting, MachineView, RoutedRequest, Router, RouterSetting, least


class OraclePartition(Router):
    """The router.

    All requests of one key portion (the deepest node of the tree of all prompts that has more tokens than are before
    it) go to one machine. Key portions are placed in the order of their work, the largest first, each on the machine
    with the least work so far. The work of a key portion is one prefill of it, the prefills of what is behind it, and
    the decodes.

    Where machines are unlike, that is the work on each, the largest is that on the first, and a key portion goes where
    the work is least with it. A request that does not fit there goes to the machine with the least work in all of those
    that it fits.

    Parameters
    ----------
    machines
        What is known of each: the times of a prefill and of one token of a decode.
    requests
        All requests.
    """

    def __init__(self, machines: Sequence[MachineSetting], requests: Sequence[RoutedRequest]) -> None:
        tree: PromptTree[None] = PromptTree(lambda: None, lambda _: None)
        for request in requests:
            tree.insert(request.prompt)
        work: dict[PromptNode[None], list[int]] = {}
        keys: list[PromptNode[None]] = []
        for request in requests:
            node, _ = tree.find(request.prompt)
            while node.tokens <= node.before:
                assert node.parent is not None
                node = node.parent
            keys.append(node)
            rest = request.input - node.end
            if node not in work:
                work[node] = [machine.prefill_ps(node.tokens, node.end) for machine in machines]
            for place, machine in enumerate(machines):
                prefill = machine.prefill_ps(rest, request.input) if rest else 0
                work[node][place] += prefill + machine.decode_ps * request.output
        self._loads = loads = [0] * len(machines)
        placed: dict[PromptNode[None], int] = {}
        for node in sorted(work, key=lambda each: -work[each][0]):
            placed[node] = least([load + more for load, more in zip(loads, work[node], strict=True)])
            loads[placed[node]] += work[node][placed[node]]
        self._machines = {request.index: placed[node] for request, node in zip(requests, keys, strict=True)}

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        machine = self._machines[request.index]
        fitting = [view.machine for view in views]
        return machine if machine in fitting else min(fitting, key=lambda each: self._loads[each])


def oracle_partition(setting: RouterSetting) -> Router:
    """Return the router for all requests of the setting."""
    return OraclePartition(setting.of_all(), setting.requests)
