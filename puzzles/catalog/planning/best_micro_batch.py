"""planning.best_micro_batch: products want many rows, a pipeline wants many micro-batches."""

from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Scale, Wrong, cases, divisors, drawn
from reference.planning.answers.micro_batches import best_micro_batch

ROUNDING = 1e-9  # relative: sizes whose steps differ by less are equally good
TRIED = 100_000  # samples up to which all sizes are tried


def step(case, size):
    """Seconds of a step, and bytes of the first rank."""
    m = case.samples // size
    one = (size + case.lost) * case.seconds
    waits = (case.stages - 1) * one / case.chunks
    in_flight = min(m, case.stages)
    return m * one + waits, case.state + in_flight * size * case.activation


def sizes_of(case):
    """All that divide the step; of a large one, a power of two, the powers of two."""
    if case.samples <= TRIED:
        return divisors(case.samples)
    return [2**exponent for exponent in range(case.samples.bit_length())]


def as_short_as_can_be(case, inputs, outputs, trace):
    """The size divides the step and fits, and no other makes the step shorter; None where none fits."""
    size, steps = outputs[0]["returns"], {each: step(case, each) for each in sizes_of(case)}
    fitting = {each: seconds for each, (seconds, held) in steps.items() if held <= case.memory}
    if size is None or not fitting:
        said = "None, and there is a size that fits" if fitting else f"{size!r}, and no size fits"
        return [Claim(size is None and not fitting, said)]
    if type(size) is not int or size not in steps:
        return [Claim(False, f"{size!r} is no whole number that divides {case.samples} windows")]
    (seconds, held), best = steps[size], min(fitting.values())
    said = f"with micro-batches of {size} a step takes {seconds:.4g} s, and {best:.4g} s is possible"
    return [
        Claim(held <= case.memory, f"micro-batches of {size} need {held:,} B of a rank that has {case.memory:,}"),
        Claim(seconds <= best * (1 + ROUNDING), said),
    ]


ROOM = {"state": (40_000,), "activation": (1_000,), "memory": (10**9,)}
SHORT = {"state": (40_000,), "activation": (1_000,)}

