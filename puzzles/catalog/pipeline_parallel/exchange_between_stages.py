"""pipeline_parallel.exchange_between_stages: activations go down and gradients up, and no rank waits forever."""

import torch

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.pipeline_parallel.answers.two_stages import exchange_between_stages


def what_each_has_made(case, rank):
    """An activation for the rank after and a gradient for the rank before, where there are such."""
    shape = case.batch, case.features
    return {
        "activation": case.tensor(rank, *shape, dtype=case.dtype, name="activation") if rank < case.n - 1 else None,
        "gradient": case.tensor(rank, *shape, dtype=case.dtype, name="gradient") if rank > 0 else None,
    }


def of_both_neighbours(case, inputs):
    """What the rank before and the rank after have been given."""
    last = case.n - 1
    return [
        (inputs[rank - 1]["activation"] if rank else None, inputs[rank + 1]["gradient"] if rank < last else None)
        for rank in range(case.n)
    ]


SERIAL = r"right, but it takes \d steps where 1 must do.*\n.*before you wait"

PUZZLE = Puzzle(
    name="pipeline_parallel.exchange_between_stages",
    title="Between two stages, in both directions",
    statement="""
        In the middle of a step of 1F1B every rank has just gone forward with one micro-batch and backward with another.
        It has an activation for the rank after it, which that needs for its next forward, and a gradient for the rank
        before it, which that needs for its next backward. And it needs the same of them.

            rank r-1    -- activation ->    rank r      -- activation ->    rank r+1
                        <-- gradient --                 <-- gradient --

        A send may block until its receiver receives. So if all ranks send first, all wait forever. If all
        receive first, too. If they take turns from the first rank to the last, none waits forever, and all wait for
        all. Let everything travel at once.

        With `isend` and `irecv` alone this can hang on NCCL, which runs what is said between two ranks in the order in
        which it was said; this check cannot see that. `dist.batch_isend_irecv` says all of it together.

        Args:
            activation: [B, D], for the next rank; None on the last rank. Leave it as it is.
            gradient: [B, D], for the rank before; None on the first rank. Leave it as it is.
            group: p ranks in a row. Any p. All tensors have the same shape and dtype.

        Returns: (the activation of the rank before, or None; the gradient of the next rank, or None).

        Budget: one step. Each rank sends what it was given, once.
        """,
    function=exchange_between_stages,
    cases=cases(worlds=(4, 3, 2, 1, 8), batch=(2,), features=(3,), dtype=(torch.float64,))
    + cases(worlds=(3,), batch=(2,), features=(5,), dtype=(torch.float32,))
    + cases(worlds=(4,), members=(0, 2, 3), batch=(1,), features=(3,), dtype=(torch.float64,)),
    drawn=on_any_ranks(batch=range(1, 5), features=range(2, 6), dtype=(torch.float64, torch.float32)),
    inputs=what_each_has_made,
    oracle=of_both_neighbours,
    tolerance=0,
    new=True,
    calls=POINT_TO_POINT,
    budgets=(
        Budget(
            Measure.STEPS,
            target=lambda case: min(1, case.n - 1),
            why="some rank waits for one message before it posts another: post all of them before you wait",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: case.batch * case.features * case.dtype.itemsize * min(2, case.n - 1),
            why="a rank in the middle sends one activation and one gradient, a rank at an end one of them",
        ),
    ),
    hints=(
        "What does rank 0 send and receive? What does the last one? And one in between? Count: a rank in the middle "
        "takes part in four messages.",
        "Make a list of `dist.P2POp`s: for the rank before, if there is one, a send of `gradient` and a receive into "
        "an empty tensor; for the rank after likewise. Then post the whole list, and wait for all requests.",
        "`dist.P2POp(dist.isend, gradient, group=group, group_peer=rank - 1)`, `dist.P2POp(dist.irecv, before, "
        "group=group, group_peer=rank - 1)`, the same with rank + 1; `for request in dist.batch_isend_irecv(list): "
        "request.wait()`. With one rank the list is empty: leave it out.",
    ),
    wrong=(
        Wrong(
            "every rank sends first",
            diagnosis=r"deadlock",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                before = after = None
                if rank < n - 1:
                    dist.send(activation, group=group, group_dst=rank + 1)
                if rank > 0:
                    dist.send(gradient, group=group, group_dst=rank - 1)
                    before = torch.empty_like(gradient)
                    dist.recv(before, group=group, group_src=rank - 1)
                if rank < n - 1:
                    after = torch.empty_like(activation)
                    dist.recv(after, group=group, group_src=rank + 1)
                return before, after
                """,
        ),
        Wrong(
            "every rank receives first",
            diagnosis=r"deadlock",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                before = after = None
                if rank > 0:
                    before = torch.empty_like(gradient)
                    dist.recv(before, group=group, group_src=rank - 1)
                if rank < n - 1:
                    after = torch.empty_like(activation)
                    dist.recv(after, group=group, group_src=rank + 1)
                if rank < n - 1:
                    dist.send(activation, group=group, group_dst=rank + 1)
                if rank > 0:
                    dist.send(gradient, group=group, group_dst=rank - 1)
                return before, after
                """,
        ),
        Wrong(
            "from the first rank to the last, and back",
            diagnosis=SERIAL,
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                before = after = None
                if rank > 0:
                    before = torch.empty_like(gradient)
                    dist.recv(before, group=group, group_src=rank - 1)
                if rank < n - 1:
                    after = torch.empty_like(activation)
                    dist.send(activation, group=group, group_dst=rank + 1)
                    dist.recv(after, group=group, group_src=rank + 1)
                if rank > 0:
                    dist.send(gradient, group=group, group_dst=rank - 1)
                return before, after
                """,
        ),
        Wrong(
            "first all activations, then all gradients",
            diagnosis=SERIAL,
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                before = torch.empty_like(gradient) if rank > 0 else None
                after = torch.empty_like(activation) if rank < n - 1 else None
                down = [dist.isend(activation, group=group, group_dst=rank + 1)] if rank < n - 1 else []
                down += [dist.irecv(before, group=group, group_src=rank - 1)] if rank > 0 else []
                for request in down:
                    request.wait()
                up = [dist.isend(gradient, group=group, group_dst=rank - 1)] if rank > 0 else []
                up += [dist.irecv(after, group=group, group_src=rank + 1)] if rank < n - 1 else []
                for request in up:
                    request.wait()
                return before, after
                """,
        ),
        Wrong(
            "one neighbour, then the other",
            diagnosis=SERIAL,
            edits=(
                (
                    "    if activation is not None:\n",
                    "    for request in dist.batch_isend_irecv(operations) if operations else []:\n"
                    "        request.wait()\n"
                    "    operations = []\n"
                    "    if activation is not None:\n",
                ),
            ),
        ),
        Wrong(
            "a shape and a dtype that happen to fit",
            diagnosis=r"features=5, dtype=float32",
            edits=(
                ("torch.empty_like(gradient)", "torch.empty(len(gradient), 3, dtype=torch.float64)"),
                ("torch.empty_like(activation)", "torch.empty(len(activation), 3, dtype=torch.float64)"),
            ),
        ),
        Wrong(
            "no rank waits",
            diagnosis=r"wait\(\)",
            edits=(("        request.wait()\n", "        pass\n"),),
        ),
        Wrong(
            "receives into what it sends",
            diagnosis=r"was modified before wait\(\)|gradient\[0, 0\]: expected",
            edits=(("before = torch.empty_like(gradient)", "before = gradient"),),
        ),
        Wrong(
            "around a ring",
            diagnosis=r"activation|NoneType|deadlock|rank 0",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                before, after = torch.empty_like(gradient), torch.empty_like(activation)
                operations = [
                    dist.P2POp(dist.isend, activation, group=group, group_peer=(rank + 1) % n),
                    dist.P2POp(dist.irecv, before, group=group, group_peer=(rank - 1) % n),
                    dist.P2POp(dist.isend, gradient, group=group, group_peer=(rank - 1) % n),
                    dist.P2POp(dist.irecv, after, group=group, group_peer=(rank + 1) % n),
                ]
                for request in dist.batch_isend_irecv(operations):
                    request.wait()
                return before, after
                """,
        ),
        Wrong(
            "the two have changed places",
            diagnosis=r"rank 0, result\[0\]: expected None, got a float64 tensor",
            edits=(("return before, after", "return after, before"),),
        ),
        Wrong(
            "sends both to both",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*one activation and one gradient",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                if n == 1:
                    return None, None
                one = activation if activation is not None else gradient
                two = gradient if gradient is not None else activation
                pair, operations, found = torch.stack([one, two]), [], {}
                for peer in {max(0, rank - 1), min(n - 1, rank + 1)} - {rank}:
                    found[peer] = torch.empty_like(pair)
                    operations.append(dist.P2POp(dist.isend, pair, group=group, group_peer=peer))
                    operations.append(dist.P2POp(dist.irecv, found[peer], group=group, group_peer=peer))
                for request in dist.batch_isend_irecv(operations):
                    request.wait()
                before, after = found.get(rank - 1), found.get(rank + 1)
                return None if before is None else before[0], None if after is None else after[1]
                """,
        ),
    ),
)
