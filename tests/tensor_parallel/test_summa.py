"""SUMMA: blocks of a product and of its gradients as one process has them, and the bytes that the formula says."""

from collections.abc import Callable
from math import lcm

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.errors import BadInput
from reference.memory.lab.storages import LiveBytes
from reference.tensor_parallel import summa

Clusters = Callable[..., Cluster]
Mesh = tuple[int, int]

M, K, N = 24, 48, 36  # divide by the rows and columns of all meshes
MESHES = [(1, 1), (2, 2), (1, 3), (3, 1), (2, 3), (3, 2), (4, 2)]
DOUBLE = 8


def whole() -> list[Tensor]:
    """A, B, and the gradient of their product."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((M, K), (K, N), (M, N))]


def blocks(x: Tensor, mesh: Mesh) -> list[Tensor]:
    """The blocks of a matrix, row by row."""
    r, c = mesh
    return [block for band in x.tensor_split(r) for block in band.tensor_split(c, dim=1)]


def groups(mesh: Mesh) -> tuple[ProcessGroup, ProcessGroup]:
    """The row and the column of this rank."""
    (r, c), (i, j) = mesh, divmod(dist.get_rank(), mesh[1])
    row = dist.new_group(range(i * c, (i + 1) * c), use_local_synchronization=True)
    column = dist.new_group(range(j, r * c, c), use_local_synchronization=True)
    return row, column


def by_autograd(mesh: Mesh) -> list[Tensor]:
    """This rank's blocks of C, dA and dB."""
    a, b, upstream = (blocks(x, mesh)[dist.get_rank()] for x in whole())
    a.requires_grad_()
    b.requires_grad_()
    c = summa.Summa.apply(a, b, *groups(mesh))
    (c * upstream).sum().backward()
    return [c.detach(), a.grad, b.grad]


def forward(mesh: Mesh) -> Tensor:
    """This rank's block of C."""
    a, b, _ = (blocks(x, mesh)[dist.get_rank()] for x in whole())
    return summa.product(a, b, *groups(mesh))


def refused(blocks_of: Callable[[Mesh], tuple[Tensor, Tensor]], mesh: Mesh) -> str:
    """What is said of blocks that are no panels put together."""
    with pytest.raises(BadInput) as error:
        summa.forward_and_backward(*blocks_of(mesh), torch.zeros(2, 2), *groups(mesh))
    return str(error.value)


def of_nine(mesh: Mesh) -> tuple[Tensor, Tensor]:
    """Blocks with a K of 9 for 2 x 3 ranks: A's columns divide, B's rows do not."""
    return torch.zeros(2, 3), torch.zeros((5, 4)[dist.get_rank() // 3], 2)


def of_two_sizes(mesh: Mesh) -> tuple[Tensor, Tensor]:
    """Blocks whose K is 12 in A and 6 in B."""
    return torch.zeros(2, 4), torch.zeros(3, 2)


def peak_of_the_product(mesh: Mesh) -> int:
    """Bytes of tensors that are made on the way, the result among them."""
    a, b, _ = (blocks(x, mesh)[dist.get_rank()].clone() for x in whole())
    row, column = groups(mesh)
    with LiveBytes((a, b)) as memory:
        summa.product(a, b, row, column)
    return memory.peak


def named(mesh: Mesh) -> str:
    return f"{mesh[0]} x {mesh[1]}"


@pytest.mark.parametrize("mesh", MESHES, ids=named)
def test_blocks_are_those_of_one_process(clusters: Clusters, mesh: Mesh) -> None:
    a, b, upstream = whole()
    expected = [blocks(x, mesh) for x in (a @ b, upstream @ b.T, a.T @ upstream)]
    for rank, found in enumerate(clusters(mesh[0] * mesh[1]).run(by_autograd, mesh)):
        for name, block, of_ranks in zip(("C", "dA", "dB"), found, expected, strict=True):
            torch.testing.assert_close(block, of_ranks[rank], rtol=0, atol=1e-12, msg=f"{name} on rank {rank}")


def test_blocks_that_are_not_whole_panels_are_refused(clusters: Clusters) -> None:
    ends = "of B on 2 x 3 ranks: K/3 and K/2 of a K that divides by 6 would do"
    said = clusters(6).run(refused, of_nine, (2, 3))
    assert said == [f"blocks of 3 columns of A and {rows} rows {ends}" for rows in (5, 5, 5, 4, 4, 4)]
    said = clusters(6).run(refused, of_two_sizes, (2, 3))
    assert set(said) == {f"blocks of 4 columns of A and 3 rows {ends}"}


@pytest.mark.parametrize("mesh", MESHES, ids=named)
def test_the_formula_counts_what_is_sent(clusters: Clusters, mesh: Mesh) -> None:
    places = [divmod(rank, mesh[1]) for rank in range(mesh[0] * mesh[1])]
    for run, counts in ((by_autograd, {}), (forward, {"broadcasts": 1, "reduces": 0})):
        _, trace = clusters(len(places)).trace(run, mesh)
        assert list(trace.bytes_sent) == [summa.bytes_sent(place, mesh, M, K, N, DOUBLE, **counts) for place in places]


@pytest.mark.parametrize("q", (1, 2, 3, 4, 8))
def test_on_average_a_square_mesh_sends_3_times_q_minus_1_over_q_squared(q: int) -> None:
    m, k, n = (q * size for size in (3, 5, 2))
    sent = [summa.bytes_sent((i, j), (q, q), m, k, n, 1) for i in range(q) for j in range(q)]
    assert sum(sent) == 3 * (q - 1) * (m * k + k * n)  # the average, times q² ranks


@pytest.mark.parametrize("mesh", MESHES, ids=named)
def test_the_product_holds_a_panel_of_each_at_a_time(clusters: Clusters, mesh: Mesh) -> None:
    """Its block of C, one panel of A and one of B, of which an owner's may be a view, and the last ones until then."""
    r, c = mesh
    panel = K // lcm(r, c)
    most = DOUBLE * (M // r * N // c + 2 * panel * (M // r + N // c))
    assert max(clusters(r * c).run(peak_of_the_product, mesh)) <= most


def test_more_ranks_send_less_than_an_all_reduce_of_the_activations() -> None:
    """With activations as large as weights: 3 (q-1)/q² · 2 < 2 (q²-1)/q² from q = 3 on."""
    size = 720
    for q in (2, 3, 4, 5):
        of_all = sum(summa.bytes_sent((i, j), (q, q), size, size, size, 1) for i in range(q) for j in range(q))
        all_reduce = 2 * (q * q - 1) * size * size  # sent by all of q² ranks
        assert (of_all < all_reduce) == (q >= 3)
