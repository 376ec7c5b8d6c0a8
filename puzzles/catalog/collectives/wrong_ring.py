"""collectives.wrong_ring: a ring that moves whole tensors, to be mended."""

import torch

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.collectives.exchange import exchange
from reference.collectives.reduction import combine, finish

from .common import every_rank_has_the_sum, fewest_steps, neighbours_only, one_tensor

PUZZLE = Puzzle(
    name="collectives.wrong_ring",
    title="Spot the wrong ring",
    statement="""
        An all-reduce around a ring that one colleague has written, another has reviewed, and a test has found right:
        its sums are. But on n ranks it is more than n times slower than it should be. Find out why, and mend it;
        the ring still goes to the right.

        Given are `exchange(outgoing, target, incoming, source, group)`, `combine(accumulator, received, op)` and
        `finish(x, n, op)`.

        Args:
            x: contiguous, of the same shape and dtype on every rank. n need not divide the number of its elements.
            group: n ranks. Any n.
            op: how to combine.

        Budget: 2(n-1) steps, 2(n-1)/n of the tensor sent by each rank, and one chunk of memory.
        """,
    function=ring,
    body="""
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        if n == 1:
            return
        right, left = (rank + 1) % n, (rank - 1) % n
        flat, received = x.view(-1), torch.empty_like(x).view(-1)
        chunks, parts = flat.tensor_split(n), received.tensor_split(n)
        for step in range(n - 1):
            exchange(flat, right, received, left, group)
            theirs = (rank - step - 1) % n
            combine(chunks[theirs], parts[theirs], op)
        finish(chunks[right], n, op)
        for step in range(n):
            exchange(flat, right, received, left, group)
            theirs = (rank - step) % n
            if theirs != right:
                chunks[theirs].copy_(parts[theirs])
        """,
    answer="""
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        right, left = (rank + 1) % n, (rank - 1) % n
        chunks = x.view(-1).tensor_split(n)
        buffer = torch.empty_like(chunks[0])
        for step in range(n - 1):
            ours, theirs = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
            received = buffer[: theirs.numel()]
            exchange(ours, right, received, left, group)
            combine(theirs, received, op)
        finish(chunks[right], n, op)
        for step in range(n - 1):
            exchange(chunks[(right - step) % n], right, chunks[(rank - step) % n], left, group)
        """,
    cases=cases(worlds=(4, 2, 3, 1, 5, 8), length=(24,))
    + cases(worlds=(3, 4), length=(10, 1))
    + cases(worlds=(4,), members=(0, 2, 3), length=(9,))
    + cases(worlds=(2,), length=(24,), dtype=(torch.int32,))
    + cases(worlds=(3,), length=(12,), shape=((4, 3),), op=("AVG", "MAX")),
    drawn=on_any_ranks(length=range(2, 60), op=("SUM", "AVG", "MAX")),
    large=case(3, length=4_500_000),
    inputs=one_tensor,
    oracle=every_rank_has_the_sum,
    judge=neighbours_only,
    calls=POINT_TO_POINT,
    given=(exchange, combine, finish),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(ring).most(case.n, case.length, 4),
            why="of what arrives in a step one chunk is used: why send the others?",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: cost.of(ring).steps(case.n, case.length, 4),
            optimum=fewest_steps,
            why="n-1 steps share n chunks: every rank has one of them already",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 4 * -(-case.length // case.n),
            why="one buffer of the size of a chunk is enough; in the second half chunks can land where they belong",
        ),
    ),
    hints=(
        "Check it, and read the table: bytes and steps. Then follow one step: what is sent, and what of it is used?",
        "In the first half rank r uses chunk (r - s - 1) % n of what comes. So which chunk must its left neighbour "
        "send? In the second half ask the same.",
        "In the second half there is one step too many: look at what `if theirs != right` is for.",
    ),
    wrong=(
        Wrong(
            "the first half is mended only",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*why send the others",
            edits=(
                (
                    "    for step in range(n - 1):\n"
                    "        exchange(chunks[(right - step) % n], right, chunks[(rank - step) % n], left, group)\n",
                    "    whole = torch.empty_like(x).view(-1)\n"
                    "    for step in range(n - 1):\n"
                    "        exchange(x.view(-1), right, whole, left, group)\n"
                    "        chunks[(rank - step) % n].copy_(whole.tensor_split(n)[(rank - step) % n])\n",
                ),
            ),
        ),
        Wrong(
            "one step too many is left",
            diagnosis=r"right, but (it takes \d+ steps where \d+ must do|rank \d sent)",
            edits=(
                (
                    "    for step in range(n - 1):\n        exchange(chunks[(right - step) % n]",
                    "    for step in range(n if n > 1 else 0):\n        exchange(chunks[(right - step) % n]",
                ),
            ),
        ),
        Wrong(
            "a buffer for the whole tensor is left",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*size of a chunk",
            edits=(("buffer = torch.empty_like(chunks[0])", "buffer = torch.empty_like(x).view(-1)"),),
        ),
        Wrong(
            "sends the chunk that it should receive",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+|sends \d+ elements",
            edits=(("ours, theirs = chunks[(rank - step) % n]", "ours, theirs = chunks[(rank - step - 1) % n]"),),
        ),
        Wrong(
            "the remainder is lost",
            diagnosis=r"the remainder|shape|size|elements",
            edits=(("x.view(-1).tensor_split(n)", "x.view(-1)[: x.numel() // n * n].tensor_split(n)"),),
        ),
        Wrong(
            "a buffer of float32, whatever x is",
            diagnosis=r"dtype=int32|int32",
            edits=(("buffer = torch.empty_like(chunks[0])", "buffer = torch.empty(chunks[0].numel())"),),
        ),
        Wrong(
            "cut along dim 0",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do",
            edits=(("x.view(-1).tensor_split(n)", "[rows.view(-1) for rows in x.tensor_split(n)]"),),
        ),
    ),
)
