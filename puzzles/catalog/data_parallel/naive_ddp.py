"""data_parallel.naive_ddp: replicas that learn from each other by one sum for each gradient."""

import torch.distributed as dist

from puzzles.grading.drives.data_parallel import in_place
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.data_parallel.replicated import naive, native

from .common import FLOAT, gradients_of_a_rank, sent, sizes_of, summed_over_ranks

PUZZLE = Puzzle(
    name="data_parallel.naive_ddp",
    title="Naive data parallelism: sum every gradient",
    statement="""
        Every rank has the same model, and has gone backward through it with its own part of the batch. Before any rank
        takes a step, all must have the gradients of the whole batch, the same on every rank.

        The loss of each rank is the sum over its own samples, divided by the number of samples of *all* ranks. So the
        gradients of the parts add up to that of the whole, and there is nothing to be divided any more.

        Given is `all_reduce(x, group)`, which makes `x` on every rank the sum of every rank's `x`, in place: torch's
        own, as it is called here. Your ring would fit, too.

        Args:
            gradients: of the parameters, one after the other; of the same shapes in the same order on every rank.
            group: n ranks. Any n.
            all_reduce: how to sum one of them.

        Afterwards each of `gradients` holds the sum over all ranks, in place.

        Budget: one all-reduce for each gradient.
        """,
    function=naive,
    cases=cases(worlds=(2, 3, 4, 1, 5, 8), widths=((4, 3, 2),))
    + cases(worlds=(3,), widths=((1, 1), (6, 5, 5, 7)))
    + cases(worlds=(4,), members=(0, 2, 3), widths=((3, 2),)),
    drawn=on_any_ranks(widths=((3, 5, 2), (6, 1, 4), (2, 7, 3))),
    inputs=gradients_of_a_rank,
    oracle=summed_over_ranks,
    drive=in_place,
    calls=(dist.all_reduce,),
    given=(native,),
    budgets=(
        Budget(Measure.CALLS, target=lambda case: len(sizes_of(case)), why="each gradient is summed once"),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: sent(case, FLOAT),
            why="a rank needs the sum, not what every rank has brought to it",
        ),
    ),
    hints=(
        "With one process and the whole batch there would be one loss. How do the losses of the ranks make it up, and "
        "so their gradients?",
        "A loop over `gradients`, and `all_reduce(gradient, group)` in it.",
    ),
    wrong=(
        Wrong(
            "averaged",
            diagnosis=r"off by exactly the world size, too little: averaged, and not summed",
            body="""
                for gradient in gradients:
                    all_reduce(gradient, group)
                    gradient /= dist.get_world_size(group)
                """,
        ),
        Wrong(
            "a copy is summed",
            diagnosis=r"still holds its own input|expected -?[\d.]+, got",
            edits=(("all_reduce(gradient, group)", "all_reduce(gradient.clone(), group)"),),
        ),
        Wrong(
            "in an order that differs from rank to rank",
            diagnosis=r"all_reduce.*shape|shape|elements|sizes",
            edits=(
                (
                    "for gradient in gradients:",
                    "for gradient in sorted(gradients, key=lambda each: each.flatten()[0].item()):",
                ),
            ),
        ),
        Wrong(
            "the last one is forgotten",
            diagnosis=r"gradients\[\d\]\[0.*\]: expected",
            edits=(("for gradient in gradients:", "for gradient in gradients[:-1]:"),),
        ),
        Wrong(
            "over all ranks there are",
            diagnosis=r"group",
            body="""
                for gradient in gradients:
                    dist.all_reduce(gradient)
                """,
        ),
        Wrong(
            "the sum of the sum",
            diagnosis=r"off by exactly the world size, too much",
            edits=(
                (
                    "        all_reduce(gradient, group)\n",
                    "        all_reduce(gradient, group)\n        all_reduce(gradient, group)\n",
                ),
            ),
        ),
        Wrong(
            "one number after the other",
            diagnosis=r"right, but a rank makes \d+ calls where \d+ must do.*\n.*summed once",
            body="""
                for gradient in gradients:
                    for row in gradient:
                        all_reduce(row, group)
                """,
        ),
        Wrong(
            "every rank's gradients to all ranks",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*not what every rank has brought",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                for gradient in gradients:
                    everybodys = gradient.new_zeros(n, *gradient.shape)
                    everybodys[rank] = gradient
                    all_reduce(everybodys, group)
                    gradient.copy_(everybodys.sum(0))
                """,
        ),
    ),
)
