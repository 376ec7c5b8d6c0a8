"""collectives.ring_all_gather: pass on to the right what came from the left."""

import torch

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_gather import ring
from reference.collectives.exchange import exchange

from .common import FLOAT, fewest_steps, neighbours_only


def chunk_and_room(case, rank):
    """Rank r brings chunk r of `length` elements. `shape` is of x, `room` of out; both are flat where none is given."""
    parameters = dict(case.parameters)
    own = torch.empty(case.length).tensor_split(case.n)[rank].numel()
    x = case.tensor(rank, *parameters.get("shape", (own,)))
    return {"x": x, "out": case.tensor(rank, *parameters.get("room", (case.length,)), name="left over")}


def every_rank_has_all(case, inputs):
    """The chunks one after another."""
    out = torch.cat([each["x"].reshape(-1) for each in inputs]).view_as(inputs[0]["out"])
    return [{"out": out}] * case.n


PUZZLE = Puzzle(
    name="collectives.ring_all_gather",
    title="All-gather around a ring",
    statement="""
        Every rank brings a chunk. Afterwards every rank has all of them, one after another in `out`. The ranks stand in
        a ring and talk to their neighbours only: in each step a rank passes on to the right what it last got from the
        left.

        Given is a way to send to one rank while you receive from another:
        `exchange(outgoing, target, incoming, source, group)` puts what comes into `incoming`.

        Args:
            x: contiguous, of the same dtype on every rank. Leave it as it is.
            out: contiguous, room for all chunks; it may have more dimensions than `x`. Flat, and cut as
                `tensor_split(n)` cuts, its r-th chunk is as long as rank r's `x`: longer by one than others where n
                does not divide.
            group: n ranks. Any n.

        Budget: n-1 steps; every rank sends all chunks but one, once. No memory besides what is there.
        """,
    function=ring,
    answer="""
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        right, left = (rank + 1) % n, (rank - 1) % n
        chunks = out.view(-1).tensor_split(n)
        chunks[rank].copy_(x.view(-1))
        for step in range(n - 1):
            exchange(chunks[(rank - step) % n], right, chunks[(rank - step - 1) % n], left, group)
        """,
    cases=cases(worlds=(3, 2, 4, 1, 5, 8), length=(24,))
    + cases(worlds=(3, 4), length=(10, 1))
    + cases(worlds=(4,), members=(0, 2, 3), length=(9,))
    + cases(worlds=(3,), length=(18,), shape=((2, 3),), room=((3, 2, 3),))
    + cases(worlds=(3,), length=(12,), room=((4, 3),)),
    drawn=on_any_ranks(length=range(2, 60)),
    large=case(2, length=5_500_000),
    inputs=chunk_and_room,
    oracle=every_rank_has_all,
    tolerance=0,
    judge=neighbours_only,
    calls=POINT_TO_POINT,
    given=(exchange,),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: (case.n - 1) * FLOAT * -(-case.length // case.n),
            optimum=lambda case: cost.of(ring).most(case.n, case.length, 4),
            why="in each step one chunk moves, the one that came last: never all that one has",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: cost.of(ring).steps(case.n, case.length, 4),
            optimum=fewest_steps,
            why="n-1 exchanges bring the n-1 chunks that one lacks; one's own need not come back",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 0,
            why="tensor_split makes views: a chunk is received where it belongs, and sent on from there",
        ),
    ),
    hints=(
        "Put your own chunk in its place first: `out.view(-1).tensor_split(n)` gives n places, as views.",
        "In step 0 rank r sends its own chunk, r, to the right. What comes from the left? What does it send in step 1?",
        "In step s rank r sends chunk (r - s) % n and receives chunk (r - s - 1) % n.",
    ),
    wrong=(
        Wrong(
            "everything one has, in every step",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*never all that one has",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                received = torch.empty_like(out)
                out.fill_(-1e9).view(-1).tensor_split(n)[rank].copy_(x.view(-1))
                for _ in range(n - 1):
                    exchange(out, (rank + 1) % n, received, (rank - 1) % n, group)
                    torch.where(out == -1e9, received, out, out=out)
                """,
        ),
        Wrong(
            "the chunk comes back to its owner",
            diagnosis=r"right, but (rank \d sent|it takes)",
            edits=(("for step in range(n - 1):", "for step in range(n if n > 1 else 0):"),),
        ),
        Wrong(
            "straight to all ranks",
            diagnosis=r"right, but this is no ring: rank \d sends to \d, \d",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                chunks = out.view(-1).tensor_split(n)
                chunks[rank].copy_(x.view(-1))
                for step in range(1, n):
                    target, source = (rank + step) % n, (rank - step) % n
                    exchange(chunks[rank], target, chunks[source], source, group)
                """,
        ),
        Wrong(
            "chunks in the order of arrival",
            diagnosis=r"wrong order|must be the same on every rank",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                chunks = out.view(-1).tensor_split(n)
                chunks[0].copy_(x.view(-1))
                for step in range(n - 1):
                    exchange(chunks[step], (rank + 1) % n, chunks[step + 1], (rank - 1) % n, group)
                """,
        ),
        Wrong(
            "chunks of one length",
            diagnosis=r"the remainder|elements|shape|size",
            edits=(("out.view(-1).tensor_split(n)", "out.view(-1).split(out.numel() // n)"),),
        ),
        Wrong(
            "a list that is put together at the end",
            diagnosis=r"right, but it keeps alive [\d,]+ B where 0 must do",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                chunks = [torch.empty_like(chunk) for chunk in out.view(-1).tensor_split(n)]
                chunks[rank].copy_(x.view(-1))
                for step in range(n - 1):
                    target, source = (rank + 1) % n, (rank - 1) % n
                    exchange(chunks[(rank - step) % n], target, chunks[(rank - step - 1) % n], source, group)
                out.view(-1).copy_(torch.cat(chunks))
                """,
        ),
        Wrong(
            "its own chunk is missing",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            edits=(("    chunks[rank].copy_(x.view(-1))\n", ""),),
        ),
        Wrong(
            "added to what is in `out`",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            edits=((".copy_(x.view(-1))", ".add_(x.view(-1))"),),
        ),
        Wrong(
            "cut along dim 0",
            diagnosis=r"room=\(4, 3\)|size of tensor|shape",
            edits=(("out.view(-1).tensor_split(n)", "[rows.view(-1) for rows in out.tensor_split(n)]"),),
        ),
        Wrong(
            "to the left",
            diagnosis=r"right, but this is no ring: rank 0 sends to 2, not to its right neighbour",
            edits=(
                ("right, left = (rank + 1) % n, (rank - 1) % n", "right, left = (rank - 1) % n, (rank + 1) % n"),
                (
                    "exchange(chunks[(rank - step) % n], right, chunks[(rank - step - 1) % n], left, group)",
                    "exchange(chunks[(rank + step) % n], right, chunks[(rank + step + 1) % n], left, group)",
                ),
            ),
        ),
    ),
)
