"""compression.fp8_scale: a matrix has one scale, and its largest number is on one rank."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives.compat import all_gather_single
from reference.compression.answers.low_bits import fp8_scales
from reference.zero import cost

SIZES = (1.0, 448.0, 0.003, 5000.0, 1e-9)
REDUCED = "    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)\n"


def matrices_of(case):
    """Of very different sizes: one that fp8 has just room for, and one of zeros."""
    made = []
    for number in range(case.matrices):
        values = case.normal(0, case.n * 3 - number % 2, name=f"matrix {number}")
        values = values / values.abs().max() * SIZES[number % len(SIZES)]
        made.append(values * 0 if number == case.zeros else values)
    return made


def shards_of(case, rank):
    """Cut unevenly: the last rank has less, or nothing, of some."""
    shards = []
    for number, matrix in enumerate(matrices_of(case)):
        pieces = list(matrix.split(4 if number % 3 == 2 else 3))
        shards.append(pieces[rank].clone() if rank < len(pieces) else matrix.new_empty(0))
    return {"shards": shards}


def double_until_it_fits(case, inputs):
    """One process with the whole matrices: try powers of two."""
    found = []
    for matrix in matrices_of(case):
        largest, scale = float(matrix.abs().max()), 1.0
        while largest and largest > 448 * scale:
            scale *= 2
        while largest and largest <= 448 * scale / 2:
            scale /= 2
        found.append(torch.tensor(scale, dtype=matrix.dtype))
    return [{"returns": found} for _rank in range(case.n)]


PUZZLE = Puzzle(
    name="compression.fp8_scale",
    title="One scale for a matrix in shards",
    statement="""
        FSDP can gather the weights of fp8 layers in fp8, a byte for each element, if every rank divides its shard of a
        matrix by the same scale: codes of different scales don't fit together. The largest number of fp8 (E4M3) is 448.
        A scale is the smallest power of two with which no element of the whole matrix, divided by it, is larger than
        that; so that division rounds nothing. Of a matrix of zeros it is 1.

        Which ranks must know of each other? Those that have parts of the matrix: the group. Ranks that hold replicas
        have the same numbers, and find the same scale without a message.

        Args:
            shards: a list; of each matrix what this rank has of it, flat. It may be nothing. Leave them as they are.
            group: the n ranks that share the matrices. Any n.

        Returns: a list of the scales, a scalar tensor of the shards' dtype for each matrix, the same on every rank.

        Budget: one message for all matrices, with one number for each.
        """,
    function=fp8_scales,
    cases=cases(worlds=(4,), matrices=(2, 5), zeros=(-1, 0))
    + cases(worlds=(3, 2, 1, 5), matrices=(3,), zeros=(1,))
    + cases(worlds=(4,), members=(0, 2, 3), matrices=(3,), zeros=(-1,)),
    drawn=on_any_ranks(matrices=(1, 3, 5, 6), zeros=(-1, 0)),
    inputs=shards_of,
    oracle=double_until_it_fits,
    tolerance=0,
    calls=(dist.all_reduce, all_gather_single, dist.all_gather_into_tensor),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: 8 * max(cost.all_reduce(case.matrices, case.n, rank) for rank in range(case.n)),
            why="of a matrix a rank has to tell its largest number, and nothing else",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: 2 * (case.n - 1),
            why="put the largest numbers of all matrices into one tensor, and reduce that once",
        ),
    ),
    hints=(
        "What does a rank have to know of the others' shards? It is one number for each matrix.",
        "Stack `shard.abs().amax()` of all shards (of an empty one 0), and `dist.all_reduce` it with "
        "`dist.ReduceOp.MAX`.",
        "`mantissa, exponent = torch.frexp(largest / 448)` has a mantissa from 1/2 to below 1: the power is "
        "`exponent`, and one less where the mantissa is exactly 1/2. `torch.ldexp(torch.ones_like(largest), power)`.",
    ),
    wrong=(
        Wrong(
            "each by its own shard",
            diagnosis=r"expected [\d.e-]+, got [\d.e-]+",
            edits=((REDUCED, ""),),
        ),
        Wrong(
            "the sum of the largest",
            diagnosis=r"expected [\d.e-]+, got [\d.e-]+",
            edits=(("dist.ReduceOp.MAX", "dist.ReduceOp.SUM"),),
        ),
        Wrong(
            "without the sign",
            diagnosis=r"expected [\d.e-]+, got [\d.e-]+",
            edits=(("shard.abs().amax()", "shard.amax()"),),
        ),
        Wrong(
            "what just fits gets twice the scale",
            diagnosis=r"expected [\d.e-]+, got [\d.e-]+",
            edits=((" - (mantissa == 0.5).int()", ""),),
        ),
        Wrong(
            "no power of two",
            diagnosis=r"expected [\d.e-]+, got [\d.e-]+",
            edits=(("torch.where(largest > 0, scales, 1.0)", "torch.where(largest > 0, largest / 448, 1.0)"),),
        ),
        Wrong(
            "zeros have a scale of zero",
            diagnosis=r"expected 1(\.0)?, got",
            edits=(("list(torch.where(largest > 0, scales, 1.0))", "list(scales * (largest > 0))"),),
        ),
        Wrong(
            "a message for each matrix",
            diagnosis=r"right, but (rank \d sent|it takes) [\d,]+ .*must do",
            edits=(
                (REDUCED, "    for each in largest:\n        dist.all_reduce(each, dist.ReduceOp.MAX, group=group)\n"),
            ),
        ),
    ),
)
