"""data_parallel.token_weighted_loss: every token counts the same, on whichever rank it is."""

import torch
import torch.distributed as dist

from puzzles.grading.drives.data_parallel import backward_of_the_loss
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.data_parallel.uneven import weighted_loss

from .common import LENGTHS, MANY, count_of


def parts_of_the_mean(case, inputs):
    """One process takes the mean over all tokens; each rank's part of it are its own tokens' terms."""
    everybody = torch.cat([each["losses"] for each in inputs])
    each_weighs = 1 / torch.tensor(float(len(everybody)), dtype=torch.float64)
    return [
        {"returns": (each["losses"] * each_weighs).sum(), "losses.grad": each_weighs.expand(len(each["losses"]))}
        for each in inputs
    ]


PUZZLE = Puzzle(
    name="data_parallel.token_weighted_loss",
    title="Every token counts the same",
    statement="""
        The loss of a step is the mean over all tokens of all ranks. But texts have different lengths, so ranks have
        different numbers of tokens. A mean of the ranks' means would give a token more weight where there are few.

        Return this rank's part of the loss, such that the parts of all ranks add up to the mean over all tokens, and
        their gradients to its gradient. Gradients are summed over ranks later, and never divided.

        Args:
            losses: the loss of each of this rank's tokens, [T]. T differs from rank to rank, and may be 0; not on all
                ranks. Gradients flow back through it.
            group: n ranks. Any n.

        Returns: a scalar.

        Budget: one all-reduce of one number.
        """,
    function=weighted_loss,
    cases=cases(worlds=(3, 2, 4, 1, 5, 8), lengths=LENGTHS)
    + cases(worlds=(4,), lengths=(MANY,))
    + cases(worlds=(4,), members=(0, 2, 3), lengths=("different",)),
    drawn=on_any_ranks(lengths=LENGTHS),
    inputs=lambda case, rank: {"losses": case.normal(rank, count_of(case, rank)).abs()},
    oracle=parts_of_the_mean,
    drive=backward_of_the_loss,
    tolerance=1e-12,
    calls=(dist.all_reduce,),
    budgets=(
        Budget(Measure.CALLS, target=lambda case: 1, why="only the number of tokens is needed from the others"),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(ring).most(case.n, 1, 8),
            why="one number: how many tokens there are in all",
        ),
    ),
    hints=(
        "Two ranks, with losses (1, 1, 1) and (5). What is the mean over all tokens, what is the mean of the means?",
        "What is the same for all terms of the mean over all tokens, and does a rank know it?",
        "Sum the number of tokens over the group, as a tensor. Divide the sum of this rank's losses by it.",
    ),
    wrong=(
        Wrong(
            "a mean of means",
            diagnosis=r"right with lengths=equal, wrong with lengths=different, many, one is empty",
            body="return losses.sum() / max(1, losses.numel()) / dist.get_world_size(group)",
        ),
        Wrong(
            "each by its own tokens",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            body="return losses.mean() if losses.numel() else losses.sum()",
        ),
        Wrong(
            "divided by the number of ranks, too",
            diagnosis=r"off by exactly the world size, too little: averaged, and not summed",
            edits=(("losses.sum() / tokens", "losses.sum() / tokens / dist.get_world_size(group)"),),
        ),
        Wrong(
            "the whole loss on every rank",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            body="""
                tokens, total = torch.tensor(losses.numel()), losses.detach().sum()
                dist.all_reduce(tokens, group=group)
                dist.all_reduce(total, group=group)
                return total / tokens + 0 * losses.sum()
                """,
        ),
        Wrong(
            "without a gradient",
            diagnosis=r"losses\.grad: expected a float64 tensor of shape \(\d,\), got None",
            edits=(("losses.sum()", "losses.detach().sum()"),),
        ),
        Wrong(
            "a rank that has nothing stays away",
            diagnosis=r"finished without it|rank \d never",
            body="""
                if not losses.numel():
                    return losses.sum()
                tokens = torch.tensor(losses.numel())
                dist.all_reduce(tokens, group=group)
                return losses.sum() / tokens
                """,
        ),
        Wrong(
            "every rank tells all ranks",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*one number",
            body="""
                tokens = torch.zeros(dist.get_world_size(group), dtype=torch.int64)
                tokens[dist.get_rank(group)] = losses.numel()
                dist.all_reduce(tokens, group=group)
                return losses.sum() / tokens.sum()
                """,
        ),
        Wrong(
            "token by token",
            diagnosis=r"right, but a rank makes 2 calls where 1 must do.*\n.*only the number of tokens",
            body="""
                tokens, most = torch.tensor(losses.numel()), torch.tensor(losses.numel())
                dist.all_reduce(most, dist.ReduceOp.MAX, group)
                dist.all_reduce(tokens, group=group)
                return losses.sum() / tokens
                """,
        ),
    ),
)
