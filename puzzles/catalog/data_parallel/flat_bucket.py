"""data_parallel.flat_bucket: all gradients in one message."""

import torch.distributed as dist

from puzzles.grading.drives.data_parallel import in_place
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.data_parallel.replicated import flat, native

from .common import DOUBLE, FLOAT, gradients_of_a_rank, sizes_of, summed_over_ranks


def elements(case):
    """Of all gradients together."""
    return sum(sizes_of(case)) // DOUBLE


PUZZLE = Puzzle(
    name="data_parallel.flat_bucket",
    title="All gradients in one message",
    statement="""
        A message costs a latency, however small it is; a model of a thousand parameters, most of them tiny, pays it a
        thousand times. Put all gradients one after another into one flat tensor, sum that, and put the sums back.

        Given is `all_reduce(x, group)`, which makes `x` on every rank the sum of every rank's `x`, in place.

        Args:
            gradients: of the parameters, one after the other; of the same shapes in the same order on every rank. Some
                may be empty.
            group: n ranks. Any n.
            all_reduce: how to sum the flat tensor.

        Afterwards each of `gradients` holds the sum over all ranks, in place.

        Budget: one all-reduce, and memory for one copy of all gradients.
        """,
    function=flat,
    cases=cases(worlds=(2, 3, 4, 1, 5, 8), widths=((4, 3, 2),))
    + cases(worlds=(3,), widths=((1, 1), (6, 5, 0, 7)))
    + cases(worlds=(4,), members=(0, 2, 3), widths=((3, 2),)),
    drawn=on_any_ranks(widths=((3, 5, 2), (6, 1, 4), (2, 7, 3))),
    large=case(2, widths=(1700, 1700, 1700)),
    inputs=gradients_of_a_rank,
    oracle=summed_over_ranks,
    drive=in_place,
    calls=(dist.all_reduce,),
    given=(native,),
    budgets=(
        Budget(Measure.CALLS, target=lambda case: 1, why="all gradients fit into one flat tensor: torch.cat"),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(ring).most(case.n, elements(case), FLOAT),
            why="the flat tensor holds each gradient once, and nothing else",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: FLOAT * elements(case),
            why="one copy is enough: parts of the flat tensor are views, and `copy_` puts them back",
        ),
    ),
    hints=(
        "`torch.cat` makes one tensor of many, if they have one dimension each.",
        "`flat.split(lengths)` cuts it again, into views. Which shape must each get, and how does it come back into "
        "the gradient that the caller holds?",
        "`gradient.copy_(part.view_as(gradient))`.",
    ),
    wrong=(
        Wrong(
            "new gradients, that are never used",
            diagnosis=r"gradients\[0\]\[0, 0\]: expected -?[\d.]+, got -?[\d.]+\n",
            edits=(
                ("        gradient.copy_(summed.view_as(gradient))", "        gradient = summed.view_as(gradient)"),
            ),
        ),
        Wrong(
            "other memory for each gradient",
            diagnosis=r"in place: expected 'the same memory as before', got 'other memory for gradients\[0\], ",
            edits=(
                (
                    "        gradient.copy_(summed.view_as(gradient))",
                    "        gradient.data = summed.view_as(gradient)",
                ),
            ),
        ),
        Wrong(
            "put back in reverse",
            diagnosis=r"exception|expected",
            edits=(("zip(gradients, whole.split", "zip(reversed(gradients), whole.split"),),
        ),
        Wrong(
            "as if all were of one size",
            diagnosis=r"exception",
            edits=(("whole.split([g.numel() for g in gradients])", "whole.chunk(len(gradients))"),),
        ),
        Wrong(
            "averaged",
            diagnosis=r"off by exactly the world size, too little",
            body="""
                whole = torch.cat([gradient.flatten() for gradient in gradients])
                all_reduce(whole, group)
                whole /= dist.get_world_size(group)
                for gradient, summed in zip(gradients, whole.split([g.numel() for g in gradients])):
                    gradient.copy_(summed.view_as(gradient))
                """,
        ),
        Wrong(
            "one message for each",
            diagnosis=r"right, but a rank makes \d+ calls where 1 must do.*\n.*torch\.cat",
            body="""
                for gradient in gradients:
                    dense = gradient.contiguous()
                    all_reduce(dense, group)
                    gradient.copy_(dense)
                """,
        ),
        Wrong(
            "padded to the longest",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*each gradient once",
            body="""
                longest = max(gradient.numel() for gradient in gradients)
                rows = gradients[0].new_zeros(len(gradients), longest)
                for row, gradient in zip(rows, gradients):
                    row[: gradient.numel()] = gradient.flatten()
                all_reduce(rows, group)
                for row, gradient in zip(rows, gradients):
                    gradient.copy_(row[: gradient.numel()].view_as(gradient))
                """,
        ),
        Wrong(
            "copies of copies",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*one copy is enough",
            edits=(("all_reduce(whole, group)", "before = whole.clone()\n    all_reduce(whole, group)"),),
        ),
    ),
)
