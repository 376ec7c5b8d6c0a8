"""Who holds whose copy, and which losses that survives."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.errors import BadInput
from reference.resilience.placement import grouped, of_ranks, ring, share_survived, survives


@given(st.integers(1, 12), st.integers(1, 4))
def test_each_node_holds_its_own_state_and_that_of_as_many_others(nodes: int, copies: int) -> None:
    if copies > nodes:
        return
    for place in (grouped, ring):
        placed = place(nodes, copies)
        assert [holders[0] for holders in placed] == list(range(nodes))
        assert all(len(set(holders)) == copies for holders in placed)
        held = [node for holders in placed for node in holders]
        assert {held.count(node) for node in range(nodes)} == {copies}


@given(st.integers(2, 10), st.integers(2, 4))
def test_fewer_losses_than_copies_lose_nothing(nodes: int, copies: int) -> None:
    if copies > nodes:
        return
    for place in (grouped, ring):
        assert all(survives(place(nodes, copies), lost) for lost in combinations(range(nodes), copies - 1))


def test_groups_survive_more_than_a_ring() -> None:
    """Gemini, figure 5: 16 nodes in pairs; two losses hit one of 8 pairs of 120, and one of 16 neighbours of 120."""
    assert share_survived(grouped(16, 2), 2) == pytest.approx(1 - 8 / 120)
    assert share_survived(ring(16, 2), 2) == pytest.approx(1 - 16 / 120)


def test_where_copies_do_not_divide_the_last_group_is_a_ring() -> None:
    assert grouped(5, 2) == ((0, 1), (1, 0), (2, 3), (3, 4), (4, 2))


def test_ranks_send_to_the_same_place_of_another_node() -> None:
    nodes = ["a", "a", "b", "b", "c", "c", "d", "d"]
    assert of_ranks(grouped, nodes, 2) == ((0, 2), (1, 3), (2, 0), (3, 1), (4, 6), (5, 7), (6, 4), (7, 5))


def test_on_one_node_each_rank_counts_as_one() -> None:
    assert of_ranks(grouped, ["a"] * 4, 2) == ((0, 1), (1, 0), (2, 3), (3, 2))


def test_nodes_of_several_sizes() -> None:
    assert of_ranks(grouped, ["a", "a", "a", "b"], 2) == ((0, 3), (1, 3), (2, 3), (3, 0))


@pytest.mark.parametrize(("nodes", "copies"), [(2, 3), (4, 0)])
def test_copies_that_nodes_cannot_hold_are_refused(nodes: int, copies: int) -> None:
    with pytest.raises(BadInput, match=f"{nodes} nodes can hold 1 to {nodes} copies"):
        grouped(nodes, copies)
