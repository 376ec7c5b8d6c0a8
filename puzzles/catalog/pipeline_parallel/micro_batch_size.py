"""pipeline_parallel.micro_batch_size: the device wants large ones, the pipeline wants many."""

import functools

from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.pipeline_parallel.answers.throughput import best_micro_batch
from reference.pipeline_parallel.orders import one_f_one_b
from reference.pipeline_parallel.simulate import Costs, simulate
from reference.pipeline_parallel.validate import most_activations

ROUNDING = 1e-9  # relative: sizes whose steps differ by less are equally good
SIMULATED = 100_000  # samples times ranks up to which steps are simulated
PLENTY = 10**9
SMALL = {"state": (20_000,), "activation": (1_000,)}  # bytes of a rank; of a sample on a stage
LARGE = {"state": (50_000,), "activation": (3_000,)}
TIMES = {  # milliseconds forward and backward, by the size of a micro-batch
    "a GPU": ({1: 10, 2: 13, 3: 17, 4: 21, 6: 30, 8: 38, 16: 75}, {1: 18, 2: 27, 3: 38, 4: 44, 6: 68, 8: 89, 16: 171}),
    "short kernels": ({1: 100, 2: 101, 4: 103, 8: 110}, {1: 200, 2: 203, 4: 207, 8: 214}),
}


def measured(case, rank):
    """The arguments, of which the times are two tables."""
    forward, backward = TIMES[case.times]
    sizes = {name: getattr(case, name) for name in ("samples", "p", "memory", "state", "activation")}
    return {**sizes, "forward": forward, "backward": backward}


