"""sequence_parallel.norm_on_a_slice: tokens of one's own, weights that all ranks have."""

import torch.distributed as dist

from puzzles.grading.drives import there_and_back
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.sequence_parallel.answers.on_slices import layer_norm

from .common import all_reduce_of, mine, slices_of, tokens_of

EPSILON = 1e-3  # large enough for a mistake to show


def a_slice_and_the_weights(case, rank):
    """Tokens that are not around zero, nor alike on all ranks; weights that are the same on all."""
    return {
        "x": 1 + rank + 2 * case.normal(rank, *mine(case)),
        "weight": 1 + case.normal(0, case.width, name="weight").abs(),
        "bias": case.normal(0, case.width, name="bias"),
        "epsilon": EPSILON,
        "upstream": case.normal(rank, *mine(case), name="upstream"),
    }


def all_tokens_in_one_process(case, inputs):
    """All tokens, by autograd."""
    x, weight, bias = tokens_of(inputs, "x").requires_grad_(), *(inputs[0][name] for name in ("weight", "bias"))
    weight, bias = weight.requires_grad_(), bias.requires_grad_()
    deviation = (x.var(-1, correction=0, keepdim=True) + EPSILON).sqrt()
    y = (x - x.mean(-1, keepdim=True)) / deviation * weight + bias
    (y * tokens_of(inputs, "upstream")).sum().backward()
    parts = zip(slices_of(y.detach(), case.n), slices_of(x.grad, case.n), strict=True)
    return [{"returns": y, "x.grad": g, "weight.grad": weight.grad, "bias.grad": bias.grad} for y, g in parts]


SOLUTION = """
    class Shared(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weights):
            return weights.view_as(weights)

        @staticmethod
        def backward(ctx, gradient):
            total = gradient.clone()
            dist.all_reduce(total, group=group)
            return total

    weight, bias = Shared.apply(torch.stack([weight, bias]))
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, epsilon)
    """

PUZZLE = Puzzle(
    name="sequence_parallel.norm_on_a_slice",
    title="A norm on a slice of the tokens",
    statement="""
        LayerNorm takes off each token's mean over its features, and divides by their deviation:

            y = weight · (x - mean) / sqrt(variance + epsilon) + bias

        It looks at one token at a time. With sequence parallelism every rank has some of the tokens, and the norm needs
        no message. But weight and bias are the same on every rank, and must stay so: all ranks have to take the same
        step, the one that a single process with all tokens would take. So what must `weight.grad` be on every rank?

        `torch.nn.functional.layer_norm(x, [D], weight, bias, epsilon)` is the norm. A `torch.autograd.Function` may do
        nothing on the way there and something on the way back.

        Args:
            x: [B, S/n, D], this rank's tokens.
            weight: [D], the same on every rank.
            bias: [D], the same on every rank.
            epsilon: added to the variance.
            group: n ranks. Any n.

        Returns: y, like `x`. After its backward, `x.grad` is that of this rank's tokens, and `weight.grad` and
        `bias.grad` are those of all tokens, on every rank.

        Budget: one all-reduce of 2 D numbers.
        """,
    function=layer_norm,
    answer=SOLUTION,
    cases=cases(worlds=(4,), batch=(2,), slice=(3,), width=(4,))
    + cases(worlds=(3, 2, 1, 5), batch=(1,), slice=(2,), width=(5,))
    + cases(worlds=(8,), batch=(2,), slice=(1,), width=(3,))
    + cases(worlds=(4,), members=(0, 2, 3), batch=(2,), slice=(2,), width=(4,)),
    drawn=on_any_ranks(batch=(1, 2), slice=(1, 2, 3), width=(3, 4, 5)),
    inputs=a_slice_and_the_weights,
    oracle=all_tokens_in_one_process,
    drive=there_and_back,
    tolerance=1e-9,
    calls=(dist.all_reduce,),
    budgets=(
        Budget(Measure.CALLS, target=lambda case: 1, why="both gradients fit into one tensor: torch.stack"),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: all_reduce_of(case, 2 * case.width),
            why="of each weight, one number of each rank is enough: the tokens stay where they are",
        ),
    ),
    hints=(
        "Think of one process that norms all tokens. Its weight.grad is a sum over tokens. Which part of that sum does "
        "a rank find by itself?",
        "Write a Function that returns its argument as it is, and sums its gradient over the ranks. Send weight and "
        "bias through it before they meet the norm.",
        "forward: `return weights.view_as(weights)`; backward: a clone of the gradient, `dist.all_reduce` of it, and "
        "return that. One call for both: `weight, bias = Shared.apply(torch.stack([weight, bias]))`.",
    ),
    wrong=(
        Wrong(
            "the gradients of the norm are left unreduced",
            diagnosis=r"weight\.grad\[0\]: expected .*(\n.*)*weight\.grad must be the same on every rank",
            body="return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, epsilon)",
        ),
        Wrong(
            "averaged",
            diagnosis=r"weight\.grad\[0\]: expected -?[\d.]+, got",
            edits=(("return total", "return total / dist.get_world_size(group)"),),
        ),
        Wrong(
            "bias is forgotten",
            diagnosis=r"bias\.grad\[0\]: expected .*(\n.*)*bias\.grad must be the same on every rank",
            edits=(
                ("    weight, bias = Shared.apply(torch.stack([weight, bias]))", "    weight = Shared.apply(weight)"),
            ),
        ),
        Wrong(
            "the weights themselves are summed",
            diagnosis=r"result\[0, 0, 0\]: expected",
            edits=(
                (
                    "return weights.view_as(weights)",
                    "total = weights.clone()\n"
                    "            dist.all_reduce(total, group=group)\n"
                    "            return total",
                ),
            ),
        ),
        Wrong(
            "tokens are normed by the mean over all ranks, as in batch norm",
            diagnosis=r"result\[0, 0, 0\]: expected",
            body=SOLUTION.replace(
                "    return torch.nn",
                "    mean = x.detach().mean((0, 1))\n"
                "    dist.all_reduce(mean, group=group)\n"
                "    x = x - mean / dist.get_world_size(group)\n"
                "    return torch.nn",
            ),
        ),
        Wrong(
            "the gradient of the tokens is summed, too",
            diagnosis=r"x\.grad\[0, 0, 0\]: expected",
            edits=(("layer_norm(x, weight.shape", "layer_norm(Shared.apply(x), weight.shape"),),
        ),
        Wrong(
            "a message for each weight",
            diagnosis=r"right, but a rank makes 2 calls where 1 must do.*\n.*fit into one tensor",
            edits=(("Shared.apply(torch.stack([weight, bias]))", "Shared.apply(weight), Shared.apply(bias)"),),
        ),
        Wrong(
            "every rank's part to all ranks",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*one number of each rank is enough",
            edits=(
                (
                    "            total = gradient.clone()\n            dist.all_reduce(total, group=group)\n"
                    "            return total\n",
                    "            every = gradient.new_zeros(dist.get_world_size(group), *gradient.shape)\n"
                    "            every[dist.get_rank(group)] = gradient\n"
                    "            dist.all_reduce(every, group=group)\n"
                    "            return every.sum(0)\n",
                ),
            ),
        ),
    ),
)
