"""The formulas of `cost`: those that `test_sweep` does not hold against the trace, and what they say."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.collectives import all_gather, all_reduce, all_to_all, broadcast, cost, exchange, reduce_scatter
from reference.collectives.fast import blockwise, eager

LARGE = exchange.PIECE // 4  # elements


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize(
    "algorithm",
    [
        all_reduce.ring,
        blockwise.blockwise_ring,
        all_reduce.recursive_doubling,
        eager.eager_doubling,
        all_reduce.halving_doubling,
    ],
)
def test_large_tensors_travel_in_pieces(clusters: Callable[..., Cluster], algorithm: Callable, n: int) -> None:
    """One element more than what fits: one chunk, or one half, has a piece more than the others."""
    for length in (LARGE * n, 2 * LARGE * n + 1):
        results, trace = clusters(4).trace(large, algorithm, n, length)
        costs = cost.of(algorithm)
        assert results[:n] == [True] * n
        assert trace.steps == costs.steps(n, length, 4)
        assert trace.bytes_sent[:n] == [costs.bytes(rank, n, length, 4) for rank in range(n)]


def large(algorithm: Callable[..., None], n: int, length: int) -> bool:
    """All-reduce of so many elements among the first n ranks; true if the sum is right."""
    group = dist.new_group(list(range(n)))
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return True
    x = torch.arange(length) % 1000 + dist.get_rank()
    x = x.float()
    algorithm(x, group)
    return torch.equal(x, (torch.arange(length) % 1000 * n + n * (n - 1) // 2).float())


@pytest.mark.parametrize("root", [0, 2])
def test_pieces_of_an_eager_chain_wait_for_no_others(clusters: Callable[..., Cluster], root: int) -> None:
    results, trace = clusters(4).trace(from_root, root, 2 * LARGE + 1)
    costs = cost.of(eager.eager_chain)
    assert results == [True] * 4
    assert len(trace.messages) == 3 * 3
    assert trace.steps == costs.steps(4, 2 * LARGE + 1, 4)
    assert trace.bytes_sent == [costs.bytes((rank - root) % 4, 4, 2 * LARGE + 1, 4) for rank in range(4)]


def from_root(root: int, length: int) -> bool:
    """Broadcast so many elements; true if they are the root's."""
    x = torch.arange(length) + dist.get_rank()
    x = x.float()
    eager.eager_chain(x, root, dist.group.WORLD)
    return torch.equal(x, (torch.arange(length) + root).float())


@pytest.mark.parametrize("per_node", [1, 2, 3, 6])
def test_hierarchical(clusters: Callable[..., Cluster], per_node: int) -> None:
    for length in (5, 37):
        _, trace = clusters(6).trace(over_nodes, per_node, length)
        costs = cost.hierarchical(6 // per_node, per_node)
        assert trace.steps == costs.steps(6, length, 4)
        assert trace.bytes_sent == [costs.bytes(rank, 6, length, 4) for rank in range(6)]


def over_nodes(per_node: int, length: int) -> None:
    """A hierarchical all-reduce over nodes of `per_node` ranks."""
    shape = (dist.get_world_size() // per_node, per_node)
    mesh = dist.init_device_mesh("cpu", shape, mesh_dim_names=("inter", "intra"))
    all_reduce.hierarchical(torch.ones(length), mesh.get_group("intra"), mesh.get_group("inter"))


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 16, 17])
def test_ring_sends_two_n_minus_one_over_n(n: int) -> None:
    costs, size = cost.of(all_reduce.ring), 4
    assert costs.most(n, 1000 * n, size) == 2 * (n - 1) * 1000 * size
    assert costs.steps(n, 1000 * n, size) == 2 * (n - 1)


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_with_a_power_of_two_no_rank_sends_more_than_is_needed(n: int) -> None:
    """An all-gather, a reduce-scatter, and both of them, in the fewest steps and with the fewest bytes there are."""
    numel, needed, levels = 1000 * n, (n - 1) * 1000, n.bit_length() - 1
    for algorithm, parts in (
        (all_gather.recursive_doubling, 1),
        (reduce_scatter.recursive_halving, 1),
        (all_reduce.halving_doubling, 2),
    ):
        costs = cost.of(algorithm)
        assert [costs.bytes(rank, n, numel, 1) for rank in range(n)] == [parts * needed] * n
        assert costs.steps(n, numel, 1) == parts * levels


def test_a_chain_keeps_all_links_busy() -> None:
    """Sixteen hops, eight pieces: 23 steps of an eighth each, where a tree takes five whole ones."""
    assert cost.of(broadcast.chain).steps(17, 1000, 4) == 15 + 8
    assert cost.of(broadcast.tree).steps(17, 1000, 4) == 5


def test_bruck_trades_bytes_for_steps() -> None:
    few, many = cost.of(all_to_all.bruck), cost.of(all_to_all.pairwise)
    assert few.steps(16, 1600, 4) == 4 < many.steps(16, 1600, 4) == 15
    assert few.bytes(0, 16, 1600, 4) == 4 * 8 * 100 * 4 > many.bytes(0, 16, 1600, 4) == 15 * 100 * 4


def test_what_depends_on_more_says_so() -> None:
    with pytest.raises(KeyError):
        cost.of(all_reduce.hierarchical)
