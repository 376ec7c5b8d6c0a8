"""collectives.broadcast_naive: the root tells all ranks, one after another."""

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Claim, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.broadcast import naive

from .common import every_rank_has_the_roots, fewest_steps, size_of, tensor_and_root


def only_the_root_sends(case, inputs, outputs, trace):
    """No rank passes on what has come."""
    root = case.global_ranks[case.root]
    claims = []
    for message in trace.messages:
        said = f"rank {message.src} sends to rank {message.dst}; here the root alone, rank {root}, sends"
        claims.append(Claim(message.src == root, said))
    return claims


PUZZLE = Puzzle(
    name="collectives.broadcast_naive",
    title="Broadcast, one after another",
    statement="""
        The root has a tensor that every rank needs. It sends it to all others, one after another; they receive it.

        Args:
            x: contiguous, of the same shape and dtype on every rank. On the root the tensor to send; on all others
                the place where it goes.
            root: group rank of the one who has it.
            group: n ranks. Any n.

        Budget: n-1 steps, and n-1 tensors sent by the root. No other rank sends anything.
        """,
    function=naive,
    cases=cases(worlds=(3, 2, 1, 5, 8), root=lambda n: {0, n - 1}, length=(6,))
    + cases(worlds=(4,), members=(0, 2, 3), root=(1,), length=(5,))
    + cases(worlds=(4,), root=(2,), length=(6,), shape=((2, 3),)),
    drawn=on_any_ranks(root=lambda so_far: range(so_far.n), length=range(2, 40)),
    inputs=tensor_and_root,
    oracle=every_rank_has_the_roots,
    tolerance=0,
    judge=only_the_root_sends,
    calls=POINT_TO_POINT,
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: (case.n - 1) * size_of(case),
            optimum=lambda case: size_of(case) if case.n > 1 else 0,
            why="one message for each rank that lacks the tensor; no other rank needs one",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: cost.of(naive).steps(case.n, case.length, 4),
            optimum=fewest_steps,
            why="one message carries the whole tensor: no loop over its elements, no detour",
        ),
    ),
    hints=(
        "All ranks run the same function. Which rank takes which branch? Compare `dist.get_rank(group)` with `root`.",
        "`dist.send(x, group=group, group_dst=...)` and `dist.recv(x, group=group, group_src=...)` count ranks within "
        "the group, as `root` does.",
        "Not the root: `dist.recv(x, group=group, group_src=root)`, and that is all. The root: a loop over "
        "all ranks but itself.",
    ),
    wrong=(
        Wrong(
            "rank 0 is always the root",
            diagnosis=r"right with root=0, wrong with root=",
            body="""
                if dist.get_rank(group) != 0:
                    dist.recv(x, group=group, group_src=0)
                    return
                for other in range(1, dist.get_world_size(group)):
                    dist.send(x, group=group, group_dst=other)
                """,
        ),
        Wrong(
            "the root sends to itself, too",
            diagnosis=r"dst is yourself",
            edits=(("        if other != root:\n            dist.send", "        if True:\n            dist.send"),),
        ),
        Wrong(
            "the last rank is left out",
            diagnosis=r"rank 0 finished|nobody|waits",
            edits=(("for other in range(n):", "for other in range(n - 1):"),),
        ),
        Wrong(
            "group ranks taken for global ranks",
            diagnosis=r"group rank \d is global rank \d|a rank of the group is not a global rank",
            edits=(
                ("dist.recv(x, group=group, group_src=root)", "dist.recv(x, root, group)"),
                ("dist.send(x, group=group, group_dst=other)", "dist.send(x, other, group)"),
            ),
        ),
        Wrong(
            "element by element",
            diagnosis=r"right, but it takes [\d,]+ steps where \d+ must do.*\n.*no loop over its elements",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                for element in x.view(-1).split(1):
                    if rank != root:
                        dist.recv(element, group=group, group_src=root)
                        continue
                    for other in range(n):
                        if other != root:
                            dist.send(element, group=group, group_dst=other)
                """,
        ),
        Wrong(
            "every rank tells all ranks",
            diagnosis=r"right, but",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                for source in range(n):
                    received = torch.empty_like(x)
                    for other in range(n):
                        if rank == source and other != source:
                            dist.send(x, group=group, group_dst=other)
                    if rank != source:
                        dist.recv(received, group=group, group_src=source)
                        if source == root:
                            mine = received
                if rank != root:
                    x.copy_(mine)
                """,
        ),
        Wrong(
            "from neighbour to neighbour",
            diagnosis=r"right, but rank 1 sends to rank 2; here the root alone, rank 0, sends",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                vertex = (rank - root) % n
                if vertex > 0:
                    dist.recv(x, group=group, group_src=(rank - 1) % n)
                if vertex < n - 1:
                    dist.send(x, group=group, group_dst=(rank + 1) % n)
                """,
        ),
    ),
)
