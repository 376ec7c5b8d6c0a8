"""tensor_parallel.column_linear: each rank makes some of the output features."""

from functools import partial

import torch
import torch.distributed as dist

from puzzles.grading.drives.tensor_parallel import named
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.tensor_parallel.answers.linear import column_linear

from .common import ALL_GATHER, DOUBLE, LAYER, all_reduces, numbers, part

WIDTH = 4


def a_whole_layer(case):
    """x, weight, bias and the gradient of y, as one process has them."""
    features = case.n * case.features
    shapes = {"x": (case.tokens, WIDTH), "weight": (features, WIDTH), "bias": (features,)}
    return [numbers(case, name, *shape) for name, shape in (*shapes.items(), ("upstream", (case.tokens, features)))]


def rows_of_it(case, rank):
    """The whole input, this rank's rows of weight and bias, and the gradient of what it is to return."""
    x, weight, bias, upstream = a_whole_layer(case)
    return {
        "x": x,
        "weight": part(weight, case, rank, 0),
        "bias": part(bias, case, rank, 0),
        "upstream": upstream if case.join else part(upstream, case, rank, 1),
        "join": case.join,
    }


def layer_in_one_process(case, inputs):
    """The whole layer by autograd; then every rank's part of what came out."""
    x, weight, bias, upstream = a_whole_layer(case)
    leaves = [each.requires_grad_() for each in (x, weight, bias)]
    y = torch.nn.functional.linear(*leaves)
    y.backward(upstream)
    y = y.detach()
    return [
        {"returns": "4 tensors"}
        | dict(zip(LAYER[:2], (y if case.join else part(y, case, rank, 1), x.grad), strict=True))
        | dict(zip(LAYER[2:], (part(each.grad, case, rank, 0) for each in (weight, bias)), strict=True))
        for rank in range(case.n)
    ]


def sent(case):
    """Bytes of one all-reduce of what x is large, and of one gather of y where it is joined."""
    return all_reduces(case, (case.tokens, WIDTH)) + case.join * joined(case)


def joined(case):
    """Bytes that a rank sends when all ranks' features of y are gathered."""
    return (case.n - 1) * case.tokens * case.features * DOUBLE


