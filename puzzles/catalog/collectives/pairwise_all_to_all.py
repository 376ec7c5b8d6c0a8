"""collectives.pairwise_all_to_all: in step s with the rank s away."""

import torch

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_to_all import pairwise
from reference.collectives.exchange import exchange

from .common import fewest_steps, shape_of


def chunks_and_room(case, rank):
    """A chunk for each rank, and room for one from each: rows of dim 0, or elements."""
    first, *rest = shape_of(case)
    x = case.tensor(rank, case.n * first, *rest)
    return {"x": x, "out": case.tensor(rank, *x.shape, name="left over")}


def transposed(case, inputs):
    """Chunk i of rank j is chunk j of rank i."""
    chunks = [each["x"].chunk(case.n) for each in inputs]
    return [{"out": torch.cat([chunk[rank] for chunk in chunks])} for rank in range(case.n)]


PUZZLE = Puzzle(
    name="collectives.pairwise_all_to_all",
    title="All-to-all, pair by pair",
    statement="""
        Every rank has a chunk for every rank: the first is for rank 0, the second for rank 1. Afterwards `out` holds
        what every rank had for this one, rank 0's chunk first. A transposition: if each rank is a row of a matrix, each
        is a column afterwards.

        Given is a way to send to one rank while you receive from another:
        `exchange(outgoing, target, incoming, source, group)` puts what comes into `incoming`.

        Args:
            x: contiguous, n chunks of the same length one after another, of the same shape and dtype on every rank.
                Leave it as it is.
            out: contiguous, like x; the place for what comes.
            group: n ranks. Any n.

        Budget: n-1 steps; every rank sends each chunk once, straight to where it belongs, and keeps its own. No memory
        besides what is there.
        """,
    function=pairwise,
    answer="""
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        chunks, places = x.view(n, -1), out.view(n, -1)
        places[rank] = chunks[rank]
        for step in range(1, n):
            target, source = (rank + step) % n, (rank - step) % n
            exchange(chunks[target], target, places[source], source, group)
        """,
    cases=cases(worlds=(3, 2, 4, 1, 5, 8), length=(4,))
    + cases(worlds=(2, 3), length=(1,))
    + cases(worlds=(4,), members=(0, 2, 3), length=(5,))
    + cases(worlds=(4,), length=(6,), shape=((2, 3),)),
    drawn=on_any_ranks(length=range(1, 9)),
    large=case(2, length=2_100_000),
    inputs=chunks_and_room,
    oracle=transposed,
    tolerance=0,
    calls=POINT_TO_POINT,
    given=(exchange,),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(pairwise).most(case.n, case.n * case.length, 4),
            why="a chunk goes straight to the one rank that it is for",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: cost.of(pairwise).steps(case.n, case.n * case.length, 4),
            optimum=fewest_steps,
            why="in each step every rank sends one chunk and receives one",
        ),
        Budget(Measure.PEAK_BYTES, target=lambda case: 0, why="rows of a view are views: receive straight into them"),
    ),
    hints=(
        "`x.view(n, -1)` has one row for each rank, and so has `out.view(n, -1)`.",
        "If every rank first sends to rank 0, then to rank 1, and so on, all descend on one rank. How can they take "
        "turns, so that in each step every rank has another partner?",
        "In step s, send to the rank s to the right. From which rank does a chunk come then?",
        "`target, source = (rank + step) % n, (rank - step) % n`, for steps 1 to n-1. The own chunk is a copy.",
    ),
    wrong=(
        Wrong(
            "only for powers of two",
            diagnosis=r"powers of two only|ranks are 0\.\.2|deadlock|finished",
            edits=(("target, source = (rank + step) % n, (rank - step) % n", "target = source = rank ^ step"),),
        ),
        Wrong(
            "its own chunk is missing",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            edits=(("    places[rank] = chunks[rank]\n", ""),),
        ),
        Wrong(
            "in the order of arrival",
            diagnosis=r"wrong order|expected -?[\d.]+, got -?[\d.]+",
            edits=(
                (
                    "exchange(chunks[target], target, places[source], source, group)",
                    "exchange(chunks[target], target, places[target], source, group)",
                ),
            ),
        ),
        Wrong(
            "every rank sends first",
            diagnosis=r"deadlock",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                chunks, places = x.view(n, -1), out.view(n, -1)
                places[rank] = chunks[rank]
                for other in range(n):
                    if other != rank:
                        dist.send(chunks[other], group=group, group_dst=other)
                for other in range(n):
                    if other != rank:
                        dist.recv(places[other], group=group, group_src=other)
                """,
        ),
        Wrong(
            "everything around a ring, to pick from",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*straight to the one rank",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                passing, received = x.clone(), torch.empty_like(x)
                places = out.view(n, -1)
                places[rank] = x.view(n, -1)[rank]
                for step in range(1, n):
                    exchange(passing, (rank + 1) % n, received, (rank - 1) % n, group)
                    places[(rank - step) % n] = received.view(n, -1)[rank]
                    passing, received = received, passing
                """,
        ),
        Wrong(
            "one pair at a time",
            diagnosis=r"right, but it takes \d+ steps where \d+ must do.*\n.*in each step every rank",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                chunks, places = x.view(n, -1), out.view(n, -1)
                places[rank] = chunks[rank]
                for source in range(n):
                    for target in range(n):
                        if rank == source != target:
                            dist.send(chunks[target], group=group, group_dst=target)
                        if rank == target != source:
                            dist.recv(places[source], group=group, group_src=source)
                """,
        ),
        Wrong(
            "added to what is in `out`",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            edits=(("places[rank] = chunks[rank]", "places[rank] += chunks[rank]"),),
        ),
    ),
)
