"""composition.norm_over_all_axes: each element of a model counts once, on however many ranks it is."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import SMALL, Budget, Measure, Puzzle, Wrong, cases, divisors, drawn
from reference.composition.answers.whole_norm import norm_over_all_axes
from reference.zero import cost

DOUBLE = 8
AXES = ("pp", "dp", "tp", "edp", "ep")
SPLIT = {  # parameters of a stage, by the axes along which ranks hold different elements
    "a matrix": ("pp", "tp"),
    "an expert": ("pp", "ep"),
    "a norm": ("pp",),
    "a matrix in shards": ("pp", "dp", "tp"),
    "an expert in shards": ("pp", "edp", "ep"),
    "a norm in shards": ("pp", "dp"),
}
DENSE, EXPERTS, ALL = ("a matrix", "a norm"), ("an expert", "an expert in shards"), tuple(SPLIT)


def places(case, rank):
    """Where a rank stands on the axes of both meshes."""
    _, dp, tp, edp, ep = case.mesh
    return dict(
        zip(AXES, (rank // (dp * tp), rank // tp % dp, rank % tp, rank % (edp * ep) // ep, rank % ep), strict=True)
    )


def parameters(case, rank):
    """What a rank has, by name and by its place on the axes that split it. Stages deal out the kinds in turn."""
    here = places(case, rank)
    return [(kind, tuple(here[axis] for axis in SPLIT[kind])) for kind in case.kinds[here["pp"] :: case.mesh[0]]]


def gradient(case, kind, place):
    """The same for all replicas. Shards are of different lengths, and one may be empty."""
    length = (3 * sum(place) + len(kind)) % 5 if "shards" in kind else 4
    return case.normal(0, length, name=f"{kind} {place}")


def parts(case, rank):
    """What one rank has, and along which axes it is split."""
    mine = parameters(case, rank)
    return {
        "gradients": [gradient(case, *each) for each in mine],
        "split": [SPLIT[kind] for kind, _ in mine],
        "sizes": dict(zip(AXES, case.mesh, strict=True)),
    }


def one_long_vector(case, inputs):
    """All parameters, each once, one after another."""
    known = dict.fromkeys(each for rank in range(case.n) for each in parameters(case, rank))
    whole = torch.cat([gradient(case, *each) for each in known])
    return [(whole * whole).sum().sqrt() for _ in inputs]


def meshes(n):
    """All (pp, dp, tp, edp, ep) of n ranks."""
    return [
        (pp, n // pp // tp, tp, n // pp // ep, ep)
        for pp in divisors(n)
        for tp in divisors(n // pp)
        for ep in divisors(n // pp)
    ]


PUZZLE = Puzzle(
    name="composition.norm_over_all_axes",
    title="The norm of the whole model",
    statement="""
        Gradients are clipped by the norm of the whole model. Each rank has parts of it, after all sums over ranks with
        other tokens: its rows of a matrix, which other ranks along dp have as well; a norm's gradient, which all ranks
        of a stage have; some experts, which stand on ranks of a mesh of their own. If each rank adds up the squares of
        what it has, replicas count again and again: and with other degrees, the same model has another norm
        (DeepSpeed#5145). Each element counts once.

        The ranks stand in two meshes, pp x dp x tp and pp x edp x ep, the outermost first. Along the axes of `split`
        ranks hold different elements; along all others of the mesh, their gradients are equal.

        Args:
            gradients: tensors in float64, what this rank has. It may have none, and some may be empty.
            split: for each of them the names of the axes that split it: ("pp", "tp") for a matrix of a stage, ("pp",)
                for a norm, ("pp", "ep") for experts, with "dp" or "edp" besides where they are in shards.
            sizes: ranks along "pp", "dp", "tp", "edp" and "ep". pp dp tp = pp edp ep = n.
            group: the n ranks of the mesh, in order. Any n.

        Returns: the norm, a scalar tensor in float64, the same on every rank.

        Budget: one all-reduce of one number.
        """,
    function=norm_over_all_axes,
    cases=cases(worlds=(4,), mesh=((1, 2, 2, 2, 2),), kinds=(DENSE, EXPERTS))
    + cases(worlds=(4,), mesh=((1, 2, 2, 1, 4), (2, 1, 2, 2, 1)), kinds=(ALL,))
    + cases(worlds=(6,), mesh=((1, 3, 2, 2, 3), (3, 2, 1, 1, 2)), kinds=(ALL, DENSE))
    + cases(worlds=(3,), mesh=((1, 3, 1, 1, 3),), kinds=(ALL,))
    + cases(worlds=(3,), mesh=((3, 1, 1, 1, 1),), kinds=(DENSE,))
    + cases(worlds=(1,), mesh=((1, 1, 1, 1, 1),), kinds=(ALL,))
    + cases(worlds=(8,), mesh=((2, 2, 2, 1, 4),), kinds=(ALL,))
    + cases(worlds=(4,), members=(0, 2, 3), mesh=((1, 3, 1, 1, 3), (1, 1, 3, 3, 1)), kinds=(ALL,)),
    drawn=(
        drawn(worlds=SMALL, mesh=lambda so_far: meshes(so_far.n), kinds=(ALL, DENSE, EXPERTS)),
        drawn(worlds=(9,), mesh=lambda so_far: meshes(so_far.n), kinds=(ALL,)),
    ),
    inputs=parts,
    oracle=one_long_vector,
    tolerance=1e-10,
    calls=(dist.all_reduce,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 1,
            why="add up the squares of all gradients first: their sum travels once, whatever the axes",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: 16 if case.n > 1 else 0,
            optimum=lambda case: DOUBLE * max(cost.all_reduce(1, case.n, rank) for rank in range(case.n)),
            why="one number is all that ranks need to tell each other",
        ),
    ),
    hints=(
        "A matrix that is split along tp: how many of the n ranks have the same rows? And a norm, and an expert? All "
        "ranks will be in the sum.",
        "Ranks with different elements are the product of the sizes of the axes in `split`. So each element is on "
        "n / product ranks, in whichever of the two meshes.",
        "Divide the sum of a gradient's squares by the number of its replicas, `n // prod(sizes[axis] for axis in "
        "axes)`. Add up all of them, all-reduce the one number over the group, and take the root last.",
    ),
    wrong=(
        Wrong(
            "each rank counts what it has: replicas count again and again",
            diagnosis=r"kinds=\('a matrix', 'a norm'\).*result: expected [\d.]+, got [\d.]+",
            edits=((".sum() / replicas", ".sum()"),),
        ),
        Wrong(
            "experts have as many replicas as matrices",
            diagnosis=r"result: expected [\d.]+, got [\d.]+",
            edits=(
                (
                    "prod(sizes[axis] for axis in axes)",
                    'prod(sizes[{"edp": "dp", "ep": "tp"}.get(axis, axis)] for axis in axes)',
                ),
            ),
        ),
        Wrong(
            "experts are on one rank each: their replicas along edp are forgotten",
            diagnosis=r"kinds=\('an expert', 'an expert in shards'\).*result: expected [\d.]+, got [\d.]+",
            edits=((".sum() / replicas", '.sum() / (1 if "ep" in axes else replicas)'),),
        ),
        Wrong(
            "only matrices have replicas: a norm's gradient counts on all tensor-parallel ranks",
            diagnosis=r"kinds=\('a matrix', 'a norm'\).*result: expected [\d.]+, got [\d.]+",
            edits=((".sum() / replicas", '.sum() / (replicas if "tp" in axes or "ep" in axes else sizes["dp"])'),),
        ),
        Wrong(
            "what is in shards is divided by all ranks along dp, too",
            diagnosis=r"result: expected [\d.]+, got [\d.]+",
            edits=(("prod(sizes[axis] for axis in axes)", 'prod(sizes[a] for a in axes if a not in ("dp", "edp"))'),),
        ),
        Wrong(
            "the sum of all ranks' norms",
            diagnosis=r"result: expected [\d.]+, got [\d.]+",
            edits=(
                (
                    "    dist.all_reduce(square, group=group)\n    return square.sqrt()",
                    "    norm = square.sqrt()\n    dist.all_reduce(norm, group=group)\n    return norm",
                ),
            ),
        ),
        Wrong(
            "the sum of all gradients' norms",
            diagnosis=r"result: expected [\d.]+, got [\d.]+",
            edits=(
                ("gradient.double().square().sum() / replicas", "gradient.double().norm() / replicas"),
                ("return square.sqrt()", "return square"),
            ),
        ),
        Wrong(
            "the average over ranks",
            diagnosis=r"result: expected [\d.]+, got [\d.]+",
            edits=(
                (".sum() / replicas", ".sum()"),
                ("return square.sqrt()", "return (square / dist.get_world_size(group)).sqrt()"),
            ),
        ),
        Wrong(
            "each rank by itself",
            diagnosis=r"result: expected [\d.]+, got [\d.]+",
            edits=(("    dist.all_reduce(square, group=group)\n", ""),),
        ),
        Wrong(
            "a rank without gradients stays away",
            diagnosis=r"finished without it|rank \d never|deadlock|waits",
            edits=(
                (
                    "    dist.all_reduce(square, group=group)\n",
                    "    if not gradients:\n        return square\n    dist.all_reduce(square, group=group)\n",
                ),
            ),
        ),
        Wrong(
            "the first replica counts, by its number in the world",
            diagnosis=r"right where the group is the whole world, wrong in the group \[0, 2, 3\]",
            body="""
                rank = dist.get_rank()
                inside = sizes["dp"] * sizes["tp"]
                place = {
                    "pp": rank // inside,
                    "dp": rank // sizes["tp"] % sizes["dp"],
                    "tp": rank % sizes["tp"],
                    "edp": rank % inside // sizes["ep"],
                    "ep": rank % sizes["ep"],
                }
                square = torch.zeros((), dtype=torch.float64)
                for gradient, axes in zip(gradients, split):
                    mesh = ("pp", "edp", "ep") if "ep" in axes else ("pp", "dp", "tp")
                    if all(place[axis] == 0 for axis in mesh if axis not in axes):
                        square += gradient.square().sum()
                dist.all_reduce(square, group=group)
                return square.sqrt()
                """,
        ),
        Wrong(
            "an all-reduce for matrices, and one for experts",
            diagnosis=r"right, but a rank makes 2 calls where 1 must do.*\n.*travels once",
            body="""
                from math import prod

                n, total = dist.get_world_size(group), torch.zeros((), dtype=torch.float64)
                for of_experts in (False, True):
                    square = torch.zeros((), dtype=torch.float64)
                    for gradient, axes in zip(gradients, split):
                        if ("ep" in axes) == of_experts:
                            square += gradient.square().sum() / (n // prod(sizes[axis] for axis in axes))
                    dist.all_reduce(square, group=group)
                    total += square
                return total.sqrt()
                """,
        ),
        Wrong(
            "a table with a place for each rank",
            diagnosis=r"right, but rank \d sent [\d,]+ B where 16 must do.*\n.*one number",
            edits=(
                (
                    "    dist.all_reduce(square, group=group)\n    return square.sqrt()",
                    "    table = torch.zeros(dist.get_world_size(group), dtype=torch.float64)\n"
                    "    table[dist.get_rank(group)] = square\n    dist.all_reduce(table, group=group)\n"
                    "    return table.sum().sqrt()",
                ),
            ),
        ),
    ),
)
