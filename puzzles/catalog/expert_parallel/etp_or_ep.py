"""expert_parallel.etp_or_ep: what a rank sends where experts are whole, and where they are cut."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, divisors, drawn
from reference.expert_parallel.answers.sharing import bytes_of_experts


def row_after_row(case, inputs):
    """Rank 0's rows, one after another; then those that came to it. Choices fall on ranks in turn."""
    row = case.width * case.size
    exchanged = shared = here = 0
    for choice in range(case.tokens * case.k):
        owner = choice % case.ep
        for _way in ("there", "back", "its gradient there", "its gradient back"):
            exchanged += row if owner != 0 else 0
    for _source in range(case.ep):
        here += case.tokens * case.k // case.ep
    for _row in range(here):
        for _other in range(1, case.etp):
            shared += sum(row for _way in ("the row", "a part of its sum", "a gradient", "a part of the gradient"))
    return [(exchanged, shared)]


def counted_and_multiplied(case, inputs):
    """The same, where there are too many rows to go through."""
    elements = case.tokens * case.k // case.ep * case.width
    out = elements * (case.ep - 1)
    return [tuple(2 * 2 * each * case.size for each in (out, elements * case.ep * (case.etp - 1)))]


DEEPSEEK = {"tokens": (128,), "k": (8,), "width": (7168,), "size": (2,)}

PUZZLE = Puzzle(
    name="expert_parallel.etp_or_ep",
    title="Experts whole, or cut",
    statement="""
        A layer has more experts than fit on a rank. There are two ways to share them out, and they may be combined.

        ep      experts stay whole, and lie on ep ranks. Each rank has other tokens. A row for each of a token's k
                choices goes to the rank that has the expert, and what that makes of it comes back. Choices fall evenly:
                each rank has an ep-th of each rank's choices.
        etp     etp ranks share the matrices of the same experts. Each of these ranks has rows of its own, those that
                came to it along ep. It needs the rows of all others that share with it, for each can compute its part
                of every sum alone: so each sends its rows to all others, and for each row of another rank it returns a
                part of the sum, which is as large as the row.

        In backward gradients travel the same ways, as many bytes again. How much does a rank send, along each?

        Counts and weights are left out. A row that stays on its rank is not sent.

        Args:
            tokens: T, of a rank.
            k: experts of a token; ep divides T k.
            width: D, numbers of a row.
            size: bytes of a number.
            ep: ranks that have all experts together.
            etp: ranks that share each expert's matrices.

        Returns: bytes that a rank sends in forward and backward of one layer, along ep and along etp: two ints.

        Budget: a formula for each.
        """,
    function=bytes_of_experts,
    cases=cases(worlds=(1,), **DEEPSEEK, ep=(8,), etp=(1,))
    + cases(worlds=(1,), **DEEPSEEK, ep=(1,), etp=(8,))
    + cases(worlds=(1,), **DEEPSEEK, ep=(4,), etp=(2,))
    + cases(worlds=(1,), tokens=(6, 12), k=(1, 2), width=(5,), size=(2, 4), ep=(1, 2, 3), etp=(1, 3))
    + cases(worlds=(1,), tokens=(0,), k=(2,), width=(4,), size=(8,), ep=(4,), etp=(2,)),
    drawn=(
        drawn(
            worlds=(1,),
            tokens=range(1, 40),
            k=range(1, 9),
            width=(3, 8, 20),
            size=(1, 2, 4, 8),
            ep=lambda so_far: divisors(so_far.tokens * so_far.k),
            etp=range(1, 6),
        ),
    ),
    scale=Scale(
        cases(worlds=(1,), tokens=(2**40,), k=(64,), width=(2**20,), size=(2,), ep=(2**30,), etp=(2**20,)),
        "tokens, choices or ranks",
        oracle=counted_and_multiplied,
    ),
    oracle=row_after_row,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 20,
            optimum=lambda case: 2,
            why="all rows travel alike: count them, and multiply",
        ),
    ),
    hints=(
        "How many rows does a rank have, one for each choice? What part of them goes to other ranks along ep? How "
        "often does a row travel in a step, with its gradients?",
        "Along ep T k rows, of which an ep-th stays. As many as went away came here, so along etp a rank has T k rows "
        "again, and sends them to each of etp - 1 others.",
        "ep: 4 (ep-1)/ep · T k D numbers, never more than 4 T k D. etp: 4 (etp-1) · T k D: rows and parts of sums, "
        "forward and backward.",
    ),
    wrong=(
        Wrong(
            "a row for each token",
            diagnosis=r"expected 51380224, got 6422528",
            edits=(("rows = tokens * k * width * size", "rows = tokens * width * size"),),
        ),
        Wrong(
            "rows that stay are sent, too",
            diagnosis=r"expected 51380224, got 58720256",
            edits=(("4 * (ep - 1) * (rows // ep)", "4 * rows"),),
        ),
        Wrong(
            "forward alone",
            diagnosis=r"expected 51380224, got 25690112",
            edits=(("4 * (ep - 1)", "2 * (ep - 1)"), ("4 * (etp - 1)", "2 * (etp - 1)")),
        ),
        Wrong(
            "rows go there, and stay there",
            diagnosis=r"expected 51380224, got 25690112",
            edits=(("4 * (ep - 1)", "2 * (ep - 1)"),),
        ),
        Wrong(
            "all rows to each rank",
            diagnosis=r"expected 51380224, got 411041792",
            edits=(("(rows // ep)", "rows"),),
        ),
        Wrong(
            "cut experts share rows as whole ones do",
            diagnosis=r"expected 411041792, got 51380224",
            edits=(("4 * (etp - 1) * rows", "4 * (etp - 1) * (rows // etp)"),),
        ),
        Wrong(
            "fewer rows for ranks that share, because ep has taken some away",
            diagnosis=r"expected 58720256, got 14680064",
            edits=(("4 * (etp - 1) * rows", "4 * (etp - 1) * (rows // ep)"),),
        ),
        Wrong(
            "numbers for bytes",
            diagnosis=r"expected 51380224, got 25690112",
            edits=(("tokens * k * width * size", "tokens * k * width"),),
        ),
        Wrong(
            "a number that is no int",
            diagnosis=r"expected 51380224, got 51380224\.0",
            edits=(("4 * (ep - 1) * (rows // ep)", "4 * (ep - 1) / ep * rows"),),
        ),
        Wrong(
            "choice after choice",
            diagnosis=r"right, but it runs [\d,]+ lines where 20 must do.*\n.*count them, and multiply",
            body="""
                along_ep = along_etp = 0
                for choice in range(tokens * k):
                    if choice % ep:
                        along_ep += 4 * width * size
                    along_etp += 4 * (etp - 1) * width * size
                return along_ep, along_etp
                """,
        ),
    ),
)
