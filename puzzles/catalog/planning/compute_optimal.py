"""planning.compute_optimal: how large a model, and on how many tokens, for a budget of FLOPs."""

from math import exp, log

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn, magnitudes
from reference.planning.answers.compute_optimal import compute_optimal

HOFFMANN = ((406.4, 0.3392), (410.7, 0.2849))  # arXiv:2203.15556, approach 3, with the digits of the paper's source
BESIROGLU = ((482.01, 0.3478), (2085.43, 0.3658))  # arXiv:2404.10102: a new fit to the same points
GOPHER = 5.76e23  # FLOPs that Gopher and Chinchilla were trained with

SEARCH = """
    (a, alpha), (b, beta) = size, data
    low, high = 1.0, flops
    for _ in range(300):
        parameters = (low * high) ** 0.5
        tokens = flops / 6 / parameters
        if alpha * a / parameters**alpha > beta * b / tokens**beta:
            low = parameters
        else:
            high = parameters
    return low, flops / 6 / low
    """


def where_the_loss_stops_falling(case, inputs):
    """By halving: the logarithm of N at which the loss, along 6 N D = C, no longer falls."""
    (a, alpha), (b, beta) = case.law

    def slope(n):  # of the loss, by log N
        return -alpha * a * exp(-alpha * n) + beta * b * exp(-beta * (log(case.flops / 6) - n))

    low, high = -200.0, 400.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return [(exp(low), case.flops / 6 / exp(low))]


PUZZLE = Puzzle(
    name="planning.compute_optimal",
    title="The best model for a budget",
    statement="""
        A dense transformer of N parameters, trained on D tokens, ends with a loss of E + A / N^α + B / D^β. E is what
        no model removes. With a budget of C FLOPs, a larger model has to stop after fewer tokens. Which N and D give
        the least loss?

        Each parameter takes 2 FLOPs for each token forward, and twice as many backward; leave attention out.

        Args:
            flops: C, of the whole training.
            size: (A, α), both above 0.
            data: (B, β), both above 0.

        Returns: N and D, as floats.

        Budget: a formula.
        """,
    function=compute_optimal,
    cases=cases(worlds=(1,), flops=(GOPHER, 1e21, 3.8e25), law=(HOFFMANN, BESIROGLU))
    + cases(worlds=(1,), flops=(6e6, 1e12), law=(((10.0, 0.5), (10.0, 0.5)), ((3.0, 0.2), (700.0, 0.6)))),
    drawn=(
        drawn(
            worlds=(1,),
            flops=magnitudes(17, 27),
            law=[((a, alpha), (b, beta)) for a, alpha in HOFFMANN for b, beta in (*BESIROGLU, (99.0, 0.5))],
        ),
    ),
    scale=Scale(cases(worlds=(1,), flops=(1e60,), law=(BESIROGLU,)), "the budget"),
    inputs=lambda case, rank: {"flops": case.flops, "size": case.law[0], "data": case.law[1]},
    oracle=where_the_loss_stops_falling,
    tolerance=1e-7,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 16,
            optimum=lambda case: 4,
            why="along 6 N D = C the loss is least where α A / N^α = β B / D^β: put D = C / 6N there and solve for N",
        ),
    ),
    hints=(
        "How many FLOPs are N parameters and D tokens? Put the D that is left into the loss: a function of N alone.",
        "Its derivative by log N is 0 where α A / N^α = β B / D^β. It is not enough that the two terms of the loss are "
        "equal.",
        "N^(α + β) = α A / (β B) · (C/6)^β: so N grows with the exponent β / (α + β), that of the tokens.",
    ),
    wrong=(
        Wrong(
            "forward alone",
            diagnosis=r"compute_optimal\(flops=5\.76e\+23, .*expected 4\.03\d*e\+10, got 6\.65",
            edits=(("flops / 6", "flops / 2"),),
        ),
        Wrong(
            "exponents swapped",
            diagnosis=r"expected 4\.03\d*e\+10, got 4",
            edits=(("pairs ** (beta /", "pairs ** (alpha /"),),
        ),
        Wrong(
            "terms that are equal, not their slopes",
            diagnosis=r"expected 4\.03\d*e\+10, got 3",
            edits=(("(alpha * a / (beta * b))", "(a / b)"),),
        ),
        Wrong(
            "twenty tokens for each parameter",
            diagnosis=r"expected 4\.03\d*e\+10, got 6\.92",
            body="""
                parameters = (flops / 120) ** 0.5
                return parameters, 20 * parameters
                """,
        ),
        Wrong(
            "both grow with the square root",
            diagnosis=r"expected 4\.03\d*e\+10, got 4",
            edits=(("pairs ** (beta / (alpha + beta))", "pairs ** 0.5"),),
        ),
        Wrong(
            "tokens first",
            diagnosis=r"expected 4\.03\d*e\+10, got 2\.38",
            edits=(("return parameters, pairs / parameters", "return pairs / parameters, parameters"),),
        ),
        Wrong("a search", diagnosis=r"right, but it runs [\d,]+ lines where 16 must do.*\n.*solve for N", body=SEARCH),
    ),
)
