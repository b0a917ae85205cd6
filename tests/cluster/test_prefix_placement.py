"""Placement of prefixes, against all placements of tiny problems."""

from __future__ import annotations

import itertools
import random

import pulp
import pytest

from optsched import InputError
from optsched.check.certificates.prefix_placement import Placing, largest_load, placement_bound
from optsched.check.reading import UnprovedError
from optsched_formulations.routing.component import DocumentNeed, component_bound
from optsched_formulations.routing.placement_models import placement_programme, polish
from optsched_formulations.routing.prefix_placement import Placement, place, recursion_bound
from optsched_formulations.routing.prefix_tree import PlacedRequest, PrefixTree


def random_documents(rng: random.Random, count: int, requests: int) -> PrefixTree:
    """Prefixes without a common root that are long beside what is private: few of them are worth a copy."""
    placed = tuple(PlacedRequest(rng.randrange(count), rng.randint(1, 3)) for _ in range(requests))
    return PrefixTree((None,) * count, tuple(rng.randint(3, 12) for _ in range(count)), placed)


def random_tree(rng: random.Random, nodes: int, requests: int) -> PrefixTree:
    numbers = list(range(nodes))
    rng.shuffle(numbers)
    parents: list[int | None] = [None] * nodes
    for position, node in enumerate(numbers):
        if position and rng.random() < 0.8:
            parents[node] = rng.choice(numbers[:position])
    where = [None, *range(nodes)] if rng.random() < 0.3 else list(range(nodes))
    placed = tuple(PlacedRequest(rng.choice(where), rng.randint(0, 9)) for _ in range(requests))
    return PrefixTree(tuple(parents), tuple(rng.randint(0, 12) for _ in numbers), placed)


def least_load(tree: PrefixTree, machines: int) -> int:
    """All placements; the load is written anew."""

    def load(mine: list[PlacedRequest]) -> int:
        nodes = set[int]()
        for request in mine:
            node = request.node
            while node is not None:
                nodes.add(node)
                node = tree.parents[node]
        return sum(tree.node_ps[node] for node in nodes) + sum(request.own_ps for request in mine)

    return min(
        max(load([r for r, at in zip(tree.requests, choice, strict=True) if at == machine]) for machine in set(choice))
        for choice in itertools.product(range(machines), repeat=len(tree.requests))
    )


def checked(tree: PrefixTree, machines: int, found: Placement) -> None:
    placing = Placing(tree.parents, tree.node_ps, [(r.node, r.own_ps) for r in tree.requests], machines)
    assert largest_load(placing, found.machine_of) == found.value
    assert found.certificate is not None
    assert placement_bound(placing, found.certificate) == found.bound


def test_bounds_and_placements_enclose_all_tiny_optima() -> None:
    rng = random.Random(1)
    closed = components = 0
    for _ in range(500):
        make = rng.choice([random_tree, random_documents])
        tree = make(rng, rng.randint(1, 5), rng.randint(1, 6))
        machines = rng.randint(1, 3)
        found = place(tree, machines, time_limit_s=0.0)
        best = least_load(tree, machines)
        assert recursion_bound(tree, machines) <= found.bound <= best <= found.value
        checked(tree, machines, found)
        closed += found.bound == best
        components += found.certificate is not None and found.certificate["kind"] == "prefix_components"
    # The bound is the optimum most of the time, and both kinds of certificates occur.
    assert closed > 300
    assert components > 20


@pytest.mark.slow
def test_annealing_finds_tiny_optima() -> None:
    rng = random.Random(2)
    for _ in range(3):
        tree = random_tree(rng, 4, 7)
        best = least_load(tree, 2)
        # It takes 0.05 s, the first time 0.4 s more: compiled code is loaded.
        assert place(tree, 2, time_limit_s=3.0).value == best


def test_both_models_have_the_optimum() -> None:
    rng = random.Random(3)
    for _ in range(8):
        tree = random_tree(rng, 4, 5)
        best = least_load(tree, 2)
        problem = placement_programme(tree, 2)
        problem.solve(pulp.HiGHS(msg=False))
        assert round(pulp.value(problem.objective) or 0) == best
        polished = polish(tree, 2, [0] * len(tree.requests), 0, (10.0, 1))
        assert max(tree.loads_ps(polished, 2)) == best


def test_components_by_hand() -> None:
    # Three documents of 4 on two machines: 12 in all, so two machines of 6 would do, but in one component they share
    # at least 3 + 2 - 1 = 4 edges, one copy of 2 more, and in two components one machine has two of them.
    needs = [DocumentNeed(4, 1, 2, 9)] * 3
    assert component_bound(needs, 0, 2, (6, 100), (1.0, 1)) == 7
    # A root of 5 is in front of them on both machines.
    assert component_bound(needs, 5, 2, (6, 100), (1.0, 1)) == 12


