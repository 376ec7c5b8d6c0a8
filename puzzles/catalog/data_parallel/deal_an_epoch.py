"""data_parallel.deal_an_epoch: which rank reads what in which step, as a formula that any number of ranks agrees on."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.data_parallel.answers.sampler import places

LOOPS = """
    order = list(range(samples))
    while step > 0:
        order = order[batch:]
        step -= 1
    mine = [len(range(each, len(order[:batch]), ranks)) for each in range(ranks)]
    begin = samples - len(order)
    for each in range(rank):
        begin += mine[each]
    return begin, begin + mine[rank]
    """


def dealt_out(case, inputs):
    """Deal the samples of each step, one after the other, and look where this rank's lie."""
    places = list(range(case.samples))
    of_step = places[case.step * case.batch : (case.step + 1) * case.batch]
    hands = [0] * case.ranks
    for card in range(len(of_step)):
        hands[card % case.ranks] += 1
    begin = min(case.step * case.batch, case.samples) + sum(hands[: case.rank])
    return [(begin, begin + hands[case.rank])]


def divided(case, inputs):
    """The same, where there are too many samples to deal."""
    before = min(case.step * case.batch, case.samples)
    each, more = divmod(min(case.batch, case.samples - before), case.ranks)
    begin = before + case.rank * each + min(case.rank, more)
    return [(begin, begin + each + (case.rank < more))]


PUZZLE = Puzzle(
    name="data_parallel.deal_an_epoch",
    title="Deal out an epoch",
    statement="""
        An epoch is one shuffle of the data set, and every rank knows it. In each step all ranks together read the next
        `batch` samples of it; in the last step, what is left. Of these, rank 0 reads the first part, rank 1 the
        next, and so on, and where they cannot be shared evenly, the first ranks read one sample more than the others.

        What is read in a step does not depend on the number of ranks. So a run can stop after any step, continue with
        more ranks or fewer, and loses no sample and repeats none.

        Args:
            samples: in the data set.
            batch: samples that all ranks together read in a step.
            step: of this epoch, counted from 0.
            rank: from 0 to ranks - 1.
            ranks: how many there are.

        Returns: (begin, end), the places in the shuffle that this rank reads: from begin to before end. Twice the
        same place if it reads nothing.

        Budget: a formula.
        """,
    function=places,
    cases=cases(worlds=(1,), samples=(24,), batch=(6,), step=(0, 2), rank=(0, 1, 2), ranks=(3,))
    + cases(worlds=(1,), samples=(24,), batch=(8,), step=(1,), rank=(0, 1, 2), ranks=(3,))
    + cases(worlds=(1,), samples=(23,), batch=(8,), step=(2,), rank=(0, 3, 4), ranks=(5,))
    + cases(worlds=(1,), samples=(10,), batch=(8,), step=(1, 2), rank=(0, 1, 2, 3), ranks=(4,))
    + cases(worlds=(1,), samples=(100_000,), batch=(1024,), step=(97,), rank=(511,), ranks=(1000,))
    + cases(worlds=(1,), samples=(5,), batch=(100,), step=(0,), rank=(0,), ranks=(1, 8)),
    drawn=(
        drawn(
            worlds=(1,),
            samples=range(1, 200),
            batch=range(1, 60),
            step=range(6),
            ranks=range(1, 12),
            rank=lambda so_far: range(so_far.ranks),
        ),
    ),
    scale=Scale(
        cases(
            worlds=(1,),
            samples=(10**15 + 7,),
            batch=(10**12 + 3,),
            step=(995, 1000),
            rank=(
                0,
                10**8,
            ),
            ranks=(10**9 + 9,),
        ),
        "samples, steps or ranks",
        oracle=divided,
    ),
    oracle=dealt_out,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 8,
            optimum=lambda case: 4,
            why="no loop over steps, samples or ranks: division with a remainder says how long the parts are",
        ),
    ),
    hints=(
        "Where does a step begin, and how many samples has it? In the last step, fewer than `batch`; after it, none.",
        "`size, longer = divmod(of_this_step, ranks)`: every rank reads `size` samples, and the first `longer` ranks "
        "one more. How many are read by those before rank r?",
        "rank · size + min(rank, longer).",
    ),
    wrong=(
        Wrong(
            "the last step is as long as the others",
            diagnosis=r"samples=23.*expected .*, got ",
            edits=(("min(batch, samples - first)", "batch"),),
        ),
        Wrong(
            "steps after the last one read on",
            diagnosis=r"samples=10, batch=8, step=2.*expected 10, got",
            edits=(("min(step * batch, samples)", "step * batch"),),
        ),
        Wrong(
            "the rest is left out",
            diagnosis=r"batch=8, step=1, rank=0, ranks=3.*expected 11, got 10",
            edits=(("+ min(rank, longer)", ""), ("+ (rank < longer)", "")),
        ),
        Wrong(
            "parts that overlap",
            diagnosis=r"batch=8, step=1, rank=1, ranks=3.*expected 11, got 10",
            edits=(("+ min(rank, longer)", ""),),
        ),
        Wrong(
            "shards of the data set",
            diagnosis=r"samples=24, batch=6, step=0, rank=1.*expected 2, got 8",
            body="""
                share, own = samples // ranks, batch // ranks
                begin = rank * share + step * own
                return begin, begin + own
                """,
        ),
        Wrong("step by step", diagnosis=r"right, but it runs [\d,]+ lines where 8 must do.*\n.*no loop", body=LOOPS),
    ),
)
