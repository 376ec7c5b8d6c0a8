"""tensor_parallel.row_linear: each rank has some of the input features, and the bias is added once."""

from functools import partial

import torch
import torch.distributed as dist

from puzzles.grading.drives.tensor_parallel import named
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.tensor_parallel.answers.linear import row_linear

from .common import ALL_GATHER, DOUBLE, LAYER, all_reduces, numbers, part

WIDTH = 4


def a_whole_layer(case):
    """x, weight, bias and the gradient of y, as one process has them."""
    features = case.n * case.features
    bias = numbers(case, "bias", WIDTH) * (case.bias == "normal")
    y_gradient = numbers(case, "upstream", case.tokens, WIDTH)
    return numbers(case, "x", case.tokens, features), numbers(case, "weight", WIDTH, features), bias, y_gradient


def columns_of_it(case, rank):
    """This rank's columns of x (or all of them) and of the weight; bias and gradient of y are those of all ranks."""
    x, weight, bias, upstream = a_whole_layer(case)
    return {
        "x": x if case.split else part(x, case, rank, 1),
        "weight": part(weight, case, rank, 1),
        "bias": bias,
        "upstream": upstream,
        "split": case.split,
    }


def layer_in_one_process(case, inputs):
    """The whole layer by autograd; then every rank's part of what came out."""
    x, weight, bias, upstream = a_whole_layer(case)
    leaves = [each.requires_grad_() for each in (x, weight, bias)]
    y = torch.nn.functional.linear(*leaves)
    y.backward(upstream)
    found = []
    for rank in range(case.n):
        x_gradient = x.grad if case.split else part(x.grad, case, rank, 1)
        values = (y.detach(), x_gradient, part(weight.grad, case, rank, 1), bias.grad)
        found.append({"returns": "4 tensors", **dict(zip(LAYER, values, strict=True))})
    return found


def sent(case):
    """Bytes of one all-reduce of y, and of one gather of the gradient of x where it is joined."""
    return all_reduces(case, (case.tokens, WIDTH)) + case.split * (case.n - 1) * case.tokens * case.features * DOUBLE


