"""decentralized.outer_nesterov: the outer optimizer of DiLoCo."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.decentralized.answers.outer import outer_nesterov


def by_torch(case, inputs):
    """`torch.optim.SGD` on the mean, with the velocity that is there."""
    first = inputs[0]
    anchor = torch.nn.Parameter(first["anchor"].clone())
    optimizer = torch.optim.SGD([anchor], lr=first["rate"], momentum=first["momentum"], nesterov=True)
    optimizer.state[anchor]["momentum_buffer"] = first["velocity"].clone()
    anchor.grad = torch.stack([each["gradient"] for each in inputs]).mean(0)
    optimizer.step()
    velocity = optimizer.state[anchor]["momentum_buffer"]
    return [{"anchor": anchor.detach(), "velocity": velocity} for _ in inputs]


PUZZLE = Puzzle(
    name="decentralized.outer_nesterov",
    title="The outer step, with Nesterov momentum",
    statement="""
        Each island has the pseudo-gradient of its round, and all have the same anchor and the same velocity. Let all
        take the outer step with the mean of the gradients g, as `torch.optim.SGD` does with `nesterov=True`:

            velocity = momentum * velocity + g
            anchor   = anchor - rate * (g + momentum * velocity)

        No rank has to be asked for the result: what all know, all can compute. One engine lets rank 0 take the step and
        broadcast the parameters, a second message as long as the first.

        Args:
            anchor: [N], equal on all ranks. Updated in place.
            velocity: [N], equal on all ranks. Updated in place.
            gradient: [N], of this island. It stays as it is.
            rate: of the outer optimizer.
            momentum: of the outer optimizer.
            group: n ranks, an island each. Any n.

        Budget: one all-reduce of N numbers.
        """,
    function=outer_nesterov,
    cases=cases(worlds=(4, 3, 2, 1, 8), length=(6,)) + cases(worlds=(4,), members=(0, 2, 3), length=(5,)),
    drawn=on_any_ranks(length=range(2, 12)),
    inputs=lambda case, rank: {
        "anchor": case.normal(0, case.length, name="anchor"),
        "velocity": case.normal(0, case.length, name="velocity"),
        "gradient": case.normal(rank, case.length, name="gradient"),
        "rate": 0.7,
        "momentum": 0.9,
    },
    oracle=by_torch,
    tolerance=1e-9,
    calls=(dist.all_reduce, dist.broadcast),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 1,
            why="after the sum all ranks know all that the step takes: no rank needs the result of another one",
        ),
    ),
    hints=(
        "Which of the three tensors is not the same on all ranks?",
        "Take the mean of a copy of the gradient; then the two lines of the statement, in place.",
        "`velocity.mul_(momentum).add_(mean)`, then `anchor.sub_(rate * (mean + momentum * velocity))`: the new "
        "velocity, and the mean once more.",
    ),
    wrong=(
        Wrong(
            "momentum without Nesterov",
            diagnosis=r"anchor\[\d\]: expected",
            edits=(("rate * (mean + momentum * velocity)", "rate * velocity"),),
        ),
        Wrong(
            "looks ahead with the old velocity",
            diagnosis=r"anchor\[\d\]: expected",
            body="""
                mean = gradient.clone()
                dist.all_reduce(mean, group=group)
                mean /= dist.get_world_size(group)
                anchor.sub_(rate * (mean + momentum * velocity))
                velocity.mul_(momentum).add_(mean)
                """,
        ),
        Wrong(
            "the rate is in the velocity",
            diagnosis=r"expected",
            edits=(
                ("add_(mean)", "add_(rate * mean)"),
                ("rate * (mean + momentum * velocity)", "rate * mean + momentum * velocity"),
            ),
        ),
        Wrong(
            "a velocity of its own on each island",
            diagnosis=r"must be the same on every rank|velocity\[\d\]: expected",
            edits=(("add_(mean)", "add_(gradient)"),),
        ),
        Wrong(
            "a new velocity, which is forgotten",
            diagnosis=r"velocity on rank \d still holds its own input|velocity\[\d\]: expected",
            edits=(("velocity.mul_(momentum).add_(mean)", "velocity = momentum * velocity + mean"),),
        ),
        Wrong(
            "rank 0 takes the step and tells the others",
            diagnosis=r"right, but a rank makes 3 calls where 1 must do.*\n.*no rank needs the result",
            edits=(
                (
                    "    anchor.sub_(rate * (mean + momentum * velocity))",
                    "    if dist.get_rank(group) == 0:\n"
                    "        anchor.sub_(rate * (mean + momentum * velocity))\n"
                    "    dist.broadcast(anchor, group=group, group_src=0)\n"
                    "    dist.broadcast(velocity, group=group, group_src=0)",
                ),
            ),
        ),
    ),
)
