"""sglang-router and vllm-router before fake workers: every decision, with the loads that the workers had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cluster.outcome import Outcome, Sources, compared
from optsched.model.errors import InputError
from optsched.routers.cache_aware import CacheAware
from optsched.routers.router import RoutedRequest, Router
from optsched.routers.simple import RoundRobin
from optsched.routers.views import Snapshot

UNIT = "decisions"


def recognises(document: Any) -> bool:
    """Whether a document is such a run."""
    return isinstance(document, dict) and {"router", "router_args", "workers", "events", "decisions"} <= document.keys()


def outcomes(run: Mapping[str, Any], _: Sources) -> Iterator[Outcome]:
    """Replay a run; loads are counted from its events, and must be those that it logged."""
    router = _router(run)
    loads = [0] * run["workers"]
    placed: dict[int, int] = {}
    decisions = iter(run["decisions"])

    def pairs() -> Iterator[tuple[str, object, object]]:
        for event, request, *text in run["events"]:
            if event == "finish":
                loads[placed.pop(request)] -= 1
                continue
            decision = next(decisions)
            views = [Snapshot(worker, running=load) for worker, load in enumerate(loads)]
            prompt = tuple((character, 0, 1) for character in text[0])
            ours = router.route(RoutedRequest(request, len(prompt), 1, prompt), views)
            theirs = decision["request"], decision["loads"], decision["chosen"]
            yield f"request {request}", theirs, (request, list(loads), ours)
            placed[request] = decision["chosen"]
            loads[decision["chosen"]] += 1

    yield compared(run["policy"], UNIT, pairs())


def _router(run: Mapping[str, Any]) -> Router:
    given = _arguments(run["router_args"])
    order = run.get("worker_order_of_ties", ())
    match given["--policy"]:
        case "cache_aware":
            return CacheAware(
                threshold=float(given.get("--cache-threshold", 0.3)),
                most_apart=int(given.get("--balance-abs-threshold", 64)),
                most_times=float(given.get("--balance-rel-threshold", 1.5)),
                order=order,
            )
        case "round_robin":
            return RoundRobin(order or _first_round(run))
        case other:
            raise InputError("router_args", other, "cache_aware or round_robin")


def _arguments(words: Sequence[str]) -> dict[str, str]:
    """Return the options of a command line: ``--name value`` or ``--name=value``; one without a value is empty."""
    given: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, _, given_with_it = word.partition("=")
            given[name] = given_with_it
        else:
            given[name] = word
    return given


def _first_round(run: Mapping[str, Any]) -> Sequence[int]:
    """Return the order of the first round, for a run that does not record its order of workers."""
    return tuple(dict.fromkeys(decision["chosen"] for decision in run["decisions"][: run["workers"]]))
