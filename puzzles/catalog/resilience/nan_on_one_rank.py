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
    "too large together": lambda n: {1: dict.fromkeys(range(n), "3e38")},
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
        total = torch.stack([each["gradients"][step] for each in inputs]).sum(0)
        if total.isfinite().all():
            weight -= 0.25 * total / case.n
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

        Mend it. A step is left out on all ranks if the sum of their gradients has an element that is not finite, which
        may be so where each of them is finite; else it is taken on all.

        Args:
            weight: [N], the same on every rank; updated in place with the mean of all ranks' gradients.
            gradients: [N] of this rank, one for each step. They may be overwritten.
            rate: of learning.
            group: n ranks. Any n.

        Returns: the steps that were left out, the same on every rank.

        Budget: one message of N numbers for each step, and not one more.
        """,
    function=train,
    body=BROKEN,
    cases=cases(worlds=(4,), bad=tuple(BAD), length=(5,))
    + cases(worlds=(2, 3), bad=("NaN on the last", "opposite infinities"), length=(4,))
    + cases(worlds=(1, 8), bad=("infinity on the first",), length=(7,))
    + cases(worlds=(4,), members=(0, 2, 3), bad=("NaN on the last",), length=(5,)),
    drawn=on_any_ranks(bad=[each for each in BAD if each != "too large together"], length=range(4, 12)),
    inputs=weights_and_gradients,
    oracle=one_process,
    scratch=("gradients",),
    tolerance=1e-5,
    calls=(dist.all_reduce,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: STEPS,
            why="no flag has to travel: what does a NaN of one rank make of the sum on all of them?",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: STEPS * cost.of(ring).most(case.n, case.length, FLOAT),
            why="no flag has to travel: the sum tells",
        ),
    ),
    hints=(
        "Each rank must take part in each all-reduce, whatever it has. So who may decide before it?",
        "What is NaN plus 3? Infinity plus 3? Infinity minus infinity? What stands on the other ranks afterwards?",
        "Sum first. Then look whether the sum is finite: all ranks look at the same numbers.",
    ),
    wrong=(
        Wrong(
            "one rank skips, as it was",
            diagnosis=r"rank \d finished without it|deadlock|waits|size",
            body=BROKEN + "    # and the others wait\n",
        ),
        Wrong(
            "each looks at its own gradient, after the sum has been sent",
            diagnosis=r"weight must be the same on every rank|expected|NaN",
            body="""
                n, skipped = dist.get_world_size(group), []
                for step, gradient in enumerate(gradients):
                    finite = gradient.isfinite().all()
                    dist.all_reduce(gradient, group=group)
                    if not finite:
                        skipped.append(step)
                        continue
                    weight -= rate * gradient / n
                return skipped
                """,
        ),
        Wrong(
            "zeros in the place of what is not finite",
            diagnosis=r"expected",
            edits=(
                ("        dist.all_reduce(", "        gradient.nan_to_num_(0.0, 0.0, 0.0)\n        dist.all_reduce("),
            ),
        ),
        Wrong(
            "only NaN is looked for",
            diagnosis=r"expected",
            edits=(("gradient.isfinite().all()", "not gradient.isnan().any()"),),
        ),
        Wrong(
            "ranks that are well take the step without the others",
            diagnosis=r"expected",
            body="""
                skipped = []
                for step, gradient in enumerate(gradients):
                    finite = bool(gradient.isfinite().all())
                    brought = gradient if finite else torch.zeros_like(gradient)
                    said = torch.cat([brought, torch.tensor([float(finite)])])
                    dist.all_reduce(said, group=group)
                    if finite:
                        weight -= rate * said[:-1] / said[-1]
                    else:
                        skipped.append(step)
                return skipped
                """,
        ),
        Wrong(
            "a flag in front of each sum",
            diagnosis=r"right, but a rank makes 8 calls where 4 must do.*\n.*no flag has to travel",
            body="""
                n, skipped = dist.get_world_size(group), []
                for step, gradient in enumerate(gradients):
                    dist.all_reduce(gradient, group=group)
                    bad = torch.tensor([int(not gradient.isfinite().all())])
                    dist.all_reduce(bad, group=group)
                    if bad:
                        skipped.append(step)
                    else:
                        weight -= rate * gradient / n
                return skipped
                """,
        ),
    ),
)
