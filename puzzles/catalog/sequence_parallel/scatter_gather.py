"""sequence_parallel.scatter_gather: from slices to all tokens and back, each the backward of the other."""

import torch

from puzzles.grading.drives.sequence_parallel import through_a_pair
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.sequence_parallel.plain import gather_and_scatter

from .common import ALL_GATHER, REDUCE_SCATTER, mine, one_pass, slices_of, tokens_of, whole


def slices_and_wholes(case, rank):
    """What goes into each of the two, and a gradient of what each returns: another one on every rank."""
    shapes = {"mine": mine(case), "whole": whole(case), "of_mine": mine(case), "of_whole": whole(case)}
    return {name: case.tensor(rank, *shape, dtype=torch.float64, name=name) for name, shape in shapes.items()}


def one_process_has_all(case, inputs):
    """Slices one after another; sums over ranks, cut into slices."""
    gathered, of_sum = tokens_of(inputs, "mine"), tokens_of(inputs, "of_mine")
    sums = slices_of(sum(each["whole"] for each in inputs), case.n)
    of_slices = slices_of(sum(each["of_whole"] for each in inputs), case.n)
    return [
        {
            "gather(x)": gathered,
            "gradient through gather": of_slices[rank],
            "scatter(x)": sums[rank],
            "gradient through scatter": of_sum,
        }
        for rank in range(case.n)
    ]


# torch has renamed both calls.
SOLUTION = f"""
    n = dist.get_world_size(group)

    def all_tokens(x):
        slices = x.new_empty(n, *x.shape)
        dist.{ALL_GATHER[0].__name__}(slices.flatten(0, 1), x.contiguous(), group=group)
        return slices.movedim(0, 1).flatten(1, 2)

    def my_sum(x):
        slices = x.unflatten(1, (n, -1)).movedim(1, 0).contiguous()
        mine = slices.new_empty(slices.shape[1:])
        dist.{REDUCE_SCATTER[0].__name__}(mine, slices.flatten(0, 1), group=group)
        return mine

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return all_tokens(x)

        @staticmethod
        def backward(ctx, gradient):
            return my_sum(gradient)

    class Scatter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return my_sum(x)

        @staticmethod
        def backward(ctx, gradient):
            return all_tokens(gradient)

    return Gather.apply, Scatter.apply
    """

BY_ALL_REDUCE = """
    rank, n = dist.get_rank(group), dist.get_world_size(group)

    def all_tokens(x):
        batch, tokens, width = x.shape
        every = x.new_zeros(batch, n * tokens, width)
        every.chunk(n, 1)[rank].copy_(x)
        dist.all_reduce(every, group=group)
        return every

    def my_sum(x):
        total = x.clone().contiguous()
        dist.all_reduce(total, group=group)
        return total.chunk(n, 1)[rank].contiguous()

""" + SOLUTION[SOLUTION.index("    class Gather") :]

