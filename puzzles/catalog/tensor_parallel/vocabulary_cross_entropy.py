"""tensor_parallel.vocabulary_cross_entropy: from parts of the logits to the loss, and the whole logits never exist."""

from functools import partial

import torch
import torch.distributed as dist

from puzzles.grading.drives.tensor_parallel import named
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.tensor_parallel.answers.vocabulary import loss_and_gradient

from .common import ALL_GATHER, DOUBLE, all_reduces, part, whole
from .vocabulary_embedding import tokens_of

NAMES = ("losses", "gradient of logits")
SHARE = 32  # columns of a rank


def share_of(case):
    """Columns of a rank."""
    return case.get("share", SHARE)


def whole_logits(case):
    """All of them, `around` some number; the largest are near three times `scale` above it."""
    return case.around + case.scale * whole(case, "logits", case.tokens + 2, case.n * share_of(case))


def columns_and_targets(case, rank):
    """This rank's columns of the logits, and all targets."""
    return {"logits": part(whole_logits(case), case, rank, 1), "targets": tokens_of(case, share_of(case))}


def one_process_with_all_logits(case, inputs):
    """torch's own cross-entropy, by autograd."""
    logits = whole_logits(case).requires_grad_()
    losses = torch.nn.functional.cross_entropy(logits, inputs[0]["targets"], reduction="none")
    losses.sum().backward()
    return [
        {"returns": "2 tensors", "logits": each["logits"]}
        | dict(zip(NAMES, (losses.detach(), part(logits.grad, case, rank, 1)), strict=True))
        for rank, each in enumerate(inputs)
    ]


def some_numbers(case, count):
    """Bytes of so many numbers for each token."""
    return count * DOUBLE * (case.tokens + 2)


ONE_AFTER_THE_OTHER = """
    rank, n, (tokens, share) = dist.get_rank(group), dist.get_world_size(group), logits.shape
    largest = logits.new_full((tokens,), float("-inf"))
    total, of_target = logits.new_zeros(tokens), logits.new_zeros(tokens)
    for source in range(n):
        theirs = logits.clone()
        dist.broadcast(theirs, group=group, group_src=source)
        more = largest.maximum(theirs.amax(-1))
        total = total * (largest - more).exp() + theirs.sub(more[:, None]).exp_().sum(-1)
        largest = more
        there = (targets >= source * share) & (targets < (source + 1) * share)
        of_target += theirs.gather(-1, (targets % share)[:, None])[:, 0] * there
        del theirs
    gradient = logits.sub((largest + total.log())[:, None]).exp_()
    mine = targets // share == rank
    gradient.scatter_add_(-1, (targets % share)[:, None], -mine[:, None].to(logits.dtype))
    return largest + total.log() - of_target, gradient
    """

