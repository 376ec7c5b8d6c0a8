"""Every algorithm gives what one process would: any dtype, any reduction. Any number of ranks is in `test_sweep`."""

from functools import partial

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.collectives import all_reduce, barrier, exchange
from reference.collectives.fast import select

from . import conformance as c
from .conftest import MOST, in_group


def does_nothing(*arguments: object) -> None:
    """An algorithm whose author hopes that it is not checked."""


def noticed(group: dist.ProcessGroup) -> list[str]:
    cases = [c.Case(collective, does_nothing, 7, root=1) for collective in c.ALGORITHMS]
    return [case.collective for case in cases if c.mismatch(case, group)]


def test_the_oracle_notices_an_algorithm_that_does_nothing(ranks: Cluster) -> None:
    """On all ranks together: the root of a broadcast, say, has the right values from the start."""
    found = [collectives for collectives in ranks.run(in_group, 3, noticed) if collectives]
    assert set().union(*found) == set(c.ALGORITHMS)


def of_dtypes(group: dist.ProcessGroup) -> list[str]:
    return c.mismatches(c.dtypes(7), group)


def checked(ranks: Cluster, n: int, check: object) -> None:
    """Every member found nothing wrong, and no other rank took part."""
    found = ranks.run(in_group, n, check)
    assert [differences for differences in found if differences] == []
    assert sum(differences is not None for differences in found) == n


@pytest.mark.parametrize("n", [3, 4])
def test_all_dtypes_all_reductions(ranks: Cluster, n: int) -> None:
    checked(ranks, n, of_dtypes)


WIDE = torch.complex128  # 16 bytes an element: few of them make a large tensor