PUZZLE = Puzzle(
    name="sequence_parallel.scatter_gather",
    title="From slices to all tokens, and back",
    statement="""
        A norm, a dropout, a residual look at each token by itself. So outside of attention and MLP each rank can do its
        share of the tokens: rank r has the r-th slice of the sequence. Inside, each rank works on all tokens, with its
        own heads or its own columns, and what the ranks make there must be added up.

            slices [B, S/n, D]  --gather-->  all tokens [B, S, D]
            all tokens [B, S, D]  --this rank's work-->  parts of a sum [B, S, D]
            parts of a sum [B, S, D]  --scatter-->  slices of the sum [B, S/n, D]

        Write both, so that gradients find their way back. Every rank does *other* work with all tokens, and so finds
        another gradient for them. What is the gradient of my slice then, and of the part that I gave to a sum?

        You may want a `torch.autograd.Function` for each, with `forward(ctx, x)` and `backward(ctx, gradient)`; their
        `apply` is what to return.

        What you need of torch.distributed is called `all_gather_single(out, x, group=group)` and
        `reduce_scatter_single(out, x, group=group)`, before torch 2.13 `all_gather_into_tensor` and
        `reduce_scatter_tensor`. Both see memory: the longer tensor is contiguous and has n times as many rows,
        [n·B, S/n, D], and the r-th part of them belongs to rank r. Slices of a sequence lie in dim 1.

        Args:
            group: n ranks. Any n; it divides S.

        Returns: two functions of one tensor, (gather, scatter).

        Budget: a slice sent n-1 times in each pass, four times for both there and back. An all-reduce counts double.
        """,
    function=gather_and_scatter,
    answer=SOLUTION,
    cases=cases(worlds=(4,), batch=(2,), slice=(2,), width=(3,))
    + cases(worlds=(3,), batch=(1, 2), slice=(1, 3), width=(2,))
    + cases(worlds=(2, 1, 5, 8), batch=(2,), slice=(2,), width=(2,))
    + cases(worlds=(4,), members=(0, 2, 3), batch=(2,), slice=(2,), width=(2,)),
    drawn=on_any_ranks(batch=(1, 2), slice=(1, 2, 3), width=(2, 3)),
    inputs=slices_and_wholes,
    oracle=one_process_has_all,
    drive=through_a_pair,
    calls=(*ALL_GATHER, *REDUCE_SCATTER),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: 4 * one_pass(case),
            why="no rank needs the whole sum, and a slice need not be added to zeros: half of an all-reduce will do",
        ),
    ),
    hints=(
        "Two ranks compute something different with the same token x. What is the gradient of both results together "
        "with respect to x, and who knows which part of it?",
        "Forward and backward of `gather` are an all-gather and a reduce-scatter, those of `scatter` the same two, the "
        "other way around. So write each once, as a function without gradients.",
        "All tokens: `slices` is empty, [n, B, S/n, D]; gather into `slices.flatten(0, 1)`, which is the same memory; "
        "then `slices.movedim(0, 1).flatten(1, 2)`. And back: `x.unflatten(1, (n, -1)).movedim(1, 0).contiguous()` "
        "has the slices of all ranks one after another.",
    ),
    wrong=(
        Wrong(
            "split and join: each keeps its own part of the gradient",
            diagnosis=r"gradient through gather\[0, 0, 0\]: expected -?[\d.]+, got",
            edits=(("return my_sum(gradient)", "return gradient.chunk(n, 1)[dist.get_rank(group)].contiguous()"),),
        ),
        Wrong(
            "a slice of one's own part, and not of the sum",
            diagnosis=r"scatter\(x\)\[0, 0, 0\]: expected -?[\d.]+, got",
            edits=(("return my_sum(x)", "return x.chunk(n, 1)[dist.get_rank(group)].clone()"),),
        ),
        Wrong(
            "no gradient at all",
            diagnosis=r"gradient through gather: expected a float64 tensor of shape \(2, 2, 3\), got None",
            edits=(("return Gather.apply, Scatter.apply", "return all_tokens, my_sum"),),
        ),
        Wrong(
            "gradients are averaged",
            diagnosis=r"gradient through gather\[0, 0, 0\].*(\n.*)*off by exactly the world size, too little",
            edits=(("return my_sum(gradient)", "return my_sum(gradient) / n"),),
        ),
        Wrong(
            "slices as memory has them, not as the sequence has them",
            diagnosis=r"gather\(x\)\[0, 2, 0\]: expected .*\n.*right with batch=1, wrong with batch=2",
            edits=(("slices.movedim(0, 1).flatten(1, 2)", "slices.view(x.shape[0], -1, x.shape[2])"),),
        ),
        Wrong(
            "every n-th token is mine",
            diagnosis=r"right with slice=1, wrong with slice=2, 3",
            edits=(("unflatten(1, (n, -1)).movedim(1, 0)", "unflatten(1, (-1, n)).movedim(2, 0)"),),
        ),
        Wrong(
            "the gradient of the sum is summed, too",
            diagnosis=r"gradient through scatter\[0, 0, 0\]: expected .*(\n.*)*off by exactly the world size, too much",
            edits=(
                (
                    "return all_tokens(gradient)",
                    "return all_tokens(my_sum(all_tokens(gradient)))",
                ),
            ),
        ),
        Wrong(
            "all-reduce there and back, in both",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*half of an all-reduce will do",
            body=BY_ALL_REDUCE,
        ),
        Wrong(
            "a sum for all ranks, and a slice of it",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*no rank needs the whole sum",
            edits=(
                (
                    "        return mine\n",
                    "        every = all_tokens(mine)\n"
                    "        return every.chunk(n, 1)[dist.get_rank(group)].contiguous()\n",
                ),
            ),
        ),
    ),
)
