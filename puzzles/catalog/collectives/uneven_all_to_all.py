"""collectives.uneven_all_to_all: more rows for one rank than for another."""

import torch

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_to_all import uneven
from reference.collectives.exchange import exchange

from .common import FLOAT, fewest_steps


def rows(case):
    """rows[i][j]: how many rank i has for rank j, from `least` to `most`."""
    generator = torch.Generator().manual_seed(case.seed)
    return torch.randint(case.least, case.most + 1, (case.n, case.n), generator=generator).tolist()


def splits_and_room(case, rank):
    """Rows for every rank, and room for what comes."""
    counts = rows(case)
    given, taken = counts[rank], [each[rank] for each in counts]
    x = case.tensor(rank, sum(given), case.width)
    out = case.tensor(rank, sum(taken), case.width, name="left over")
    return {"x": x, "out": out, "in_splits": given, "out_splits": taken}


def rows_by_sender(case, inputs):
    """What every rank had for this one, rank 0's first."""
    parts = [each["x"].split(each["in_splits"]) for each in inputs]
    return [{"out": torch.cat([part[rank] for part in parts])} for rank in range(case.n)]


PUZZLE = Puzzle(
    name="collectives.uneven_all_to_all",
    title="All-to-all of uneven parts",
    statement="""
        Tokens on their way to experts: one expert is popular, another is not. Every rank has some rows for every rank,
        the first in_splits[0] of them for rank 0, the next in_splits[1] for rank 1. Afterwards `out` holds what came,
        rank 0's rows first.

        Given is a way to send to one rank while you receive from another:
        `exchange(outgoing, target, incoming, source, group)` puts what comes into `incoming`. Empty tensors travel,
        too.

        Args:
            x: contiguous, of shape (sum(in_splits), width). Leave it as it is.
            out: contiguous, of shape (sum(out_splits), width); the place for what comes.
            in_splits: rows for each rank. Zeros are fine.
            out_splits: rows from each rank: what its in_splits say for this one.
            group: n ranks. Any n.

        Budget: n-1 steps; only rows for others are sent, each once. No memory besides what is there.
        """,
    function=uneven,
    cases=cases(worlds=(3, 2, 4, 1, 5, 8), least=(1,), most=(3,), width=(2,))
    + cases(worlds=(3, 4), least=(0,), most=(0, 1, 9), width=(3,))
    + cases(worlds=(4,), members=(0, 2, 3), least=(0,), most=(4,), width=(2,)),
    drawn=on_any_ranks(least=(0, 1), most=range(2, 9), width=range(1, 5)),
    large=case(2, least=900, most=1000, width=2100),
    inputs=splits_and_room,
    oracle=rows_by_sender,
    tolerance=0,
    calls=POINT_TO_POINT,
    given=(exchange,),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: max(
                cost.uneven_bytes(rank, given, case.width * FLOAT) for rank, given in enumerate(rows(case))
            ),
            why="the rows that a rank has for another, and nothing to make parts equally long",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: case.n - 1,
            optimum=fewest_steps,
            why="in each step every rank sends to one rank and receives from one",
        ),
        Budget(Measure.PEAK_BYTES, target=lambda case: 0, why="x.split(...) and out.split(...) make views"),
    ),
    hints=(
        "It is the all-to-all that you know; only the cuts differ. Which method of a tensor cuts into given lengths?",
        "`x.split(in_splits)` and `out.split(out_splits)` are lists of views: chunk j goes to rank j, place i is for "
        "what comes from rank i.",
        "A part of zero rows: sent or not, but both sides must agree. `exchange` sends it; that is the simplest.",
    ),
    wrong=(
        Wrong(
            "parts of one length",
            diagnosis=r"sends \d+ elements|expected -?[\d.]+, got|shape|size",
            edits=(
                ("x.split(in_splits)", "x.tensor_split(n)"),
                ("out.split(out_splits)", "out.tensor_split(n)"),
            ),
        ),
        Wrong(
            "in and out exchanged",
            diagnosis=r"split_with_sizes|sends \d+ elements",
            edits=(("x.split(in_splits), out.split(out_splits)", "x.split(out_splits), out.split(in_splits)"),),
        ),
        Wrong(
            "empty parts are not sent, but waited for",
            diagnosis=r"waits|nobody|finished|deadlock",
            edits=(
                (
                    "exchange(chunks[target], target, places[source], source, group)",
                    "exchange(chunks[target] if in_splits[target] else None, target, places[source], source, group)",
                ),
            ),
        ),
        Wrong(
            "its own rows are missing",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            edits=(("    places[rank].copy_(chunks[rank])\n", ""),),
        ),
        Wrong(
            "padded to the longest part",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*nothing to make parts equally long",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                longest = 16
                chunks, places = x.split(in_splits), out.split(out_splits)
                places[rank].copy_(chunks[rank])
                for step in range(1, n):
                    target, source = (rank + step) % n, (rank - step) % n
                    padded, received = x.new_zeros(longest, x.shape[1]), x.new_zeros(longest, x.shape[1])
                    padded[: in_splits[target]] = chunks[target]
                    exchange(padded, target, received, source, group)
                    places[source].copy_(received[: out_splits[source]])
                """,
        ),
        Wrong(
            "row by row",
            diagnosis=r"right, but it takes \d+ steps where \d+ must do",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                chunks, places = x.split(in_splits), out.split(out_splits)
                places[rank].copy_(chunks[rank])
                for step in range(1, n):
                    target, source = (rank + step) % n, (rank - step) % n
                    for row in range(max(in_splits[target], out_splits[source])):
                        outgoing = chunks[target][row] if row < in_splits[target] else None
                        incoming = places[source][row] if row < out_splits[source] else None
                        exchange(outgoing, target, incoming, source, group)
                """,
        ),
        Wrong(
            "added to what is in `out`",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            edits=(("places[rank].copy_(chunks[rank])", "places[rank].add_(chunks[rank])"),),
        ),
        Wrong(
            "rows of two numbers",
            diagnosis=r"right with .*width=2, wrong with .*width=3|split",
            edits=(
                (
                    "x.split(in_splits), out.split(out_splits)",
                    "x.view(-1).split([2 * s for s in in_splits]), out.view(-1).split([2 * s for s in out_splits])",
                ),
            ),
        ),
    ),
)
