"""Moves of requests and documents between machines, compiled: the polish of `prefix_placement`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled
from optsched.model.ints import Ints


class Forest(NamedTuple):
    """A prefix tree for compiled loops; requests are sorted so that those behind a node are consecutive.

    Attributes
    ----------
    parent, node_ps
        By node; −1 for no parent.
    first, after
        By node: the requests behind it are those from ``first`` to before ``after``.
    node, own_ps
        By request; −1 for no node.
    """

    parent: Ints
    node_ps: Ints
    first: Ints
    after: Ints
    node: Ints
    own_ps: Ints


class Placed(NamedTuple):
    """A placement, which changes.

    Attributes
    ----------
    machine_of
        By request.
    users
        By machine and node: requests there whose prefix has the node.
    load
        By machine, ps.
    """

    machine_of: Ints
    users: npt.NDArray[np.int32]
    load: Ints


@compiled
def add(forest: Forest, placed: Placed, request: int, machine: int) -> None:
    """Put a request on a machine."""
    time = forest.own_ps[request]
    node = forest.node[request]
    while node >= 0:
        if placed.users[machine, node] == 0:
            time += forest.node_ps[node]
        placed.users[machine, node] += 1
        node = forest.parent[node]
    placed.load[machine] += time
    placed.machine_of[request] = machine


@compiled
def remove(forest: Forest, placed: Placed, request: int) -> None:
    """Take a request from its machine."""
    machine = placed.machine_of[request]
    time = forest.own_ps[request]
    node = forest.node[request]
    while node >= 0:
        placed.users[machine, node] -= 1
        if placed.users[machine, node] == 0:
            time += forest.node_ps[node]
        node = forest.parent[node]
    placed.load[machine] -= time


@compiled
def energy(placed: Placed, mean: float) -> float:
    """Return the largest load, and ``mean`` times the root of the mean square of loads.

    Copies that could be saved are in the mean long before they are in the largest load.
    """
    largest, squares = 0.0, 0.0
    for load in placed.load:
        largest = max(largest, float(load))
        squares += float(load) ** 2
    return largest + mean * math.sqrt(squares / len(placed.load))


@compiled
def anneal(
    forest: Forest, placed: Placed, best: Ints, heat: tuple[float, float, float, float], work: tuple[int, int]
) -> int:
    """Anneal by moves and exchanges of requests, and of those behind a common node; return the least largest load.

    Parameters
    ----------
    forest, placed
        The problem and a placement.
    best
        Is set to the machines of the best placement.
    heat
        Temperatures at first and at last, ps; how often only part of a group is moved, from 0 to 1; and the weight of
        the mean load in `energy`.
    work
        How many moves to try, and the seed of random choices.
    """
    (hot, cold, part, mean), (moves, seed) = heat, work
    np.random.seed(seed)
    requests, machines = len(placed.machine_of), len(placed.load)
    moved = np.empty(2 * requests, dtype=np.int64)
    least = placed.load.max()
    best[:] = placed.machine_of
    now = energy(placed, mean)
    largest_group = 2 * requests // machines
    temperature, cooling = hot, (cold / hot) ** (1.0 / max(moves, 1))
    for _ in range(moves):
        temperature *= cooling
        request = np.random.randint(requests)
        if np.random.random() < 0.5:
            # From the machine with the largest load, if one of a few draws is there.
            busiest = np.argmax(placed.load)
            for _ in range(2 * machines):
                if placed.machine_of[request] == busiest:
                    break
                request = np.random.randint(requests)
        source, target = placed.machine_of[request], np.random.randint(machines)
        if source == target:
            continue
        there, back = 0, 0
        for side in range(2):
            machine = source if side == 0 else target
            if side == 1:
                if np.random.random() < 0.5:
                    break
                request = np.random.randint(requests)
                for _ in range(2 * machines):
                    if placed.machine_of[request] == target:
                        break
                    request = np.random.randint(requests)
                if placed.machine_of[request] != target:
                    break
            first, after = request, request + 1
            if np.random.random() < 0.5:
                node = forest.node[request]
                while (
                    node >= 0 and forest.after[node] - forest.first[node] <= largest_group and np.random.random() < 0.7
                ):
                    first, after = forest.first[node], forest.after[node]
                    node = forest.parent[node]
                if np.random.random() < part:
                    # Those from this request on only.
                    first = request
            for other_request in range(first, after):
                if placed.machine_of[other_request] != machine:
                    continue
                if side == 0:
                    moved[there] = other_request
                    there += 1
                else:
                    moved[there + back] = other_request
                    back += 1
        for position in range(there + back):
            remove(forest, placed, moved[position])
            add(forest, placed, moved[position], target if position < there else source)
        after_move = energy(placed, mean)
        if after_move <= now or np.random.random() < math.exp((now - after_move) / temperature):
            now = after_move
            largest = placed.load.max()
            if largest < least:
                least = largest
                best[:] = placed.machine_of
        else:
            for position in range(there + back - 1, -1, -1):
                remove(forest, placed, moved[position])
                add(forest, placed, moved[position], source if position < there else target)
    return int(least)
