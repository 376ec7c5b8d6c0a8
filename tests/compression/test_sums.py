"""Compressed sums over ranks are those of one process, lose nothing, and carry what the formula says."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.compression import plain_memory
from reference.oracle import relative_difference

from .sums import AT_ONCE, IN_BUCKETS, MAKERS, SHAPES, Cuts, compressor_of, gradient, in_one_process, on_ranks

STEPS = 12
EXACT = 1e-10


@pytest.fixture(scope="session")
def ranks(clusters: Callable[..., Cluster]) -> Cluster:
    return clusters(4)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("n", [1, 3, 4])
def test_n_ranks_have_the_sums_of_one_process(ranks: Cluster, name: str, n: int) -> None:
    """Through twelve steps, whose residuals and warm starts follow from each other; to the last bit alike on ranks."""
    found, oracle = ranks.run(on_ranks, n, name, AT_ONCE, STEPS)[:n], in_one_process(n, name, STEPS)
    for step, wanted in enumerate(oracle):
        for each in SHAPES:
            assert relative_difference(found[0].sums[step][each], wanted[each]) < EXACT, (step, each)
            assert all(torch.equal(found[0].sums[step][each], other.sums[step][each]) for other in found)


@pytest.mark.parametrize("name", MAKERS)
def test_how_buckets_are_cut_changes_nothing(ranks: Cluster, name: str) -> None:
    """A memory that is keyed by the bucket is lost where buckets are cut anew (pytorch PR 49418)."""
    whole, cut = (ranks.run(on_ranks, 3, name, cuts, STEPS)[0].sums for cuts in (AT_ONCE, IN_BUCKETS))
    for step in range(STEPS):
        for each in SHAPES:
            assert relative_difference(cut[step][each], whole[step][each]) < EXACT


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "vote"])
def test_what_was_sent_and_what_is_left_are_all_gradients(ranks: Cluster, name: str) -> None:
    """Exactly, where numbers are whole; orthonormal columns and means are rounded."""
    found = ranks.run(on_ranks, 4, name, AT_ONCE, STEPS)
    for each in SHAPES:
        sent = sum(step[each] for step in found[0].sums).flatten()
        left = sum(rank.residuals.get(f"residual of {each}", torch.zeros(1, dtype=torch.float64)) for rank in found)
        servers = [rank.residuals.get(f"residual of server of {each}") for rank in found]
        if servers[0] is not None:
            left = left + torch.cat(servers)
        whole = sum(gradient(each, rank, step) for rank in range(4) for step in range(STEPS)).flatten()
        if name in ("top-k", "random-k"):
            assert torch.equal(sent + left, whole)
        assert relative_difference(sent + left, whole) < EXACT


def traffic(name: str, cuts: Cuts) -> list[int]:
    """The formula of each rank; and a step of it, on all ranks."""
    compressor = compressor_of(dist.group.WORLD, name, cuts)
    for number, call in enumerate(cuts):
        compressor.sum(number, [gradient(each, dist.get_rank(), 0) for each in call])
    return [compressor.sent(rank, dist.get_world_size(), 8) for rank in range(dist.get_world_size())]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("cuts", [AT_ONCE, IN_BUCKETS], ids=["at once", "in buckets"])
def test_bytes_are_those_of_the_formula(ranks: Cluster, name: str, cuts: Cuts) -> None:
    """One that sends 32 bits for an element where it says that it sends one is found here (gpt-neox 128)."""
    (formula, *_), trace = ranks.trace(traffic, name, cuts)
    assert trace.bytes_sent == formula
    numbers = sum(torch.Size(shape).numel() for shape in SHAPES.values())
    assert max(formula) < 2 * 3 / 4 * 8 * numbers / {"top-k": 1.5, "powersgd": 1.2, "bf16": 3.9}.get(name, 5)


def test_a_column_that_has_vanished_begins_anew(ranks: Cluster) -> None:
    """A gradient of zeros, once, and all of Q would be zero for ever."""

    def sums() -> list[float]:
        compressor = compressor_of(dist.group.WORLD, "powersgd", (("wide",),))
        norms = []
        for step in range(3):
            part = gradient("wide", dist.get_rank(), step) * (step > 0)
            compressor.sum(0, [part])
            norms.append(float(part.norm()))
        return norms

    first, *others = ranks.run(sums)[0]
    assert first == 0 and min(others) > 0


def test_the_largest_are_found_however_they_lie() -> None:
    x = torch.tensor([[1.0, -5.0], [3.0, 2.0]]).T
    assert plain_memory.top_k(x, 2).tolist() == [[0, 3], [-5, 0]]


def test_columns_are_orthonormal_or_zero() -> None:
    columns = torch.randn(2, 30, 4, dtype=torch.float64)
    columns[0, :, 2] = columns[0, :, 0] + columns[0, :, 1]  # depends on those before it
    plain_memory.orthogonalise(columns)
    wanted = torch.eye(4, dtype=torch.float64).repeat(2, 1, 1)
    wanted[0, 2, 2] = 0
    assert relative_difference(columns.mT @ columns, wanted) < EXACT
