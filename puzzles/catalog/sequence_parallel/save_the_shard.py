"""sequence_parallel.save_the_shard: what was gathered can be gathered again."""

import torch

from puzzles.grading.drives import there_and_back
from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.sequence_parallel.answers.on_slices import column_linear
from reference.sequence_parallel.plain import gather_slices, sum_slices

from .common import DOUBLE, called, leaves, mine, one_pass, part_of, slices_of, tokens_of, whole


def a_slice_and_my_columns(case, rank):
    """This rank's tokens, its columns, and a gradient of its features of all tokens."""
    return {
        "x": case.normal(rank, *mine(case)),
        "weight": part_of(case, rank, case.hidden, case.width, "weight"),
        "upstream": case.normal(rank, *whole(case, case.hidden), name="upstream"),
        **called(case),
    }


def whole_matrix_in_one_process(case, inputs):
    """All tokens and all columns, by autograd."""
    x, weight = leaves([tokens_of(inputs, "x"), torch.cat([each["weight"] for each in inputs])])
    y = x @ weight.T
    y = y * case.get("times", 1)
    (y * torch.cat([each["upstream"] for each in inputs], dim=-1)).sum().backward()
    features = y.detach().chunk(case.n, dim=-1)
    found = zip(features, slices_of(x.grad, case.n), weight.grad.chunk(case.n), strict=True)
    return [{"returns": y, "x.grad": of_x, "weight.grad": of_weight} for y, of_x, of_weight in found]


def gathered_twice(case, inputs, outputs, trace):
    """A rank that sends less has kept the tokens, in whatever form."""
    return [
        Claim(
            max(trace.bytes_sent) >= 3 * case.get("times", 1) * one_pass(case),
            "nothing was gathered for backward: keep this rank's slice alone, and gather the others' again",
        )
    ]


SOLUTION = """
    class ColumnLinear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return gather_slices(x, group) @ weight.T

        @staticmethod
        def backward(ctx, gradient):
            x, weight = ctx.saved_tensors
            tokens = gather_slices(x, group)
            of_weight = gradient.flatten(0, 1).T @ tokens.flatten(0, 1)
            return sum_slices(gradient @ weight, group), of_weight

    return ColumnLinear.apply(x, weight)
    """

