"""decentralized.batch_norm_buffers: statistics of all clients, from those of each."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.decentralized.answers.statistics import pool

DOUBLE = 8
SKEW = {"alike": 0.0, "apart": 5.0}
COUNTS = {"unequal": lambda rank: 2 + 5 * rank * rank % 13, "equal": lambda rank: 4, "one each": lambda rank: 1}


def seen_by(case, rank):
    """[m, C]: what a client's batch norm has seen."""
    shift = SKEW[case.clients] * case.normal(rank, case.channels, name="shift")
    return shift + case.normal(rank, COUNTS[case.examples](rank), case.channels, name="seen")


def own_statistics(case, rank):
    """Of this client's examples alone."""
    seen = seen_by(case, rank)
    return {"mean": seen.mean(0), "variance": seen.var(0, correction=0), "examples": len(seen)}


def of_all_examples(case, inputs):
    """One process sees them all."""
    seen = torch.cat([seen_by(case, rank) for rank in range(case.n)])
    return [{"mean": seen.mean(0), "variance": seen.var(0, correction=0)}] * case.n


PUZZLE = Puzzle(
    name="decentralized.batch_norm_buffers",
    title="Whose batch-norm buffers",
    statement="""
        Batch norm keeps a mean and a variance of each channel: buffers, no parameters, so that a federated average of
        parameters forgets them. Then each client has those of its own examples, and the model that all share has none.
        To average variances as if they were parameters is wrong, too: where clients have other examples, most of the
        variance is between clients, and none of them has seen it.

        Find the mean and the variance over the examples of all clients together.

        Args:
            mean: [C] in float64, over this client's examples. Becomes that over all, in place, on every rank.
            variance: [C], the mean squared distance from it (divided by the number of examples). Likewise.
            examples: that this client has, 1 or more. No rank knows the others' numbers.
            group: n ranks, a client each. Any n.

        Budget: one all-reduce of 2C + 1 numbers.
        """,
    function=pool,
    cases=cases(worlds=(3, 4), clients=("apart", "alike"), examples=("unequal",), channels=(3,))
    + cases(worlds=(2,), clients=("apart",), examples=("unequal", "equal", "one each"), channels=(2,))
    + cases(worlds=(1, 5, 8), clients=("apart",), examples=("unequal",), channels=(4,))
    + cases(worlds=(4,), members=(0, 2, 3), clients=("apart",), examples=("unequal",), channels=(3,)),
    drawn=on_any_ranks(clients=tuple(SKEW), examples=("unequal", "equal"), channels=range(1, 9)),
    inputs=own_statistics,
    oracle=of_all_examples,
    tolerance=1e-8,
    calls=(dist.all_reduce,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 1,
            why="mean, mean square and count are three sums, and fit into one message",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(ring).most(case.n, 2 * case.channels + 1, DOUBLE),
            why="two sums of each channel and one count are all that has to travel",
        ),
    ),
    hints=(
        "Which numbers of the clients simply add up? A mean does not, a variance does not. A sum of values does, and a "
        "sum of squares.",
        "From mean and variance each client can find its mean square: variance + mean². Weighted by examples, both add "
        "up; and what is the variance of all, from the mean and the mean square of all?",
        "`said = torch.cat([mean, variance + mean.square(), mean.new_ones(1)]) * examples`, all-reduce, divide by the "
        "last number; the variance is the mean square less the square of the mean.",
    ),
    wrong=(
        Wrong(
            "variances are averaged",
            diagnosis=r"variance\[\d\]: expected|right with clients=alike",
            edits=(("variance + mean.square()", "variance"), ("squares - of_all.square()", "squares")),
        ),
        Wrong(
            "each client has one vote",
            diagnosis=r"expected",
            edits=((" * examples\n", "\n"),),
        ),
        Wrong(
            "the old mean's square",
            diagnosis=r"variance\[\d\]: expected",
            edits=(
                (
                    "    mean.copy_(of_all)\n    variance.copy_(squares - of_all.square())\n",
                    "    variance.copy_(squares - mean.square())\n    mean.copy_(of_all)\n",
                ),
            ),
        ),
        Wrong(
            "each keeps its own variance",
            diagnosis=r"variance",
            edits=(("    variance.copy_(squares - of_all.square())\n", ""),),
        ),
        Wrong(
            "new buffers that no one sees",
            diagnosis=r"still holds its own input|expected",
            edits=(("    mean.copy_(of_all)\n", "    mean = of_all\n"),),
        ),
        Wrong(
            "first the mean, then distances from it",
            diagnosis=r"right, but a rank makes 2 calls where 1 must do.*\n.*fit into one message",
            body="""
                said = torch.cat([mean, mean.new_ones(1)]) * examples
                dist.all_reduce(said, group=group)
                of_all, count = said[:-1] / said[-1], said[-1]
                spread = (variance + (mean - of_all).square()) * examples
                dist.all_reduce(spread, group=group)
                mean.copy_(of_all)
                variance.copy_(spread / count)
                """,
        ),
    ),
)
