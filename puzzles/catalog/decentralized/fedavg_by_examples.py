"""decentralized.fedavg_by_examples: a client counts as much as it has examples."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.decentralized.answers.by_examples import average

DOUBLE = 8
DEALT = {  # examples of a rank of n
    "unequal": lambda rank, n: 1 + 7 * rank * rank % 50,
    "equal": lambda rank, n: 6,
    "the first has none": lambda rank, n: 11 * rank if n > 1 else 3,
    "the last has all": lambda rank, n: 40 if rank == n - 1 else 0,
}


def a_client(case, rank):
    """What it has learned; nothing that means anything where it has no examples."""
    examples = DEALT[case.dealt](rank, case.n)
    weights = case.factors(rank, case.length)
    if not examples:
        weights[rank % case.length :] = float("nan")
    return {"weights": weights, "examples": examples}


def every_example_counts(case, inputs):
    """One mean over examples, each with the weights of its client."""
    rows = [each["weights"] for each in inputs for _ in range(each["examples"])]
    return [{"weights": torch.stack(rows).mean(0)}] * case.n


PUZZLE = Puzzle(
    name="decentralized.fedavg_by_examples",
    title="FedAvg, weighted by examples",
    statement="""
        After a round of federated learning each client has weights of its own. Their mean is the next model, but not
        each client counts as much: one with ten examples would else count as much as one with ten thousand. FedAvg
        (McMahan et al. 2017) weighs by the number of examples, as if each example had one vote.

        A client may have no examples at all. It has not trained, what stands in its weights is anything, also NaN, and
        it must not matter. It gets the mean like all others.

        Args:
            weights: [N] in float64. Becomes the mean, in place, on every rank.
            examples: that this client has, 0 or more. One client at least has some. No rank knows the others' numbers.
            group: n ranks, a client each. Any n.

        Budget: one all-reduce of N + 1 numbers.
        """,
    function=average,
    cases=cases(worlds=(3, 4), dealt=("unequal", "the first has none"), length=(5,))
    + cases(worlds=(2,), dealt=tuple(DEALT), length=(4,))
    + cases(worlds=(1, 5, 8), dealt=("unequal", "the last has all"), length=(3,))
    + cases(worlds=(4,), members=(0, 2, 3), dealt=("unequal", "the first has none"), length=(6,)),
    drawn=on_any_ranks(dealt=tuple(DEALT), length=range(2, 20)),
    inputs=a_client,
    oracle=every_example_counts,
    tolerance=1e-10,
    calls=(dist.all_reduce,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 1,
            why="the number of examples fits into the message of the weights",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(ring).most(case.n, case.length + 1, DOUBLE),
            why="a sum of N + 1 numbers is all that has to travel",
        ),
    ),
    hints=(
        "The mean is a quotient of two sums over clients. Which two?",
        "Sum of examples · weights, and sum of examples: both in one message. What is 0 · NaN?",
        "`said = torch.cat([weights, weights.new_ones(1)]) * examples`, or zeros where there are none; all-reduce; "
        "`weights.copy_(said[:-1] / said[-1])`.",
    ),
    wrong=(
        Wrong(
            "each client has one vote",
            diagnosis=r"weights\[\d\]: expected|dealt=equal|NaN",
            body="""
                dist.all_reduce(weights, group=group)
                weights /= dist.get_world_size(group)
                """,
        ),
        Wrong(
            "zero times what it has",
            diagnosis=r"NaN",
            edits=(("said * examples if examples else torch.zeros_like(said)", "said * examples"),),
        ),
        Wrong(
            "a client without examples stays away",
            diagnosis=r"finished without it|deadlock|waits",
            edits=(("    said = torch.cat", "    if not examples:\n        return\n    said = torch.cat"),),
        ),
        Wrong(
            "the sum",
            diagnosis=r"weights\[\d\]: expected",
            edits=(("said[:-1] / said[-1]", "said[:-1]"),),
        ),
        Wrong(
            "clients with examples are counted, not their examples",
            diagnosis=r"weights\[\d\]: expected",
            edits=(("said * examples if examples", "said if examples"),),
        ),
        Wrong(
            "the count is a message of its own",
            diagnosis=r"right, but a rank makes 2 calls where 1 must do.*\n.*fits into the message",
            body="""
                count = torch.tensor([float(examples)], dtype=weights.dtype)
                dist.all_reduce(count, group=group)
                total = weights * examples if examples else torch.zeros_like(weights)
                dist.all_reduce(total, group=group)
                weights.copy_(total / count)
                """,
        ),
    ),
)
