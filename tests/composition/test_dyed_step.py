"""The ledger of a small program: read without a fault it has each part once, and a fault that is put in is found."""

from collections.abc import Callable, Mapping

import pytest

from reference.cluster import Cluster
from reference.composition.answers.missing_sum import find_the_missing_sum
from reference.composition.lab.dyed_step import SUMS, ledger_of_step

FAULTS = ("missing", "twice", "mean")
MESHES = ({"dp": 2, "tp": 3}, {"tp": 3, "cp": 2}, {"dp": 3, "cp": 1, "tp": 2})


def sums_on(sizes: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(axis for axis in axes if axis in sizes) for name, axes in SUMS.items()}


def test_a_ledger_can_be_read(clusters: Callable[[int], Cluster]) -> None:
    assert ledger_of_step(clusters(4), {"dp": 2, "tp": 2}) == {
        "norm": [1111, 1111, 1111, 1111],
        "query": [101, 1010, 101, 1010],
        "bias": [101, 1010, 101, 1010],
    }


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_what_was_put_in_is_found(sizes: Mapping[str, int], clusters: Callable[[int], Cluster]) -> None:
    sums, cluster = sums_on(sizes), clusters(6)
    assert find_the_missing_sum(sizes, sums, ledger_of_step(cluster, sizes)) == []
    for name, axes in sums.items():
        for axis in axes:
            for fault in FAULTS if sizes[axis] > 1 else ():
                found = ledger_of_step(cluster, sizes, {(name, axis): fault})
                assert find_the_missing_sum(sizes, sums, found) == [(name, axis, fault)]
