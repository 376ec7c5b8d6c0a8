"""resilience.nan_on_one_rank: one rank skips the step, and all others wait for it."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.resilience.answers.finite import train

FLOAT, STEPS = 4, 4
BAD = {  # by step, what is wrong on which of n ranks
    "NaN on the last": lambda n: {1: {n - 1: "nan"}},
    "nothing": lambda n: {},
    "infinity on the first": lambda n: {0: {0: "inf"}, 3: {0: "-inf"}},
    "opposite infinities": lambda n: {2: {0: "inf", n - 1: "-inf"}},
    "NaN on all": lambda n: {2: dict.fromkeys(range(n), "nan")},
}


def weights_and_gradients(case, rank):
    """Equal weights, and a gradient for each step."""
    gradients = [case.tensor(rank, case.length, name=f"step {step}") for step in range(STEPS)]
    for step, on_ranks in BAD[case.bad](case.n).items():
        if rank in on_ranks:
            gradients[step][step % case.length] = float(on_ranks[rank])
    return {"weight": case.tensor(0, case.length, name="weight"), "gradients": gradients, "rate": 0.25}


def one_process(case, inputs):
    """The same, where one process has all gradients."""
    weight, skipped = inputs[0]["weight"].clone(), []
    for step in range(STEPS):
        gradients = torch.stack([each["gradients"][step] for each in inputs])
        if gradients.isfinite().all():
            weight -= 0.25 * gradients.sum(0) / case.n
        else:
            skipped.append(step)
    return [{"weight": weight, "returns": skipped} for _ in inputs]


BROKEN = """
    n, skipped = dist.get_world_size(group), []
    for step, gradient in enumerate(gradients):
        if not gradient.isfinite().all():
            skipped.append(step)
            continue
        dist.all_reduce(gradient, group=group)
        weight -= rate * gradient / n
    return skipped
    """

PUZZLE = Puzzle(
    name="resilience.nan_on_one_rank",
    title="NaN on one rank",
    statement="""
        A training loop leaves out steps whose gradient is infinite or NaN. On one rank it has worked for years. On
        four ranks it stops in the middle of the night: three ranks wait in an all-reduce, and the fourth waits in the
        one of the next step. (It has happened: fairscale#754.) Where it does not stop, replicas are no longer equal.

        Mend it. A step is left out on all ranks if the gradient of any of them has an element that is not finite; else
        it is taken on all. A NaN must not be sent: it would make NaN of whatever it is added to, and no rank could say
        where it began. So the ranks are watched here, and a message that holds one is an error.

        Args:
            weight: [N], the same on every rank; updated in place with the mean of all ranks' gradients.
            gradients: [N] of this rank, one for each step. They may be overwritten.
            rate: of learning.
            group: n ranks. Any n.

        Returns: the steps that were left out, the same on every rank.

        Budget: one message of N + 1 numbers for each step, and not one more.
        """,
    function=train,
    body=BROKEN,
    cases=cases(worlds=(4,), bad=tuple(BAD), length=(5,))
    + cases(worlds=(2, 3), bad=("NaN on the last", "opposite infinities"), length=(4,))
    + cases(worlds=(1, 8), bad=("infinity on the first",), length=(7,))
    + cases(worlds=(4,), members=(0, 2, 3), bad=("NaN on the last",), length=(5,)),
    drawn=on_any_ranks(bad=tuple(BAD), length=range(4, 12)),
    inputs=weights_and_gradients,
    oracle=one_process,
    scratch=("gradients",),
    tolerance=1e-5,
    calls=(dist.all_reduce,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: STEPS,
            why="whether a rank's gradient is finite fits into the message of the gradients",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: STEPS * cost.of(ring).most(case.n, case.length + 1, FLOAT),
            why="N + 1 numbers in each step are all that has to travel",
        ),
    ),
    hints=(
        "Each rank must take part in each all-reduce, whatever it has. What may it send, if its gradient is NaN?",
        "All ranks must know whether one of them has something that is not finite. That is one number from each, and "
        "their sum tells. Does it need a message of its own?",
        "`bad = not gradient.isfinite().all()`; send `torch.cat([brought, gradient.new_tensor([float(bad)])])`, where "
        "`brought` is zeros or the gradient. After the all-reduce, the step counts where the last "
        "element is 0, on all ranks alike.",
    ),
    wrong=(
        Wrong(
            "one rank skips, as it was",
            diagnosis=r"rank \d finished without it|deadlock|waits|size",
            body=BROKEN + "    # and the others wait\n",
        ),
        Wrong(
            "the NaN is sent, for all to see",
            diagnosis=r"the tensor holds NaN at index 1",
            body="""
                n, skipped = dist.get_world_size(group), []
                for step, gradient in enumerate(gradients):
                    dist.all_reduce(gradient, group=group)
                    if gradient.isfinite().all():
                        weight -= rate * gradient / n
                    else:
                        skipped.append(step)
                return skipped
                """,
        ),
        Wrong(
            "each looks at its own gradient alone",
            diagnosis=r"expected",
            edits=(("        if said[-1]:\n", "        if bad:\n"),),
        ),
        Wrong(
            "zeros in the place of what is not finite, and the step is taken",
            diagnosis=r"expected",
            edits=(("        if said[-1]:\n", "        if False:\n"),),
        ),
        Wrong(
            "only NaN is looked for",
            diagnosis=r"holds -?inf|holds Inf|infinity|not finite|inf",
            edits=(("not gradient.isfinite().all()", "gradient.isnan().any()"),),
        ),
        Wrong(
            "ranks that are well take the step without the others",
            diagnosis=r"expected",
            edits=(
                ("        if said[-1]:\n", "        if bad:\n"),
                ("said[:-1] / n", "said[:-1] / (n - said[-1])"),
            ),
        ),
        Wrong(
            "left out only where all have failed",
            diagnosis=r"expected",
            edits=(("        if said[-1]:\n", "        if said[-1] == n:\n"),),
        ),
        Wrong(
            "a flag in front of each sum",
            diagnosis=r"right, but a rank makes \d calls where 4 must do.*\n.*fits into the message",
            body="""
                n, skipped = dist.get_world_size(group), []
                for step, gradient in enumerate(gradients):
                    bad = torch.tensor([int(not gradient.isfinite().all())])
                    dist.all_reduce(bad, group=group)
                    if bad:
                        skipped.append(step)
                        continue
                    dist.all_reduce(gradient, group=group)
                    weight -= rate * gradient / n
                return skipped
                """,
        ),
    ),
)
