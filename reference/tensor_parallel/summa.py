"""SUMMA: a matrix product on a mesh of ranks where no rank holds more than a block of anything.

Rows of A are cut among the rows of the mesh, columns of B among its columns, and what they share, K, both ways:

    C = A B      A [M, K], B [K, N]      rank (i, j) of r x c holds A_ij [M/r, K/c], B_ij [K/r, N/c], C_ij [M/r, N/c]

K is cut into panels. For each of them, a rank with a piece of A's panel gives it to its row, a rank with a piece of
B's panel to its column, and every rank adds their product to its C_ij. Backward does the same with what is asked for:

| product       | along the row, for each panel | along the column, for each panel |
|---------------|-------------------------------|----------------------------------|
| C  = A B      | broadcast A's panel           | broadcast B's panel              |
| dA = dC Bᵀ    | reduce dA's panel             | broadcast B's panel              |
| dB = Aᵀ dC    | broadcast A's panel           | reduce dB's panel                |

A broadcast turns into a reduce, its conjugate, and C and dC never travel.

A contrast to splits along one dim. Of t ranks in a column- or row-parallel layer each holds a t-th of the weight, and
all of the activations; it sends 2(t-1)/t of these in an all-reduce, however many ranks there are. On a mesh of q x q
ranks each holds a q²-th of everything, and sends on average

    3 (q-1)/q² · (size of A + size of B)                in forward and backward together, `bytes_sent`

which falls as ranks are added. But weights travel, too, and that in 6 q calls that wait for each other. Where the
activations are as large as the weight, 4 ranks send as much as in an all-reduce, 9 or more send less.

van de Geijn & Watts 1997, "SUMMA: scalable universal matrix multiplication algorithm"; for transformers: Xu et al.
2021, "An efficient 2D method for training super-large deep learning models" (Optimus).
"""

from math import lcm
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from reference.collectives import broadcast, cost, reduce
from reference.errors import BadInput


class Summa(Function):
    """`apply(a, b, row, column)`: see `product`. Differentiable."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, row: ProcessGroup, column: ProcessGroup) -> Tensor:
        ctx.row, ctx.column = row, column
        ctx.save_for_backward(a, b)
        return product(a, b, row, column)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (a, b), mesh = ctx.saved_tensors, (ctx.row, ctx.column)
        return gradient_of_a(upstream, b, *mesh), gradient_of_b(a, upstream, *mesh), None, None


def forward_and_backward(
    a: Tensor, b: Tensor, upstream: Tensor, row: ProcessGroup, column: ProcessGroup
) -> tuple[Tensor, Tensor, Tensor]:
    """This rank's blocks of C, dA and dB. Arguments as for the three products."""
    c = product(a, b, row, column)
    return c, gradient_of_a(upstream, b, row, column), gradient_of_b(a, upstream, row, column)


def product(a: Tensor, b: Tensor, row: ProcessGroup, column: ProcessGroup) -> Tensor:
    """This rank's block of C = A B.

    Args:
        a: [M/r, K/c], this rank's block of A.
        b: [K/r, N/c], this rank's block of B. K divides by lcm(r, c).
        row: the c ranks of this rank's row of the mesh, from left to right.
        column: the r ranks of its column, from top to bottom.

    Returns:
        [M/r, N/c].

    Raises:
        BadInput: if the blocks are not of one K, or lcm(r, c) does not divide it.
    """
    require_panels(a, b, row.size(), column.size())
    panels = lcm(row.size(), column.size())
    c = a.new_zeros(len(a), b.shape[1])
    for panel in range(panels):
        c.addmm_(spread(a, 1, panel, panels, row), spread(b, 0, panel, panels, column))
    return c


def require_panels(a: Tensor, b: Tensor, c: int, r: int) -> None:
    """See whether blocks on r x c ranks are whole panels. Raises BadInput that says what K must be."""
    panels = lcm(r, c)
    if a.shape[1] * c != len(b) * r or len(b) * r % panels:
        have = f"blocks of {a.shape[1]} columns of A and {len(b)} rows of B on {r} x {c} ranks"
        raise BadInput(f"{have}: K/{c} and K/{r} of a K that divides by {panels} would do")


def gradient_of_a(upstream: Tensor, b: Tensor, row: ProcessGroup, column: ProcessGroup) -> Tensor:
    """This rank's block of dA = dC Bᵀ: [M/r, K/c].

    Args:
        upstream: [M/r, N/c], this rank's block of dC.
        b, row, column: as for `product`.
    """
    panels = lcm(row.size(), column.size())
    of_a = upstream.new_empty(len(upstream), len(b) * column.size() // row.size())
    for panel in range(panels):
        collect(upstream @ spread(b, 0, panel, panels, column).T, of_a, 1, panel, panels, row)
    return of_a


def gradient_of_b(a: Tensor, upstream: Tensor, row: ProcessGroup, column: ProcessGroup) -> Tensor:
    """This rank's block of dB = Aᵀ dC: [K/r, N/c].

    Args:
        a, row, column: as for `product`.
        upstream: [M/r, N/c], this rank's block of dC.
    """
    panels = lcm(row.size(), column.size())
    of_b = upstream.new_empty(a.shape[1] * row.size() // column.size(), upstream.shape[1])
    for panel in range(panels):
        collect(spread(a, 1, panel, panels, row).T @ upstream, of_b, 0, panel, panels, column)
    return of_b


def spread(block: Tensor, dim: int, panel: int, panels: int, group: ProcessGroup) -> Tensor:
    """One of the panels that `group` has along `dim`, from the rank in whose block it lies to all of them."""
    owner, index = divmod(panel, panels // group.size())
    piece = block.tensor_split(panels // group.size(), dim)[index]
    piece = piece.contiguous() if owner == dist.get_rank(group) else torch.empty_like(piece).contiguous()
    dist.broadcast(piece, group=group, group_src=owner)
    return piece


def collect(part: Tensor, block: Tensor, dim: int, panel: int, panels: int, group: ProcessGroup) -> None:
    """Add up every rank's part of a panel, and put it into the block of the rank that it belongs to."""
    owner, index = divmod(panel, panels // group.size())
    dist.reduce(part, group=group, group_dst=owner)
    if owner == dist.get_rank(group):
        block.tensor_split(panels // group.size(), dim)[index].copy_(part)


def bytes_sent(
    place: tuple[int, int],
    mesh: tuple[int, int],
    m: int,
    k: int,
    n: int,
    itemsize: int,
    broadcasts: int = 2,
    reduces: int = 1,
) -> int:
    """Bytes that a rank sends, where broadcast and reduce are binomial trees; by default in forward and backward.

    Args:
        place: (i, j) of the rank on the mesh.
        mesh: (r, c).
        m, k, n: A is [m, k], B is [k, n].
        itemsize: bytes of an element.
        broadcasts, reduces: of each panel of A and of B; in forward alone 1 and 0.
    """
    (i, j), (r, c), panels = place, mesh, lcm(*mesh)

    def price(after_root: int, ranks: int, numel: int) -> int:
        down, up = (cost.of(tree).bytes(after_root, ranks, numel, itemsize) for tree in (broadcast.tree, reduce.tree))
        return broadcasts * down + reduces * up

    of_a = sum(price((j - panel * c // panels) % c, c, m // r * k // panels) for panel in range(panels))
    of_b = sum(price((i - panel * r // panels) % r, r, k // panels * n // c) for panel in range(panels))
    return of_a + of_b
