"""networks.crossing: the size from which on fewer bytes are worth more steps."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn, magnitudes
from reference.networks.answers.cheapest import crossing

SEARCH = """
    def more(size):
        return (steps[0] - steps[1]) * alpha + (bytes_[0] - bytes_[1]) * size / beta
    low, high = 1e-9, 1e30
    if more(low) * more(high) >= 0:
        return None
    for _ in range(300):
        middle = (low * high) ** 0.5
        if more(low) * more(middle) > 0:
            low = middle
        else:
            high = middle
    return low
    """


def bisected(case, inputs):
    """The size at which the difference of the two times changes its sign; None where it never does."""

    def more(size):
        one, other = (
            steps * case.alpha + moved * size / case.beta for steps, moved in zip(case.steps, case.bytes_, strict=True)
        )
        return one - other

    low, high = 1e-9, 1e30
    if more(low) * more(high) >= 0:
        return [None]
    for _ in range(300):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if more(low) * more(middle) > 0 else (low, middle)
    return [low]


def where_two_lines_meet(case, inputs):
    """The same, without a search."""
    (steps, other_steps), (moved, other_moved) = case.steps, case.bytes_
    return [(steps - other_steps) * case.alpha * case.beta / (other_moved - moved)]


PUZZLE = Puzzle(
    name="networks.crossing",
    title="Where two algorithms cross",
    statement="""
        Two algorithms for one task, on links where a message of b bytes takes α + b/β seconds. The first takes
        `steps[0]` messages in a row, which carry `bytes_[0]` times the tensor's size in all; the second `steps[1]` and
        `bytes_[1]`. So with S bytes the first takes steps[0]·α + bytes_[0]·S/β seconds. At which S are they equally
        fast?

        A ring on 8 ranks against recursive doubling is steps=(14, 3), bytes_=(1.75, 3.0).

        Args:
            steps: of the first and of the second.
            bytes_: how much each moves in a row, in multiples of the tensor's size.
            alpha: α, in seconds.
            beta: β, in bytes per second.

        Returns: the size in bytes, above 0; None if one is never faster than the other, at whatever size.

        Budget: a formula.
        """,
    function=crossing,
    cases=cases(
        worlds=(1,),
        steps=((14, 3), (3, 14), (6, 4)),
        bytes_=((1.75, 3.0), (3.0, 1.75)),
        alpha=(4e-6, 20e-3),
        beta=(50e9, 2.5e6),
    )
    + cases(worlds=(1,), steps=((2, 2), (14, 6)), bytes_=((1.0, 1.0), (1.75, 1.75)), alpha=(1e-6,), beta=(1e9,))
    + cases(worlds=(1,), steps=((6, 6),), bytes_=((1.75, 3.0), (3.0, 1.75)), alpha=(4e-6,), beta=(50e9,)),
    drawn=(
        drawn(
            worlds=(1,),
            steps=[(a, b) for a in range(2, 40, 3) for b in range(3, 40, 4)],
            bytes_=((1.75, 3.0), (3.0, 1.5), (2.0, 2.25)),
            alpha=magnitudes(-6, -2),
            beta=magnitudes(6, 11),
        ),
    ),
    scale=Scale(
        cases(worlds=(1,), steps=((10**12, 3),), bytes_=((1.75, 3.0),), alpha=(4e-6,), beta=(50e9,)),
        "the size",
        oracle=where_two_lines_meet,
    ),
    oracle=bisected,
    tolerance=1e-6,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 12,
            optimum=lambda case: 2,
            why="two straight lines: one division finds where they meet",
        ),
    ),
    hints=(
        "Write the two times as equal, and solve for S.",
        "S = (steps[0] - steps[1]) / (bytes_[1] - bytes_[0]) · αβ. What does it mean where that is negative, or where "
        "the bytes are equal?",
    ),
    wrong=(
        Wrong(
            "upside down",
            r"expected 1760000, got 22727",
            edits=(("more_steps / fewer_bytes", "fewer_bytes / more_steps"),),
        ),
        Wrong("without β", r"expected 1760000, got 3\.52e-05", edits=((" * alpha * beta", " * alpha"),)),
        Wrong(
            "a negative size",
            diagnosis=r"expected None, got -",
            edits=(("if more_steps * fewer_bytes <= 0:", "if fewer_bytes == 0:"),),
        ),
        Wrong(
            "equal bytes",
            diagnosis=r"ZeroDivisionError",
            edits=(("if more_steps * fewer_bytes <= 0:", "if more_steps * fewer_bytes < 0:"),),
        ),
        Wrong(
            "only if the first has more steps",
            diagnosis=r"crossing\(steps=\(3, 14\).*expected -?[\d.]+, got None",
            edits=(("if more_steps * fewer_bytes <= 0:", "if more_steps <= 0 or fewer_bytes <= 0:"),),
        ),
        Wrong("a search", diagnosis=r"right, but it runs [\d,]+ lines where 12 must do.*\n.*one division", body=SEARCH),
        Wrong(
            "equal steps cross at 0 bytes",
            diagnosis=r"steps=\(6, 6\).*expected None, got 0",
            body="""
                if bytes_[0] == bytes_[1]:
                    return None
                size = (steps[0] - steps[1]) / (bytes_[1] - bytes_[0]) * alpha * beta
                return size if size >= 0 else None
                """,
        ),
    ),
)
