"""planning.goodput: what is left of the time when GPUs fail at random, exactly."""

from math import exp

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn, magnitudes
from reference.planning.answers.useful_time import useful_part

LLAMA3 = 1.82e8  # seconds between failures of a GPU: 54 days of 16,384 GPUs for 419 (arXiv:2407.21783, sec. 3.3.4)
STRIPS = 200  # of Simpson's rule


def until_it_succeeds(seconds, between, after):
    """Seconds in the mean until so many have passed without a failure, each of which costs `after` more.

    By what a try is: with some probability it succeeds, and if not, it ends at a moment whose mean is an integral.
    """
    if not seconds:
        return 0.0
    width = seconds / STRIPS
    times = [strip * width for strip in range(STRIPS + 1)]
    weights = [1 if strip in (0, STRIPS) else 4 if strip % 2 else 2 for strip in range(STRIPS + 1)]
    wasted = sum(w * t * exp(-t / between) / between for w, t in zip(weights, times, strict=True)) * width / 3
    success = exp(-seconds / between)
    tries = 1 / success  # in the mean, the last of which succeeds
    return seconds + tries * wasted + (tries - 1) * after


def try_after_try(case, inputs):
    """An interval is over when it and its checkpoint have passed; after a failure first the time down has to."""
    between = case.gpu_mtbf / case.gpus
    down = until_it_succeeds(case.down, between, 0.0)
    return [case.interval / until_it_succeeds(case.interval + case.checkpoint, between, down)]


PUZZLE = Puzzle(
    name="planning.goodput",
    title="The part of the time that is useful",
    statement="""
        n GPUs train together. Each fails at random, once in `gpu_mtbf` seconds in the mean, independently of the
        others, and when one fails, all stop. The time to the next failure is exponentially distributed: how long ago
        the last one was, says nothing about it.

        After every `interval` seconds of training they stop for `checkpoint` seconds, to write what they have. A
        failure undoes what was done since the last checkpoint was complete, be it in training or while one is written.
        Then `down` seconds pass until training resumes; if a GPU fails meanwhile, they begin anew. Which part of a long
        training's time is useful: training that no failure undoes? At 131,072 GPUs the envelope is far off, so count
        exactly.

        Args:
            gpu_mtbf: mean time between failures of one GPU, in seconds.
            gpus: n, at least 1.
            interval: seconds of training between two checkpoints.
            checkpoint: seconds for which training stops to write one.
            down: seconds from a failure until training resumes.

        Returns: the goodput, above 0 and below 1.

        Budget: a formula.
        """,
    function=useful_part,
    cases=cases(
        worlds=(1,),
        gpu_mtbf=(LLAMA3,),
        gpus=(16_384, 1, 1024, 131_072),
        interval=(1200.0, 400.0),
        checkpoint=(60.0, 5.0),
        down=(600.0, 0.0),
    )
    + cases(worlds=(1,), gpu_mtbf=(1e6,), gpus=(3, 1000), interval=(3600.0,), checkpoint=(500.0,), down=(900.0,)),
    drawn=(
        drawn(
            worlds=(1,),
            gpu_mtbf=magnitudes(7, 9),
            gpus=range(2, 20_000),
            interval=range(60, 1800),
            checkpoint=magnitudes(0, 2),
            down=magnitudes(1, 3),
        ),
    ),
    scale=Scale(
        cases(worlds=(1,), gpu_mtbf=(1e16,), gpus=(10**12,), interval=(500.0,), checkpoint=(5.0,), down=(60.0,)),
        "the number of GPUs",
    ),
    oracle=try_after_try,
    tolerance=1e-7,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 12,
            optimum=lambda case: 3,
            why="failures of n GPUs come n times as often, and the mean of all tries is a geometric series: no loops",
        ),
    ),
    hints=(
        "How long does it take in the mean until L seconds have passed without a failure, if failures come M seconds "
        "apart? A try succeeds with probability exp(-L/M). How many tries are there, and how long are they together?",
        "M (exp(L/M) - 1) seconds of tries, with exp(L/M) - 1 failures. What has to pass after each of them is a time "
        "without a failure, too, of `down` seconds.",
        "An interval takes M (exp(L/M) - 1) + (exp(L/M) - 1) · M (exp(down/M) - 1), with L = interval + checkpoint: "
        "M exp(down/M) (exp(L/M) - 1).",
    ),
    wrong=(
        Wrong(
            "the mean time of one GPU",
            diagnosis=r"right with gpus=1, wrong with gpus=",
            edits=(("gpu_mtbf / gpus", "gpu_mtbf"),),
        ),
        Wrong(
            "restarts are forgotten",
            diagnosis=r"expected 0\.85\d*, got 0\.8[89]",
            edits=((" * exp(down / between)", ""),),
        ),
        Wrong(
            "nothing fails during a restart",
            diagnosis=r"expected 0\.85\d*, got 0\.85",
            edits=(("between * failures * exp(down / between)", "(between + down) * failures"),),
        ),
        Wrong(
            "nothing fails during a checkpoint",
            diagnosis=r"expected 0\.85\d*, got 0\.85",
            edits=(
                ("exp((interval + checkpoint) / between)", "exp(interval / between)"),
                ("exp(down / between))", "exp(down / between) + checkpoint)"),
            ),
        ),
        Wrong(
            "as on an envelope",
            diagnosis=r"expected 0\.85\d*, got 0\.84",
            body="""
                between = gpu_mtbf / gpus
                return 1 - checkpoint / interval - (interval / 2 + down) / between
                """,
        ),
        Wrong(
            "checkpoints are useful",
            diagnosis=r"expected 0\.85\d*, got 0\.89",
            edits=(("return interval /", "return (interval + checkpoint) /"),),
        ),
        Wrong(
            "GPU after GPU",
            diagnosis=r"right, but it runs [\d,]+ lines where 12 must do.*\n.*n times as often",
            edits=(
                (
                    "    between = gpu_mtbf / gpus\n",
                    "    rate = 0.0\n    for _ in range(gpus):\n        rate += 1 / gpu_mtbf\n    between = 1 / rate\n",
                ),
            ),
        ),
    ),
)
