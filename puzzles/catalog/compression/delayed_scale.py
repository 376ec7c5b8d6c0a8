"""compression.delayed_scale: a scale from the past does not know what comes."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.compression.answers.low_bits import delayed_scales

RUNS = {
    "grows": (1.0, 2.0, 3.0, 500.0, 400.0, 900.0, 30_000.0),
    "a spike": (1.0, 1.0, 100.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 100.0),
    "just fits": (448.0, 448.0, 896.0, 896.5, 448.0, 447.0, 224.0, 224.5),
    "falls": (7e4, 6e3, 500.0, 40.0, 3.0, 0.2, 0.01),
}


def numbers_of(case):
    """A run by name; else one that goes up and down, so long."""
    if case.run in RUNS:
        return list(RUNS[case.run])
    return [float(2 + (step * step * 7919) % 4093) for step in range(case.run)]


def look_back(case, inputs):
    """For each step the largest of those before it, and the first power of two that has room."""
    largest, found = inputs[0]["largest"], []
    for step, now in enumerate(largest):
        past = largest[max(0, step - case.steps) : step]
        known, exponent = max(past) if past else now, -60
        while known > 448 * 2.0**exponent:
            exponent += 1
        exponent += case.margin
        found.append((exponent, now > 448 * 2.0**exponent))
    return [found]


def arguments(case, rank):
    return {"largest": numbers_of(case), "steps": case.steps, "margin": case.margin}


PUZZLE = Puzzle(
    name="compression.delayed_scale",
    title="A scale from the past, and what it does not see",
    statement="""
        To round a tensor to fp8 one needs a scale before the product, and the largest number only after one has looked
        at all of it: a pass over memory more, and between ranks a message more. Delayed scaling takes the largest
        number of the last steps instead, and looks at the present one behind the product. If numbers grow faster than
        the past knows, they overflow: they are cut off at the largest that there is, 448 times the scale, and nothing
        is said.

        Write down what a run would have met. The scale of a step is 2^exponent, the smallest power of two for which the
        largest of the last `steps` steps before it is at most 448 times the scale; then `margin` more, to leave room.
        The first step has no past: there take its own largest number. A step overflows if its own largest number is
        more than 448 times its scale.

        Args:
            largest: a list of floats above 0, the largest absolute value of each step.
            steps: how many steps are remembered, 1 or more; fewer at the beginning.
            margin: powers of two that are left free, 0 or more.

        Returns: a list of (exponent, overflows), an int and a bool for each step.

        Budget: histories of thousands of steps: don't look at each of them in each step.
        """,
    function=delayed_scales,
    cases=cases(worlds=(1,), run=("grows",), steps=(3,), margin=(0, 2))
    + cases(worlds=(1,), run=("a spike",), steps=(2, 5), margin=(0,))
    + cases(worlds=(1,), run=("just fits", "falls"), steps=(1, 4), margin=(0, 1)),
    drawn=(drawn(worlds=(1,), run=range(5, 30), steps=range(1, 8), margin=range(3)),),
    scale=Scale(cases(worlds=(1,), run=(9_000,), steps=(4_500,), margin=(0,)), "the length of the history"),
    inputs=arguments,
    oracle=look_back,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 30 + 20 * len(numbers_of(case)),
            optimum=lambda case: 3 + 9 * len(numbers_of(case)),
            why="a queue of those that may yet be the largest: what is smaller than a later one never will be",
        ),
    ),
    hints=(
        "Is the present step part of the history from which its scale comes?",
        "`math.frexp(known / 448)` is a mantissa from 1/2 to below 1 and an exponent: the smallest power that has room "
        "is that exponent, and one less where the mantissa is exactly 1/2.",
        "For the largest of a window keep a deque of (step, value) with falling values: before a new one is appended, "
        "all at the end that are no larger go; the first one goes when it is too old. The largest is the first.",
    ),
    wrong=(
        Wrong(
            "knows the present step",
            diagnosis=r"result\[1\]\[0\]: expected -8, got -7",
            edits=(("known = window[0][1] if window else now", "known = max(window[0][1], now) if window else now"),),
        ),
        Wrong(
            "only the last step",
            diagnosis=r"expected",
            edits=(("known = window[0][1] if window", "known = window[-1][1] if window"),),
        ),
        Wrong(
            "one step too many is remembered",
            diagnosis=r"expected",
            edits=(("<= step - steps:", "< step - steps:"),),
        ),
        Wrong(
            "the margin makes the scale smaller",
            diagnosis=r"margin=2[\s\S]*expected|expected",
            edits=(("exponent += margin - (mantissa == 0.5)", "exponent -= margin + (mantissa == 0.5)"),),
        ),
        Wrong(
            "what just fits gets twice the scale",
            diagnosis=r"expected",
            edits=(("margin - (mantissa == 0.5)", "margin"),),
        ),
        Wrong(
            "what just fits overflows",
            diagnosis=r"expected",
            edits=(("now > 448 * 2.0**exponent", "now >= 448 * 2.0**exponent"),),
        ),
        Wrong(
            "compares with the largest number without the scale",
            diagnosis=r"expected",
            edits=(("now > 448 * 2.0**exponent", "now > 448"),),
        ),
        Wrong(
            "looks at the whole history in each step",
            diagnosis=r"right, but",
            body="""
                from math import frexp

                found = []
                for step, now in enumerate(largest):
                    known = 0.0
                    for past in range(max(0, step - steps), step):
                        known = max(known, largest[past])
                    mantissa, exponent = frexp((known or now) / 448)
                    exponent += margin - (mantissa == 0.5)
                    found.append((exponent, now > 448 * 2.0**exponent))
                return found
                """,
        ),
    ),
)