def as_short_as_can_be(case, inputs, outputs, trace):
    """The size is one that divides the step and fits, and no other makes the step shorter; None where none fits."""
    size = outputs[0]["returns"]
    simulated = case.samples * case.p <= SIMULATED
    steps = {
        each: a_step(case.p, case.samples // each, case.times, each) if simulated else multiplied(case, each)
        for each in sizes_of(case)
    }
    best = min((seconds for seconds, held in steps.values() if fits(case, held)), default=None)
    if best is None or size is None:
        return [Claim(size is best, "None, and there is a size that fits" if best else f"{size!r}, and no size fits")]
    if type(size) is not int or size not in steps:
        return [Claim(False, f"{size!r} is none of the sizes that divide {case.samples} samples")]
    seconds, held = steps[size]
    needed = case.state + held * case.activation
    return [
        Claim(fits(case, held), f"micro-batches of {size} need {needed:,} B of a rank that has {case.memory:,}"),
        Claim(
            seconds <= best * (1 + ROUNDING),
            f"with micro-batches of {size} a step takes {seconds:g} ms, and {best:g} ms is possible",
        ),
    ]


def fits(case, held):
    return case.state + held * case.activation <= case.memory


def sizes_of(case):
    return [size for size in TIMES[case.times][0] if case.samples % size == 0]


@functools.cache
def a_step(p, m, times, size):
    """How long 1F1B takes, and how many samples a rank holds at most."""
    forward, backward = (table[size] for table in TIMES[times])
    schedule = one_f_one_b(p, m)
    held = max(most_activations(line) for line in schedule.lines)
    return simulate(schedule, Costs(forward, backward / 2, backward / 2)).seconds, held * size


def multiplied(case, size):
    """The same, where there are too many micro-batches to simulate."""
    forward, backward = (table[size] for table in TIMES[case.times])
    m = case.samples // size
    return (m + case.p - 1) * (forward + backward), size * min(case.p, m)


PUZZLE = Puzzle(
    name="pipeline_parallel.micro_batch_size",
    title="The best size of a micro-batch",
    statement="""
        How many samples should a micro-batch have? A device is busiest with many: one sample takes nearly as long as
        two. A pipeline is busiest with many micro-batches: in each step a rank waits for the first to come and for the
        last to come back. And memory has a say, too.

        It was measured how long a stage takes, forward and backward, for micro-batches of several sizes; all
        stages take equally long, and messages take no time. A step is 1F1B: p-1 times, a rank waits for as long as it
        takes forward and backward for a micro-batch. Of the activations of a stage, the first rank holds most: those
        of p micro-batches, or of all, where there are fewer.

        Which of the sizes makes the step shortest?

        Args:
            samples: b', of a step, that go through this pipeline.
            p: ranks.
            forward: {size: milliseconds}, how long a stage takes forward for a micro-batch of so many samples.
            backward: {size: milliseconds}, the same backward.
            state: bytes of parameters, gradients and optimizer on a rank.
            activation: bytes that a stage holds of one sample, between forward and backward.
            memory: bytes of a rank's device. It may be full.

        Returns: one of the sizes, of those that divide `samples`; None if none of them fits. Where several make the
        step equally short, any of them will do.

        Budget: a formula for each size, not a simulation of 2048 micro-batches.
        """,
    function=best_micro_batch,
    cases=cases(worlds=(1,), samples=(128, 8), p=(8, 4, 16), memory=(PLENTY,), times=("a GPU",), **SMALL)
    + cases(worlds=(1,), samples=(512,), p=(4, 8, 1), memory=(PLENTY,), times=("a GPU",), **SMALL)
    + cases(worlds=(1,), samples=(9, 24), p=(1,), memory=(PLENTY,), times=("a GPU",), **SMALL)
    + cases(worlds=(1,), samples=(512,), p=(2,), memory=(45_000, 36_000, 35_999, 20_500), times=("a GPU",), **SMALL)
    + cases(worlds=(1,), samples=(512,), p=(2,), memory=(98_000, 97_999), times=("a GPU",), **LARGE)
    + cases(worlds=(1,), samples=(8,), p=(4,), memory=(28_000, 27_999), times=("short kernels",), **SMALL),
    scale=Scale(
        cases(worlds=(1,), samples=(2**40,), p=(64, 2**30), memory=(10**30,), times=("a GPU",), **SMALL),
        "ranks or micro-batches",
    ),
    drawn=(
        drawn(
            worlds=(1,),
            samples=(16, 48, 64, 96, 192, 256),
            p=(3, 5, 6, 7, 9),
            memory=(PLENTY,),
            times=("a GPU",),
            **SMALL,
        ),
    ),
    inputs=measured,
    judge=as_short_as_can_be,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 20 + 10 * len(TIMES[case.times][0]),
            optimum=lambda case: 10 + 5 * len(TIMES[case.times][0]),
            why="all micro-batches take the same time: count the work, count the bubble, and multiply",
        ),
    ),
    hints=(
        "A rank computes for m = samples / size micro-batches, and waits for p-1. How long is the step?",
        "(m + p - 1) · (forward + backward) of that size. And what does the first rank hold? min(p, m) micro-batches.",
        "`possible = [b for b in forward if samples % b == 0 and state + min(p, samples // b) * b * activation <= "
        "memory]`, then `min(possible, key=..., default=None)`.",
    ),
    wrong=(
        Wrong(
            "the bubble is forgotten: most samples in a second",
            diagnosis=r"samples=128, p=8, .*micro-batches of 16 a step takes 3690 ms, and 2535 ms is possible",
            edits=(("samples // b + p - 1", "samples // b"),),
        ),
        Wrong(
            "as many micro-batches as can be",
            diagnosis=r"samples=128, p=8, .*micro-batches of 1 a step takes 3780 ms, and 2535 ms is possible",
            edits=(("return min(possible, key=seconds, default=None)", "return min(possible, default=None)"),),
        ),
        Wrong(
            "as large as fits",
            diagnosis=r"samples=128, p=8, .*micro-batches of 16 a step takes 3690 ms, and 2535 ms is possible",
            edits=(("return min(possible, key=seconds, default=None)", "return max(possible, default=None)"),),
        ),
        Wrong(
            "forward alone",
            diagnosis=r"samples=128, p=4, .*micro-batches of 8 a step takes 2413 ms, and 2275 ms is possible",
            edits=(("(forward[b] + backward[b])", "forward[b]"),),
        ),
        Wrong(
            "a micro-batch more or less than divides the step",
            diagnosis=r"samples=8, p=4, .*: 3 is none of the sizes that divide 8 samples",
            edits=(("samples % b == 0 and fits(b)", "fits(b)"),),
        ),
        Wrong(
            "memory for all micro-batches, as GPipe needs",
            diagnosis=r"memory=45000, .*: None, and there is a size that fits",
            edits=(("min(p, samples // b) * b", "samples"),),
        ),
        Wrong(
            "memory for one micro-batch",
            diagnosis=r"memory=45000, .*: micro-batches of 16 need 52,000 B of a rank that has 45,000",
            edits=(("min(p, samples // b) * b", "b"),),
        ),
        Wrong(
            "memory for p micro-batches, where there are fewer",
            diagnosis=r"memory=28000, .*micro-batches of 2 a step takes 2128 ms, and 1296 ms is possible",
            edits=(("min(p, samples // b)", "p"),),
        ),
        Wrong(
            "memory for activations alone",
            diagnosis=r"memory=45000, .*: micro-batches of 16 need 52,000 B of a rank that has 45,000",
            edits=(("state + min(p", "min(p"),),
        ),
        Wrong(
            "powers of two, and not what divides",
            diagnosis=r"samples=9, p=1, .*: 8 is none of the sizes that divide 9 samples",
            edits=(("samples % b == 0 and fits(b)", "b & (b - 1) == 0 and b <= samples and fits(b)"),),
        ),
        Wrong(
            "as far as the next size is faster",
            diagnosis=r"samples=24, p=1, .*micro-batches of 4 a step takes 390 ms, and 381 ms is possible",
            body="""
                best = None
                for b in forward:
                    if samples % b == 0 and state + min(p, samples // b) * b * activation <= memory:
                        seconds = (samples // b + p - 1) * (forward[b] + backward[b])
                        if best is not None and seconds > best[0]:
                            break
                        best = seconds, b
                return best and best[1]
                """,
        ),
        Wrong(
            "bytes of the first model",
            diagnosis=r"memory=98000, .*: micro-batches of 16 need 146,000 B of a rank that has 98,000",
            edits=(("    def fits", "    state, activation = 20_000, 1_000\n\n    def fits"),),
        ),
        Wrong(
            "micro-batch after micro-batch",
            diagnosis=r"right, but it runs [\d,]+ lines where \d+ must do.*\n.*and multiply",
            body="""
                seconds = {}
                for b in forward:
                    m = samples // b
                    if samples % b == 0 and state + min(p, m) * b * activation <= memory:
                        seconds[b] = 0
                        for k in range(m + p - 1):
                            seconds[b] += forward[b] + backward[b]
                return min(seconds, key=seconds.get, default=None)
                """,
        ),
    ),
)
