"""pipeline_parallel.peak_activations: why GPipe's order is hardly used any more."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.pipeline_parallel import orders
from reference.pipeline_parallel.answers.held import peak_activations
from reference.pipeline_parallel.schedule import Kind


def action_by_action(case, inputs):
    """Go through the rank's line, and count what has gone forward and not yet come back."""
    makers = {
        "GPipe": lambda: orders.gpipe(case.p, case.m),
        "1F1B": lambda: orders.one_f_one_b(case.p, case.m),
        "interleaved": lambda: orders.interleaved(case.p, case.m, case.v),
        "breadth-first": lambda: orders.breadth_first(case.p, case.m, case.v),
    }
    held, most = set(), 0
    for kind, stage, micro_batch in makers[case.order]().lines[case.rank]:
        if kind is Kind.FORWARD:
            held.add((stage, micro_batch))
        else:
            held.remove((stage, micro_batch))
        most = max(most, len(held))
    return [most]


def forward_before_the_first_backward(case, inputs):
    """The same, where there is too much to go through."""
    p, m, v, ahead = case.p, case.m, case.v, case.p - 1 - case.rank
    held = {"GPipe": m, "1F1B": ahead + 1, "interleaved": (v - 1) * p + 2 * ahead + 1, "breadth-first": m * v}
    return [min(held[case.order], m * v)]


