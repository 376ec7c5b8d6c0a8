"""Two trees that use every rank's link in both directions, at every moment at most once each."""

from collections import Counter

import pytest

from reference.collectives import double_tree

SIZES = [*range(1, 34), 64, 100]


@pytest.mark.parametrize("n", SIZES)
def test_each_tree_spans_all_ranks(n: int) -> None:
    for tree in (0, 1):
        parents = {child: parent for which, child, parent in double_tree.edges(n) if which == tree}
        (root,) = set(range(n)) - parents.keys()
        for rank in range(n):
            for _ in range(2 * n.bit_length()):
                rank = parents.get(rank, rank)
            assert rank == root


@pytest.mark.parametrize("n", SIZES)
def test_no_rank_is_inside_both_trees(n: int) -> None:
    """But for the roots, who have one child there."""
    families = Counter((tree, parent) for tree, _, parent in double_tree.edges(n))
    inside = Counter(rank for (_, rank), children in families.items() if children == 2)
    assert all(times == 1 for times in inside.values())
    assert all(families[0, rank] + families[1, rank] <= 2 for rank in range(n))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("pieces", [1, 4])
def test_at_most_one_send_and_one_receive_at_a_time(n: int, pieces: int) -> None:
    hops = double_tree.schedule(n, pieces)
    assert len(hops) == 2 * (n - 1) * pieces
    assert max(Counter((hop.time, hop.child) for hop in hops).values(), default=0) <= 1
    assert max(Counter((hop.time, hop.parent) for hop in hops).values(), default=0) <= 1


@pytest.mark.parametrize("n", SIZES)
def test_a_piece_leaves_after_the_same_piece_of_all_children_has_come(n: int) -> None:
    hops = double_tree.schedule(n, 3)
    arrived = {(hop.tree, hop.piece, hop.child): hop.time for hop in hops}
    for hop in hops:
        below = [one for one in hops if (one.tree, one.piece, one.parent) == (hop.tree, hop.piece, hop.child)]
        assert all(arrived[one.tree, one.piece, one.child] < hop.time for one in below)


def test_one_more_piece_takes_two_more_moments() -> None:
    last = [double_tree.schedule(16, pieces)[-1].time for pieces in (1, 2, 3, 10)]
    assert [time - last[0] for time in last] == [0, 2, 4, 18]
