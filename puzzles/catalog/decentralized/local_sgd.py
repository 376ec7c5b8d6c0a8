"""decentralized.local_sgd: train alone for some steps, then take the mean."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.decentralized.answers.alone import local_sgd
from reference.decentralized.parabola import inner_step

from .common import parabola, rounds_in_one_process


def mean_after_each_round(case, inputs):
    """All islands side by side in one process."""
    mean = rounds_in_one_process(inputs, case.rounds, case.h, lambda weights: torch.stack(weights).mean(0))
    return [{"weight": mean} for _ in inputs]


MEAN = "        dist.all_reduce(weight, group=group)\n        weight /= dist.get_world_size(group)\n"

PUZZLE = Puzzle(
    name="decentralized.local_sgd",
    title="Train alone, meet now and then",
    statement="""
        The islands of a run are an ocean apart, and to send gradients in every step would take longer than to compute
        them. So each trains by itself for some steps, and then all take the mean of their parameters; that is a round.
        Here an island is one rank, and what it trains on is a parabola of its own.

        `inner_step(weight, curvature, target, rate)` is given: an island's own step, in place.

        Args:
            weight: [N], equal on all ranks. Updated in place.
            curvature: [N], of this island's parabola.
            target: [N], of this island's parabola.
            rate: of learning.
            rounds: how many; each ends with a mean.
            inner_steps: H, the steps of a round.
            group: n ranks, an island each. Any n.

        Budget: one all-reduce of N numbers a round.
        """,
    function=local_sgd,
    cases=cases(worlds=(4, 3, 2, 1), rounds=(3,), h=(4,), length=(6,))
    + cases(worlds=(5,), rounds=(4,), h=(1,), length=(5,))
    + cases(worlds=(8,), rounds=(1,), h=(7,), length=(3,))
    + cases(worlds=(4,), members=(0, 2, 3), rounds=(2,), h=(3,), length=(4,)),
    drawn=on_any_ranks(rounds=range(1, 5), h=range(1, 6), length=range(2, 9)),
    inputs=lambda case, rank: parabola(case, rank) | {"rounds": case.rounds, "inner_steps": case.h},
    oracle=mean_after_each_round,
    tolerance=1e-9,
    calls=(dist.all_reduce,),
    given=(inner_step,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: case.rounds,
            why="islands say nothing while they train: that is what they are for",
        ),
    ),
    hints=(
        "What do islands know of each other while they train? When is the first time that they must speak?",
        "Two loops: rounds, and in each of them the inner steps. After the inner ones: the mean.",
        "`dist.all_reduce` gives a sum: divide it by the number of ranks of the group.",
    ),
    wrong=(
        Wrong(
            "the sum instead of the mean",
            diagnosis=r"weight\[\d\]: expected",
            edits=(("        weight /= dist.get_world_size(group)\n", ""),),
        ),
        Wrong(
            "the mean over all ranks of the job",
            diagnosis=r"weight\[\d\]: expected",
            edits=(("dist.get_world_size(group)", "dist.get_world_size()"),),
        ),
        Wrong(
            "a mean in every step",
            diagnosis=r"weight\[\d\]: expected",
            edits=(
                (
                    "            inner_step(weight, curvature, target, rate)\n" + MEAN,
                    "            inner_step(weight, curvature, target, rate)\n"
                    + "".join("    " + line for line in MEAN.splitlines(True)),
                ),
            ),
        ),
        Wrong(
            "the mean before the steps",
            diagnosis=r"weight\[\d\]: expected",
            body="""
                for _ in range(rounds):
                    dist.all_reduce(weight, group=group)
                    weight /= dist.get_world_size(group)
                    for _ in range(inner_steps):
                        inner_step(weight, curvature, target, rate)
                """,
        ),
        Wrong(
            "one round",
            diagnosis=r"weight\[\d\]: expected",
            edits=(("for _ in range(rounds)", "for _ in range(1)"),),
        ),
        Wrong(
            "a second mean to be sure",
            diagnosis=r"right, but a rank makes \d+ calls where \d must do.*\n.*say nothing while they train",
            edits=((MEAN, MEAN + MEAN),),
        ),
    ),
)
