"""resilience.elastic_batch: what stays the same when the number of ranks changes."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.resilience.answers.elastic import elastic_batch

CHANGES = {
    "a rank dies": ((0, 4), (3, 3)),
    "no change": ((0, 4),),
    "dies and returns": ((0, 4), (2, 3), (5, 4)),
    "half is gone": ((0, 8), (4, 4)),
    "down to one": ((0, 3), (1, 2), (2, 1)),
    "more than windows": ((0, 4), (2, 40)),
}
LARGE = {"a few of very many": ((0, 10**9), (10**6, 10**9 - 7))}


def dealt_out(case, inputs):
    """Deal the windows of the step, one after the other, and count."""
    ranks = [size for first, size in inputs[0]["sizes"] if first <= case.step][-1]
    hands = [0] * ranks
    for window in range(case.batch):
        hands[window % ranks] += 1
    begin = case.step * case.batch + sum(hands[: case.rank])
    return [(begin, begin + hands[case.rank], -(-max(hands) // case.most), 1 / case.batch)]


def divided(case, inputs):
    """The same, where there are too many to deal."""
    ranks = [size for first, size in inputs[0]["sizes"] if first <= case.step][-1]
    each, more = case.batch // ranks, case.batch % ranks
    begin = case.step * case.batch + case.rank * each + min(case.rank, more)
    end = begin + each + (1 if case.rank < more else 0)
    return [(begin, end, -(-(each + (more > 0)) // case.most), 1 / case.batch)]


def arguments(case, rank):
    sizes = list((CHANGES | LARGE)[case.changes])
    return {"step": case.step, "rank": case.rank, "sizes": sizes, "batch": case.batch, "most": case.most}


PUZZLE = Puzzle(
    name="resilience.elastic_batch",
    title="When the number of ranks changes",
    statement="""
        A node dies in the middle of a run, and training continues with the ranks that are left; later a spare comes.
        What is learned must not depend on it. So what a step is stays the same: the windows that are read, in the order
        of the run, `batch` of them in each step, and with them the learning rate, which follows the step. What changes
        is who reads which window, and how often a rank goes forward and backward in a step, since no more than `most`
        windows fit into its memory at a time.

        Windows are numbered in the order in which the run reads them: step s reads those from s · batch on. Of these
        rank 0 reads the first part, rank 1 the next one, and so on; where they do not divide, the first ranks read one
        more. A rank may read none. All ranks go through the same number of micro-batches, since they sum gradients
        together: as many as the rank needs that reads most.

        Args:
            step: counted from 0.
            rank: of those that are there in this step.
            sizes: a list of (step, n), ascending: from this step on there are n ranks. The first one is of step 0.
            batch: windows that all ranks together read in a step.
            most: windows that a rank can compute at a time.

        Returns: (begin, end, micro_batches, weight): this rank reads the windows from begin to before end; the
        micro-batches of the step; and by what the mean loss of one window is multiplied, so that the sum over all
        ranks is the loss of the step.

        Budget: a formula.
        """,
    function=elastic_batch,
    cases=cases(worlds=(1,), changes=("a rank dies",), step=(2, 3, 4), rank=(0, 2), batch=(16,), most=(4,))
    + cases(worlds=(1,), changes=("dies and returns",), step=(1, 2, 5, 9), rank=(1,), batch=(12,), most=(2,))
    + cases(worlds=(1,), changes=("no change", "half is gone"), step=(7,), rank=(3,), batch=(24,), most=(5,))
    + cases(worlds=(1,), changes=("down to one",), step=(0, 1, 2), rank=(0,), batch=(7,), most=(3,))
    + cases(worlds=(1,), changes=("more than windows",), step=(2,), rank=(5, 39), batch=(6,), most=(1,)),
    drawn=(
        drawn(
            worlds=(1,),
            changes=("a rank dies", "dies and returns", "no change"),
            step=range(9),
            rank=range(3),
            batch=range(1, 60),
            most=range(1, 9),
        ),
    ),
    scale=Scale(
        cases(
            worlds=(1,),
            changes=tuple(LARGE),
            step=(10**6 - 1, 10**9),
            rank=(0, 10**8),
            batch=(10**12 + 3,),
            most=(1000,),
        ),
        "steps, windows or ranks",
        oracle=divided,
    ),
    inputs=arguments,
    oracle=dealt_out,
    tolerance=1e-12,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 12 + 2 * len((CHANGES | LARGE)[case.changes]),
            optimum=lambda case: 5 + len((CHANGES | LARGE)[case.changes]),
            why="no loop over steps, windows or ranks: where a step begins does not depend on who was there before",
        ),
    ),
    hints=(
        "Which of the four numbers depend on how many ranks there are, and which on how many there were before?",
        "None depends on what was before: step s begins at window s · batch, always. With n ranks now, "
        "`size, longer = divmod(batch, n)`.",
        "begin = step · batch + rank · size + min(rank, longer); the longest part has size + (longer > 0) windows, "
        "which is divided by `most` and rounded up; and each window weighs 1 / batch.",
    ),
    wrong=(
        Wrong(
            "each rank keeps its share, and the batch shrinks",
            diagnosis=r"step=3, rank=0.*result\[0\]: expected 48, got 36",
            edits=(
                ("    size, longer = divmod(batch, ranks)\n", "    size, longer = batch // sizes[0][1], 0\n"),
                ("step * batch + rank", "step * size * ranks + rank"),
            ),
        ),
        Wrong(
            "each rank reads on in a part of its own",
            diagnosis=r"expected",
            body="""
                ranks = max(size for size in sizes if size[0] <= step)[1]
                share = batch // ranks
                begin = rank * 1000 * share + step * share
                return begin, begin + share, -(-share // most), 1 / batch
                """,
        ),
        Wrong(
            "steps count anew after a change",
            diagnosis=r"step=3, rank=0.*result\[0\]: expected 48, got 0",
            edits=(
                (
                    "    ranks = max(size for size in sizes if size[0] <= step)[1]\n",
                    "    first, ranks = max(size for size in sizes if size[0] <= step)\n",
                ),
                ("begin = step * batch", "begin = (step - first) * batch"),
            ),
        ),
        Wrong(
            "the change counts one step late",
            diagnosis=r"expected",
            edits=(("if size[0] <= step", "if size[0] < max(step, 1)"),),
        ),
        Wrong(
            "the mean of the ranks' means",
            diagnosis=r"result\[3\]: expected",
            edits=(("longest // most), 1 / batch", "longest // most), 1 / (ranks * max(size, 1))"),),
        ),
        Wrong(
            "the rest is left out",
            diagnosis=r"expected",
            edits=((" + min(rank, longer)", ""), ("begin + size + (rank < longer)", "begin + size")),
        ),
        Wrong(
            "micro-batches of this rank alone",
            diagnosis=r"result\[2\]: expected",
            edits=(("longest = size + (longer > 0)", "longest = size + (rank < longer)"),),
        ),
        Wrong(
            "micro-batches rounded down",
            diagnosis=r"result\[2\]: expected",
            edits=(("-(-longest // most)", "max(1, longest // most)"),),
        ),
        Wrong(
            "step by step from the beginning",
            diagnosis=r"right, but it runs [\d,]+ lines where \d+ must do.*\n.*no loop",
            body="""
                begin, ranks = 0, sizes[0][1]
                while step > 0:
                    begin += batch
                    step -= 1
                    for first, size in sizes:
                        if first * batch <= begin:
                            ranks = size
                size, longer = divmod(batch, ranks)
                begin += rank * size + min(rank, longer)
                longest = size + (longer > 0)
                return begin, begin + size + (rank < longer), -(-longest // most), 1 / batch
                """,
        ),
    ),
)
