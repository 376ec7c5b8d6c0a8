"""tensor_parallel.matmul_2d: SUMMA, where no rank holds more than a block of anything."""

from functools import partial
from math import lcm, prod

import torch.distributed as dist

from puzzles.grading.drives.tensor_parallel import on_a_mesh
from puzzles.grading.puzzle import SMALL, Budget, Measure, Puzzle, Wrong, case, cases, divisors, drawn
from reference.tensor_parallel import summa

from .common import ALL_GATHER, DOUBLE, whole

NAMES = ("block of c", "gradient of a", "gradient of b")
HIGH, WIDE = 2, 3  # rows and columns of a block of c


def shape_of(case):
    """Rows and columns of the mesh."""
    return case.n // case.columns, case.columns


def block_of(case):
    """Rows and columns of a rank's block of c."""
    return case.get("high", HIGH), case.get("wide", WIDE)


def sizes_of(case):
    """M, K and N."""
    (r, c), (high, wide) = shape_of(case), block_of(case)
    return r * high, case.panel * lcm(r, c), c * wide


def matrices_of(case):
    """A, B and the gradient of their product."""
    m, k, n = sizes_of(case)
    return [whole(case, name, *shape) for name, shape in {"a": (m, k), "b": (k, n), "upstream": (m, n)}.items()]


def block(x, case, rank):
    """This rank's block of a matrix."""
    (r, c), (i, j) = shape_of(case), divmod(rank, case.columns)
    return x.tensor_split(r)[i].tensor_split(c, dim=1)[j].clone()


def blocks_of_it(case, rank):
    """This rank's blocks; and for the drive the columns of the mesh."""
    a, b, upstream = (block(x, case, rank) for x in matrices_of(case))
    return {"a": a, "b": b, "upstream": upstream, "columns": case.columns}


def whole_product(case, inputs):
    """The product and both gradients in one process, by autograd; then every rank's blocks."""
    a, b, upstream = matrices_of(case)
    a.requires_grad_()
    b.requires_grad_()
    c = a @ b
    (c * upstream).sum().backward()
    every = dict(zip(NAMES, (c.detach(), a.grad, b.grad), strict=True))
    return [
        {"returns": "3 tensors", **{name: block(x, case, rank) for name, x in every.items()}} for rank in range(case.n)
    ]


def sent(case, broadcasts):
    """Bytes that the busiest rank sends where each panel is broadcast so often, and reduced once."""
    r, c = shape_of(case)
    places = [(i, j) for i in range(r) for j in range(c)]
    return max(summa.bytes_sent(place, (r, c), *sizes_of(case), DOUBLE, broadcasts) for place in places)


def memory(case, panels):
    """Bytes of this rank's blocks of all three results, and of so many panels of A and of B."""
    (r, c), (m, k, n) = shape_of(case), sizes_of(case)
    results = (m * n + m * k + k * n) // (r * c)
    return DOUBLE * (results + panels * case.panel * sum(block_of(case)))


def meshes(n):
    """Columns of the meshes to try with n ranks."""
    return {3: (3, 1), 4: (2,)}.get(n, (n,))