PUZZLE = Puzzle(
    name="tensor_parallel.vocabulary_cross_entropy",
    title="Cross-entropy, split by vocabulary",
    statement="""
        The logits are the largest tensor of a training step: for each token a number for each of V others. With a head
        that is split by vocabulary, rank r has the r-th n-th of the columns. To gather them would undo the split. But
        the loss of a token needs little of what the others have:

            loss = log(sum over v of exp(z_v)) - z_target

        With logits of 1000, exp(1000) is infinite. So one subtracts the same number from all of a token's logits
        first, which changes nothing: their maximum, after which the largest exponential is 1. Whose maximum?

        And the gradient of a token's loss with respect to its logits, with `p` the softmax over all V:

            gradient of z_v = p_v - (1 if v is the target, else 0)

        What of this is here, and what do the others know?

        Args:
            logits: [T, V / n], this rank's columns. Leave them as they are.
            targets: [T] of integers from 0 to V - 1, the same on every rank.
            group: n ranks. Any n.

        Returns: two tensors: the loss of each token, [T], the same on every rank; the gradient of their sum with
        respect to this rank's logits, [T, V / n].

        Budget: for each token, a rank sends 4 numbers for each of the others at most; all-reduces of 3 numbers are
        best. Memory for 3 tensors like `logits` at most, and for a few numbers of each token.
        """,
    function=loss_and_gradient,
    cases=cases(worlds=(4,), tokens=(5,), scale=(1.0, 1000.0), around=(0.0,), of=("any rank",))
    + cases(worlds=(4,), tokens=(3,), scale=(1.0,), around=(-1000.0,), of=("any rank",))
    + cases(worlds=(2, 3), tokens=(4,), scale=(1.0, 1000.0), around=(0.0,), of=("any rank",))
    + cases(worlds=(1, 5, 8), tokens=(4,), scale=(1000.0,), around=(0.0,), of=("any rank",))
    + cases(worlds=(3,), tokens=(3,), scale=(1.0,), around=(0.0,), of=("one rank",))
    + cases(worlds=(4,), members=(0, 2, 3), tokens=(3,), scale=(1.0,), around=(0.0,), of=("any rank",)),
    drawn=on_any_ranks(tokens=range(3, 6), scale=(1.0, 1000.0), around=(0.0,), of=("any rank",)),
    large=case(4, tokens=400, scale=1.0, around=0.0, of="any rank", share=3200),
    inputs=columns_and_targets,
    oracle=one_process_with_all_logits,
    drive=partial(named, NAMES),
    tolerance=1e-10,
    calls=(dist.all_reduce, dist.broadcast, *ALL_GATHER),
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: some_numbers(case, 3 * share_of(case) + 16),
            optimum=lambda case: some_numbers(case, share_of(case)),
            why="the logits are the largest tensor there is: no rank may hold more than some copies of its own part",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: (case.n - 1) * some_numbers(case, 4),
            optimum=lambda case: all_reduces(case, (case.tokens + 2,), (2, case.tokens + 2)),
            why="some numbers for each token are enough, however large the vocabulary is: reduce before you send",
        ),
    ),
    hints=(
        "Three numbers of each token depend on all columns. Each is a reduction: which numbers, by which operation?",
        "The maximum (`dist.ReduceOp.MAX`) comes first. Then the sum of exp(z - maximum), and the target's z - "
        "maximum, which one rank has, and the others give as 0: two sums, which `torch.stack` sends together.",
        "With `e = (logits - largest.unsqueeze(-1)).exp_()` and both sums: the losses are log(sum) - of_target, and "
        "the gradient is `e.div_(sum.unsqueeze(-1))`, less 1 where a target lies in this rank's columns: "
        "`scatter_add_`.",
    ),
    wrong=(
        Wrong(
            "gathers the logits",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*more than some copies of its own",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                every = [torch.empty_like(logits) for _ in range(n)]
                dist.all_gather(every, logits, group=group)
                logarithms = torch.cat(every, dim=-1).log_softmax(-1)
                losses = -logarithms.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
                gradient = logarithms.exp()
                gradient.scatter_add_(-1, targets.unsqueeze(-1), -torch.ones_like(losses).unsqueeze(-1))
                return losses, gradient.chunk(n, dim=-1)[rank].clone()
                """,
        ),
        Wrong(
            "looks at one rank's logits after the other",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*reduce before you send",
            body=ONE_AFTER_THE_OTHER,
        ),
        Wrong(
            "a tensor for each line of the paper",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*more than some copies of its own",
            edits=(
                (
                    "(logits - largest.unsqueeze(-1)).exp_()",
                    "(shifted := logits - largest.unsqueeze(-1)).exp()",
                ),
                (
                    "gradient = exponentials.div_(partition.unsqueeze(-1)).scatter_add_(-1, column, "
                    "-mine.unsqueeze(-1))",
                    "one_hot = torch.zeros_like(logits).scatter_add_(-1, column, mine.unsqueeze(-1))\n"
                    "    gradient = exponentials / partition.unsqueeze(-1) - one_hot",
                ),
            ),
        ),
        Wrong(
            "no maximum: exp overflows",
            diagnosis=r"right with scale=1, wrong with scale=1000",
            edits=(
                (
                    "    largest = logits.amax(-1)\n    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)\n",
                    "    largest = torch.zeros_like(logits[:, 0])\n",
                ),
            ),
        ),
        Wrong(
            "a maximum that begins at zero: all exponentials vanish",
            diagnosis=r"losses\[0\]: expected .*, got -?inf\n.*right with around=0, wrong with around=-1000",
            edits=(("logits.amax(-1)", "logits.amax(-1).clamp(min=0)"),),
        ),
        Wrong(
            "each rank takes off its own maximum",
            diagnosis=r"losses\[0\]: expected",
            edits=(("    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)\n", ""),),
        ),
        Wrong(
            "the maximum is added up",
            diagnosis=r"right with scale=1, wrong with scale=1000|losses\[\d\]: expected|NaN|inf",
            edits=(
                ("dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)", "dist.all_reduce(largest, group=group)"),
            ),
        ),
        Wrong(
            "the target counts on every rank",
            diagnosis=r"losses\[\d\]: expected",
            edits=((".squeeze(-1) - largest) * mine", ".squeeze(-1) - largest)"),),
        ),
        Wrong(
            "a one is taken off on every rank",
            diagnosis=r"gradient of logits\[\d, \d+\]: expected",
            edits=(("column, -mine.unsqueeze(-1))", "column, -torch.ones_like(mine).unsqueeze(-1))"),),
        ),
        Wrong(
            "each rank's softmax is its own",
            diagnosis=r"rank 0, gradient of logits\[0, 0\]: expected",
            edits=(
                (
                    "exponentials.div_(partition.unsqueeze(-1))",
                    "exponentials.div_(exponentials.sum(-1, keepdim=True))",
                ),
            ),
        ),
        Wrong(
            "computes in the logits that it was given",
            diagnosis=r"rank 0, logits\[0, 0\]: expected",
            edits=(
                (
                    "exponentials = (logits - largest.unsqueeze(-1)).exp_()",
                    "exponentials, logits = logits, logits.clone()\n"
                    "    exponentials.sub_(largest.unsqueeze(-1)).exp_()",
                ),
            ),
        ),
        Wrong(
            "the losses are averaged over ranks",
            diagnosis=r"losses\[0\]: expected",
            edits=(
                (
                    "return partition.log() - of_target,",
                    "return (partition.log() - of_target) / dist.get_world_size(group),",
                ),
            ),
        ),
    ),
)
