"""decentralized.mixing_rate: how fast a ring agrees."""

from math import pi, sin

import torch

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.decentralized.answers.mixing import ring_rate


def by_eigenvalues(case, inputs):
    """Of the matrix itself."""
    n, matrix = case.ranks, torch.zeros(case.ranks, case.ranks, dtype=torch.float64)
    for rank in range(n):
        matrix[rank, rank] += case.keep
        for neighbour in (rank - 1, rank + 1):
            matrix[rank, neighbour % n] += (1 - case.keep) / 2
    *others, _ = torch.linalg.eigvalsh(matrix).tolist()  # ascending; the last one is 1, of the mean
    return [max(map(abs, others), default=0.0)]


def by_the_ends(case, inputs):
    """Eigenvalues fall with the wave: the second and the last are the candidates."""
    if case.ranks == 1:
        return [0.0]
    return [max(abs(1 - 2 * (1 - case.keep) * sin(pi * wave / case.ranks) ** 2) for wave in (1, case.ranks // 2))]


PUZZLE = Puzzle(
    name="decentralized.mixing_rate",
    title="How fast a ring agrees",
    statement="""
        n ranks in a ring gossip: in each round every rank keeps the part `keep` of its own value, and takes half of the
        rest from its left neighbour and half from the right one. All values together are a vector, a round multiplies
        it by a matrix, and the mean stays. By what factor does the distance from the mean shrink in a round, if it
        shrinks as slowly as it can?

        It is the largest eigenvalue of the matrix, without its sign, beside the 1 that belongs to the mean. The matrix
        is a circulant: wave k, cos(2 π k r / n) over ranks r, is an eigenvector.

        Args:
            ranks: n, 1 or more. With 2 ranks both neighbours are the same one, with 1 a rank is its own neighbour.
            keep: from 0 to 1.

        Returns: the factor, from 0 to 1; 0.0 for one rank.

        Budget: a formula.
        """,
    function=ring_rate,
    cases=cases(worlds=(1,), ranks=(8, 3, 2, 5, 64, 1), keep=(0.5, 0.2, 0.0, 0.9)),
    drawn=(drawn(worlds=(1,), ranks=range(3, 90), keep=(0.05, 0.1, 0.3, 0.45, 0.6, 0.8)),),
    scale=Scale(cases(worlds=(1,), ranks=(10**9 + 7,), keep=(0.1,)), "the number of ranks", oracle=by_the_ends),
    oracle=by_eigenvalues,
    tolerance=1e-9,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 12,
            optimum=lambda case: 3,
            why="eigenvalues fall from the first wave to the one with the most changes of sign: two candidates",
        ),
    ),
    hints=(
        "Apply the matrix to wave k. With cos(a + b) + cos(a - b) = 2 cos(a) cos(b) you see its eigenvalue. What is k "
        "of the mean?",
        "The eigenvalue is keep + (1 - keep) cos(2 π k / n). For which k is it largest besides k = 0, for which is it "
        "smallest, and can the smallest be the one that counts?",
        "k = 1 and k = n // 2: the larger of both without their signs.",
    ),
    wrong=(
        Wrong(
            "the largest eigenvalue of all",
            diagnosis=r"expected 0\.\d+, got 1",
            edits=(("(1, ranks // 2)", "(0, ranks // 2)"),),
        ),
        Wrong(
            "with its sign",
            diagnosis=r"right with keep=0\.5, wrong with keep=|expected",
            edits=(("max(abs(slow), abs(fast))", "max(slow, fast)"),),
        ),
        Wrong(
            "only the slowest wave",
            diagnosis=r"right with keep=0\.5, wrong with keep=|expected",
            edits=(("max(abs(slow), abs(fast))", "abs(slow)"),),
        ),
        Wrong(
            "each neighbour has all of the rest",
            diagnosis=r"expected",
            edits=(("(1 - keep) * cos", "2 * (1 - keep) * cos"),),
        ),
        Wrong(
            "one rank has a neighbour",
            diagnosis=r"ranks=1|expected 0",
            edits=(("    if ranks == 1:\n        return 0.0\n", ""),),
        ),
        Wrong(
            "wave after wave",
            diagnosis=r"right, but it runs [\d,]+ lines where 12 must do.*\n.*two candidates",
            body="""
                from math import cos, pi

                most = 0.0
                for wave in range(1, ranks):
                    most = max(most, abs(keep + (1 - keep) * cos(2 * pi * wave / ranks)))
                return most
                """,
        ),
    ),
)
