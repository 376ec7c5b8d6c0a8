"""frameworks.mean_or_sum: who divides by what, and what is left to divide."""

import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.frameworks.answers.factors import factors

DOUBLE = 8  # bytes of a float64


def counts_of(case, rank):
    """Tokens that count on a rank: uneven, and none in the first micro-batch of rank 0."""
    return [(7 * rank + 5 * k + 3 * rank * k) % case.most + (rank + k > 0) for k in range(case.micro_batches)]


def arguments(case, rank):
    return {"counts": counts_of(case, rank), "averages": case.averages, "divides": case.divides}


def shares(case, inputs):
    """Each token counts 1 / total in the end; undo what the framework will do."""
    total = sum(sum(each["counts"]) for each in inputs)
    undo = (len(inputs) if case.averages else 1) * (case.micro_batches if case.divides else 1)
    return [[count / total * undo for count in each["counts"]] for each in inputs]


PUZZLE = Puzzle(
    name="frameworks.mean_or_sum",
    title="Mean or sum",
    statement="""
        A loss of the whole batch is the mean over all tokens that count: those of all ranks and all micro-batches.
        Windows are padded, so a micro-batch has some hundred tokens that count, or few, or none. A program computes
        the mean loss of each of its K micro-batches (0 for one without tokens), and hands its gradient to a framework.

        Frameworks differ in what they do with it. DDP and `fully_shard` average gradients over ranks; Megatron can sum
        them. DeepSpeed's engine and Accelerate divide each loss by K, as accumulation asks for where all micro-batches
        have as many tokens; a plain loop does not.

        By what must the program multiply the mean loss of each micro-batch?

        Args:
            counts: tokens that count, in each of K micro-batches of this rank. On all ranks together there are some.
            averages: whether the framework averages gradients over the ranks of the group, or sums them.
            divides: whether it divides each loss by K.
            group: n ranks. Any n. All have the same K.

        Returns: a list of K factors.

        Budget: one all-reduce of one number.
        """,
    function=factors,
    cases=cases(worlds=(2,), averages=(True, False), divides=(True, False), micro_batches=(3,), most=(11,))
    + cases(worlds=(3,), averages=(True,), divides=(True,), micro_batches=(1, 2), most=(50,))
    + cases(worlds=(1,), averages=(True,), divides=(False,), micro_batches=(4,), most=(5,))
    + cases(worlds=(8,), averages=(False,), divides=(True,), micro_batches=(2,), most=(200,))
    + cases(worlds=(4,), members=(0, 2, 3), averages=(True,), divides=(True,), micro_batches=(2,), most=(9,)),
    drawn=on_any_ranks(averages=(True, False), divides=(True, False), micro_batches=range(1, 6), most=range(2, 99)),
    inputs=arguments,
    oracle=shares,
    tolerance=1e-9,
    calls=(dist.all_reduce,),
    budgets=(
        Budget(Measure.CALLS, target=lambda case: 1, why="one sum over all ranks tells how many tokens count"),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(ring).most(case.n, 1, DOUBLE),
            why="it is one number, whatever K is",
        ),
    ),
    hints=(
        "What does one token count in the end, and what does a token of this micro-batch count in its mean loss?",
        "A token should count 1 / total, and counts 1 / count in the mean of its micro-batch: count / total, then. "
        "What has the framework still to do with it?",
        "`count * (n if averages else 1) * (K if divides else 1) / total`.",
    ),
    wrong=(
        Wrong(
            "the mean of means",
            diagnosis=r"expected",
            body="""
                undone = (1 if averages else 1 / dist.get_world_size(group)) * (1 if divides else 1 / len(counts))
                return [undone for _ in counts]
                """,
        ),
        Wrong(
            "averages are forgotten",
            diagnosis=r"averages=True.*expected|expected",
            edits=(("(group.size() if averages else 1)", "1"),),
        ),
        Wrong(
            "accumulation is forgotten",
            diagnosis=r"divides=True.*expected|expected",
            edits=((" * (len(counts) if divides else 1)", ""),),
        ),
        Wrong(
            "tokens of this rank alone",
            diagnosis=r"expected",
            edits=(("    dist.all_reduce(total, group=group)\n", ""),),
        ),
        Wrong(
            "all ranks of the world",
            diagnosis=r"expected",
            edits=(("group.size()", "dist.get_world_size()"),),
        ),
        Wrong(
            "an all-reduce for each micro-batch",
            diagnosis=r"right, but a rank makes \d calls where 1 must do.*\n.*one sum",
            edits=(
                (
                    "    total = torch.tensor(float(sum(counts)), dtype=torch.float64)\n"
                    "    dist.all_reduce(total, group=group)\n",
                    "    total = torch.zeros((), dtype=torch.float64)\n    for count in [*counts, 0]:\n"
                    "        part = torch.tensor(float(count), dtype=torch.float64)\n"
                    "        dist.all_reduce(part, group=group)\n        total += part\n",
                ),
            ),
        ),
    ),
)
