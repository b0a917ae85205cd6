"""Mutated documents: nothing but an answer may come of them, and what is accepted has to be true."""

from __future__ import annotations

import json
import traceback
from contextlib import suppress
from copy import deepcopy
from fractions import Fraction
from random import Random
from typing import Any

from optsched import check_result
from optsched.calibrate.library import cost_model
from optsched.check import UnprovedError, check_schedule, proved_bound
from optsched.model.documents import instance_sha256, parse_instance, parse_results, result_document
from optsched.model.errors import InputError
from optsched.model.objectives import Objective
from optsched.model.result import Badge, Result, Status
from optsched.model.schedule import Batch, Schedule
from trial.case import OBJECTIVES, IllegalError, play, read_case, value
from trial.exhaustive import Exhaustive, TooLargeError
from trial.grammar import GRAMMARS, About, leaves, put, spoiled
from trial.odd import ANY
from trial.tried import SlowError, Tally, TriedProblem, drawn, limited

_MUTATIONS = 40
_MOST_OUTPUT = 12
_KINDS = [name for name, grammar in GRAMMARS.items() if grammar.machines == "one"]


def documents(rng: Random, tally: Tally) -> None:
    """Mutate documents of results, and of instances, of some problems."""
    for _ in range(8):
        given = drawn(rng, ANY)
        name = rng.choice(_KINDS)
        objective = rng.choice(GRAMMARS[name].objectives)
        try:
            plain = _result(rng, given, objective, name)
        except (TooLargeError, InputError):  # the latter where a batch ends beyond the largest time
            continue
        check(tally, json.dumps(plain))
        for _ in range(_MUTATIONS):
            check(tally, mutated(rng, plain))
        for _ in range(_MUTATIONS // 4):
            _read(tally, mutated(rng, given.document))
            with suppress(TooLargeError):
                check(tally, json.dumps(_foreign(rng, given, objective)))


def _result(rng: Random, given: TriedProblem, objective: str, name: str) -> dict[str, Any]:
    """Return the document of a right result with the optimal schedule, with a certificate where one is accepted."""
    best = given.optimum(objective)
    batches = tuple(
        Batch(
            entry["start_ps"],
            entry["end_ps"],
            tuple((index, count) for index, count in entry["run"]),
            tuple(entry["evict"]),
            swap_out=tuple(entry.get("swap_out", ())),
            swap_in=tuple(entry.get("swap_in", ())),
        )
        for entry in best.batches
    )
    schedule = Schedule(batches)
    _, metrics = check_schedule(given.instance, schedule, given.allowed)
    bound, certificate = None, GRAMMARS[name].make(rng, About(given.case, objective, best.value))
    try:
        bound = min(proved_bound(given.instance, given.allowed, Objective(objective), certificate), best.value)
    except UnprovedError:
        certificate = {}
    whole = bound == best.value
    only = bound is not None and not whole and rng.random() < 0.3
    return result_document(
        Result(
            instance=given.instance,
            method="trial",
            objective=Objective(objective),
            status=Status.BOUND_ONLY if only else Status.OPTIMAL if whole else Status.FEASIBLE,
            badge=Badge.HEURISTIC if bound is None else Badge.CERTIFIED,
            value=None if only else best.value,
            bound=bound,
            schedule=None if only else schedule,
            metrics=None if only else metrics,
            certificate=certificate or None,
            restrictions=given.allowed,
        )
    )


def _foreign(rng: Random, given: TriedProblem, objective: str) -> dict[str, Any]:
    """Return a document with a schedule that is right but for one rule, and its values, or that says there is none."""
    loose = deepcopy(given.document)
    limits, rules = loose["limits"], loose["rules"]
    change = rng.choice(("memory", "tokens", "runs", "rules", "arrival", "overlap", "class"))
    match change:
        case "memory":
            limits["kv_tokens"] += rng.randint(1, 5)
        case "tokens":
            limits["prefill_tokens"] += rng.choice((0, 1, 5))
            limits["batch_tokens"] += 5
        case "runs":
            limits["batch_requests"] = None
        case "rules":
            rules |= {rng.choice(("hybrid", "chunked_prefill", "eviction")): True}
        case "arrival":
            rng.choice(loose["requests"])["arrival_ps"] = 0
        case _:
            pass
    restrictions = {} if change == "class" else given.restrictions
    case = read_case(loose, restrictions)
    best = Exhaustive(case, most_labels=3_000).optimum(objective)
    batches, tokens = best.batches, play(case, best.batches)
    if change == "overlap":
        # from some batch on everything is a little earlier
        place, early = rng.randrange(len(batches)), rng.choice((1, 1, batches[0]["end_ps"] - batches[0]["start_ps"]))
        since = batches[place]["start_ps"]
        early = min(early, since)
        moved = {"start_ps": -early, "end_ps": -early}
        batches = [
            entry | ({name: entry[name] + by for name, by in moved.items()} if number >= place else {})
            for number, entry in enumerate(batches)
        ]
        tokens = [[time - early if time > since else time for time in times] for times in tokens]
    objectives = {name: value(given.case, name, tokens) for name in OBJECTIVES}
    found = result_document(
        Result(
            instance=given.instance,
            method="trial",
            objective=Objective(objective),
            status=Status.FEASIBLE,
            restrictions=given.allowed,
        )
    )
    if rng.random() < 0.1:
        return found | {"status": "infeasible", "message": "said to be"}
    return found | {
        "value": objectives[objective],
        "schedule": {"batches": batches},
        "metrics": {"objectives": objectives},
    }


# Mutation ----------------------------------------------------------------------------------------------------


def mutated(rng: Random, document: dict[str, Any]) -> str:
    """Return the text of a document with some changes; mostly its hash and gap are those of what it then says."""
    changed: Any = deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        part = rng.choice(("value", "bound", "schedule", "certificate", "instance", "instance", "restrictions", ""))
        if rng.random() < 0.25:
            changed = spoiled(rng, changed) if isinstance(changed, dict) and changed else changed
        elif isinstance(changed, dict):
            path = (part,) if part and changed.get(part) is not None else ()
            changed = put(changed, path, lambda inner: _nudge(rng, inner))
    if rng.random() < 0.7:
        changed = _consistent(rng, changed)
    text = json.dumps(changed)
    if rng.random() < 0.05:
        place = rng.randrange(len(text))
        text = text[:place] + rng.choice(("", "9", "-", '"', "{", "}", ",", "\\u0000", "é", "1e9")) + text[place + 1 :]
    return text


def _nudge(rng: Random, value: Any) -> Any:
    places = leaves(value)
    numbers = [place for place in places if type(_at(value, place)) is int]
    if not numbers:
        return value
    return put(
        value,
        rng.choice(numbers),
        lambda number: rng.choice((number + 1, number - 1, number + 1, number - 1, 0, 2 * number, number + 1000)),
    )


def _at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def _consistent(rng: Random, document: Any) -> Any:
    """Return a result document whose hash, gap and status agree with the rest, where that can be had."""
    if not isinstance(document, dict) or "instance_sha256" not in document:
        return document
    found = dict(document)
    try:
        found["instance_sha256"] = instance_sha256(parse_instance(json.dumps(found["instance"]).encode(), cost_model))
    except (InputError, KeyError, RecursionError):
        return document
    value, bound = found.get("value"), found.get("bound")
    if type(value) is int and type(bound) is int and value and abs(bound) < 2**200:
        if rng.random() < 0.5:
            found["bound"] = bound = value
        found["gap"] = float(Fraction(value - bound, value)) if abs(bound) < 2**70 * abs(value) else 0.0
        found["status"] = "optimal" if bound == value else "feasible"
    return found


# Reading and checking ----------------------------------------------------------------------------------------


def _read(tally: Tally, text: str) -> None:
    tally.counts["documents/instances/tried"] += 1
    try:
        with limited():
            parse_instance(text.encode(), cost_model)
    except InputError:
        return
    except SlowError:
        tally.find("slow", "documents/instances", {"text": text})
        return
    except Exception:
        tally.find("traceback", "documents/instances", {"text": text, "error": traceback.format_exc()})
        return
    tally.counts["documents/instances/accepted"] += 1


def check(tally: Tally, text: str) -> None:
    """Read and check a document; what is accepted has to be true."""
    tally.counts["documents/results/tried"] += 1
    try:
        with limited():
            reports = [check_result(claimed) for claimed in parse_results(text.encode(), cost_model)]
    except InputError:
        return
    except SlowError:
        tally.find("slow", "documents/results", {"text": text})
        return
    except Exception:
        tally.find("traceback", "documents/results", {"text": text, "error": traceback.format_exc()})
        return
    tally.counts["documents/results/read"] += 1
    if not all(report.ok for report in reports):
        return
    tally.counts["documents/results/accepted"] += 1
    stated = json.loads(text)
    for document in stated if isinstance(stated, list) else [stated]:
        wrong = _untrue(tally, document)
        if wrong:
            tally.find("false", "documents/results", {"wrong": wrong, "document": document})


def _untrue(tally: Tally, document: dict[str, Any]) -> str:
    """Say what is not true of an accepted document, if anything."""
    case = read_case(document["instance"], document.get("restrictions"))
    objective, found, bound = document["objective"], document["value"], document["bound"]
    if found is not None:
        considered_ps = document["instance"]["cost"].get("cpu_request", 0)
        try:
            own = value(case, objective, play(case, document["schedule"]["batches"], considered_ps))
        except IllegalError as error:
            return f"the schedule is illegal: {error}"
        if own != found:
            return f"the value is {own}"
    if not case.servable:
        return "" if found is None else "no schedule can serve all"
    if document["status"] == "infeasible" and document.get("restrictions", {}).get("at_most") is None:
        return "one request after another is a schedule"
    if bound is None or document["badge"] != "certified":
        return ""
    sizes = [job.output * (job.prompt if case.chunked else 1) for job in case.jobs]
    try:
        if sum(sizes) > 3 * _MOST_OUTPUT or len(sizes) > 4:
            raise TooLargeError
        best = Exhaustive(case).optimum(objective).value
    except TooLargeError:
        tally.counts["documents/results/too large to verify"] += 1
        return ""
    tally.counts["documents/results/bounds verified"] += 1
    return f"the optimum is {best}" if bound > best else ""
