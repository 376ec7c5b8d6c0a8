"""decentralized.diloco_whole: DiLoCo, from the first inner step to the last outer one."""

import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.decentralized.answers.outer import diloco_whole
from reference.decentralized.parabola import inner_step

from .common import parabola, rounds_in_one_process, with_sgd_outside


def all_islands_in_one_process(case, inputs):
    """With torch's own outer optimizer."""
    meet = with_sgd_outside(inputs[0]["weight"], 0.7, case.momentum)
    weight = rounds_in_one_process(inputs, case.rounds, case.h, meet)
    return [{"weight": weight} for _ in inputs]


PUZZLE = Puzzle(
    name="decentralized.diloco_whole",
    title="DiLoCo whole",
    statement="""
        Put it together (Douillard et al. 2023, algorithm 1). Islands begin at the same anchor. In each round an island
        takes H inner steps; the mean of anchor - weight over islands is the gradient of an outer step, which moves the
        anchor by SGD with Nesterov momentum; and from the new anchor all islands begin the next round.

        `inner_step(weight, curvature, target, rate)` is given: an island's own step, in place.

        Args:
            weight: [N], equal on all ranks. Updated in place; at the end it is the last anchor.
            curvature: [N], of this island's parabola.
            target: [N], of this island's parabola.
            rate: of the inner steps.
            rounds: how many.
            inner_steps: H, the steps of a round.
            outer_rate: of the outer optimizer.
            momentum: of the outer optimizer; its velocity begins at 0.
            group: n ranks, an island each. Any n.

        Budget: one all-reduce of N numbers a round.
        """,
    function=diloco_whole,
    cases=cases(worlds=(4, 3, 2), rounds=(3,), h=(4,), momentum=(0.9,), length=(6,))
    + cases(worlds=(1,), rounds=(4,), h=(3,), momentum=(0.9, 0.0), length=(4,))
    + cases(worlds=(5,), rounds=(4,), h=(1,), momentum=(0.5,), length=(5,))
    + cases(worlds=(8,), rounds=(2,), h=(5,), momentum=(0.9,), length=(3,))
    + cases(worlds=(4,), members=(0, 2, 3), rounds=(3,), h=(2,), momentum=(0.8,), length=(4,)),
    drawn=on_any_ranks(rounds=range(2, 5), h=range(1, 5), momentum=(0.0, 0.5, 0.9), length=range(2, 9)),
    inputs=lambda case, rank: (
        parabola(case, rank)
        | {"rounds": case.rounds, "inner_steps": case.h, "outer_rate": 0.7, "momentum": case.momentum}
    ),
    oracle=all_islands_in_one_process,
    tolerance=1e-9,
    calls=(dist.all_reduce,),
    given=(inner_step,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: case.rounds,
            why="after the sum each island computes the next anchor itself",
        ),
    ),
    hints=(
        "What does an island have to remember while it trains, so that at the end of the round it knows what has "
        "changed? Will inner steps, which work in place, leave that alone?",
        "Keep `anchor = weight.clone()` and a velocity of zeros. In a round: inner steps, mean of anchor - weight, the "
        "two lines of Nesterov on the anchor, `weight.copy_(anchor)`.",
        "gradient g: velocity = momentum * velocity + g; anchor = anchor - outer_rate * (g + momentum * velocity).",
    ),
    wrong=(
        Wrong(
            "the anchor is the weight itself",
            diagnosis=r"weight\[\d\]: expected",
            edits=(("anchor, velocity = weight.clone(),", "anchor, velocity = weight,"),),
        ),
        Wrong("uphill", diagnosis=r"weight\[\d\]: expected", edits=(("anchor - weight", "weight - anchor"),)),
        Wrong(
            "the next round begins where this one ended",
            diagnosis=r"weight\[\d\]: expected",
            body="""
                anchor, velocity = weight.clone(), weight.new_zeros(weight.shape)
                for _ in range(rounds):
                    for _ in range(inner_steps):
                        inner_step(weight, curvature, target, rate)
                    gradient = anchor - weight
                    dist.all_reduce(gradient, group=group)
                    gradient /= dist.get_world_size(group)
                    velocity = momentum * velocity + gradient
                    anchor = anchor - outer_rate * (gradient + momentum * velocity)
                weight.copy_(anchor)
                """,
        ),
        Wrong(
            "the outer step is taken from where islands are now",
            diagnosis=r"weight\[\d\]: expected",
            edits=(("anchor = anchor - outer_rate", "anchor = weight - outer_rate"),),
        ),
        Wrong(
            "the velocity is forgotten between rounds",
            diagnosis=r"weight\[\d\]: expected",
            edits=(("velocity = momentum * velocity + gradient", "velocity = gradient"),),
        ),
        Wrong(
            "the anchor is always the first one",
            diagnosis=r"weight\[\d\]: expected",
            edits=(
                ("anchor = anchor - outer_rate", "now = anchor - outer_rate"),
                ("weight.copy_(anchor)", "weight.copy_(now)"),
            ),
        ),
        Wrong(
            "the anchor is averaged, too",
            diagnosis=r"right, but a rank makes \d+ calls where \d must do.*\n.*computes the next anchor itself",
            edits=(
                (
                    "        weight.copy_(anchor)",
                    "        dist.all_reduce(anchor, group=group)\n"
                    "        anchor /= dist.get_world_size(group)\n"
                    "        weight.copy_(anchor)",
                ),
            ),
        ),
    ),
)
