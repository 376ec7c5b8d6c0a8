"""decentralized.overlap_with_a_delay: a message that has some steps to arrive."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.decentralized.answers.streams import overlap_with_a_delay
from reference.decentralized.parabola import inner_step

from .common import parabola, step_alone


def sent_then_used(case, inputs):
    """Side by side in one process; what was sent is kept until its step."""
    weights = [each["weight"] for each in inputs]
    anchor, sent = weights[0], None
    for taken in range(1, case.steps + 1):
        weights = [step_alone(weight, own) for weight, own in zip(weights, inputs, strict=True)]
        if taken % case.h == 0:
            sent = taken, anchor - torch.stack(weights).mean(0)
        if sent and taken == sent[0] + case.delay:
            anchor = anchor - 0.5 * sent[1]
            weights = [anchor] * len(weights)
    return [{"weight": weight} for weight in weights]


BEGINS = "            work = dist.all_reduce(gradient, group=group, async_op=True)\n"

PUZZLE = Puzzle(
    name="decentralized.overlap_with_a_delay",
    title="Overlap, with a delay",
    statement="""
        Even a message every H steps makes all wait while it travels. So let it travel while islands train on: after
        each H-th step an island starts to send anchor - weight, as it is then; it takes `delay` more inner steps; then
        it waits for the sum, takes a step of SGD from the anchor with the mean, and continues from the new anchor. What
        it has learned meanwhile is given up here. (Streaming DiLoCo keeps a part of it.)

        `inner_step(weight, curvature, target, rate)` is given: an island's own step, in place.

        Args:
            weight: [N], equal on all ranks. Updated in place.
            curvature: [N], of this island's parabola.
            target: [N], of this island's parabola.
            rate: of the inner steps.
            steps: to take. What is under way at the end is waited for, and not used.
            inner_steps: H, from one sending to the next.
            delay: inner steps between sending and using: 0 or more, less than H.
            outer_rate: of the outer SGD.
            group: n ranks, an island each. Any n.

        Budget: one all-reduce each H steps, by `async_op=True`.
        """,
    function=overlap_with_a_delay,
    cases=cases(worlds=(4, 3), steps=(11,), h=(4,), delay=(2,), length=(5,))
    + cases(worlds=(2,), steps=(7,), h=(3,), delay=(0, 1, 2), length=(4,))
    + cases(worlds=(1, 5), steps=(5,), h=(2,), delay=(1,), length=(3,))
    + cases(worlds=(3,), steps=(8,), h=(4,), delay=(3,), length=(3,))
    + cases(worlds=(4,), members=(0, 2, 3), steps=(9,), h=(4,), delay=(1,), length=(4,)),
    drawn=on_any_ranks(steps=range(3, 12), h=(3, 4), delay=(0, 1, 2), length=range(2, 9)),
    inputs=lambda case, rank: (
        parabola(case, rank) | {"steps": case.steps, "inner_steps": case.h, "delay": case.delay, "outer_rate": 0.5}
    ),
    oracle=sent_then_used,
    tolerance=1e-9,
    calls=(dist.all_reduce,),
    given=(inner_step,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: case.steps // case.h,
            why="one message a round: what it brings is used later, and not asked for again",
        ),
    ),
    hints=(
        "What must not change while it is being sent? Inner steps work in place.",
        "Keep what `dist.all_reduce(..., async_op=True)` returns, and the tensor that it sums in. Wait `delay` steps "
        "later, or at the end.",
        "`gradient = anchor - weight` when taken % H == 0; `work.wait()` when there is one and taken % H == delay: for "
        "a delay of 0 that is the same step.",
    ),
    wrong=(
        Wrong(
            "used at once",
            diagnosis=r"weight\[\d\]: expected",
            edits=(("taken % inner_steps == delay", "taken % inner_steps == 0"),),
        ),
        Wrong(
            "what has changed is computed when it is used",
            diagnosis=r"weight\[\d\]: expected",
            body="""
                anchor = weight.clone()
                for taken in range(1, steps + 1):
                    inner_step(weight, curvature, target, rate)
                    if taken > delay and (taken - delay) % inner_steps == 0:
                        gradient = anchor - weight
                        dist.all_reduce(gradient, group=group)
                        anchor -= outer_rate * gradient / dist.get_world_size(group)
                        weight.copy_(anchor)
                """,
        ),
        Wrong(
            "what was learned meanwhile is kept",
            diagnosis=r"weight\[\d\]: expected",
            edits=(("            weight.copy_(anchor)\n", ""),),
        ),
        Wrong(
            "one step too late",
            diagnosis=r"weight\[\d\]: expected",
            edits=(("taken % inner_steps == delay", "taken % inner_steps == (delay + 1) % inner_steps"),),
        ),
        Wrong(
            "the sum instead of the mean",
            diagnosis=r"weight\[\d\]: expected",
            edits=((" / dist.get_world_size(group)", ""),),
        ),
        Wrong(
            "left under way at the end",
            diagnosis=r"wait|finished|never",
            edits=(("    if work is not None:\n        work.wait()\n", ""),),
        ),
        Wrong(
            "asks whether all are there before it sends",
            diagnosis=r"right, but a rank makes \d+ calls where \d must do.*\n.*one message a round",
            edits=((BEGINS, "            dist.all_reduce(weight.new_zeros(1), group=group)\n" + BEGINS),),
        ),
    ),
)
