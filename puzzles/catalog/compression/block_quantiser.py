"""compression.block_quantiser: integers with a scale for each block."""

import torch

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, drawn
from reference.compression.plain import quantise

from .common import KINDS, block_of, codes_and_scale

ALL = (*KINDS, "nan", "even", "infinity", "a large one")


def blocks_of_all_kinds(case, rank):
    """Blocks one after another; for a large case, the same ones again."""
    kinds = case.kinds
    few = [block_of(case, rank, number, case.largest, kinds[number % len(kinds)]) for number in range(len(kinds))]
    x = torch.cat(few)
    return {"x": x.repeat(case.get("repeats", 1)), "block": case.block, "largest": case.largest}


def number_by_number(case, inputs):
    """Each block by itself, each number by itself."""
    x, codes, scales = inputs[0]["x"], [], []
    few = len(x) // case.get("repeats", 1)
    for one in x[:few].split(case.block):
        integers, scale = codes_and_scale(one, case.largest)
        codes += integers
        scales.append(scale)
    repeats = case.get("repeats", 1)
    both = torch.tensor(codes, dtype=torch.int8).repeat(repeats), torch.tensor(scales).float().repeat(repeats)
    return [{"returns": both, "x": x}]


def bytes_of(case, each):
    """`each` bytes for every number, and 16 for each block."""
    numbers = len(case.kinds) * case.block * case.get("repeats", 1)
    return each * numbers + 16 * (numbers // case.block)


PUZZLE = Puzzle(
    name="compression.block_quantiser",
    title="Blocks of integers with a scale",
    statement="""
        Send numbers as small integers. A block of them shares a scale s = max|x| / largest, and each number becomes
        the integer nearest to x / s (of two that are as near, the even one); what arrives is the integer times s. With
        one scale for all, a single large number would make zeros of the others; so each block has its own.

        Three kinds of blocks need care. All zeros have no largest number to divide by. Where max|x| is tiny, s is so
        small that 1 / s is infinite: let s be at least `torch.finfo(torch.float32).tiny`, also for zeros. And where a
        block holds NaN or infinity, what arrives must not look like numbers: s is NaN then, and all its integers are
        0.

        Args:
            x: [N] in float32, where `block` divides N. It stays as it is.
            block: numbers that share a scale.
            largest: 127 or less.

        Returns: integers, [N] in int8, and scales, [N / block] in float32.

        Budget: memory for three tensors like `x`.
        """,
    function=quantise,
    cases=cases(worlds=(1,), kinds=(("even",), ALL), block=(8,), largest=(127, 7))
    + cases(worlds=(1,), kinds=(ALL, ("zeros",)), block=(5, 64), largest=(127,)),
    drawn=(
        drawn(
            worlds=(1,),
            kinds=(ALL, ALL[::-1], ALL[2:]),
            block=range(3, 40),
            largest=(127, 7, 31),
        ),
    ),
    large=case(1, kinds=("even", "a large one"), block=256, largest=127, repeats=8192),
    inputs=blocks_of_all_kinds,
    oracle=number_by_number,
    tolerance=1e-6,
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: bytes_of(case, 13),
            optimum=lambda case: bytes_of(case, 5),
            why="view `x` as [blocks, block]: scales are [blocks, 1], and need not be repeated for each number",
        ),
    ),
    hints=(
        "`x.view(-1, block)` has a row for each block. Which reduction over its rows gives max|x|, and what does that "
        "say where a row holds NaN or infinity?",
        "scales = (largest number of each row / largest).clamp_min(tiny). NaN stays NaN through it, and infinity does "
        "not become NaN by itself.",
        "scales[~scales.isfinite()] = nan; then (rows / scales[:, None]).round(), where NaN becomes 0 before it is "
        "made an int8.",
    ),
    wrong=(
        Wrong(
            "one scale for all",
            diagnosis=r"expected|shape",
            edits=(("blocks.abs().amax(1)", "blocks.abs().amax().expand(len(blocks)).clone()"),),
        ),
        Wrong(
            "zeros are divided by zero",
            diagnosis=r"expected",
            edits=((".clamp_min(TINY)", ""),),
        ),
        Wrong(
            "infinity arrives as zeros",
            diagnosis=r"expected nan, got inf|expected",
            edits=(("    scales[~scales.isfinite()] = torch.nan\n", ""),),
        ),
        Wrong(
            "rounded towards zero",
            diagnosis=r"expected -?\d+, got -?\d+",
            edits=((".round()", ".trunc()"),),
        ),
        Wrong(
            "a scale by the sum of magnitudes",
            diagnosis=r"expected",
            edits=((".amax(1)", ".sum(1)"),),
        ),
        Wrong(
            "NaN becomes a block of numbers",
            diagnosis=r"expected",
            edits=(("blocks.abs().amax(1)", "blocks.nan_to_num().abs().amax(1)"),),
        ),
        Wrong(
            "scales are repeated in float64",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do",
            edits=(
                (
                    "(blocks / scales[:, None])",
                    "(blocks.double() / scales.double().repeat_interleave(block).view(-1, block)).float()",
                ),
            ),
        ),
    ),
)
