"""memory.bf16_stall: where a sum in few bits stops growing, predicted."""

import math

import torch

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.memory.answers.bf16_sum import stalls_at


def adding_until_nothing_changes(case, inputs):
    """The definition: one addition after the other, in the dtype itself."""
    value = torch.tensor(case.value, dtype=case.dtype)
    before, after = torch.zeros_like(value), value
    while after != before:
        before, after = after, after + value
    return [after.item()]


def by_the_grid(case, inputs):
    """The same, where there are too many additions: the first power of two whose half step is at least `value`."""
    fraction, exponent = math.frexp(case.value)
    return [2.0 ** (exponent - (fraction == 0.5) + 1) / torch.finfo(case.dtype).eps]


PUZZLE = Puzzle(
    name="memory.bf16_stall",
    title="Where a sum in few bits stalls",
    statement="""
        s = 0, and then s += value, again and again, all of it in `dtype`. At first s grows. Then comes a number from
        which it never moves again: s + value lies between two floats, and the nearer one is s. Where does it stall?

        A dtype of p significant bits has 2^(p-1) floats from each power of two to the next, evenly spaced:
        `torch.finfo(dtype).eps` is the step from 1 to the next float, 2^(1-p). From 2 on the step is twice as large,
        from 4 on four times. Where s + value lies exactly in the middle between two floats, it is rounded to the one
        whose last bit is 0; a power of two ends in zeros.

        Args:
            value: what is added, positive; a number of `dtype`, in float16 at most 16: beyond that the sum overflows
                before it stalls.
            dtype: of floats: torch.bfloat16, torch.float16, or a wider one.

        Returns: the last s, as a Python float.

        Budget: a formula. In float32 the loop would run for 16 million additions.
        """,
    function=stalls_at,
    cases=cases(worlds=(1,), value=(1.0, 3.0, 0.125, 0.10009765625, 5.5), dtype=(torch.bfloat16, torch.float16)),
    drawn=(drawn(worlds=(1,), value=[k / 8 for k in range(1, 120)], dtype=(torch.bfloat16, torch.float16)),),
    scale=Scale(
        cases(worlds=(1,), value=(1.0, 3.0), dtype=(torch.float64,)), "the number of additions", oracle=by_the_grid
    ),
    oracle=adding_until_nothing_changes,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 16,
            optimum=lambda case: 1,
            why="there is no need to make the additions: at which power of two is half a step as large as value?",
        ),
    ),
    hints=(
        "With value = 1 in bf16: 128 + 1 is 129. From 128 to 256 the floats are 1 apart, from 256 to 512 they are 2 "
        "apart. What is 256 + 1, rounded to even?",
        "The step doubles at powers of two only, so the sum stalls at a power of two: the first 2^e at which half a "
        "step, 2^e · eps / 2, is at least value.",
        "Solve for 2^e: at least 2 · value / eps. eps is a power of two itself, so round value up to one: "
        "2 ** math.ceil(math.log2(value)).",
    ),
    wrong=(
        Wrong("a whole step", r"off by a factor of 0\.5", edits=((" * 2 / torch", " / torch"),)),
        Wrong(
            "any value is taken for a power of two",
            diagnosis=r"value=3, dtype=bfloat16\): expected 1024, got 768",
            body="return value * 2 / torch.finfo(dtype).eps",
        ),
        Wrong(
            "rounded down to a power of two",
            diagnosis=r"value=3, dtype=bfloat16\): expected 1024, got 512",
            edits=(("math.ceil", "math.floor"),),
        ),
        Wrong(
            "bf16 whatever the dtype",
            diagnosis=r"right with dtype=bfloat16, wrong with dtype=float16",
            edits=(("torch.finfo(dtype)", "torch.finfo(torch.bfloat16)"),),
        ),
        Wrong(
            "where the dtype ends",
            diagnosis=r"value=1, dtype=bfloat16\): expected 256, got 3\.3",
            body="return torch.finfo(dtype).max",
        ),
        Wrong(
            "by adding",
            diagnosis=r"right, but it runs [\d,]+ lines where 16 must do.*\n.*there is no need to make the additions",
            body="""
                before, after = torch.zeros((), dtype=dtype), torch.tensor(value, dtype=dtype)
                while after != before:
                    before, after = after, after + value
                return after.item()
                """,
        ),
    ),
)
