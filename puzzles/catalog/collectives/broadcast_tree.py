"""collectives.broadcast_tree: each rank that has it passes it on, twice as many in each step."""

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.broadcast import tree

from .common import every_rank_has_the_roots, size_of, tensor_and_root

PUZZLE = Puzzle(
    name="collectives.broadcast_tree",
    title="Broadcast along a tree",
    statement="""
        The root has a tensor that every rank needs. After the first step two ranks have it, after the second four,
        then eight: each rank that has it helps to spread it.

        Args:
            x: contiguous, of the same shape and dtype on every rank. On the root the tensor to send; on all others
                the place where it goes.
            root: group rank of the one who has it.
            group: n ranks. Any n, also one that is no power of two.

        Budget: ⌈log2 n⌉ steps; no rank sends more often than there are steps. No memory besides `x`.
        """,
    function=tree,
    answer="""
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        vertex = (rank - root) % n
        distance = 1
        while distance < n:
            if vertex < distance and vertex + distance < n:
                dist.send(x, group=group, group_dst=(rank + distance) % n)
            elif distance <= vertex < 2 * distance:
                dist.recv(x, group=group, group_src=(rank - distance) % n)
            distance *= 2
        """,
    cases=cases(worlds=(4, 2, 3, 1, 5), root=lambda n: {0, n - 1}, length=(6,))
    + cases(worlds=(8, 6), root=(3,), length=(6,))
    + cases(worlds=(4,), members=(0, 2, 3), root=(1,), length=(5,))
    + cases(worlds=(4,), root=(2,), length=(6,), shape=((2, 3),)),
    drawn=on_any_ranks(root=lambda so_far: range(so_far.n), length=range(2, 40)),
    large=case(3, root=1, length=3_000_000),
    inputs=tensor_and_root,
    oracle=every_rank_has_the_roots,
    tolerance=0,
    calls=POINT_TO_POINT,
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(tree).most(case.n, case.length, 4),
            optimum=lambda case: size_of(case) if case.n > 1 else 0,
            why="no rank serves them all: each rank that has received the tensor sends it, too",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: cost.of(tree).steps(case.n, case.length, 4),
            why="in each step every rank that has the tensor sends it to one that has not",
        ),
        Budget(Measure.PEAK_BYTES, target=lambda case: 0, why="receive straight into x"),
    ),
    hints=(
        "Draw eight ranks, root 0: which have the tensor after one, two, three steps? If in step k it jumps 2^k ranks "
        "to the right, which sends, and which receives?",
        "Let `distance` be 1, 2, 4, ... Before that step the ranks below `distance` have it. Rank r of them sends to "
        "r + distance, if there is such a rank.",
        "For any root, count ranks from there: `vertex = (rank - root) % n`. Vertex v is rank (root + v) % n.",
    ),
    wrong=(
        Wrong(
            "only for root 0",
            diagnosis=r"right with root=0, wrong with root=",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                distance = 1
                while distance < n:
                    if rank < distance and rank + distance < n:
                        dist.send(x, group=group, group_dst=rank + distance)
                    elif distance <= rank < 2 * distance:
                        dist.recv(x, group=group, group_src=rank - distance)
                    distance *= 2
                """,
        ),
        Wrong(
            "only for powers of two",
            diagnosis=r"works for powers of two only|rank \d+ finished",
            edits=((" and vertex + distance < n:", ":"),),
        ),
        Wrong(
            "a rank that has received leaves",
            diagnosis=r"finished|nobody|waits",
            edits=(("group_src=(rank - distance) % n)", "group_src=(rank - distance) % n)\n            return"),),
        ),
        Wrong(
            "the root serves them all",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*no rank serves them all",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                if rank != root:
                    dist.recv(x, group=group, group_src=root)
                    return
                for other in range(n):
                    if other != root:
                        dist.send(x, group=group, group_dst=other)
                """,
        ),
        Wrong(
            "from one rank to the next",
            diagnosis=r"right, but it takes \d steps where \d must do.*\n.*in each step every rank",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                if rank != root:
                    dist.recv(x, group=group, group_src=(rank - 1) % n)
                if (rank + 1) % n != root:
                    dist.send(x, group=group, group_dst=(rank + 1) % n)
                """,
        ),
        Wrong(
            "a copy to send from",
            diagnosis=r"right, but it keeps alive [\d,]+ B where 0 must do",
            edits=(("dist.send(x, group", "dist.send(x.clone(), group"),),
        ),
    ),
)
