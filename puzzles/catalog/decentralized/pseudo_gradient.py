"""decentralized.pseudo_gradient: what a round has changed, as a gradient."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.decentralized.answers.outer import pseudo_gradient

from .common import FLOAT


def old_minus_mean_of_new(case, inputs):
    """All islands began at the anchor."""
    mean = torch.stack([each["weight"] for each in inputs]).mean(0)
    return [inputs[0]["anchor"] - mean for _ in inputs]


PUZZLE = Puzzle(
    name="decentralized.pseudo_gradient",
    title="What a round has changed, as a gradient",
    statement="""
        After a round an island is somewhere else than where it began, the anchor. DiLoCo lets an optimizer take a step
        from the anchor with what islands have changed in the place of a gradient. An optimizer subtracts: with SGD, a
        rate of 1 and no momentum the step has to end at the mean of the islands, downhill. In two published engines it
        went uphill (torchtitan PR1507, torchft PR233).

        Args:
            weight: [N], where this island is now. It stays as it is.
            anchor: [N], where all began: equal on all ranks. It stays as it is, since the outer step begins there.
            group: n ranks, an island each. Any n.

        Returns: the pseudo-gradient, [N], the same on all ranks.

        Budget: one all-reduce of N numbers.
        """,
    function=pseudo_gradient,
    cases=cases(worlds=(4, 3, 2, 1, 8), length=(6,)) + cases(worlds=(4,), members=(0, 2, 3), length=(5,)),
    drawn=on_any_ranks(length=range(2, 12)),
    inputs=lambda case, rank: {
        "weight": case.tensor(rank, case.length, name="weight", dtype=torch.float64),
        "anchor": case.tensor(0, case.length, name="anchor", dtype=torch.float64),
    },
    oracle=old_minus_mean_of_new,
    tolerance=1e-9,
    new=True,
    calls=(dist.all_reduce,),
    budgets=(
        Budget(Measure.CALLS, target=lambda case: 1, why="all begin at the same anchor: only one sum is not known"),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(ring).most(case.n, case.length, FLOAT),
            why="one sum of N numbers",
        ),
    ),
    hints=(
        "A step of SGD is anchor - rate * gradient. With a rate of 1 it shall be the mean of all weights. So what is "
        "the gradient?",
        "anchor - gradient = mean of the weights: old - new.",
        "`gradient = anchor - weight` is a new tensor: sum that, and divide by the number of islands.",
    ),
    wrong=(
        Wrong(
            "uphill: new - old", diagnosis=r"expected (-?[\d.]+), got", edits=(("anchor - weight", "weight - anchor"),)
        ),
        Wrong(
            "the sum",
            diagnosis=r"expected",
            edits=(("gradient / dist.get_world_size(group)", "gradient"),),
        ),
        Wrong(
            "the mean over all ranks of the job",
            diagnosis=r"expected",
            edits=(("dist.get_world_size(group)", "dist.get_world_size()"),),
        ),
        Wrong(
            "in the memory of the anchor",
            diagnosis=r"anchor",
            edits=(("gradient = anchor - weight", "gradient = anchor.sub_(weight)"),),
        ),
        Wrong(
            "in the memory of the weight",
            diagnosis=r"weight",
            edits=(("gradient = anchor - weight", "gradient = torch.sub(anchor, weight, out=weight)"),),
        ),
        Wrong(
            "the anchor is summed, too",
            diagnosis=r"right, but a rank makes 2 calls where 1 must do.*\n.*the same anchor",
            body="""
                old, new, n = anchor.clone(), weight.clone(), dist.get_world_size(group)
                dist.all_reduce(old, group=group)
                dist.all_reduce(new, group=group)
                return (old - new) / n
                """,
        ),
    ),
)
