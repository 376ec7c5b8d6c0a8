"""collectives.differentiable_all_gather: what all ranks do with my part comes back to me, added up."""

from math import prod

import torch

from puzzles.grading.drives import there_and_back
from puzzles.grading.puzzle import Budget, Given, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import all_gather as gathers
from reference.collectives import cost, reduce_scatter
from reference.collectives.differentiable import all_gather

from .common import fewest_steps


def part_and_upstream(case, rank):
    """This rank's part, and the gradient of what it gathers: another one on every rank."""
    whole = list(case.shape)
    whole[case.dim] *= case.n
    x, upstream = (case.tensor(rank, *each, name=str(each)) for each in (case.shape, whole))
    return {"x": x, "upstream": upstream, "dim": case.dim}


def values_and_gradients(case, inputs):
    """All parts side by side; the gradient of a part is the sum of what it is on every rank."""
    whole = torch.cat([each["x"] for each in inputs], case.dim)
    total = sum(each["upstream"] for each in inputs)
    return [{"returns": whole, "x.grad": part} for part in total.chunk(case.n, case.dim)]


def numbers(case):
    """Elements of what is gathered."""
    return prod(case.shape) * case.n


PUZZLE = Puzzle(
    name="collectives.differentiable_all_gather",
    title="An all-gather that gradients pass through",
    statement="""
        Gather every rank's `x` side by side along `dim`, so that autograd can go back through it.

        Every rank then computes something else with what it has gathered. So my `x` acts on every rank's loss, and
        its gradient is the sum of the gradients that all ranks find for my part. That is a collective again; which?

        Given are `gather(x, out, group)` and `scatter_sum(x, out, group)`: the all-gather and the reduce-scatter
        around a ring. Both see memory, where parts lie one after another: dim 0 of a contiguous tensor. For another
        dim, `x.movedim(dim, 0).contiguous()` before, and `out.movedim(0, dim)` after.

        Write a `torch.autograd.Function` with `forward(ctx, ...)` and `backward(ctx, gradient)`, inside this function
        or outside, and return what its `apply` returns. `backward` returns one gradient for each argument of `forward`
        after ctx, None for those that have none.

        Args:
            x: of the same shape and dtype on every rank.
            group: n ranks. Any n.
            dim: along which the parts are joined.

        Returns: a new tensor, n times as long as `x` along `dim`, the same on every rank.

        Budget: n-1 steps there and n-1 back, and n-1 parts sent each way.
        """,
    function=all_gather,
    answer="""
        n = dist.get_world_size(group)

        class AllGather(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                rows = x.movedim(dim, 0).contiguous()
                out = rows.new_empty(n * rows.shape[0], *rows.shape[1:])
                gather(rows, out, group)
                return out.movedim(0, dim)

            @staticmethod
            def backward(ctx, gradient):
                rows = gradient.movedim(dim, 0).contiguous()
                out = rows.new_empty(rows.shape[0] // n, *rows.shape[1:])
                scatter_sum(rows, out, group)
                return out.movedim(0, dim)

        return AllGather.apply(x)
        """,
    cases=cases(worlds=(3, 2, 4, 1, 8), shape=((3, 2),), dim=(0,), dtype=(torch.float64,))
    + cases(worlds=(3,), shape=((3, 2),), dim=(1,), dtype=(torch.float64,))
    + cases(worlds=(3,), shape=((1, 3, 2),), dim=(2,), dtype=(torch.float32,))
    + cases(worlds=(4,), members=(0, 2, 3), shape=((3, 2),), dim=(0,), dtype=(torch.float64,)),
    drawn=on_any_ranks(shape=((4, 3), (2, 5), (1, 3), (7, 1)), dim=(0, 1), dtype=(torch.float64,)),
    inputs=part_and_upstream,
    oracle=values_and_gradients,
    new=True,
    drive=there_and_back,
    given=(Given(gathers.ring, "gather"), Given(reduce_scatter.ring, "scatter_sum")),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: 2 * cost.of(gathers.ring).most(case.n, numbers(case), case.dtype.itemsize),
            why="the gradient of all parts need not reach all ranks: only its sum for my part, and only me",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: 2 * cost.of(gathers.ring).steps(case.n, numbers(case), case.dtype.itemsize),
            optimum=lambda case: 2 * fewest_steps(case),
            why="one pass around the ring there, and one back",
        ),
    ),
    hints=(
        "Two ranks, one number each: x0 and x1. Both gather (x0, x1); rank 0 computes f(x0, x1), rank 1 computes "
        "g(x0, x1). What is the derivative of f + g with respect to x0, and which rank knows which half of it?",
        "Rank r needs, of every rank's gradient, part r, added up. A sum of which every rank gets one part: a "
        "reduce-scatter.",
        "`forward`: rows = x.movedim(dim, 0).contiguous(), gather into an empty tensor of n times as many rows. "
        "`backward`: the same with scatter_sum and the gradient, into an empty tensor of 1/n as many rows.",
    ),
    wrong=(
        Wrong(
            "a gather without a gradient",
            diagnosis=r"x\.grad: expected a float64 tensor.*got None|gradient",
            body="""
                n = dist.get_world_size(group)
                rows = x.detach().movedim(dim, 0).contiguous()
                out = rows.new_empty(n * rows.shape[0], *rows.shape[1:])
                gather(rows, out, group)
                return out.movedim(0, dim)
                """,
        ),
        Wrong(
            "only what this rank does with its own part",
            diagnosis=r"x\.grad\[.*expected",
            edits=(("scatter_sum(rows, out, group)", "out.copy_(rows.chunk(n)[dist.get_rank(group)])"),),
        ),
        Wrong(
            "the gradient is averaged",
            diagnosis=r"off by exactly the world size, too little: averaged, and not summed",
            edits=(
                (
                    "        return out.movedim(0, dim)\n\n    return",
                    "        return out.movedim(0, dim) / n\n\n    return",
                ),
            ),
        ),
        Wrong(
            "another rank's part",
            diagnosis=r"rank \d holds what rank \d should hold",
            edits=(
                (
                    "            rows = gradient.movedim(dim, 0).contiguous()\n",
                    "            rows = gradient.movedim(dim, 0).roll(gradient.shape[dim] // n, 0).contiguous()\n",
                ),
            ),
        ),
        Wrong(
            "only along dim 0",
            diagnosis=r"right with dim=0, wrong with dim=1|dim=1",
            edits=(
                ("rows = x.movedim(dim, 0).contiguous()", "rows = x.contiguous()"),
                ("            return out.movedim(0, dim)\n\n        @", "            return out\n\n        @"),
            ),
        ),
        Wrong(
            "all gradients to all ranks",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*only its sum for my part",
            edits=(
                (
                    "            scatter_sum(rows, out, group)\n",
                    "            every = rows.new_empty(n, *rows.shape)\n"
                    "            gather(rows, every, group)\n"
                    "            out.copy_(every.sum(0).chunk(n)[dist.get_rank(group)])\n",
                ),
            ),
        ),
        Wrong(
            "two dims only",
            diagnosis=r"t\(\) expects a tensor with <= 2 dimensions",
            edits=(
                ("rows = x.movedim(dim, 0).contiguous()", "rows = (x.t() if dim else x).contiguous()"),
                (
                    "            return out.movedim(0, dim)\n\n        @",
                    "            return out.t() if dim else out\n\n        @",
                ),
            ),
        ),
        Wrong(
            "always float64",
            diagnosis=r"float32",
            edits=(
                (
                    "out = rows.new_empty(n * rows.shape[0], *rows.shape[1:])",
                    "out = torch.empty(n * rows.shape[0], *rows.shape[1:], dtype=torch.float64)",
                ),
            ),
        ),
    ),
)
