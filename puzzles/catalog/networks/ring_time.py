"""networks.ring_time: how long a ring all-reduce takes, as a formula."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn, magnitudes
from reference.networks.plain import ring_time


def one_step_after_another(case, inputs):
    """The definition, the slow way: 2(n-1) messages of a chunk, each after the one before."""
    step = case.alpha + case.size / case.ranks / case.beta
    return [sum((step for _ in range(2 * (case.ranks - 1))), 0.0)]


def all_steps_alike(case, inputs):
    """The same, where there are too many steps to take."""
    return [2 * (case.ranks - 1) * (case.alpha + case.size / case.ranks / case.beta)]


PUZZLE = Puzzle(
    name="networks.ring_time",
    title="How long a ring all-reduce takes",
    statement="""
        A message of b bytes takes α + b/β seconds. A ring all-reduce of `size` bytes takes 2(n-1) steps, one after
        the other; in each, every rank sends one chunk to the right. How many seconds until the last rank is done?

        Args:
            ranks: n, at least 1.
            size: bytes of the tensor that each rank brings; n chunks of equal size.
            alpha: α, seconds that a message takes however small it is.
            beta: β, bytes per second of a link, in each direction at the same time.

        Returns: seconds.

        Budget: a formula, not a loop over the steps of 16,384 ranks.
        """,
    function=ring_time,
    cases=cases(worlds=(1,), ranks=(2, 1, 3, 8, 16_384), size=(1e9, 0.0), alpha=(2e-6, 1e-3), beta=(25e9, 2.5e6)),
    drawn=(
        drawn(
            worlds=(1,), ranks=range(2, 3000), size=magnitudes(3, 10), alpha=magnitudes(-6, -2), beta=magnitudes(6, 11)
        ),
    ),
    scale=Scale(
        cases(worlds=(1,), ranks=(10**12,), size=(1e9,), alpha=(2e-6,), beta=(25e9,)),
        "the number of ranks",
        oracle=all_steps_alike,
    ),
    oracle=one_step_after_another,
    tolerance=1e-9,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 12,
            optimum=lambda case: 1,
            why="multiply, do not loop over the steps",
        ),
    ),
    hints=(
        "How many bytes are in one chunk? How long does one message take?",
        "All steps take the same time, and there are 2(n-1) of them.",
    ),
    wrong=(
        Wrong("whole tensors", r"expected 0\.040004, got 0\.080004", edits=(("size / ranks / beta", "size / beta"),)),
        Wrong("half of it", r"off by a factor of 0\.5", edits=(("2 * (ranks - 1)", "(ranks - 1)"),)),
        Wrong("n steps", r"ring_time\(ranks=2, .*\): expected 0\.04", edits=(("(ranks - 1)", "ranks"),)),
        Wrong(
            "latency paid once",
            diagnosis=r"expected 0\.040004, got 0\.040002",
            edits=(("2 * (ranks - 1) * (alpha + ", "alpha + (2 * (ranks - 1) * "),),
        ),
        Wrong(
            "a loop over the steps",
            diagnosis=r"right, but it runs [\d,]+ lines where 12 must do.*\n.*do not loop",
            body="""
                seconds = 0.0
                for _ in range(2 * (ranks - 1)):
                    seconds += alpha + size / ranks / beta
                return seconds
                """,
        ),
        Wrong(
            "always the same link",
            diagnosis=r"beta=2\.5e\+06\): expected 400",
            edits=(("/ beta", "/ 25e9"),),
        ),
    ),
)
