"""compression.stochastic_rounding: right on average, tested as a distribution."""

import torch
from torch import Tensor

from puzzles.grading.drives.compression import twice_and_with_another_seed
from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Wrong, case, cases, drawn
from reference.compression.answers.bits import round_by_chance

VALUES = (0.25, -0.25, 3.0, 0.5, -7.125, 100.9, 0.001, -0.75)
LARGE = (2.0**20 + 0.25, -(2.0**20) - 0.75, 2.0**15 + 0.125)
SIGMAS = 5.5  # of a normal distribution: once in thirty million


def many_of_each(case, rank):
    """Each value so many times, one after the other, again and again."""
    return {"x": torch.tensor(case.values).float().repeat(case.times), "seed": case.seed % 1000}


def apart(found: Tensor, expected: float, deviation: float) -> bool:
    """Whether a mean of many is further from what is expected than chance explains."""
    return abs(found.double().mean().item() - expected) > SIGMAS * deviation / len(found) ** 0.5 + 1e-9


def as_often_as_it_should(case, inputs, outputs, trace):
    """What must hold of the three results."""
    return list(claims(case, inputs, outputs))


def claims(case, inputs, outputs):
    """What holds of every result, then of their mean, then of neighbours."""
    x, returned = inputs[0]["x"], outputs[0]["returns"]
    is_like = isinstance(returned, list) and all(
        isinstance(each, Tensor) and each.shape == x.shape and each.dtype == x.dtype for each in returned
    )
    yield Claim(is_like, f"expected a tensor like x, in float32 and of shape {tuple(x.shape)}")
    if not is_like:
        return
    one, again, other = returned
    wrong = ((one != x.floor()) & (one != x.ceil())).nonzero().flatten().tolist()
    yield Claim(not wrong, f"{x[wrong[0]]:g} became {one[wrong[0]]:g}, which is not beside it" if wrong else "")
    yield Claim(torch.equal(one, again), "the same seed gave other results when it was asked again")
    columns, share = one.view(-1, len(case.values)), x.double() - x.double().floor()
    for place, value in enumerate(x[: len(case.values)].tolist()):
        up = share[place].item()
        column = columns[:, place] - x[place].floor()
        off = apart(column, up, (up * (1 - up)) ** 0.5)
        said = f"{value:g} was rounded up {100 * column.mean():.1f} % of the time, and should be {100 * up:.1f} %"
        yield Claim(not off, said)
    is_half = share[: len(case.values)] == 0.5
    if is_half.any():
        half = columns[:, is_half.nonzero()[0, 0]] - columns[:, is_half.nonzero()[0, 0]].floor().min()
        equal = (half[1:] == half[:-1]).float()
        yield Claim(not apart(equal, 0.5, 0.5), "neighbours are rounded alike more often, or less, than by chance")
    if ((share > 0.1) & (share < 0.9)).sum() > 100:
        yield Claim(not torch.equal(one, other), "another seed gave the same results")


PUZZLE = Puzzle(
    name="compression.stochastic_rounding",
    title="Round by chance, and be right on average",
    statement="""
        To the nearest integer 0.25 is always 0: a gradient of a quarter of a step moves nothing, however often it
        comes. Round it up once in four times, and the mean is right.

        Args:
            x: any finite numbers in float32, up to two million. It stays as it is.
            seed: what chance follows from: the same `x` and seed give the same result, another seed another one.
                `torch.Generator().manual_seed(seed)` is a source of chance of one's own.

        Returns: a tensor of the same shape and dtype, in which each number is one of the two integers beside it, or
        itself where it is one; the upper one as often as x lies near it, each number by itself.

        What is checked is the distribution: some thousand of each number.

        Budget: memory for twelve tensors like `x`.
        """,
    function=round_by_chance,
    cases=cases(worlds=(1,), values=(VALUES, (-0.75, 0.5, 0.125), LARGE), times=(4000,))
    + cases(worlds=(1,), values=((5.0, -3.0, 0.0),), times=(1,)),
    drawn=(
        drawn(worlds=(1,), values=((0.1, 0.5, -0.3, 12.7), (-1.9, 0.5, 2.2), (0.99, -0.01, 0.5)), times=(3000, 5000)),
    ),
    large=case(1, values=VALUES, times=1 << 18),
    inputs=many_of_each,
    judge=as_often_as_it_should,
    drive=twice_and_with_another_seed,
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 48 * len(case.values) * case.times,
            optimum=lambda case: 20 * len(case.values) * case.times,
            why="a number of chance for each number of x, and their sum, is all that is needed",
        ),
    ),
    hints=(
        "Let u be equally distributed from 0 to 1. How often is floor(0.25 + u) equal to 1?",
        "floor(x + u) does it, for negative numbers too; truncation does not. A u for each number, from a generator "
        "with the seed.",
        "float32 holds 24 bits: 1,048,576.25 + u has three bits left for its fraction. Add in float64.",
    ),
    wrong=(
        Wrong(
            "to the nearest",
            diagnosis=r"0\.25 was rounded up 0\.0 % of the time, and should be 25\.0 %",
            body="return x.round()",
        ),
        Wrong(
            "truncated: negative numbers go to zero",
            diagnosis=r"was rounded up|not beside it",
            edits=((".floor()", ".trunc()"),),
        ),
        Wrong(
            "half of the time up, wherever it lies",
            diagnosis=r"0\.25 was rounded up [45]\d\.\d % of the time",
            edits=(
                (
                    "    return (x.double() + chance).floor()",
                    "    return torch.where(chance < 0.5, x.floor(), x.ceil())",
                ),
            ),
        ),
        Wrong(
            "one number of chance for all",
            diagnosis=r"was rounded up|neighbours are rounded alike",
            edits=(("torch.rand(x.shape, ", "torch.rand(1, "),),
        ),
        Wrong(
            "added in float32",
            diagnosis=r"was rounded up|not beside it",
            edits=(("(x.double() + chance)", "(x + chance.float())"),),
        ),
        Wrong(
            "the seed is forgotten",
            diagnosis=r"another seed gave the same results",
            edits=(("manual_seed(seed)", "manual_seed(0)"),),
        ),
        Wrong(
            "chance of the process: other results each time",
            diagnosis=r"the same seed gave other results",
            edits=(("generator=generator, ", ""),),
        ),
        Wrong(
            "the mean of sixteen draws",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do",
            edits=(
                (
                    "    chance = torch.rand(x.shape, generator=generator, dtype=torch.float64)\n",
                    "    chance = torch.rand((16, *x.shape), generator=generator, dtype=torch.float64)[-1]\n",
                ),
            ),
        ),
    ),
)
