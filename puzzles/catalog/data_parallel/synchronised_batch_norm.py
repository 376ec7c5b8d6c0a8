"""data_parallel.synchronised_batch_norm: mean and variance of the whole batch, there and back."""

import torch
import torch.distributed as dist

from puzzles.grading.drives import there_and_back
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.data_parallel.batch_norm import batch_norm

from .common import LENGTHS, count_of

EPSILON = 1e-3  # large enough for a mistake to show


def part_of_a_batch(case, rank):
    """This rank's samples, not around zero and not alike on all ranks, and the gradient of what comes out."""
    shape = (count_of(case, rank), case.channels)
    return {
        "x": 1 + rank + 2 * case.normal(rank, *shape),
        "weight": 1 + case.normal(0, case.channels, name="weight").abs(),
        "bias": case.normal(0, case.channels, name="bias"),
        "upstream": case.normal(rank, *shape, name="upstream"),
        "epsilon": EPSILON,
    }


def normalised_whole(case, inputs):
    """The whole batch in one process, by autograd; weight and bias get the part that comes from each rank's samples."""
    counts = [len(each["x"]) for each in inputs]
    x = torch.cat([each["x"] for each in inputs]).requires_grad_()
    copies = [[each[name].requires_grad_() for name in ("weight", "bias")] for each in inputs]
    variance, mean = torch.var_mean(x, dim=0, correction=0)
    parts = ((x - mean) / (variance + EPSILON).sqrt()).split(counts)
    found = [part * weight + bias for part, (weight, bias) in zip(parts, copies, strict=True)]
    sum((y * each["upstream"]).sum() for y, each in zip(found, inputs, strict=True)).backward()
    return [
        {"returns": y.detach(), "x.grad": gradient, "weight.grad": weight.grad, "bias.grad": bias.grad}
        for y, gradient, (weight, bias) in zip(found, x.grad.split(counts), copies, strict=True)
    ]


def sent(case, *messages):
    """Bytes that a rank sends at most for all-reduces of so many numbers."""
    return max(sum(cost.of(ring).bytes(rank, case.n, each, 8) for each in messages) for rank in range(case.n))


ANSWER = """
    class BatchNorm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            sums = torch.cat([x.sum(0), x.square().sum(0), x.new_tensor([len(x)])])
            dist.all_reduce(sums, group=group)
            count = sums[-1]
            mean, mean_square = (sums[:-1] / count).chunk(2)
            scale = (mean_square - mean.square() + epsilon).rsqrt()
            normalised = (x - mean) * scale
            ctx.save_for_backward(normalised, weight, scale, count)
            return normalised * weight + bias

        @staticmethod
        def backward(ctx, gradient):
            normalised, weight, scale, count = ctx.saved_tensors
            own = torch.cat([gradient.sum(0), (gradient * normalised).sum(0)])
            sums = own.clone()
            dist.all_reduce(sums, group=group)
            mean_g, mean_gx = (sums / count).chunk(2)
            bias_gradient, weight_gradient = own.chunk(2)
            return (gradient - mean_g - normalised * mean_gx) * weight * scale, weight_gradient, bias_gradient

    return BatchNorm.apply(x, weight, bias)
    """

