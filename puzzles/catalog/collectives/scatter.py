"""collectives.scatter: a chunk of the root's for each."""

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.collectives.scatter import naive

from .common import fewest_steps, shape_of, size_of


def chunks_on_the_root(case, rank):
    """Room for a chunk everywhere; all chunks, flat, on the root."""
    shape = shape_of(case)
    chunks = case.tensor(rank, case.n, *shape).view(-1) if rank == case.root else None
    return {"out": case.tensor(rank, *shape, name="out"), "chunks": chunks, "root": case.root}


def every_rank_has_one(case, inputs):
    """Rank i has the i-th."""
    chunks = inputs[case.root]["chunks"].view(case.n, *shape_of(case))
    return [{"out": chunk} for chunk in chunks]


PUZZLE = Puzzle(
    name="collectives.scatter",
    title="Scatter: one chunk for each",
    statement="""
        The root has n chunks one after another. Afterwards rank i has the i-th of them, in `out`.

        Args:
            out: contiguous, of the same shape and dtype on every rank; the place for this rank's chunk.
            chunks: on the root, flat, n times as many elements as `out`: the chunks of rank 0, 1, 2, ... Leave it as
                it is. On all other ranks None.
            root: group rank of the one who has the chunks. It gets one, too.
            group: n ranks. Any n.

        Budget: n-1 steps. The root sends to each rank its own chunk and nothing else; the others send nothing. No
        memory besides what is there.
        """,
    function=naive,
    answer="""
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        if rank != root:
            dist.recv(out, group=group, group_src=root)
            return
        rows = chunks.view(n, -1)
        for other in range(n):
            if other != root:
                dist.send(rows[other], group=group, group_dst=other)
        out.copy_(rows[root].view_as(out))
        """,
    cases=cases(worlds=(3, 2, 1, 5, 8), root=lambda n: {0, n - 1}, length=(4,))
    + cases(worlds=(4,), members=(0, 2, 3), root=(1,), length=(5,))
    + cases(worlds=(4,), root=(2,), length=(6,), shape=((2, 3),)),
    drawn=on_any_ranks(root=lambda so_far: range(so_far.n), length=range(2, 12)),
    large=case(2, root=1, length=2_750_000),
    inputs=chunks_on_the_root,
    oracle=every_rank_has_one,
    tolerance=0,
    calls=POINT_TO_POINT,
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: (case.n - 1) * size_of(case),
            why="to each rank its own chunk, and to no rank all of them",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: case.n - 1,
            optimum=fewest_steps,
            why="one message for each rank that lacks its chunk",
        ),
        Budget(Measure.PEAK_BYTES, target=lambda case: 0, why="receive straight into out; rows of a view are views"),
    ),
    hints=(
        "It is the naive broadcast, with another tensor for each. What does the root do for itself?",
        "`chunks.view(n, -1)` has one row for each rank. Only the root may touch it: elsewhere `chunks` is None.",
        "The root's own row has one dimension, `out` may have more: `out.copy_(row.view_as(out))`.",
    ),
    wrong=(
        Wrong(
            "the root forgets itself",
            diagnosis=r"right on ranks? .*wrong on rank|still holds its own input|right at .* ranks, wrong at",
            edits=(("    out.copy_(rows[root].view_as(out))\n", ""),),
        ),
        Wrong(
            "chunks where there are none",
            diagnosis=r"'NoneType' object has no attribute 'view'",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                rows = chunks.view(n, -1)
                if rank != root:
                    dist.recv(out, group=group, group_src=root)
                    return
                for other in range(n):
                    if other != root:
                        dist.send(rows[other], group=group, group_dst=other)
                out.copy_(rows[root].view_as(out))
                """,
        ),
        Wrong(
            "the root gets the first chunk",
            diagnosis=r"right with root=0, wrong with root=|rank \d holds what rank \d should hold",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                if rank != root:
                    dist.recv(out, group=group, group_src=root)
                    return
                first, *rest = chunks.view(n, -1)
                others = [other for other in range(n) if other != root]
                for other, row in zip(others, rest):
                    dist.send(row, group=group, group_dst=other)
                out.copy_(first.view_as(out))
                """,
        ),
        Wrong(
            "everything to all ranks",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*to no rank all of them",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                if rank != root:
                    chunks = out.new_empty(n * out.numel())
                    dist.recv(chunks, group=group, group_src=root)
                else:
                    for other in range(n):
                        if other != root:
                            dist.send(chunks, group=group, group_dst=other)
                out.copy_(chunks.view(n, -1)[rank].view_as(out))
                """,
        ),
        Wrong(
            "group ranks taken for global ranks",
            diagnosis=r"group rank \d is global rank \d|a rank of the group is not a global rank",
            edits=(
                ("dist.recv(out, group=group, group_src=root)", "dist.recv(out, root, group)"),
                ("dist.send(rows[other], group=group, group_dst=other)", "dist.send(rows[other], other, group)"),
            ),
        ),
    ),
)
