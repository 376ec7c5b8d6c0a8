"""networks.alpha_beta: the line through measured times, where small ones count as much as large ones."""

import itertools

import torch

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn, magnitudes
from reference.networks.answers.estimate import alpha_beta

SIZES = (8, 1_000, 30_000, 1_000_000, 40_000_000)
UNSORTED = (1_000_000, 64, 30_000, 64)
NOISE = (1.04, 0.97, 1.02, 0.95, 1.03)  # what a busy machine does to them


def arguments(case, rank):
    noise = NOISE if case.noisy else (1.0,) * len(NOISE)
    seconds = [
        (case.alpha + size / case.beta) * factor
        for size, factor in zip(case.sizes, itertools.cycle(noise), strict=False)
    ]
    return {"sizes": list(case.sizes), "seconds": seconds}


def least_squares(case, inputs):
    """α/t + b/(βt) = 1 for every time t, as nearly as two numbers can."""
    seconds = torch.tensor(inputs[0]["seconds"], dtype=torch.float64)
    sizes = torch.tensor(inputs[0]["sizes"], dtype=torch.float64)
    scale = torch.tensor([case.alpha, 1 / case.beta], dtype=torch.float64)
    rows = torch.stack([1 / seconds, sizes / seconds], dim=1) * scale
    found = torch.linalg.lstsq(rows, torch.ones(len(seconds), 1, dtype=torch.float64)).solution[:, 0] * scale
    return [(found[0].item(), 1 / found[1].item())]


PUZZLE = Puzzle(
    name="networks.alpha_beta",
    title="A line through measured times",
    statement="""
        You have measured how long messages of several sizes take one way. On paper a message of b bytes takes α + b/β
        seconds. Find the α and β for which the relative errors are smallest: minimise, over all measured (b, t), the
        sum of ((α + b/β) / t - 1)².

        Why relative? A message of 8 B takes microseconds and one of 40 MB takes milliseconds. Least squares without
        weights would give the large times all the say, and α would be what is left over from their noise.

        Args:
            sizes: bytes of each message, at least two different ones.
            seconds: how long each took, one way.

        Returns: (α in seconds, β in bytes per second).

        Budget: sums over the points, and a formula.
        """,
    function=alpha_beta,
    cases=cases(worlds=(1,), sizes=(SIZES,), noisy=(True, False), alpha=(2e-6, 1e-3), beta=(25e9, 1e9))
    + cases(worlds=(1,), sizes=(UNSORTED, (64, 4_096)), noisy=(True,), alpha=(2e-6,), beta=(1e9,)),
    drawn=(
        drawn(
            worlds=(1,),
            sizes=[(7, 90 * k, 10**k, 400 * 10**k) for k in range(3, 7)],
            alpha=magnitudes(-6, -3),
            beta=magnitudes(7, 11),
            noisy=lambda so_far: (True, False) if so_far.sizes[-1] / so_far.beta > so_far.alpha else (False,),
        ),
    ),
    scale=Scale(
        cases(worlds=(1,), sizes=(range(8, 10**9, 20_000),), noisy=(True,), alpha=(2e-6,), beta=(1e9,)),
        "pairs of points",
    ),
    inputs=arguments,
    oracle=least_squares,
    tolerance=1e-6,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 120,
            optimum=lambda case: 1,
            why="a straight line needs no search: set both derivatives to zero and solve for α and 1/β",
        ),
    ),
    hints=(
        "Dividing by t turns it into an ordinary least-squares problem: which two columns, and which right-hand side?",
        "Call 1/β the slope. With weights w = 1/t², the weighted means of b and t lie on the line, and the slope is "
        "the weighted covariance of b and t over the weighted variance of b.",
        "mean_b = Σwb/Σw, mean_t = Σwt/Σw, slope = Σw(b - mean_b)(t - mean_t) / Σw(b - mean_b)², "
        "α = mean_t - slope · mean_b, β = 1/slope.",
    ),
    wrong=(
        Wrong(
            "no weights",
            diagnosis=r"expected 2\.0\d*e-06, got",
            edits=(("1 / t**2 for t", "1.0 for t"),),
        ),
        Wrong(
            "the first and the last point",
            diagnosis=r"expected 2\.0\d*e-06, got",
            body="""
                slope = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
                return seconds[0] - slope * sizes[0], 1 / slope
                """,
        ),
        Wrong("weights by 1/t", diagnosis=r"expected 2\.0\d*e-06, got", edits=(("1 / t**2", "1 / t"),)),
        Wrong("seconds per byte", diagnosis=r"expected 2\.5\d+e\+10, got", edits=(("1 / slope\n", "slope\n"),)),
        Wrong(
            "α of the smallest message",
            diagnosis=r"expected 2\.0\d*e-06, got",
            edits=(("mean_time - slope * mean_size,", "min(seconds),"),),
        ),
        Wrong(
            "step by step towards it",
            diagnosis=r"right, but it runs [\d,]+ lines where 120 must do.*\n.*needs no search",
            body="""
                alpha, slope, weights = 0.0, 0.0, [1 / t**2 for t in seconds]
                points = list(zip(sizes, seconds, weights))
                for _ in range(100):
                    alpha = sum(w * (t - slope * b) for b, t, w in points) / sum(weights)
                    slope = sum(w * b * (t - alpha) for b, t, w in points) / sum(w * b * b for b, t, w in points)
                return alpha, 1 / slope
                """,
        ),
        Wrong(
            "one time for each size",
            diagnosis=r"sizes=\[1000000, 64, 30000, 64\].*expected",
            edits=(
                (
                    "    weights = [",
                    "    seconds = list(dict(zip(sizes, seconds)).values())\n"
                    "    sizes = list(dict.fromkeys(sizes))\n    weights = [",
                ),
            ),
        ),
    ),
)