PUZZLE = Puzzle(
    name="planning.best_micro_batch",
    title="Bubble against efficiency",
    statement="""
        A product of few rows is slow: kernels have to start, weights have to be read, tiles are not full. A micro-batch
        of b windows takes a rank as long as b + h windows would at full speed, for there are h windows that it could
        have computed in what each micro-batch loses. So large micro-batches are better. But a pipeline waits (p - 1) /
        v times for as long as a micro-batch takes, where each rank has v chunks of the model. So small ones are better.

            step = (B / b + (p - 1) / v) (b + h) · seconds

        The first rank holds the activations of p micro-batches, or of all, if there are fewer. Which b makes the step
        shortest, of those that divide B and fit?

        Args:
            samples: B, windows of a step that go through this pipeline.
            stages: p.
            chunks: v.
            seconds: that a rank computes for one window at full speed.
            lost: h; any number from 0 on.
            state: bytes of a rank that stay.
            activation: bytes of a window.
            memory: bytes of a rank. It may be full.

        Returns: b; None if no size fits. Where several are equally good, any of them will do.

        Budget: sizes come in pairs, b and B / b, so it need not try all numbers up to B. Before you write, look for the
        best b if it need not be whole: how does it grow with B, and with p?
        """,
    function=best_micro_batch,
    cases=cases(worlds=(1,), samples=(512, 64, 8), stages=(8,), chunks=(1,), seconds=(0.5,), lost=(1.5,), **ROOM)
    + cases(worlds=(1,), samples=(512,), stages=(8,), chunks=(4,), seconds=(0.5,), lost=(1.5, 0.25), **ROOM)
    + cases(worlds=(1,), samples=(360, 210), stages=(4, 1), chunks=(1,), seconds=(0.5,), lost=(0.7, 0.0), **ROOM)
    + cases(
        worlds=(1,),
        samples=(512,),
        stages=(4,),
        chunks=(1,),
        seconds=(0.5,),
        lost=(3.0,),
        **SHORT,
        memory=(72_000, 71_999, 43_999),
    )
    + cases(
        worlds=(1,),
        samples=(8,),
        stages=(16,),
        chunks=(1,),
        seconds=(0.5,),
        lost=(9.0,),
        **SHORT,
        memory=(48_000, 47_999),
    )
    + cases(worlds=(1,), samples=(97, 1), stages=(6,), chunks=(2,), seconds=(2.0,), lost=(3.0,), **ROOM),
    drawn=(
        drawn(
            worlds=(1,),
            samples=(120, 144, 256, 540, 1024, 4096),
            stages=(1, 2, 4, 5, 16, 64),
            chunks=(1, 2, 3),
            seconds=(0.1, 1.7),
            lost=(0.1, 0.9, 2.3, 11.7),
            **ROOM,
        ),
        drawn(
            worlds=(1,),
            samples=(120, 144, 256, 540),
            stages=(2, 4, 16),
            chunks=(1, 2),
            seconds=(0.1, 1.7),
            lost=(0.9, 11.7),
            **SHORT,
            memory=range(41_000, 150_000, 7_500),
        ),
    ),
    scale=Scale(
        cases(
            worlds=(1,),
            samples=(2**38,),
            stages=(64,),
            chunks=(1,),
            seconds=(0.5,),
            lost=(1.5,),
            **ROOM | {"memory": (10**15,)},
        ),
        "the number of windows, but with its root",
    ),
    judge=as_short_as_can_be,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 40 + 14 * int(case.samples**0.5) + 6 * len(divisors(case.samples)),
            optimum=lambda case: 20 + 2 * len(divisors(case.samples)),
            why="if b divides B, so does B / b, and one of the two is at most the root of B",
        ),
    ),
    hints=(
        "Multiply the formula out: one part falls with b, one grows. Where are they equal?",
        "B h / b and (p - 1) b / v: they are equal at b = sqrt(B h v / (p - 1)). On both sides of it the step becomes "
        "longer, but memory may forbid it; so try all b that divide B, and how do you find them quickly?",
        "`small = [b for b in range(1, isqrt(samples) + 1) if samples % b == 0]`, and `samples // b` of each. Keep "
        "those with state + min(p, samples // b) · b · activation <= memory, and take `min(..., key=step, "
        "default=None)`.",
    ),
    wrong=(
        Wrong(
            "the bubble is forgotten: as large as can be",
            diagnosis=r"micro-batches of 512 a step takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(("(samples // size + (stages - 1) / chunks)", "(samples // size)"),),
        ),
        Wrong(
            "every product is at full speed: as small as can be",
            diagnosis=r"micro-batches of 1 a step takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(("(size + lost)", "size"),),
        ),
        Wrong(
            "chunks are forgotten",
            diagnosis=r"chunks=\d.*a step takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(("(stages - 1) / chunks", "(stages - 1)"),),
        ),
        Wrong(
            "chunks make the bubble longer",
            diagnosis=r"chunks=\d.*a step takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(("(stages - 1) / chunks", "(stages - 1) * chunks"),),
        ),
        Wrong(
            "as many waits as stages",
            diagnosis=r"a step takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(("(stages - 1) / chunks", "stages / chunks"),),
        ),
        Wrong(
            "memory does not matter",
            diagnosis=r"micro-batches of \d+ need [\d,]+ B of a rank that has",
            edits=(("min(filter(fits, sizes), key", "min(sizes, key"),),
        ),
        Wrong(
            "memory for one micro-batch",
            diagnosis=r"micro-batches of \d+ need [\d,]+ B of a rank that has",
            edits=(("min(stages, samples // size) * size", "size"),),
        ),
        Wrong(
            "memory for p of them, where there are fewer",
            diagnosis=r"memory=48000.*(a step takes [\d.]+ s, and [\d.]+ s is possible|None, and there is a size)",
            edits=(("min(stages, samples // size) * size", "stages * size"),),
        ),
        Wrong(
            "memory for all of them",
            diagnosis=r"None, and there is a size that fits",
            edits=(("min(stages, samples // size) * size", "samples"),),
        ),
        Wrong(
            "a full rank does not fit",
            diagnosis=r"memory=(72|48)000.*(a step takes [\d.]+ s, and [\d.]+ s is possible|None, and there)",
            edits=(("* activation <= memory", "* activation < memory"),),
        ),
        Wrong(
            "the root, rounded, whether it divides or not",
            diagnosis=r"is no whole number that divides",
            body="""
                best = (samples * lost * chunks / max(stages - 1, 1)) ** 0.5
                return max(1, round(best))
                """,
        ),
        Wrong(
            "powers of two alone",
            diagnosis=r"samples=(360|210|97|120|144|540).*a step takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(
                ("if samples % size == 0]", "if samples % size == 0 and size & (size - 1) == 0]"),
                ("small + [samples // size for size in small]", "small"),
            ),
        ),
        Wrong(
            "sizes up to the root alone",
            diagnosis=r"a step takes [\d.]+ s, and [\d.]+ s is possible",
            edits=(("small + [samples // size for size in small]", "small"),),
        ),
        Wrong(
            "all numbers up to B are tried",
            diagnosis=r"right, but it runs [\d,]+ lines where [\d,]+ must do.*\n.*so does B / b",
            edits=(
                (
                    "    small = [size for size in range(1, isqrt(samples) + 1) if samples % size == 0]\n"
                    "    sizes = small + [samples // size for size in small]\n",
                    "    sizes = []\n    for size in range(1, samples + 1):\n        if samples % size == 0:\n"
                    "            sizes.append(size)\n        else:\n            continue\n",
                ),
            ),
        ),
    ),
)
