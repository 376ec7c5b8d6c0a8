"""Experts are placed by load: as evenly as a greedy rule promises, and no worse than in their own order."""

from itertools import combinations_with_replacement

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from reference.errors import BadInput
from reference.expert_parallel.placement import (
    ExpertPlacement,
    copies_of,
    in_order,
    pack,
    place,
    place_by_node,
)

ROUNDING = 1 + 1e-9
Loads = list[int]


@some.composite
def layers(draw: some.DrawFn) -> tuple[Loads, int, int]:
    """Loads of experts, ranks, and slots of all ranks."""
    loads = draw(some.lists(some.integers(0, 1000), min_size=1, max_size=24))
    ranks = draw(some.integers(1, 6))
    here = -(-len(loads) // ranks) + draw(some.integers(0, 3))
    return loads, ranks, here * ranks


@some.composite
def nodes_of_layers(draw: some.DrawFn) -> tuple[Loads, int, int, int, int]:
    """The same, with nodes and groups of experts."""
    nodes, of_node, in_group, here = (draw(some.integers(1, 3)) for _ in range(4))
    groups = nodes * draw(some.integers(1, 3))
    experts = groups * in_group
    loads = draw(some.lists(some.integers(0, 1000), min_size=experts, max_size=experts))
    ranks = nodes * of_node
    return loads, ranks, (-(-experts // ranks) + here - 1) * ranks, nodes, groups


def bound(loads: Loads, slots: int, ranks: int) -> float:
    """What the busiest rank has at most: the mean, and of the heaviest slot all but its part of that."""
    heaviest = max(load / count for load, count in zip(loads, copies_of(loads, slots), strict=True))
    return (sum(loads) / ranks + (1 - 1 / ranks) * heaviest) * ROUNDING


@given(layers())
def test_each_expert_has_a_slot_and_each_rank_as_many(layer: tuple[Loads, int, int]) -> None:
    loads, ranks, slots = layer
    found = place(loads, ranks, slots)
    assert {len(own) for own in found.slots} == {slots // ranks}
    assert len(found.slots) == ranks
    assert {expert for own in found.slots for expert in own} == set(range(len(loads)))
    assert sum(found.copies) == slots
    assert sum(found.rank_loads) == pytest.approx(sum(loads))


@given(layers())
def test_no_rank_has_more_than_the_greedy_rule_promises_or_more_than_in_order(layer: tuple[Loads, int, int]) -> None:
    loads, ranks, slots = layer
    found = place(loads, ranks, slots)
    assert found.imbalance <= in_order(loads, ranks, slots).imbalance
    assert max(found.rank_loads) <= bound(loads, slots, ranks)


@given(some.lists(some.integers(0, 50), min_size=1, max_size=24), some.integers(1, 6))
def test_packs_differ_by_the_heaviest_thing_at_most(weights: list[int], packs: int) -> None:
    weights = weights[: len(weights) // packs * packs] or [0] * packs
    found = [sum(weights[thing] for thing in own) for own in pack(weights, packs)]
    assert max(found) - min(found) <= max(weights)
    assert max(found) <= (sum(weights) / packs + (1 - 1 / packs) * max(weights)) * ROUNDING


@given(some.lists(some.integers(0, 30), min_size=1, max_size=4), some.integers(0, 4))
def test_no_other_number_of_copies_has_a_lighter_heaviest_copy(loads: Loads, spare: int) -> None:
    def heaviest(copies: list[int]) -> float:
        return max(load / count for load, count in zip(loads, copies, strict=True))

    everywhere = [
        heaviest([1 + chosen.count(expert) for expert in range(len(loads))])
        for chosen in combinations_with_replacement(range(len(loads)), spare)
    ]
    assert heaviest(copies_of(loads, len(loads) + spare)) == min(everywhere)


@given(nodes_of_layers())
def test_a_group_stays_on_one_node(layer: tuple[Loads, int, int, int, int]) -> None:
    loads, ranks, slots, nodes, groups = layer
    found = place_by_node(loads, ranks, slots, nodes, groups)
    size, of_node = len(loads) // groups, ranks // nodes
    homes = [{rank // of_node for rank in found.holders(expert)} for expert in range(len(loads))]
    for group in range(groups):
        assert len(set.union(*homes[group * size : (group + 1) * size])) == 1
    assert {len(own) for own in found.slots} == {slots // ranks}
    assert sum(found.copies) == slots


@given(nodes_of_layers())
def test_each_node_is_packed_as_well_as_all_ranks_are(layer: tuple[Loads, int, int, int, int]) -> None:
    loads, ranks, slots, nodes, groups = layer
    found, of_node = place_by_node(loads, ranks, slots, nodes, groups), ranks // nodes
    for node in range(nodes):
        own = [expert for expert in range(len(loads)) if found.holders(expert)[0] // of_node == node]
        here = found.rank_loads[node * of_node : (node + 1) * of_node]
        assert max(here) <= bound([loads[expert] for expert in own], slots // nodes, of_node)


def test_a_busy_expert_gets_the_spare_slots() -> None:
    found = place([90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], ranks=8, slots=16)
    assert found.copies == (1, 2, 1, 1, 2, 2, 1, 1, 1, 1, 2, 1)
    assert found.imbalance < 1.15 < in_order(found.loads, 8, 16).imbalance


def test_where_in_order_is_better_it_stays() -> None:
    loads = [3, 3, 0, 2, 2, 2]  # the heaviest first: 3 + 2 + 2 and 3 + 2 + 0
    assert [sum(loads[each] for each in own) for own in pack(loads, 2)] == [7, 5]
    assert place(loads, 2, 6) == in_order(loads, 2, 6)


def test_one_group_cannot_be_cut_as_experts_can() -> None:
    loads = [8, 8, 1, 1, 1, 1, 2, 2]
    assert place_by_node(loads, ranks=4, slots=8, nodes=2, groups=4).imbalance == pytest.approx(9 / 6)
    assert place_by_node(loads, ranks=4, slots=12, nodes=2, groups=4).imbalance == pytest.approx(9 / 6)
    assert place(loads, ranks=4, slots=12).imbalance < 7 / 6  # copies of one expert on both nodes


def test_copies_take_turns() -> None:
    found = ExpertPlacement(((0, 1), (0, 2), (0, 0)), (3, 1, 1))
    chosen = torch.tensor([[0, 1], [0, 2], [2, 0], [0, 1], [0, 2]])
    assert found.slots_for(chosen).tolist() == [[0, 1], [2, 3], [3, 4], [5, 1], [0, 3]]
    assert found.copies == (4, 1, 1)
    assert found.rank_loads == (1.75, 1.75, 1.5)
    assert found.holders(0) == (0, 1, 2)


def test_nothing_to_do_is_even() -> None:
    assert place([0, 0, 0], ranks=3, slots=6).imbalance == 1.0


@pytest.mark.parametrize(
    ("ranks", "slots", "said"),
    [(4, 6, "6 slots do not divide among 4 ranks.*8 slots"), (3, 3, "3 slots are too few: each of 4 experts")],
)
def test_slots_that_do_not_fit_are_refused(ranks: int, slots: int, said: str) -> None:
    for policy in (in_order, place):
        with pytest.raises(BadInput, match=said):
            policy([1, 2, 3, 4], ranks, slots)
    with pytest.raises(BadInput, match=said):
        place_by_node([1, 2, 3, 4], ranks, slots, nodes=1, groups=2)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1])
def test_what_is_no_load_is_named(wrong: float) -> None:
    with pytest.raises(BadInput, match=f"0 or more: {wrong} is none"):
        place([3, wrong, 0], ranks=3, slots=3)


@pytest.mark.parametrize(("nodes", "groups"), [(2, 3), (2, 1), (3, 3), (1, 4)])
def test_groups_and_nodes_that_do_not_divide_are_refused(nodes: int, groups: int) -> None:
    with pytest.raises(BadInput, match=r"6 experts in \d groups, 4 ranks on \d nodes"):
        place_by_node([1] * 6, ranks=4, slots=8, nodes=nodes, groups=groups)


@pytest.mark.parametrize("loads", [[1, -1], [1.0, float("nan")], [float("inf"), 1.0]])
def test_a_load_that_is_no_number_of_tokens_is_refused(loads: list[float]) -> None:
    with pytest.raises(BadInput, match="a load is a number of tokens, 0 or more"):
        place(loads, 1, 2)


@pytest.mark.parametrize(
    ("slots", "said"),
    [
        (((0, 1), (2,)), "each rank has as many slots, not some 1 and some 2"),
        (((0, 1), (1, 0)), "expert 2 has no slot"),
        (((0, 1), (2, 3)), "a slot has expert 3, and there are loads of 3 experts"),
    ],
)
def test_a_placement_that_is_none_is_refused(slots: tuple[tuple[int, ...], ...], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        ExpertPlacement(slots, (1, 1, 1))
