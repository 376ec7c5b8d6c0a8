"""From any layout to any other one in memory: each rank gets exactly its elements."""

import itertools
import random
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.resilience.reshard import Key, fetch, overlap, transfers
from reference.sharding import Slices

SHAPE = (7, 5)
WHOLE = torch.arange(35.0).view(SHAPE)


def rows(parts: int) -> list[list[Key]]:
    """A matrix in as many blocks of rows."""
    begins = [7 * part // parts for part in range(parts + 1)]
    boxes = [Slices((a, 0), (b - a, 5)) for a, b in itertools.pairwise(begins)]
    return [[("w", box)] if box.sizes[0] else [] for box in boxes]


def columns(parts: int) -> list[list[Key]]:
    """The same in blocks of columns."""
    begins = [5 * part // parts for part in range(parts + 1)]
    boxes = [Slices((0, a), (7, b - a)) for a, b in itertools.pairwise(begins)]
    return [[("w", box)] if box.sizes[1] else [] for box in boxes]


def cuts() -> Iterator[list[list[Key]]]:
    for parts in (1, 2, 3, 4):
        yield rows(parts) + [[]] * (4 - parts)
        yield columns(parts) + [[]] * (4 - parts)


@pytest.fixture(scope="module")
def four() -> Iterator[Cluster]:
    with Cluster(4, timeout=60) as cluster:
        yield cluster


def resharded(pairs: list[tuple[list[list[Key]], list[list[Key]]]]) -> bool:
    """From each layout to another one, on this rank."""
    me = dist.get_rank()
    for before, after in pairs:
        held = {key: key[1].within(WHOLE).clone() for key in before[me]}
        needed = {key: torch.full(key[1].sizes, -1.0) for key in after[me]}
        fetch(held, needed, dist.group.WORLD)
        assert all(torch.equal(values, box.within(WHOLE)) for (_, box), values in needed.items())
    return True


def test_any_layout_becomes_any_other(four: Cluster) -> None:
    layouts = list(cuts())
    assert all(four.run(resharded, [(before, after) for before in layouts for after in layouts]))


def test_each_element_comes_from_one_rank_alone() -> None:
    for before in cuts():
        for after in cuts():
            counted = torch.zeros(4, *SHAPE)
            for t in transfers(before, after):
                t.common.within(counted[t.target]).add_(1)
            for rank, keys in enumerate(after):
                for _, box in keys:
                    assert (box.within(counted[rank]) == 1).all()


def test_what_a_rank_has_it_does_not_send_for() -> None:
    replicas = rows(1) * 4
    assert all(t.source == t.target for t in transfers(replicas, replicas))


def test_a_box_overlaps_as_sets_do() -> None:
    random.seed(5)
    for _ in range(300):
        a, b = (Slices((random.randrange(4), random.randrange(4)), (1 + random.randrange(4),) * 2) for _ in range(2))
        common = {(i, j) for i, j in elements(a) if (i, j) in elements(b)}
        found = overlap(a, b)
        assert (elements(found) if found else set()) == common


def elements(box: Slices) -> set[tuple[int, int]]:
    (a, b), (m, n) = box.begins, box.sizes
    return {(i, j) for i in range(a, a + m) for j in range(b, b + n)}