PUZZLE = Puzzle(
    name="data_parallel.synchronised_batch_norm",
    title="Batch norm over all ranks",
    statement="""
        Batch norm looks at the whole batch: per channel it takes off the mean and divides by the deviation. With n
        ranks, each has only its part of the batch, and the mean of that is another one. Normalise by mean and variance
        of what *all* ranks have, and let gradients find their way back.

            y = weight · x' + bias      x' = (x - mean) / deviation      deviation = sqrt(variance + epsilon)

        Mean and variance (divided by N, all ranks' samples) follow from sum, sum of squares and count. On the way back,
        every x acts on the mean and deviation of all ranks. With g, the gradient of y:

            gradient of x = weight / deviation · (g - mean of g - x' · mean of g x')

        where both means are over all ranks' samples again.

        Write a `torch.autograd.Function` with `forward(ctx, ...)` and `backward(ctx, gradient)`, and return what its
        `apply` returns. `backward` returns one gradient for each argument of `forward` after ctx. Weight and bias get
        what this rank's samples contribute: gradients of parameters are summed over ranks later.

        Args:
            x: [B, C]. B differs from rank to rank, and may be 0; not on all ranks.
            weight: [C], the same on every rank.
            bias: [C], the same on every rank.
            group: n ranks. Any n.
            epsilon: added to the variance.

        Returns: y, like `x`.

        Budget: one all-reduce in forward and one in backward, of 2 C + 1 numbers at most.
        """,
    function=batch_norm,
    answer=ANSWER,
    cases=cases(worlds=(3, 2, 4, 1, 5, 8), channels=(2,), lengths=LENGTHS[:1])
    + cases(worlds=(3,), channels=(1, 4), lengths=LENGTHS[1:])
    + cases(worlds=(4,), members=(0, 2, 3), channels=(2,), lengths=LENGTHS[:1]),
    drawn=on_any_ranks(channels=range(1, 5), lengths=LENGTHS),
    inputs=part_of_a_batch,
    oracle=normalised_whole,
    drive=there_and_back,
    tolerance=1e-9,
    calls=(dist.all_reduce,),
    budgets=(
        Budget(Measure.CALLS, target=lambda case: 2, why="what is summed in one pass fits into one tensor: torch.cat"),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: sent(case, 2 * case.channels + 1, 2 * case.channels + 1),
            optimum=lambda case: sent(case, 2 * case.channels + 1, 2 * case.channels),
            why="sums over the samples are enough: the samples themselves stay where they are",
        ),
    ),
    hints=(
        "Which numbers of each rank, added up, give the mean and variance of all? variance = mean of x² - mean².",
        "One tensor `torch.cat([x.sum(0), x.square().sum(0), count])`, one all-reduce, and everything follows.",
        "Backward: `torch.cat([gradient.sum(0), (gradient * normalised).sum(0)])` of this rank are the gradients of "
        "bias and weight. Their sums over ranks, divided by the count of forward, are the two means that x needs.",
    ),
    wrong=(
        Wrong(
            "each by its own samples",
            diagnosis=r"result\[0, 0\]: expected",
            body="""
                variance, mean = torch.var_mean(x, dim=0, correction=0)
                return (x - mean) / (variance + epsilon).sqrt() * weight + bias
                """,
        ),
        Wrong(
            "a mean of variances",
            diagnosis=r"result\[0, 0\]: expected",
            edits=(
                ("x.square().sum(0), x.new", "(x - x.mean(0)).square().sum(0) if len(x) else x.sum(0), x.new"),
                ("mean_square - mean.square() + epsilon", "mean_square + epsilon"),
            ),
        ),
        Wrong(
            "as many samples everywhere as here",
            diagnosis=r"the tensor holds NaN",
            edits=(("count = sums[-1]", "count = x.new_tensor(max(1, len(x)) * dist.get_world_size(group))"),),
        ),
        Wrong(
            "nothing travels on the way back",
            diagnosis=r"x\.grad\[0, 0\]: expected",
            edits=(
                (
                    "            sums = own.clone()\n            dist.all_reduce(sums, group=group)\n",
                    "            sums = own\n",
                ),
            ),
        ),
        Wrong(
            "mean and deviation are taken for constants",
            diagnosis=r"x\.grad\[0, 0\]: expected",
            edits=(("(gradient - mean_g - normalised * mean_gx) * weight * scale", "gradient * weight * scale"),),
        ),
        Wrong(
            "weight and bias get all ranks' gradient",
            diagnosis=r"weight\.grad\[0\]: expected",
            edits=(
                ("bias_gradient, weight_gradient = own.chunk(2)", "bias_gradient, weight_gradient = sums.chunk(2)"),
            ),
        ),
        Wrong(
            "divided by N - 1",
            diagnosis=r"result\[0, 0\]: expected",
            edits=(
                (
                    "(mean_square - mean.square() + epsilon)",
                    "((mean_square - mean.square()) * count / (count - 1) + epsilon)",
                ),
            ),
        ),
        Wrong(
            "a message for each sum",
            diagnosis=r"right, but a rank makes \d calls where 2 must do.*\n.*one tensor",
            edits=(
                (
                    "            sums = torch.cat([x.sum(0), x.square().sum(0), x.new_tensor([len(x)])])\n"
                    "            dist.all_reduce(sums, group=group)\n",
                    "            parts = [x.sum(0), x.square().sum(0), x.new_tensor([len(x)])]\n"
                    "            for part in parts:\n"
                    "                dist.all_reduce(part, group=group)\n"
                    "            sums = torch.cat(parts)\n",
                ),
            ),
        ),
        Wrong(
            "every rank's sums to all ranks",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*sums over the samples are enough",
            edits=(
                (
                    "            dist.all_reduce(sums, group=group)\n            count",
                    "            every = sums.new_zeros(dist.get_world_size(group), len(sums))\n"
                    "            every[dist.get_rank(group)] = sums\n"
                    "            dist.all_reduce(every, group=group)\n"
                    "            sums = every.sum(0)\n"
                    "            count",
                ),
            ),
        ),
    ),
)
