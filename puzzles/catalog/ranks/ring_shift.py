"""ranks.ring_shift: one message to the right and one from the left, on every rank at the same time."""

import torch

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.ranks.plain import ring_shift

from .common import shape_of

PUZZLE = Puzzle(
    name="ranks.ring_shift",
    title="Pass it on around a ring",
    statement="""
        The ranks of `group` stand in a ring: the right neighbour of rank r is rank r + 1, and that of the last rank
        is rank 0. Send `x` to the right, and return what came from the left.

        Args:
            x: a contiguous tensor, of the same shape and dtype on every rank. Leave it as it is.
            group: n ranks. With n = 1 you are your own neighbour, and there is no other rank to talk to.

        Returns: a new tensor like `x`.

        Budget: one step. All messages must be in flight at the same time.
        """,
    function=ring_shift,
    cases=cases(worlds=(2, 3, 4, 1, 5, 8), length=(6,))
    + cases(worlds=(3,), length=(0, 1))
    + cases(worlds=(4,), members=(0, 2, 3), length=(5,))
    + cases(worlds=(2,), length=(6,), dtype=(torch.int32,))
    + cases(worlds=(2,), length=(6,), shape=((2, 3),)),
    drawn=on_any_ranks(length=range(2, 40)),
    inputs=lambda case, rank: {"x": case.tensor(rank, *shape_of(case))},
    oracle=lambda case, inputs: [inputs[rank - 1]["x"] for rank in range(case.n)],
    tolerance=0,
    new=True,
    calls=POINT_TO_POINT,
    budgets=(
        Budget(Measure.BYTES_SENT, target=lambda case: 4 * case.length if case.n > 1 else 0),
        Budget(
            Measure.STEPS,
            target=lambda case: min(1, case.n - 1),
            why="a message waits for another: post the send and the receive together, with dist.batch_isend_irecv",
        ),
    ),
    hints=(
        "What happens if every rank sends first, and none receives yet? And if every rank receives first?",
        "Start both before you wait for either. `dist.batch_isend_irecv` takes a list of `dist.P2POp`.",
        "Rank 1 of a group need not be rank 1 of the world: say `P2POp(..., group=group, group_peer=...)`.",
        "`n == 1` has no neighbour to talk to: return a copy.",
    ),
    wrong=(
        Wrong(
            "every rank receives before sending",
            diagnosis=r"deadlock",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                received = torch.empty_like(x)
                if n > 1:
                    dist.recv(received, group=group, group_src=(rank - 1) % n)
                    dist.send(x, group=group, group_dst=(rank + 1) % n)
                return received if n > 1 else x.clone()
                """,
        ),
        Wrong(
            "one after the other around the ring",
            diagnosis=r"right, but it takes 2 steps where 1 must do.*\n.*dist.batch_isend_irecv",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                received = x.clone()
                if n > 1 and rank == 0:
                    dist.send(x, group=group, group_dst=1)
                    dist.recv(received, group=group, group_src=n - 1)
                elif n > 1:
                    dist.recv(received, group=group, group_src=rank - 1)
                    dist.send(x, group=group, group_dst=(rank + 1) % n)
                return received
                """,
        ),
        Wrong(
            "the wrong way around",
            diagnosis=r"rank 0 holds what rank 2 should hold",
            edits=(
                ("x, group=group, group_peer=(rank + 1)", "x, group=group, group_peer=(rank - 1)"),
                ("received, group=group, group_peer=(rank - 1)", "received, group=group, group_peer=(rank + 1)"),
            ),
        ),
        Wrong(
            "a world of four",
            diagnosis=r"right at 4 ranks, wrong at",
            edits=(("n = dist.get_rank(group), dist.get_world_size(group)", "n = dist.get_rank(group), 4"),),
        ),
        Wrong(
            "group ranks taken for global ranks",
            diagnosis=r"group",
            edits=(("isend, x, group=group, group_peer=(rank + 1) % n", "isend, x, (rank + 1) % n, group"),),
        ),
        Wrong("gives back its own", diagnosis=r"its own", body="return x.clone()"),
        Wrong(
            "a flat buffer",
            diagnosis=r"shape \(2, 3\).*shape \(6,\)",
            edits=(("received = torch.empty_like(x)", "received = x.new_empty(x.numel())"),),
        ),
    ),
)