def test_documents_are_on_no_more_machines_than_they_have_requests() -> None:
    # Three requests of 4 on two machines: one machine has two of them, a second copy serves no request.
    assert component_bound([DocumentNeed(4, 1, 0, 1)] * 3, 0, 2, (6, 100), (1.0, 1)) == 8
    assert component_bound([DocumentNeed(3, 1, 0, 1)] * 17, 0, 2, (1, 100), (5.0, 1)) == 27
    # A document of 12 has a machine of its own. One of 20 is split, as only it can be: (20 + 12 + 3) / 2, rounded up.
    requests = [DocumentNeed(4, 1, 0, 1)] * 3
    assert component_bound([DocumentNeed(12, 1, 3, 3), *requests], 0, 2, (1, 100), (1.0, 1)) == 12
    assert component_bound([DocumentNeed(20, 1, 3, 3), *requests], 0, 2, (1, 100), (1.0, 1)) == 18
    for placing in (
        Placing([], [], [(None, 4)] * 3, 2),
        Placing([None] * 3, [1] * 3, [(0, 3), (1, 3), (2, 3)], 2),
    ):
        assert placement_bound(placing, {"kind": "prefix_components", "bound": 8}) == 8
        with pytest.raises(UnprovedError):
            placement_bound(placing, {"kind": "prefix_components", "bound": 9})


def test_many_documents_are_searched_for() -> None:
    # 16 documents of 3 on 2 machines need 24 each.
    assert component_bound([DocumentNeed(3, 1, 9, 5)] * 16, 0, 2, (1, 100), (5.0, 1)) == 24
    # One more, and a machine has 27, or a copy more is split: (51 + 9) / 2 = 30.
    assert component_bound([DocumentNeed(3, 1, 9, 5)] * 17, 0, 2, (1, 100), (5.0, 1)) == 27


def test_a_bound_of_the_solver_claims_no_certificate() -> None:
    # 16 requests of 4 on 6 machines: 64 / 6 < 11, but some machine has three of them. More than the checker lists.
    tree = PrefixTree((), (), (PlacedRequest(None, 4),) * 16)
    found = place(tree, 6, time_limit_s=1.0)
    assert recursion_bound(tree, 6) == 11
    assert found.bound == found.value == 12
    assert found.certificate is None


def test_the_recursion_by_hand() -> None:
    # A prefix of 10 shared by four requests of 5: on two machines 10 + 2 * 5 each. On one machine 30.
    tree = PrefixTree((None,), (10,), (PlacedRequest(0, 5),) * 4)
    assert recursion_bound(tree, 2) == 20
    assert recursion_bound(tree, 1) == 30
    # With loads of at most 15 each request has its machine.
    assert recursion_bound(tree, 4) == recursion_bound(tree, 9) == 15


@pytest.mark.parametrize(
    ("parents", "node_ps", "requests", "message"),
    [
        ((1, 0), (1, 1), (PlacedRequest(0, 1),), "no cycle, as of the nodes [0, 1]"),
        ((None, 7), (1, 1), (PlacedRequest(0, 1),), "parents[1]: got 7, expected a node below 2, or null"),
        ((None,), (1, 1), (PlacedRequest(0, 1),), "one for each of 1 nodes"),
        ((None,), (-1,), (PlacedRequest(0, 1),), "node_ps[0]: got -1, expected a time ≥ 0"),
        ((None,), (1,), (), "requests: got 'none', expected at least one"),
        ((None,), (1,), (PlacedRequest(1, 1),), "requests[0].node: got 1, expected a node below 1, or null"),
        ((None,), (1,), (PlacedRequest(0, -1),), "requests[0].own_ps: got -1, expected a time ≥ 0"),
    ],
)
def test_wrong_input_is_one_line(
    parents: tuple[int | None, ...], node_ps: tuple[int, ...], requests: tuple[PlacedRequest, ...], message: str
) -> None:
    with pytest.raises(InputError) as error:
        PrefixTree(parents, node_ps, requests)
    assert message in str(error.value)


def test_forged_certificates_prove_nothing() -> None:
    placing = Placing([None], [10], [(0, 5)] * 4, 2)
    assert placement_bound(placing, {"kind": "prefix_placement", "bound": 20}) == 20
    for kind, bound in (("prefix_placement", 21), ("prefix_components", 21), ("prefix_placement", True), ("x", 1)):
        with pytest.raises(UnprovedError):
            placement_bound(placing, {"kind": kind, "bound": bound})
    with pytest.raises(UnprovedError):
        largest_load(placing, [0, 0, 0, 2])