PUZZLE = Puzzle(
    name="pipeline_parallel.peak_activations",
    title="How many activations a rank holds",
    statement="""
        A stage that has computed a micro-batch forward holds its activations until backward has used them. How many
        does a rank hold at most? That is what decides how many micro-batches, or how large ones, fit into memory. Count
        one for each stage and micro-batch. Four orders, of p ranks and m micro-batches:

            GPipe           all forward, then all backward.
            1F1B            rank r does p-1-r forward to begin with, so that the ranks after it have something to do;
                            then a forward and a backward in turn; then the backward that is left.
            interleaved     1F1B with v stages on each rank: stages r, p+r, 2p+r, ... Micro-batches go in groups of p,
                            each group through all v stages of a rank. To begin with, rank r does (v-1) p forward, one
                            for each micro-batch of a group and each stage but the last, and 2 (p-1-r) more, for the way
                            to the last rank and back; then a forward and a backward in turn; then what is left.
            breadth-first   v stages on each rank: all micro-batches forward through the first, then all through the
                            second, ...; then all backward.

        To begin with, a rank does at most all the forward work that there is.

        Args:
            order: "GPipe", "1F1B", "interleaved" or "breadth-first".
            rank: r, from 0 to p-1.
            p: ranks.
            m: micro-batches; of "interleaved" a multiple of p.
            v: stages on a rank; 1 of "GPipe" and "1F1B".

        Returns: how many, an int.

        Budget: a formula.
        """,
    function=peak_activations,
    cases=cases(worlds=(1,), order=("GPipe", "1F1B"), rank=(0, 1, 3), p=(4,), m=(8, 3, 1), v=(1,))
    + cases(worlds=(1,), order=("interleaved", "breadth-first"), rank=(0, 1, 3), p=(4,), m=(8, 4), v=(2, 3))
    + cases(worlds=(1,), order=("interleaved",), rank=(0, 2), p=(3,), m=(3, 9), v=(1, 4))
    + cases(worlds=(1,), order=("interleaved",), rank=(0, 15), p=(16,), m=(512,), v=(2,))
    + cases(worlds=(1,), order=("GPipe", "1F1B"), rank=(0,), p=(16, 1), m=(512,), v=(1,)),
    drawn=(
        drawn(
            worlds=(1,),
            order=("GPipe", "1F1B", "interleaved", "breadth-first"),
            p=range(1, 9),
            rank=lambda so_far: range(so_far.p),
            m=lambda so_far: [so_far.p * k for k in range(1, 6)],
            v=lambda so_far: (1,) if so_far.order in ("GPipe", "1F1B") else (2, 3, 4),
        ),
    ),
    scale=Scale(
        cases(worlds=(1,), order=("interleaved", "breadth-first"), rank=(10**6,), p=(10**9,), m=(10**12,), v=(10**3,))
        + cases(worlds=(1,), order=("GPipe", "1F1B"), rank=(10**6,), p=(10**9,), m=(10**12,), v=(1,)),
        "ranks, stages or micro-batches",
        oracle=forward_before_the_first_backward,
    ),
    oracle=action_by_action,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 20,
            optimum=lambda case: 8,
            why="a rank holds most before its first backward: how much forward has it done by then?",
        ),
    ),
    hints=(
        "In 1F1B a forward and a backward take turns: what comes replaces what goes. So when does a rank hold most?",
        "Right before its first backward. What it does to begin with, and the forward of its first pair: p-1-r + 1 in "
        "1F1B.",
        "GPipe m, 1F1B p-r, interleaved (v-1) p + 2 (p-1-r) + 1, breadth-first m v; and never more than m v, which is "
        "all there is.",
    ),
    wrong=(
        Wrong(
            "1F1B holds one for each rank, everywhere",
            diagnosis=r"peak_activations\(order=1F1B, rank=1, p=4, m=8, v=1\): expected 3, got 4",
            edits=(('"1F1B": after + 1', '"1F1B": p'),),
        ),
        Wrong(
            "counted from the first rank",
            diagnosis=r"peak_activations\(order=1F1B, rank=0, p=4, m=8, v=1\): expected 4, got 1",
            edits=(("after = p - 1 - rank", "after = rank"),),
        ),
        Wrong(
            "GPipe holds one for each rank",
            diagnosis=r"peak_activations\(order=GPipe, rank=0, p=4, m=8, v=1\): expected 8, got 4",
            edits=(('"GPipe": m,', '"GPipe": p,'),),
        ),
        Wrong(
            "more than there are",
            diagnosis=r"peak_activations\(order=1F1B, rank=0, p=4, m=3, v=1\): expected 3, got 4",
            edits=(("min(before_the_first_backward[order], m * v)", "before_the_first_backward[order]"),),
        ),
        Wrong(
            "the forward of the first pair is forgotten",
            diagnosis=r"peak_activations\(order=1F1B, rank=0, p=4, m=8, v=1\): expected 4, got 3",
            edits=(('"1F1B": after + 1', '"1F1B": after'), ("2 * after + 1", "2 * after")),
        ),
        Wrong(
            "interleaved is 1F1B v times",
            diagnosis=r"peak_activations\(order=interleaved, rank=0, p=4, m=8, v=2\): expected 11, got 8",
            edits=(("(v - 1) * p + 2 * after + 1", "v * (after + 1)"),),
        ),
        Wrong(
            "interleaved holds at most as many as there are micro-batches",
            diagnosis=r"peak_activations\(order=interleaved, rank=0, p=4, m=8, v=2\): expected 11, got 8",
            edits=(("(v - 1) * p + 2 * after + 1", "min(m, (v - 1) * p + 2 * after + 1)"),),
        ),
        Wrong(
            "breadth-first holds one stage's",
            diagnosis=r"peak_activations\(order=breadth-first, rank=0, p=4, m=8, v=2\): expected 16, got 8",
            edits=(('"breadth-first": m * v', '"breadth-first": m'),),
        ),
        Wrong(
            "a number that is no int",
            diagnosis=r"expected 8, got 8\.0 \(an int is asked for\)",
            edits=(
                (
                    "return min(before_the_first_backward[order], m * v)",
                    "return min(before_the_first_backward[order], m * v) / 1",
                ),
            ),
        ),
        Wrong(
            "counted action by action",
            diagnosis=r"right, but it runs [\d,]+ lines where 20 must do.*\n.*before its first backward",
            body="""
                all_of_it, after = m * v, p - 1 - rank
                first = {"1F1B": after, "interleaved": (v - 1) * p + 2 * after}.get(order, all_of_it)
                first = min(first, all_of_it)
                held = most = 0
                for action in "F" * first + "FB" * (all_of_it - first) + "B" * first:
                    held += 1 if action == "F" else -1
                    most = max(most, held)
                return most
                """,
        ),
    ),
)