def of_sizes(group: dist.ProcessGroup) -> list[str]:
    """What `select` chooses below and above its limits; the lengths divide by no n."""
    n = group.size()
    lengths = {
        "all_to_all": (5, select.LARGE // WIDE.itemsize // n + 1),
        "all_reduce": (1001, select.LARGE // WIDE.itemsize + 5, select.CACHE // WIDE.itemsize // n + 5),
    }
    cases = [
        c.Case(collective, algorithm, length, WIDE)
        for collective, algorithms in c.ALGORITHMS.items()
        for algorithm in algorithms
        if algorithm.__module__ == select.__name__
        for length in lengths.get(collective, (1001, select.LARGE // WIDE.itemsize + 5))
    ]
    return [difference[:200] for difference in c.mismatches(cases, group)]


@pytest.mark.parametrize("n", [2, 3, 8])
def test_what_best_chooses_is_right_for_small_and_large_tensors(ranks: Cluster, n: int) -> None:
    checked(ranks, n, of_sizes)


def one_to_all(group: dist.ProcessGroup, size: int) -> None:
    select.broadcast(torch.zeros(size, dtype=torch.uint8), 0, group)


def all_to_all(group: dist.ProcessGroup, size: int) -> None:
    x = torch.zeros(size, dtype=torch.uint8)
    select.all_to_all(x, torch.empty_like(x), group)


@pytest.mark.parametrize(
    ("collective", "size", "steps"),
    [
        (all_to_all, select.SMALL, 3),  # hypercube
        (all_to_all, select.SMALL + 8, 1),  # spread out
        (one_to_all, select.LARGE, 2),  # scatter-all-gather
        (one_to_all, 8 * exchange.PIECE, 7),  # eager chain
    ],
)
def test_eight_ranks_choose_by_size(ranks: Cluster, collective: object, size: int, steps: int) -> None:
    _, trace = ranks.trace(in_group, 8, collective, size)
    assert trace.steps == steps


def native_and_ours(group: dist.ProcessGroup, dtype: torch.dtype) -> list[str]:
    """Whole range of integers, so that sums and products overflow."""
    rank, different = dist.get_rank(group), []
    generator = torch.Generator().manual_seed(rank)
    limits = torch.iinfo(dtype)
    x = torch.randint(limits.min, limits.max, (53,), generator=generator, dtype=dtype)
    for op in c.operations(dtype):
        native = x.clone()
        dist.all_reduce(native, op, group)
        for algorithm in c.ALGORITHMS["all_reduce"]:
            ours = x.clone()
            algorithm(ours, group, op)
            different += [] if torch.equal(ours, native) else [f"{algorithm.__name__} {op} {dtype}"]
    return different


@pytest.mark.parametrize("dtype", c.INTEGERS, ids=str)
def test_integers_equal_native_ones_exactly(ranks: Cluster, dtype: torch.dtype) -> None:
    checked(ranks, 5, partial(native_and_ours, dtype=dtype))


def same_bits(group: dist.ProcessGroup) -> list[str]:
    rank, different = dist.get_rank(group), []
    for algorithm in c.ALGORITHMS["all_reduce"]:
        x = torch.randn(1001, generator=torch.Generator().manual_seed(rank))
        algorithm(x, group)
        everybody = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(everybody, x, group)
        different += [] if all(torch.equal(x, other) for other in everybody) else [algorithm.__name__]
    return different


@pytest.mark.parametrize("n", [6, 8])
def test_an_all_reduce_leaves_the_same_bits_on_every_rank(ranks: Cluster, n: int) -> None:
    checked(ranks, n, same_bits)


def over_nodes(per_node: int) -> list[str]:
    """Nodes of `per_node` consecutive ranks in the world."""
    mesh = dist.init_device_mesh(
        "cpu", (dist.get_world_size() // per_node, per_node), mesh_dim_names=("inter", "intra")
    )
    different = []
    for op in (c.SUM, c.AVG, c.MAX):
        for length in (0, 5, 37):
            x, rank, n = c.values(dist.get_rank(), length, torch.float64), dist.get_rank(), dist.get_world_size()
            all_reduce.hierarchical(x, mesh.get_group("intra"), mesh.get_group("inter"), op)
            want = c.combined([c.values(i, length, torch.float64) for i in range(n)], op)
            different += [] if torch.allclose(x, want, rtol=0, atol=1e-15) else [f"rank {rank} {op} {length}"]
    return different


@pytest.mark.parametrize("per_node", [1, 2, 3, 6])
def test_hierarchical(clusters: object, per_node: int) -> None:
    assert clusters(6).run(over_nodes, per_node) == [[]] * 6


def late_arrival(group: dist.ProcessGroup) -> list[float]:
    """Every rank's moment before and after a barrier that the last rank comes to late."""
    import time

    if dist.get_rank(group) == dist.get_world_size(group) - 1:
        time.sleep(0.1)
    before = time.monotonic()
    barrier.dissemination(group)
    return [before, time.monotonic()]


@pytest.mark.parametrize("n", [1, 2, 5, 8, MOST])
def test_no_rank_leaves_a_barrier_before_all_have_come(ranks: Cluster, n: int) -> None:
    moments = [moment for moment in ranks.run(in_group, n, late_arrival) if moment]
    assert min(after for _, after in moments) >= max(before for before, _ in moments)


def chosen(group: dist.ProcessGroup, sizes: list[int]) -> list[str]:
    """Names of the all-reduces that are taken for tensors of these bytes."""
    return [select.cheapest(select.ALL_REDUCES, dist.get_world_size(group), size // 4, 4).__name__ for size in sizes]


def test_small_tensors_take_few_steps_and_large_ones_few_bytes(ranks: Cluster) -> None:
    eight = [names for names in ranks.run(in_group, 8, chosen, [1 << 10, 1 << 18, 1 << 20, 1 << 26]) if names]
    assert eight == [["eager_doubling", "eager_doubling", "halving_doubling", "halving_doubling"]] * 8
    six = [names for names in ranks.run(in_group, 6, chosen, [1 << 10, 1 << 26]) if names]
    assert six == [["eager_doubling", "ring"]] * 6
