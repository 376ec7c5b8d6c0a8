"""collectives.gather: every rank's tensor on the root."""

import torch

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.collectives.gather import naive

from .common import fewest_steps, shape_of, size_of


def room_on_the_root(case, rank):
    """A tensor everywhere, and room for all of them on the root."""
    shape = shape_of(case)
    out = case.tensor(rank, case.n, *shape, name="out") if rank == case.root else None
    return {"x": case.tensor(rank, *shape), "out": out, "root": case.root}


def the_root_has_all(case, inputs):
    """Row i of the root's out is rank i's x. Elsewhere there is no out."""
    rows = torch.stack([each["x"] for each in inputs])
    return [{"out": rows} if rank == case.root else {"out": None} for rank in range(case.n)]


PUZZLE = Puzzle(
    name="collectives.gather",
    title="Gather: all tensors on the root",
    statement="""
        Every rank brings a tensor. Afterwards the root has all of them, rank 0's first: a scatter that runs backwards.

        Args:
            x: contiguous, of the same shape and dtype on every rank. Leave it as it is.
            out: on the root, of shape (n, *x.shape): row i is the place of rank i's tensor. On all other ranks None.
            root: group rank of the one who collects. Its own tensor belongs to it, too.
            group: n ranks. Any n.

        Budget: n-1 steps. Every rank but the root sends its tensor once. No memory besides what is there.
        """,
    function=naive,
    answer="""
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        if rank != root:
            dist.send(x, group=group, group_dst=root)
            return
        for other in range(n):
            if other == root:
                out[other] = x
            else:
                dist.recv(out[other], group=group, group_src=other)
        """,
    cases=cases(worlds=(3, 2, 1, 5, 8), root=lambda n: {0, n - 1}, length=(4,))
    + cases(worlds=(4,), members=(0, 2, 3), root=(1,), length=(5,))
    + cases(worlds=(4,), root=(2,), length=(6,), shape=((2, 3),)),
    drawn=on_any_ranks(root=lambda so_far: range(so_far.n), length=range(2, 12)),
    large=case(2, root=1, length=2_750_000),
    inputs=room_on_the_root,
    oracle=the_root_has_all,
    tolerance=0,
    calls=POINT_TO_POINT,
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: size_of(case) if case.n > 1 else 0,
            why="only the root asked: no other rank needs what the others bring",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: case.n - 1,
            optimum=fewest_steps,
            why="one message from each rank",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 0,
            why="a row of out is a view: receive into it, and there is nothing to put together afterwards",
        ),
    ),
    hints=(
        "Which ranks send, which receive, and what happens to the root's own tensor?",
        "A message says where it comes from only if you ask for it: `group_src=other` for each of the others in turn.",
        "`out[other]` is contiguous and a view of `out`: `dist.recv(out[other], group=group, group_src=other)`.",
    ),
    wrong=(
        Wrong(
            "the first to come",
            diagnosis=r"arriv|any source|src=None|wrong order",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                if rank != root:
                    dist.send(x, group=group, group_dst=root)
                    return
                out[root] = x
                for other in range(n):
                    if other != root:
                        dist.recv(out[other], group=group)
                """,
        ),
        Wrong(
            "the root's own is missing",
            diagnosis=r"out\[.*expected",
            edits=(("out[other] = x", "pass"),),
        ),
        Wrong(
            "in the order of arrival from the root on",
            diagnosis=r"right values in the wrong order",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                if rank != root:
                    dist.send(x, group=group, group_dst=root)
                    return
                out[0] = x
                for i in range(1, n):
                    dist.recv(out[i], group=group, group_src=(root + i) % n)
                """,
        ),
        Wrong(
            "every rank collects",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*only the root asked",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                rows = x.new_empty(n, *x.shape)
                rows[rank] = x
                for source in range(n):
                    for target in range(n):
                        if rank == source != target:
                            dist.send(x, group=group, group_dst=target)
                        if rank == target != source:
                            dist.recv(rows[source], group=group, group_src=source)
                if rank == root:
                    out.copy_(rows)
                """,
        ),
        Wrong(
            "put together at the end",
            diagnosis=r"right, but it keeps alive [\d,]+ B where 0 must do.*\n.*a row of out is a view",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                if rank != root:
                    dist.send(x, group=group, group_dst=root)
                    return
                rows = [torch.empty_like(x) for _ in range(n)]
                for other in range(n):
                    if other != root:
                        dist.recv(rows[other], group=group, group_src=other)
                rows[root] = x
                out.copy_(torch.stack(rows))
                """,
        ),
    ),
)
