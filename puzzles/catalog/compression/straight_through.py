"""compression.straight_through: train with the rounding that the model will be used with."""

import torch

from puzzles.grading.drives import there_and_back
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, drawn
from reference.compression.answers.low_bits import straight_through


def numbers_and_upstream(case, rank):
    return {
        "x": case.normal(0, *case.shape, name="x"),
        "scale": case.scale,
        "largest": case.largest,
        "upstream": case.normal(0, *case.shape, name="upstream"),
    }


def number_by_number(case, inputs):
    """Of each the nearest multiple, by its distance from two neighbours; and its gradient."""
    x, upstream = inputs[0]["x"], inputs[0]["upstream"]
    below = (x / case.scale).floor()
    multiple = torch.where(x / case.scale - below < 0.5, below, below + 1)
    end = case.largest * case.scale
    made = multiple.clip(-case.largest, case.largest) * case.scale
    return [{"returns": made, "x.grad": torch.where(x.abs() <= end, upstream, 0.0)}]


def bytes_of(case, each):
    return each * torch.Size(case.shape).numel()


PUZZLE = Puzzle(
    name="compression.straight_through",
    title="Round, and let the gradient through",
    statement="""
        A model that will be used with 4-bit weights can be trained for it: quantisation-aware training keeps exact
        weights, computes with rounded ones, and updates the exact ones by the gradient of the loss. But rounding is a
        staircase. Its derivative is zero on every step, and nothing would ever be learned. So in backward take rounding
        for what it is from afar, a straight line: the gradient goes through as it is. Where x is beyond the last step,
        from afar the line is flat, and there is no gradient: a weight there stays, until something else moves it.

        Args:
            x: a float64 tensor of any shape, which wants a gradient.
            scale: a float, between one multiple and the next.
            largest: an int; multiples go from -largest to largest.

        Returns: for each x the nearest multiple of `scale`, -largest or largest times it at the ends. In backward, x
        gets the gradient of the result where |x| ≤ largest · scale, and zero elsewhere.

        Budget: memory for a few tensors of this shape.
        """,
    function=straight_through,
    cases=cases(worlds=(1,), shape=((3, 5),), scale=(0.5,), largest=(7, 1))
    + cases(worlds=(1,), shape=((16,),), scale=(0.01, 3.0), largest=(127,))
    + cases(worlds=(1,), shape=((2, 3, 4),), scale=(0.2,), largest=(3,)),
    drawn=(drawn(worlds=(1,), shape=((4, 6), (31,)), scale=(0.125, 0.3, 0.9), largest=(1, 3, 7)),),
    large=case(1, shape=(1 << 18,), scale=0.25, largest=7),
    inputs=numbers_and_upstream,
    oracle=number_by_number,
    drive=there_and_back,
    tolerance=1e-12,
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: bytes_of(case, 8 * 7),
            why="rounding is one operation: there is no need to compare with all multiples",
        ),
    ),
    hints=(
        "What is the gradient of `(x / scale).round() * scale`, by autograd? Try it.",
        "`y + (z - y).detach()` has the value of z and the gradient of y. Which y has a gradient of 1 inside and 0 "
        "outside?",
        "`inside = x.clamp(-largest * scale, largest * scale)` is such a y, and z is `inside`, rounded.",
    ),
    wrong=(
        Wrong(
            "autograd's gradient of rounding",
            diagnosis=r"x\.grad.*expected -?[\d.]+, got 0|x\.grad",
            body="""
                inside = x.clamp(-largest * scale, largest * scale)
                return (inside / scale).round() * scale
                """,
        ),
        Wrong(
            "the gradient goes through everywhere",
            diagnosis=r"x\.grad.*expected 0(\.0)?, got -?[\d.]+|x\.grad",
            body="""
                rounded = (x / scale).round().clamp(-largest, largest) * scale
                return x + (rounded - x).detach()
                """,
        ),
        Wrong(
            "nothing is cut off",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            body="""
                return x + ((x / scale).round() * scale - x).detach()
                """,
        ),
        Wrong(
            "cut off before the scale",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            edits=(("x.clamp(-largest * scale, largest * scale)", "x.clamp(-largest, largest)"),),
        ),
        Wrong(
            "rounded down",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            edits=((".round()", ".floor()"),),
        ),
        Wrong(
            "the multiple without its scale",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            edits=((".round() * scale", ".round()"),),
        ),
        Wrong(
            "compares with all multiples",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do",
            body="""
                levels = torch.arange(-largest, largest + 1, dtype=x.dtype) * scale
                nearest = levels[(x[..., None] - levels).abs().argmin(-1)]
                inside = x.clamp(-largest * scale, largest * scale)
                return inside + (nearest - inside).detach()
                """,
        ),
    ),
)
