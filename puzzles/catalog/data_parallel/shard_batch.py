"""data_parallel.shard_batch: each rank takes a part, no two the same, and nothing is left."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.data_parallel.answers.sampler import share


def rows_in_order(case, inputs):
    """The rows dealt out one by one, as many to each as it must get, the first ranks first."""
    rows = list(inputs[0]["batch"])
    counts = [len(range(rank, len(rows), case.n)) for rank in range(case.n)]
    starts = [sum(counts[:rank]) for rank in range(case.n)]
    return [inputs[0]["batch"][start : start + count] for start, count in zip(starts, counts, strict=True)]


PUZZLE = Puzzle(
    name="data_parallel.shard_batch",
    title="Shard a batch",
    statement="""
        All ranks have read the same batch. Each works on its own rows of it: rank r of n on the r-th of n consecutive
        parts. Together they must work on every row once, also where n does not divide the number of rows: then the
        first ranks get one row more than the others. With fewer rows than ranks, some get none.

        Args:
            batch: [B, ...], the same on every rank.
            group: n ranks. Any n.

        Returns: this rank's rows, [about B / n, ...]. No rank needs to ask another.

        Budget: no memory. What you return is a view of `batch`.
        """,
    function=share,
    cases=cases(worlds=(4, 2, 3, 1, 5, 8), rows=(12,), width=(2,))
    + cases(worlds=(4, 3), rows=(5, 0, 2), width=(1,))
    + cases(worlds=(4,), members=(0, 2, 3), rows=(7,), width=(2,)),
    drawn=on_any_ranks(rows=range(3, 40), width=range(1, 4)),
    large=case(2, rows=1100, width=10_000),
    inputs=lambda case, rank: {"batch": case.tensor(0, case.rows, case.width)},
    oracle=rows_in_order,
    tolerance=0,
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 0,
            why="a slice of a tensor is a view of it: it has no memory of its own",
        ),
    ),
    hints=(
        "Which rank are you in `group`, and of how many?",
        "`Tensor.chunk(n)` may make fewer than n parts. Which of torch's functions always makes n?",
        "`batch.tensor_split(n)` gives n parts, of which the first B mod n are longer by one.",
    ),
    wrong=(
        Wrong(
            "the rest is left out",
            diagnosis=r"right where n divides rows, wrong where it does not.*which rank gets the remainder",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                size = len(batch) // n
                return batch[rank * size : (rank + 1) * size]
                """,
        ),
        Wrong(
            "the rest is the last rank's",
            diagnosis=r"right where n divides rows, wrong where it does not",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                size = len(batch) // n
                return batch[rank * size : (rank + 1) * size if rank < n - 1 else len(batch)]
                """,
        ),
        Wrong(
            "chunk",
            diagnosis=r"expected a float32 tensor of shape|IndexError|out of range",
            edits=(("tensor_split", "chunk"),),
        ),
        Wrong(
            "every n-th row",
            diagnosis=r"result\[1, 0\]: expected -?[\d.]+, got -?[\d.]+",
            edits=(
                (
                    "batch.tensor_split(dist.get_world_size(group))[dist.get_rank(group)]",
                    "batch[dist.get_rank(group) :: dist.get_world_size(group)]",
                ),
            ),
        ),
        Wrong(
            "parts that overlap",
            diagnosis=r"expected a float32 tensor of shape \(\d+, \d\), got a float32 tensor of shape \(\d+, \d\)",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                size = -(-len(batch) // n)
                begin = min(rank * size, len(batch) - size)
                return batch[begin : begin + size]
                """,
        ),
        Wrong(
            "the rank in the world",
            diagnosis=r"a rank of the group is not a global rank",
            body="return batch.tensor_split(dist.get_world_size())[dist.get_rank()]",
        ),
        Wrong(
            "a copy",
            diagnosis=r"right, but it keeps alive \d+ B where 0 must do.*\n.*a view",
            edits=(("[dist.get_rank(group)]", "[dist.get_rank(group)].clone()"),),
        ),
    ),
)