PUZZLE = Puzzle(
    name="tensor_parallel.matmul_2d",
    title="A matrix product on a mesh (SUMMA)",
    statement="""
        Splits along one dim leave something whole on every rank: all activations, or at least all their features. On a
        mesh of r x c ranks, every matrix can be cut both ways, and no rank holds more than a block of anything:

            C = A B        rank (i, j) has A_ij [M/r, K/c], B_ij [K/r, N/c], and shall have C_ij [M/r, N/c]

        C_ij needs the i-th band of A and the j-th band of B, all of K; but not all at once. Cut K into lcm(r, c)
        panels. Of A's, the first lcm / c lie in the first column of the mesh, and so on; of B's, the first lcm / r lie
        in the first row. For each panel: the rank that has A's piece of it broadcasts that along its row, the one that
        has B's piece along its column, and every rank adds the product of both to its C_ij. On a square mesh, a panel
        is a block.

        Then the way back, from dC in the same blocks as C. Panel by panel again, and dC never travels:

            dA = dC Bᵀ      B's panel is broadcast; products are summed along the row, to where dA's panel lies
            dB = Aᵀ dC      A's panel is broadcast; products are summed along the column, to where dB's panel lies

        Args:
            a: [M/r, K/c], this rank's block of A.
            b: [K/r, N/c], this rank's block of B.
            upstream: [M/r, N/c], this rank's block of dC.
            row: the group of the c ranks of this rank's row, from left to right: j = dist.get_rank(row).
            column: the group of the r ranks of its column, from top to bottom: i = dist.get_rank(column).

        Returns: three tensors, this rank's blocks of C, dA and dB. lcm(r, c) divides K.

        Budget: of every panel of A and of B two broadcasts and one reduce. (Here one broadcast can serve forward and
        backward, but in a model time lies between, and no rank has kept the panels.) Memory for the three results, for
        three panels of A and of B, and for one more block of C.
        """,
    function=summa.forward_and_backward,
    cases=cases(worlds=(4, 3, 1), columns=meshes, panel=(2,)),
    drawn=(
        drawn(worlds=SMALL, columns=lambda so_far: divisors(so_far.n), panel=(1, 2)),
        drawn(worlds=(9,), columns=(3,), panel=(1, 2)),  # 3 panels: each is six calls of every rank
    ),
    large=case(4, columns=4, panel=1000, high=800, wide=3),
    inputs=blocks_of_it,
    oracle=whole_product,
    drive=partial(on_a_mesh, NAMES),
    tolerance=1e-10,
    calls=(dist.broadcast, dist.reduce, dist.all_reduce, *ALL_GATHER),
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: memory(case, 3) + DOUBLE * prod(block_of(case)),
            optimum=lambda case: memory(case, 1),
            why="a panel that was multiplied is of no use any more: to gather a band of a matrix is to hold it whole",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: sent(case, broadcasts=2),
            optimum=lambda case: sent(case, broadcasts=1),
            why="each panel goes along one row or one column, and a sum for one rank is a reduce, not an all-reduce",
        ),
    ),
    hints=(
        "Begin with a 2 x 2 mesh, where a panel is a block: C_ij = A_i0 B_0j + A_i1 B_1j. Where is A_i1? Along which "
        "group does it travel? The same for B_1j.",
        "A function for a panel of a block along `dim`: `owner, index = divmod(panel, panels // size of the group)`, "
        "the piece is `block.tensor_split(panels // size, dim)[index]`. The owner broadcasts it (contiguous), the "
        "others receive into an empty tensor of that shape. C: `c.addmm_(left, right)` for each panel.",
        "dA: spread B's panel along the column, `part = upstream @ right.T`, `dist.reduce(part, group=row, "
        "group_dst=owner)`, and the owner copies it to the panel's place in dA. dB: spread A's panel along the row, "
        "`part = left.T @ upstream`, reduce along the column.",
    ),
    wrong=(
        Wrong(
            "gathers the bands of both matrices",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*to gather a band",
            body="""
                def gathered(x, group, dim):
                    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
                    dist.all_gather(parts, x, group=group)
                    return torch.cat(parts, dim)

                def summed_part(x, group, dim):
                    dist.all_reduce(x, group=group)
                    return x.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)].clone()

                left, right = gathered(a, row, 1), gathered(b, column, 0)
                return left @ right, summed_part(upstream @ right.T, row, 1), summed_part(left.T @ upstream, column, 0)
                """,
        ),
        Wrong(
            "every rank gets the sum",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*a reduce, not an all-reduce",
            edits=(("dist.reduce(part, group=group, group_dst=owner)", "dist.all_reduce(part, group=group)"),),
        ),
        Wrong(
            "A along the column",
            diagnosis=r"block of c\[0, 0\]: expected|RuntimeError|size",
            edits=(("c.addmm_(spread(a, 1, panel, panels, row)", "c.addmm_(spread(a, 1, panel, panels, column)"),),
        ),
        Wrong(
            "as many panels as columns: right on a square mesh only",
            diagnosis=r"RuntimeError|ZeroDivisionError|right with",
            edits=(
                ("    panels = lcm(row.size(), column.size())\n    c =", "    panels = row.size()\n    c ="),
                ("    panels = lcm(row.size(), column.size())\n    of_a =", "    panels = row.size()\n    of_a ="),
                ("    panels = lcm(row.size(), column.size())\n    of_b =", "    panels = row.size()\n    of_b ="),
            ),
        ),
        Wrong(
            "only the last panel counts",
            diagnosis=r"block of c\[0, 0\]: expected",
            edits=(("c.addmm_(", "c = torch.mm("),),
        ),
        Wrong(
            "each rank multiplies what it has",
            diagnosis=r"block of c\[0, 0\]: expected|holds NaN",  # whatever was in memory
            edits=(("    dist.broadcast(piece, group=group, group_src=owner)\n", ""),),
        ),
        Wrong(
            "parts of a gradient are not added up",
            diagnosis=r"gradient of a\[0, 0\]: expected",
            edits=(("    dist.reduce(part, group=group, group_dst=owner)\n", ""),),
        ),
        Wrong(
            "a panel's gradient goes to the rank whose number it has",
            diagnosis=r"gradient of [ab]\[0, \d\]: expected|RuntimeError|ValueError",
            edits=(("group_dst=owner)\n    if owner ==", "group_dst=0)\n    if owner =="),),
        ),
        Wrong(
            "broadcasts into its own block",
            diagnosis=r"gradient of [ab]\[0, 0\]: expected|block of c\[0, 0\]: expected",
            edits=(
                (
                    "piece.contiguous() if owner == dist.get_rank(group) else torch.empty_like(piece).contiguous()",
                    "piece.contiguous()",
                ),
            ),
        ),
    ),
)