PUZZLE = Puzzle(
    name="tensor_parallel.column_linear",
    title="A linear layer, split by columns",
    statement="""
        A linear layer is y = x Aᵀ + b, where row f of A (torch's `weight`) makes feature f of y, and no other. So ranks
        can share the features: rank r has the r-th n-th of the rows of A and of b, and sees all tokens. Compute this
        layer, forward and backward, without autograd. In the paper A is transposed, and its rows are columns: hence
        the name.

        With u for the gradient of y, a layer in one process has

            gradient of x = u A        gradient of A = uᵀ x        gradient of b = the sum of u's rows

        Which of these does a rank know by itself, and which only together with the others?

        What comes next may want each rank's features where they are, or (with `join`) every rank's on every rank. In
        that case all ranks then do the same, so `upstream` is whole, and the same on all of them.

        The all-gather is called `all_gather_single(out, x, group=group)`, before torch 2.13 `all_gather_into_tensor`:
        it puts every rank's x below each other. `all_gather` of a list of tensors will do, too.

        Args:
            x: [T, D], T tokens, the same on every rank.
            weight: [F / n, D], this rank's rows.
            bias: [F / n], this rank's.
            upstream: gradient of the y that is returned, of its shape.
            join: whether every rank gets all ranks' features.
            group: n ranks. Any n.

        Returns: four tensors: y, [T, F / n], or [T, F] with `join`; the gradients of x (of the whole layer, the same on
        every rank), of this rank's weight, and of this rank's bias.

        Budget: one all-reduce of a tensor like x; with `join` one all-gather of y, too.
        """,
    function=column_linear,
    cases=cases(worlds=(2, 3, 4, 1, 5), join=(False, True), tokens=(3,), features=(2,))
    + cases(worlds=(3,), join=(False, True), tokens=(1, 5), features=(1, 3))
    + cases(worlds=(8,), join=(True,), tokens=(2,), features=(1,))
    + cases(worlds=(4,), members=(0, 2, 3), join=(True,), tokens=(2,), features=(2,)),
    drawn=on_any_ranks(join=(False, True), tokens=range(2, 6), features=(1, 2, 3)),
    inputs=rows_of_it,
    oracle=layer_in_one_process,
    drive=partial(named, LAYER),
    calls=(dist.all_reduce, *ALL_GATHER),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=sent,
            why="the weights stay where they are: what must travel is the gradient of x, and y where it is joined",
        ),
        Budget(
            Measure.CALLS,
            target=lambda case: 1 + case.join,
            why="weight and bias of this rank concern no other rank: their gradients are whole already",
        ),
    ),
    hints=(
        "x is used by every rank, each with its own rows of A. What does that mean for the gradient of x? What uses "
        "this rank's rows?",
        "u A is a sum over all features. Each rank knows the summands of its own: `upstream @ weight`. One all-reduce.",
        "With `join`: `dist.all_gather_single(parts, y, group=group)` puts every rank's y below each other, "
        "[n T, F / n]; `torch.cat(parts.chunk(n), dim=1)` puts them side by side. On the way back take your own "
        "columns: `upstream.chunk(n, dim=1)[rank]`.",
    ),
    wrong=(
        Wrong(
            "the gradient of x is only this rank's",
            diagnosis=r"gradient of x\[0, 0\]: expected .*\n.*gradient of x must be the same on every rank",
            edits=(("    dist.all_reduce(x_gradient, group=group)\n", ""),),
        ),
        Wrong(
            "the gradient of x is averaged",
            diagnosis=r"gradient of x\[0, 0\].*\n.*off by exactly the world size, too little: averaged",
            edits=(("upstream @ weight\n", "upstream @ weight / n\n"),),
        ),
        Wrong(
            "the gradient of the weight is summed over ranks",
            diagnosis=r"rank 0, gradient of weight\[0, 0\]: expected",
            edits=(
                (
                    "    return y, x_gradient, upstream.T @ x,",
                    "    weight_gradient = upstream.T @ x\n    dist.all_reduce(weight_gradient, group=group)\n"
                    "    return y, x_gradient, weight_gradient,",
                ),
            ),
        ),
        Wrong(
            "the joined gradient is added up, as if ranks had done different things with y",
            diagnosis=r"gradient of x\[0, 0\].*\n.*right with join=False, wrong with join=True\n.*off by exactly",
            edits=(
                (
                    "        upstream = upstream.chunk",
                    "        upstream = upstream.clone()\n        dist.all_reduce(upstream, group=group)\n"
                    "        upstream = upstream.chunk",
                ),
            ),
        ),
        Wrong(
            "features are joined below each other",
            diagnosis=r"join=True.*y\[0, \d\]: expected",
            edits=(("torch.cat(parts.chunk(n), dim=1)", "parts.view(len(x), -1)"),),
        ),
        Wrong(
            "no bias",
            diagnosis=r"rank 0, y\[\d, \d\]: expected",
            edits=((" + bias\n", "\n"),),
        ),
        Wrong(
            "every rank takes the first features of the gradient",
            diagnosis=r"right with join=False, wrong with join=True",
            edits=(("upstream.chunk(n, dim=1)[rank]", "upstream.chunk(n, dim=1)[0]"),),
        ),
        Wrong(
            "joined by a sum of what is mostly zeros",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*what must travel",
            edits=(
                (
                    "        parts = y.new_empty(n * len(y), len(weight))\n"
                    "        all_gather_single(parts, y, group=group)\n"
                    "        y = torch.cat(parts.chunk(n), dim=1)\n",
                    "        every = y.new_zeros(len(y), n * len(weight))\n"
                    "        every.chunk(n, dim=1)[rank].copy_(y)\n"
                    "        dist.all_reduce(every, group=group)\n"
                    "        y = every\n",
                ),
            ),
        ),
        Wrong(
            "gathers the weights, and computes the whole layer",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*weights stay where they are",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)

                def every(part):
                    parts = part.new_empty(n * part.shape[0], *part.shape[1:])
                    dist.all_gather_into_tensor(parts, part.contiguous(), group=group)
                    return parts

                own = upstream.chunk(n, dim=1)[rank] if join else upstream
                whole = upstream if join else torch.cat(every(upstream).chunk(n), dim=1)
                A = every(weight)
                y = x @ A.T + every(bias) if join else x @ weight.T + bias
                return y, whole @ A, own.T @ x, own.sum(0)
                """,
        ),
    ),
)
