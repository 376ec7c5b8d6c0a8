"""planning.checkpoint_interval: a stop for each checkpoint, against the work that a failure undoes."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn, magnitudes
from reference.planning.answers.interval import checkpoint_interval

LLAMA3 = 1.82e8  # seconds between failures of a GPU: 54 days of 16,384 GPUs for 419 (arXiv:2407.21783, sec. 3.3.4)

SEARCH = """
    between = gpu_mtbf / gpus
    low, high = 1e-9, 1e18
    for _ in range(300):
        middle = (low * high) ** 0.5
        if checkpoint / middle**2 > 1 / (2 * between):
            low = middle
        else:
            high = middle
    return low, checkpoint / low + (low / 2 + down) / between
    """


def where_a_longer_interval_begins_to_lose(case, inputs):
    """The interval at which one second more saves as much in checkpoints as it costs in work that is lost."""
    failures = case.gpus / case.gpu_mtbf  # in a second

    def lost(interval):
        return case.checkpoint / interval + failures * (interval / 2 + case.down)

    low, high = 1e-9, 1e18
    for _ in range(300):
        middle = (low * high) ** 0.5
        saves = case.checkpoint / middle**2
        low, high = (middle, high) if saves > failures / 2 else (low, middle)
    return [(low, lost(low))]


PUZZLE = Puzzle(
    name="planning.checkpoint_interval",
    title="How often to write a checkpoint",
    statement="""
        n GPUs train together. Each fails once in `gpu_mtbf` seconds in the mean, independently of the others, and when
        one fails, all stop. After every τ seconds of training they also stop for `checkpoint` seconds, to write what
        they have. A failure costs what was trained since the last checkpoint, half of τ in the mean, and `down` seconds
        more, until training resumes. For which τ is least time lost?

        Count as one does on an envelope: the seconds that are lost for each second of training. That is exact enough
        as long as few are: no failure during a checkpoint, and none while training is down.

        Args:
            gpu_mtbf: mean time between failures of one GPU, in seconds.
            gpus: n, at least 1.
            checkpoint: seconds for which training stops to write one.
            down: seconds from a failure until training resumes: until it is seen, and all are back and have loaded.

        Returns: τ in seconds, and the seconds that are lost for each second of training at this τ.

        Budget: a formula.
        """,
    function=checkpoint_interval,
    cases=cases(
        worlds=(1,), gpu_mtbf=(LLAMA3,), gpus=(16_384, 1, 1024, 131_072), checkpoint=(60.0, 5.0), down=(600.0, 0.0)
    )
    + cases(worlds=(1,), gpu_mtbf=(1e6,), gpus=(3, 100), checkpoint=(0.5,), down=(30.0,)),
    drawn=(
        drawn(
            worlds=(1,),
            gpu_mtbf=magnitudes(7, 9),
            gpus=range(2, 20_000),
            checkpoint=magnitudes(0, 2),
            down=magnitudes(1, 3),
        ),
    ),
    scale=Scale(
        cases(worlds=(1,), gpu_mtbf=(1e16,), gpus=(10**12,), checkpoint=(5.0,), down=(60.0,)),
        "the number of GPUs",
    ),
    oracle=where_a_longer_interval_begins_to_lose,
    tolerance=1e-6,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 12,
            optimum=lambda case: 3,
            why="the derivative of δ/τ + τ/2M is 0 where both terms are equal: one square root",
        ),
    ),
    hints=(
        "How many failures are there in a second, if each of n GPUs has one in `gpu_mtbf` seconds? Which of the costs "
        "depend on τ at all?",
        "With M = gpu_mtbf / n: δ/τ for checkpoints, τ/2M for work that is lost, down/M for what follows. The first "
        "falls with τ and the second grows; their sum is least where they are equal.",
        "τ = sqrt(2 δ M), and δ/τ + (τ/2 + down) / M is lost.",
    ),
    wrong=(
        Wrong(
            "the mean time of one GPU",
            diagnosis=r"right with gpus=1, wrong with gpus=",
            edits=(("gpu_mtbf / gpus", "gpu_mtbf"),),
        ),
        Wrong(
            "without the 2",
            diagnosis=r"expected 1154\.5\d*, got 816",
            edits=(("sqrt(2 * checkpoint", "sqrt(checkpoint"),),
        ),
        Wrong(
            "a restart is one checkpoint more",
            diagnosis=r"expected 1154\.5\d*, got 382",
            edits=(("2 * checkpoint * between", "2 * (checkpoint + down) * between"),),
        ),
        Wrong(
            "one checkpoint for each failure",
            diagnosis=r"expected 1154\.5\d*, got 1110",
            edits=(("sqrt(2 * checkpoint * between)", "between"),),
        ),
        Wrong(
            "restarts are forgotten",
            diagnosis=r"expected 0\.157\d*, got 0\.103",
            edits=(("(interval / 2 + down)", "interval / 2"),),
        ),
        Wrong(
            "a failure undoes a whole interval",
            diagnosis=r"expected 1154\.5\d*, got 816",
            edits=(("sqrt(2 * checkpoint", "sqrt(checkpoint"), ("interval / 2", "interval")),
        ),
        Wrong("a search", diagnosis=r"right, but it runs [\d,]+ lines where 12 must do.*\n.*square root", body=SEARCH),
    ),
)
