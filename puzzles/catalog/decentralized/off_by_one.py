"""decentralized.off_by_one: rounds of H steps, not of H + 1."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.decentralized.answers.alone import meet_after_h_steps
from reference.decentralized.parabola import inner_step

from .common import parabola, step_alone


def a_mean_after_each_h_th_step(case, inputs):
    """Side by side in one process."""
    weights, met = [each["weight"] for each in inputs], []
    for taken in range(1, case.steps + 1):
        weights = [step_alone(weight, own) for weight, own in zip(weights, inputs, strict=True)]
        if taken % case.h == 0:
            weights = [torch.stack(weights).mean(0)] * len(weights)
            met.append(taken)
    return [{"weight": weight, "returns": met} for weight in weights]


PUZZLE = Puzzle(
    name="decentralized.off_by_one",
    title="H steps, or H + 1",
    statement="""
        A strategy of a public gym for islands: it counts steps, and asks whether islands are to meet. Its first round
        has one step more than all the others, and every meeting of a run comes a step late; the loss looks as it
        should. Mend it: islands meet after H steps, 2H, 3H and so on, and never else.

        `inner_step(weight, curvature, target, rate)` is given: an island's own step, in place.

        Args:
            weight: [N], equal on all ranks. Updated in place.
            curvature: [N], of this island's parabola.
            target: [N], of this island's parabola.
            rate: of learning.
            steps: to take. H need not divide them: then the last steps are followed by no meeting.
            inner_steps: H, 1 or more.
            group: n ranks, an island each. Any n.

        Returns: after how many steps islands have met, a list.

        Budget: one all-reduce of N numbers for each meeting.
        """,
    function=meet_after_h_steps,
    body="""
        met = []
        for taken in range(steps):
            inner_step(weight, curvature, target, rate)
            if taken > 0 and taken % inner_steps == 0:
                dist.all_reduce(weight, group=group)
                weight /= dist.get_world_size(group)
                met.append(taken)
        return met
        """,
    cases=cases(worlds=(4, 3), steps=(7,), h=(3,), length=(5,))
    + cases(worlds=(2,), steps=(6, 5), h=(2, 1), length=(4,))
    + cases(worlds=(1, 5), steps=(4,), h=(4, 5), length=(3,))
    + cases(worlds=(4,), members=(0, 2, 3), steps=(9,), h=(4,), length=(4,)),
    drawn=on_any_ranks(steps=range(1, 12), h=range(1, 6), length=range(2, 9)),
    inputs=lambda case, rank: parabola(case, rank) | {"steps": case.steps, "inner_steps": case.h},
    oracle=a_mean_after_each_h_th_step,
    tolerance=1e-9,
    calls=(dist.all_reduce,),
    given=(inner_step,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: case.steps // case.h,
            why="the count of steps is the same on all islands: none has to be asked whether a round ends",
        ),
    ),
    hints=(
        "With H = 3: after which values of `taken` does it meet? How many steps have been taken then?",
        "A number that counts from 0 is one less than the steps that have been taken once its step has been taken.",
        "Let `taken` run from 1 to `steps`. Then `taken % inner_steps == 0` is all.",
    ),
    wrong=(
        Wrong(
            "the last step is lost",
            diagnosis=r"expected",
            edits=(("range(1, steps + 1)", "range(1, steps)"),),
        ),
        Wrong(
            "meets before the first step, too",
            diagnosis=r"expected",
            body="""
                met = []
                for taken in range(steps):
                    if taken % inner_steps == 0:
                        dist.all_reduce(weight, group=group)
                        weight /= dist.get_world_size(group)
                        met.append(taken)
                    inner_step(weight, curvature, target, rate)
                return met
                """,
        ),
        Wrong(
            "asks first, and counts then",
            diagnosis=r"expected",
            edits=(("if taken % inner_steps == 0", "if taken > 1 and (taken - 1) % inner_steps == 0"),),
        ),
        Wrong(
            "rounds of H + 1",
            diagnosis=r"expected",
            edits=(("taken % inner_steps == 0", "taken % (inner_steps + 1) == 0"),),
        ),
        Wrong(
            "meets at the end as well",
            diagnosis=r"expected",
            edits=(("if taken % inner_steps == 0", "if taken % inner_steps == 0 or taken == steps"),),
        ),
        Wrong(
            "asks all islands in each step",
            diagnosis=r"right, but a rank makes \d+ calls where \d must do.*\n.*none has to be asked",
            edits=(
                (
                    "        if taken % inner_steps == 0:",
                    "        votes = weight.new_tensor([float(taken % inner_steps == 0)])\n"
                    "        dist.all_reduce(votes, group=group)\n"
                    "        if votes > 0:",
                ),
            ),
        ),
    ),
)
