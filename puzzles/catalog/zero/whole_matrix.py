"""zero.whole_matrix: Muon needs all of a matrix, and one rank has it for a moment."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.zero.answers.matrices import orthogonal_by_owners
from reference.zero.plain_matrices import QUINTIC, ROUNDS, newton_schulz

from .common import ALL_GATHER, DOUBLE, cut


def shapes_of(case):
    """Matrices that n cuts evenly, through the middle of rows."""
    n, size = case.n, case.size
    return [(3, size * n), (size * n, 2), (size + 1, n), (n, size)][: case.matrices]


def owners_of(case):
    """No rank is left out where there are as many matrices, and not in order."""
    return [(2 * number + 1) % case.n for number in range(case.matrices)]


def matrices_of(case):
    return [case.normal(0, *shape, name=f"matrix {i}") for i, shape in enumerate(shapes_of(case))]


def shards_of_all(case, rank):
    shards = [cut(matrix, case.n)[rank].clone() for matrix in matrices_of(case)]
    return {"shards": shards, "shapes": shapes_of(case), "owners": owners_of(case)}


def by_singular_values(case, inputs):
    """What the polynomial does to a matrix, it does to its singular values."""
    a, b, c = QUINTIC
    made = []
    for matrix in matrices_of(case):
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        values = values / values.square().sum().sqrt()
        for _round in range(ROUNDS):
            values = a * values + b * values**3 + c * values**5
        made.append(left * values @ right)
    return [{"shards": [cut(matrix, case.n)[rank] for matrix in made]} for rank in range(case.n)]


def sent_by(case, rank):
    """Bytes: of others' matrices a shard, and of one's own all that is not."""
    sizes = [rows * columns // case.n for rows, columns in shapes_of(case)]
    owners = zip(sizes, owners_of(case), strict=True)
    return DOUBLE * sum(size * (case.n - 1) if owner == rank else size for size, owner in owners) if case.n > 1 else 0


PUZZLE = Puzzle(
    name="zero.whole_matrix",
    title="The whole matrix to its owner (Muon)",
    statement="""
        Muon replaces the update of a matrix U S Vᵀ by nearly U Vᵀ: all singular values become about 1. No rank can do
        that with the n-th of a matrix that ZeRO or FSDP gives it, since every element of the result depends on every
        element of the matrix. And if all of them gathered all matrices, each would do the work of all, and send n times
        as much. So each matrix has an owner: there it is whole for a moment, and nowhere else.

        Given is `newton_schulz(matrix)`: from a whole matrix (rows, columns) to a nearly orthogonal one of its shape.

        Args:
            shards: a list; of each matrix, this rank's n-th of the flat matrix, which is cut through the middle of
                rows. n divides the number of its elements. Put the same n-th of the result in its place.
            shapes: (rows, columns) of each matrix.
            owners: of each matrix, a rank of the group: the same list on every rank.
            group: n ranks. Any n.

        Returns: None. What changes are the shards.

        Budget: of a matrix that another rank owns, a rank sends its own n-th; of one that it owns, the n - 1 others of
        the result. All matrices travel together, there and back: 2(n-1) steps, however many there are.
        """,
    function=orthogonal_by_owners,
    cases=cases(worlds=(4,), size=(2,), matrices=(2, 4))
    + cases(worlds=(3, 2, 1, 5), size=(2,), matrices=(3,))
    + cases(worlds=(4,), members=(0, 2, 3), size=(3,), matrices=(2,))
    + cases(worlds=(8,), size=(1,), matrices=(1,)),
    drawn=on_any_ranks(size=(2, 3, 4), matrices=(1, 2, 3)),
    inputs=shards_of_all,
    oracle=by_singular_values,
    tolerance=1e-9,
    calls=(dist.all_to_all_single, dist.gather, dist.scatter, *ALL_GATHER),
    given=(newton_schulz,),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: max(sent_by(case, rank) for rank in range(case.n)),
            why="a rank has use for a matrix only if it owns it: its shards of the others go to their owners alone",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: 2 * (case.n - 1),
            why="all matrices travel together: `dist.all_to_all_single` with the sizes of what goes to each owner",
        ),
    ),
    hints=(
        "Two ranks hold the halves of a matrix. Can either of them say anything about a singular value of it?",
        "In one all-to-all a rank sends each owner its shards of all matrices that this one owns. Lay them one after "
        "another in the order of their owners; what arrives are n rows of equal length, one from each rank.",
        "`sent[j]` is the sum of the sizes of what j owns: `dist.all_to_all_single(arrived, pieces, [sent[rank]] * n, "
        "sent, group=group)`. Of the rows that arrive, the columns of one matrix, reshaped, are that matrix. On the "
        "way back the two lists change places.",
    ),
    wrong=(
        Wrong(
            "Newton-Schulz on the shard",
            diagnosis=r"shards\[0\]\[\d+\]: expected -?[\d.]+, got -?[\d.]+",
            body="""
                for shard in shards:
                    shard.copy_(newton_schulz(shard[None])[0])
                """,
        ),
        Wrong(
            "Newton-Schulz on the rows that are here",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            body="""
                for shard, (rows, columns) in zip(shards, shapes):
                    width = columns if shard.numel() % columns == 0 else shard.numel()
                    shard.copy_(newton_schulz(shard.view(-1, width)).flatten())
                """,
        ),
        Wrong(
            "what is owned does not go back",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            edits=(
                (
                    "    dist.all_to_all_single(pieces, made.view(-1), sent, [sent[rank]] * n, group=group)\n",
                    "    pieces = torch.cat([made[rank], pieces[sent[rank]:]])\n",
                ),
            ),
        ),
        Wrong(
            "in the order of the list, and not of the owners",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+|RuntimeError",
            edits=(("sorted(range(len(owners)), key=lambda number: owners[number])", "list(range(len(owners)))"),),
        ),
        Wrong(
            "the matrix lies on its side",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            edits=((".reshape(shapes[number])).reshape", ".reshape(shapes[number]).T).reshape"),),
        ),
        Wrong(
            "ranks and elements change places",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            edits=(("arrived[:, own].reshape", "arrived[:, own].T.reshape"),),
        ),
        Wrong(
            "everyone gathers, and everyone computes",
            diagnosis=r"right, but (rank \d sent|it takes) [\d,]+ .*where [\d,]+ must do",
            body="""
                n, rank = dist.get_world_size(group), dist.get_rank(group)
                for shard, shape in zip(shards, shapes):
                    whole = torch.empty(shape, dtype=shard.dtype)
                    dist.all_gather_single(whole.view(-1), shard, group=group)
                    shard.copy_(newton_schulz(whole).flatten().chunk(n)[rank])
                """,
        ),
        Wrong(
            "rank 0 owns everything",
            diagnosis=r"right, but rank 0 sent [\d,]+ B where [\d,]+ must do",
            edits=(("    rank, n = dist", "    owners = [0 for owner in owners]\n    rank, n = dist"),),
        ),
        Wrong(
            "matrix after matrix",
            diagnosis=r"right, but (rank \d sent|it takes) [\d,]+ .*where [\d,]+ must do",
            body="""
                n, rank = dist.get_world_size(group), dist.get_rank(group)
                for shard, shape, owner in zip(shards, shapes, owners):
                    whole = torch.empty(shape, dtype=shard.dtype)
                    pieces = list(whole.view(-1).chunk(n)) if rank == owner else None
                    dist.gather(shard, pieces, group=group, group_dst=owner)
                    made = list(newton_schulz(whole).flatten().chunk(n)) if rank == owner else None
                    dist.scatter(shard, made, group=group, group_src=owner)
                """,
        ),
    ),
)