PUZZLE = Puzzle(
    name="tensor_parallel.row_linear",
    title="A linear layer, split by rows",
    statement="""
        After a layer that is split by columns, each rank has some of the features. The next layer can start from
        there: y = x Bᵀ + b is a sum over input features, and rank r has those summands that belong to its own. So it
        has these columns of B (torch's `weight`; in the paper B is transposed, and they are rows). Compute this layer,
        forward and backward, without autograd. y has all its features on every rank, and so has its gradient.

        With u for the gradient of y, a layer in one process has

            gradient of x = u B        gradient of B = uᵀ x        gradient of b = the sum of u's rows

        The bias is whole on every rank. How often is it in y?

        With `split`, x is whole on every rank, and each takes its own features out of it. All ranks have done the same
        to make this x, so all need the whole gradient of it.

        The all-gather is called `all_gather_single(out, x, group=group)`, before torch 2.13 `all_gather_into_tensor`:
        it puts every rank's x below each other. `all_gather` of a list of tensors will do, too.

        Args:
            x: [T, F / n], T tokens, this rank's features; with `split` [T, F], the same on every rank.
            weight: [D, F / n], this rank's columns.
            bias: [D], the same on every rank.
            upstream: [T, D], gradient of y, the same on every rank.
            split: whether this rank's features are to be taken out of x.
            group: n ranks. Any n.

        Returns: four tensors: y, [T, D], the same on every rank; the gradients of x (of its shape), of this rank's
        weight, and of the bias (all of it, the same on every rank).

        Budget: one all-reduce of a tensor like y; with `split` one all-gather of a tensor like x, too.
        """,
    function=row_linear,
    cases=cases(worlds=(2,), split=(False, True), tokens=(3,), features=(2,), bias=("normal", "zeros"))
    + cases(worlds=(3, 4, 1, 5), split=(False, True), tokens=(3,), features=(2,), bias=("normal",))
    + cases(worlds=(3,), split=(False, True), tokens=(1, 5), features=(1, 3), bias=("normal",))
    + cases(worlds=(8,), split=(True,), tokens=(2,), features=(1,), bias=("normal",))
    + cases(worlds=(4,), members=(0, 2, 3), split=(True,), tokens=(2,), features=(2,), bias=("normal",)),
    drawn=on_any_ranks(split=(False, True), tokens=range(2, 6), features=(1, 2, 3), bias=("normal",)),
    inputs=columns_of_it,
    oracle=layer_in_one_process,
    drive=partial(named, LAYER),
    calls=(dist.all_reduce, *ALL_GATHER),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=sent,
            why="weights and features stay where they are: what must travel are the sums that y is made of",
        ),
        Budget(
            Measure.CALLS,
            target=lambda case: 1 + case.split,
            why="every rank has the same gradient of y: what follows from it needs no sum over ranks",
        ),
    ),
    hints=(
        "`x @ weight.T` has the shape of y on every rank, and is a part of it. What makes the whole of the parts?",
        "Add the bias to the sum. Added before, it would be in every rank's part, and n times in y: then the output, "
        "and with it the loss, would depend on how many ranks there are.",
        "Backward needs no sum: `upstream @ weight` is the gradient of this rank's features. With `split`, all-gather "
        "those, and put them side by side: `torch.cat(parts.chunk(n), dim=1)`.",
    ),
    wrong=(
        Wrong(
            "the bias is added on every rank",
            diagnosis=r"rank 0, y\[\d, \d\]: expected .*\n.*right with bias=zeros, wrong with bias=normal",
            edits=(("own @ weight.T\n", "own @ weight.T + bias\n"), ("    y += bias\n", "")),
        ),
        Wrong(
            "a rank's own part of y",
            diagnosis=r"y\[\d, \d\]: expected .*\n.*y must be the same on every rank: rank 0 and rank 1 differ",
            edits=(("    dist.all_reduce(y, group=group)\n", ""),),
        ),
        Wrong(
            "sums on the way back, too",
            diagnosis=r"gradient of x\[0, 0\]: expected .*\n.*off by exactly the world size, too much",
            edits=(
                (
                    "    x_gradient = upstream @ weight\n",
                    "    upstream = upstream.clone()\n    dist.all_reduce(upstream, group=group)\n"
                    "    x_gradient = upstream @ weight\n",
                ),
            ),
        ),
        Wrong(
            "the gradient of the bias is summed over ranks",
            diagnosis=r"gradient of bias\[0\]: expected .*\n.*off by exactly the world size, too much",
            edits=(
                (
                    "    return y, x_gradient, upstream.T @ own, upstream.sum(0)",
                    "    bias_gradient = upstream.sum(0)\n    dist.all_reduce(bias_gradient, group=group)\n"
                    "    return y, x_gradient, upstream.T @ own, bias_gradient",
                ),
            ),
        ),
        Wrong(
            "the gradient of x has this rank's features alone",
            diagnosis=r"gradient of x: expected a float64 tensor of shape \(3, 4\), got .*\(3, 2\)\n.*split=False",
            edits=(("    if split:\n", "    if False:\n"),),
        ),
        Wrong(
            "the mean over ranks",
            diagnosis=r"y\[\d, \d\]: expected",
            edits=(("    y += bias\n", "    y = y / n + bias\n"),),
        ),
        Wrong(
            "every rank takes the first features of x",
            diagnosis=r"right with split=False, wrong with split=True",
            edits=(("x.chunk(n, dim=1)[rank]", "x.chunk(n, dim=1)[0]"),),
        ),
        Wrong(
            "a sum for a gradient of which all ranks have a copy, divided by how many they are",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*what must travel are the sums",
            edits=(
                (
                    "    x_gradient = upstream @ weight\n",
                    "    upstream = upstream / n\n    dist.all_reduce(upstream, group=group)\n"
                    "    x_gradient = upstream @ weight\n",
                ),
            ),
        ),
        Wrong(
            "every rank's parts to all ranks",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*what must travel are the sums",
            edits=(
                (
                    "    dist.all_reduce(y, group=group)\n",
                    "    every = y.new_empty(n, *y.shape)\n    dist.all_gather(list(every), y, group=group)\n"
                    "    y = every.sum(0)\n",
                ),
            ),
        ),
    ),
)
