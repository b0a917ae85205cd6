"""``cache_aware``: one tree of all prompts, and the least loaded when loads differ too much.

Source: sglang-router 0.3.2 and vllm-router 0.1.17. The load of a machine is its requests in flight.
"""

from __future__ import annotations

from collections.abc import Sequence

from optsched.cache.prompt_tree import PromptTree
from optsched.routers.router import MachineView, RoutedRequest, Router, RouterSetting

_NONE = -1


class CacheAware(Router):
    """The router.

    If the largest load exceeds the smallest by more than `most_apart` and is more than `most_times` of it, a request
    goes to the least loaded machine. Else the longest leading run that its prompt shares with any earlier prompt
    decides: if it is more than `threshold` of the prompt, the machine that first got the deepest node that holds a
    token of the run; otherwise the least loaded. The prompt is inserted at the choice in all cases.

    Parameters
    ----------
    threshold
        Share of the prompt in [0, 1]; 0.3 there.
    most_apart, most_times
        Of loads, in requests and as a factor; 64 and 1.5 there.
    order
        Order of the machines in which the first of several least loaded is taken; by index if it is empty.
    """

    def __init__(
        self, threshold: float = 0.3, most_apart: int = 64, most_times: float = 1.5, order: Sequence[int] = ()
    ) -> None:
        self.threshold = threshold
        self.most_apart = most_apart
        self.most_times = most_times
        self._order = {machine: place for place, machine in enumerate(order)}
        self._tree: PromptTree[list[int]] = PromptTree(new=lambda: [_NONE], split=list)

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        loads = {view.machine: view.waiting + view.running for view in views}
        machine = min(loads, key=lambda each: (loads[each], self._order.get(each, each)))
        least, most = loads[machine], max(loads.values())
        if not (most - least > self.most_apart and most > self.most_times * least):
            node, shared = self._tree.find(request.prompt)
            if shared / request.input > self.threshold and node.data[0] in loads:
                machine = node.data[0]
        node, _ = self._tree.insert(request.prompt)
        while node.parent is not None and node.data[0] == _NONE:
            node.data[0] = machine
            node = node.parent
        return machine


def cache_aware(_: RouterSetting) -> CacheAware:
    """Return the router with its default thresholds."""
    return CacheAware()
