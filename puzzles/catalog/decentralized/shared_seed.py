"""decentralized.shared_seed: a few elements that are averaged, and no word of which."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.decentralized.answers.streams import average_a_few

from .common import FLOAT


def drawn_now(case):
    """Which elements: a list of bools."""
    generator = torch.Generator().manual_seed(case.step)
    return [value < case.share for value in torch.rand(case.length, generator=generator).tolist()]


def one_after_the_other(case, inputs):
    """Element by element, in one process."""
    outputs = [each["weight"].clone() for each in inputs]
    for place, is_drawn in enumerate(drawn_now(case)):
        if is_drawn:
            mean = sum(each["weight"][place] for each in inputs) / len(inputs)
            for output in outputs:
                output[place] = mean
    return [{"weight": output} for output in outputs]


PUZZLE = Puzzle(
    name="decentralized.shared_seed",
    title="A shared seed instead of a mask",
    statement="""
        SPARTA averages a small share of the parameters after each step, drawn anew each time. In one public engine a
        rank draws a mask and broadcasts it: a byte for each parameter, where the values that it is about are two
        hundred times fewer. But what is drawn follows from a seed, and all know the step.

        An element is drawn where `torch.rand(N, generator=g) < share`, with `g = torch.Generator()` and the step as its
        seed. Replace the elements that are drawn by their mean over islands; leave the others as they are.

        Args:
            weight: [N], of this island. Updated in place.
            step: the same on all ranks.
            share: of elements, from 0 to 1.
            group: n ranks, an island each. Any n.

        Budget: one all-reduce of as many numbers as were drawn.
        """,
    function=average_a_few,
    cases=cases(worlds=(4, 3, 2, 1, 8), step=(5,), share=(0.25,), length=(40,))
    + cases(worlds=(2,), step=(0, 7), share=(0.5,), length=(12,))
    + cases(worlds=(3,), step=(2,), share=(1.0,), length=(6,))
    + cases(worlds=(4,), members=(0, 2, 3), step=(3,), share=(0.3,), length=(30,)),
    drawn=on_any_ranks(step=range(1000), share=(0.1, 0.25, 0.5), length=range(20, 60)),
    inputs=lambda case, rank: {
        "weight": case.normal(rank, case.length, name="weight"),
        "step": case.step,
        "share": case.share,
    },
    oracle=one_after_the_other,
    tolerance=1e-9,
    calls=(dist.all_reduce, dist.broadcast),
    budgets=(
        Budget(Measure.CALLS, target=lambda case: 1, why="all draw the same: what is drawn need not be sent"),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(ring).most(case.n, sum(drawn_now(case)), FLOAT),
            why="the values of what is drawn, and nothing else",
        ),
    ),
    hints=(
        "What does a rank have to know to draw the same as another one? Is that told to it already?",
        "Draw on each rank with the step as the seed; then pick, sum, divide, and put back.",
        "`values = weight[chosen]` is a copy. After the all-reduce: `weight[chosen] = values / n`.",
    ),
    wrong=(
        Wrong(
            "each rank draws for itself",
            diagnosis=r"elements|sizes|expected|mismatch|differ",
            edits=(("manual_seed(step)", "manual_seed(step + dist.get_rank(group))"),),
        ),
        Wrong(
            "always the same elements",
            diagnosis=r"expected|still holds",
            edits=(("manual_seed(step)", "manual_seed(0)"),),
        ),
        Wrong(
            "the mean does not come back",
            diagnosis=r"still holds its own input|expected",
            edits=(
                (
                    "    weight[chosen] = values / dist.get_world_size(group)",
                    "    values /= dist.get_world_size(group)",
                ),
            ),
        ),
        Wrong(
            "the sum",
            diagnosis=r"expected",
            edits=((" / dist.get_world_size(group)", ""),),
        ),
        Wrong(
            "the mask is sent",
            diagnosis=r"right, but .*\n.*(need not be sent|nothing else)",
            edits=(
                (
                    "    values = weight[chosen]\n",
                    "    mask = chosen.to(torch.uint8)\n    dist.broadcast(mask, group=group, group_src=0)\n"
                    "    chosen = mask.bool()\n    values = weight[chosen]\n",
                ),
            ),
        ),
        Wrong(
            "all elements are sent, with zeros",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*nothing else",
            edits=(
                (
                    "    values = weight[chosen]\n    dist.all_reduce(values, group=group)\n",
                    "    all_of_it = weight * chosen\n    dist.all_reduce(all_of_it, group=group)\n    "
                    "values = all_of_it[chosen]\n",
                ),
            ),
        ),
    ),
)