PUZZLE = Puzzle(
    name="sequence_parallel.save_the_shard",
    title="Save the slice, not what was gathered",
    statement="""
        A column-parallel linear layer after a norm. The norm leaves a slice of the tokens on each rank; the layer
        needs all of them:

            forward      tokens = gather x                 y = tokens @ weight.T
            backward     gradient of weight = gradientᵀ @ tokens, over all tokens
                         gradient of x = (gradient @ weight), summed over the ranks, this rank's slice of it

        Backward needs all tokens once more. A rank that keeps them from forward on has n times as much in memory as its
        share, in every layer, and sequence parallelism has saved nothing here. But they lie in slices on the ranks: a
        rank keeps its own, and backward gathers them again. (Megatron-LM does this, and hides the message behind the
        product that does not need it.)

        Write a `torch.autograd.Function`, by hand and without `torch.utils.checkpoint`, and return what its `apply`
        returns. `ctx.save_for_backward(...)` keeps tensors, `ctx.saved_tensors` has them again. `backward` returns one
        gradient for each argument of `forward` after ctx.

        Given are `gather_slices(x, group)`, [B, S/n, D] -> [B, S, D], and `sum_slices(x, group)`, [B, S, D] ->
        [B, S/n, D], which adds up what all ranks have made and gives each its slice. No gradients pass through them.

        Args:
            x: [B, S/n, D], this rank's tokens.
            weight: [F/n, D], this rank's rows.
            group: n ranks. Any n.

        Returns: [B, S, F/n], this rank's features of all tokens.

        Budget: between forward and backward, nothing but the output is there. A slice is sent n-1 times in each of
        three passes.
        """,
    function=column_linear,
    answer=SOLUTION,
    cases=cases(worlds=(4,), batch=(2,), slice=(3,), width=(5,), hidden=(2,))
    + cases(worlds=(3, 2, 1, 5), batch=(1,), slice=(2,), width=(4,), hidden=(3,))
    + cases(worlds=(4,), members=(0, 2, 3), batch=(2,), slice=(2,), width=(3,), hidden=(2,)),
    drawn=on_any_ranks(batch=(1, 2), slice=(1, 2, 3), width=(3, 4), hidden=(2, 3)),
    large=case(2, batch=1, slice=5000, width=128, hidden=2, times=4),
    inputs=a_slice_and_my_columns,
    oracle=whole_matrix_in_one_process,
    judge=gathered_twice,
    drive=there_and_back,
    tolerance=1e-10,
    given=(gather_slices, sum_slices),
    budgets=(
        Budget(
            Measure.KEPT_BYTES,
            target=lambda case: DOUBLE * torch.Size(whole(case, case.hidden)).numel(),
            why="the gathered tokens are kept for backward: keep the slice, and gather it again",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: 3 * one_pass(case),
            why="gather, gather again, and scatter the sum: more is not needed",
        ),
    ),
    hints=(
        "What does backward need that forward has made? From what can it be made again, and who has that?",
        "`ctx.save_for_backward(x, weight)` costs nothing: both are there anyway. Backward begins with a gather.",
        "Gradients: `gradient.flatten(0, 1).T @ tokens.flatten(0, 1)` for the weight, and "
        "`sum_slices(gradient @ weight, group)` for x.",
    ),
    wrong=(
        Wrong(
            "the gathered tokens are kept",
            diagnosis=r"right, but when it has returned it still holds 1,344 B where 384 must do.*\n.*keep the slice",
            edits=(
                (
                    "            ctx.save_for_backward(x, weight)\n",
                    "            tokens = gather_slices(x, group)\n            ctx.save_for_backward(tokens, weight)\n",
                ),
                ("            return gather_slices(x, group) @ weight.T", "            return tokens @ weight.T"),
                (
                    "            x, weight = ctx.saved_tensors\n            tokens = gather_slices(x, group)\n",
                    "            tokens, weight = ctx.saved_tensors\n",
                ),
            ),
        ),
        Wrong(
            "the gathered tokens are kept, as numbers of Python's",
            diagnosis=r"right, but nothing was gathered for backward: keep this rank's slice alone",
            edits=(
                (
                    "            ctx.save_for_backward(x, weight)\n",
                    "            tokens = gather_slices(x, group)\n            ctx.tokens = tokens.tolist()\n"
                    "            ctx.save_for_backward(weight)\n",
                ),
                (
                    "            x, weight = ctx.saved_tensors\n            tokens = gather_slices(x, group)\n",
                    "            (weight,) = ctx.saved_tensors\n            tokens = weight.new_tensor(ctx.tokens)\n",
                ),
                ("            return gather_slices(x, group) @ weight.T", "            return tokens @ weight.T"),
            ),
        ),
        Wrong(
            "a Function that gathers, and autograd does the rest",
            diagnosis=r"right, but when it has returned it still holds [\d,]+ B where .* must do.*\n.*gather it again",
            body="""
                class Gather(torch.autograd.Function):
                    @staticmethod
                    def forward(ctx, x):
                        return gather_slices(x, group)

                    @staticmethod
                    def backward(ctx, gradient):
                        return sum_slices(gradient, group)

                return Gather.apply(x) @ weight.T
                """,
        ),
        Wrong(
            "a copy of the slice is kept",
            diagnosis=r"right, but when it has returned it still holds 624 B where 384 must do",
            edits=(("ctx.save_for_backward(x, weight)", "ctx.save_for_backward(x.clone(), weight)"),),
        ),
        Wrong(
            "the sum on all ranks, and a slice of it",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*scatter the sum",
            edits=(
                (
                    "            return sum_slices(gradient @ weight, group), of_weight",
                    "            total = gather_slices(sum_slices(gradient @ weight, group), group)\n"
                    "            return total.chunk(dist.get_world_size(group), 1)[dist.get_rank(group)], of_weight",
                ),
            ),
        ),
        Wrong(
            "gradients of x are not added up",
            diagnosis=r"x\.grad\[0, 0, 0\]: expected -?[\d.]+, got",
            edits=(
                (
                    "sum_slices(gradient @ weight, group)",
                    "(gradient @ weight).chunk(dist.get_world_size(group), 1)[dist.get_rank(group)]",
                ),
            ),
        ),
        Wrong(
            "the weight learns from this rank's slice alone",
            diagnosis=r"weight\.grad\[0, 0\]: expected -?[\d.]+, got",
            edits=(
                ("            tokens = gather_slices(x, group)\n", ""),
                (
                    "gradient.flatten(0, 1).T @ tokens.flatten(0, 1)",
                    "gradient.chunk(group.size(), 1)[group.rank()].flatten(0, 1).T @ x.flatten(0, 1)",
                ),
            ),
        ),
        Wrong(
            "the slice is used as if it were all tokens",
            diagnosis=r"shapes cannot be multiplied|size mismatch|must match",
            edits=(("            tokens = gather_slices(x, group)\n", "            tokens = x\n"),),
        ),
        Wrong(
            "gradients in the order in which they came to mind",
            diagnosis=r"returned an invalid gradient at index 0",
            edits=(
                (
                    "return sum_slices(gradient @ weight, group), of_weight",
                    "return of_weight, sum_slices(gradient @ weight, group)",
                ),
            ),
        ),
    ),
)
