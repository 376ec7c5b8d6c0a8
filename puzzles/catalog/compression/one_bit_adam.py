"""compression.one_bit_adam: first exact steps, then the momentum in 1 bit."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.compression import plain_memory
from reference.compression.answers.one_bit import one_bit_all_reduce
from reference.compression.answers.two_phases import one_bit_adam

from .gradients import most_in_sum, two_ways

SCALE, NEVER = 4, 2  # bytes; elements that have no gradient


def parameter_and_gradients(case, rank):
    """Equal parameters; gradients whose first elements are zero in all steps, on all ranks."""
    length = 8 * case.n * case.bytes
    gradients = case.normal(rank, case.steps, length, name="gradients")
    gradients[:, :NEVER] = 0
    return {
        "x": case.normal(0, length, name="x"),
        "gradients": gradients,
        "freeze_after": case.freeze_after,
        "rate": 0.25,
    }


def of_one_process(case, inputs):
    """The two phases of the paper, where one process has all gradients."""
    x = inputs[0]["x"].clone()
    m, v = torch.zeros_like(x), torch.zeros_like(x)
    residuals = [torch.zeros_like(x) for _ in inputs]
    servers = [torch.zeros(8 * case.bytes, dtype=x.dtype) for _ in inputs]
    for step in range(case.steps):
        gradients = [each["gradients"][step] for each in inputs]
        if step < case.freeze_after:
            whole = torch.stack(gradients).sum(0)
            m, v = 0.9 * m + 0.1 * whole, 0.95 * v + 0.05 * whole**2
        else:
            brought = [0.9 * m / case.n + 0.1 * gradient for gradient in gradients]
            m = plain_memory.two_stages(brought, residuals, servers, 8 * case.bytes)
            m[v == 0] = 0
        x -= 0.25 * m / (v.sqrt() + 1e-8)
    return [{"x": x} for _ in inputs]


def most_sent(case):
    """Bytes of the busiest rank: exact steps, and those in 1 bit."""
    exact = min(case.steps, case.freeze_after)
    return exact * most_in_sum(case.n, 8 * case.n * case.bytes) + (case.steps - exact) * two_ways(
        case.n, case.bytes + SCALE
    )


PUZZLE = Puzzle(
    name="compression.one_bit_adam",
    title="1-bit Adam's two phases",
    statement="""
        Adam's step is `rate * m / (v.sqrt() + EPS)`, with `m = B1 m + (1 - B1) g` and `v = B2 v + (1 - B2) g²`, g being
        the sum of all ranks' gradients. In 1 bit g² would be the same everywhere. But after some steps v changes
        little, and m is linear in g. So: the first `freeze_after` steps are exact, g travels as it is, and v is
        learned. In all later steps v stays as it is. Each rank brings its own gradient into its part of the momentum,
        and the momentum travels in 1 bit, with error feedback from one such step to the next.

        1 bit cannot say zero. An element that has had no gradient in all exact steps has v = 0, and what signs make of
        its momentum would be divided by EPS. Its momentum stays 0.

        Given are B1, B2, EPS and `one_bit_all_reduce(x, residual, of_server, group)`: about the sum of `x` over ranks,
        and updates the two memories in place, [N] and [N/n], zeros in the beginning.

        Args:
            x: [N] float64, the same on every rank, 8 n divides N; updated in place.
            gradients: [steps, N] of this rank. They may be overwritten.
            freeze_after: so many steps are exact, 1 or more.
            rate: of learning.
            group: n ranks. Any n.

        m and v begin at zero, and nothing is corrected for that.

        Budget: an all-reduce of N numbers in each exact step, and bits in all others.
        """,
    function=one_bit_adam,
    cases=cases(worlds=(3, 4, 1), bytes=(2,), steps=(5,), freeze_after=(2,))
    + cases(worlds=(2,), bytes=(1,), steps=(4,), freeze_after=(1, 4))
    + cases(worlds=(8,), bytes=(1,), steps=(4,), freeze_after=(2,))
    + cases(worlds=(4,), members=(0, 2, 3), bytes=(1,), steps=(4,), freeze_after=(2,)),
    drawn=on_any_ranks(bytes=(1, 2), steps=(4, 5), freeze_after=(1, 2, 3)),
    inputs=parameter_and_gradients,
    oracle=of_one_process,
    scratch=("gradients",),
    tolerance=1e-7,
    calls=(dist.all_reduce, dist.all_to_all_single, dist.all_gather_into_tensor),
    given=(one_bit_all_reduce,),
    budgets=(Budget(Measure.BYTES_SENT, target=most_sent, why="numbers in exact steps, and bits in all others"),),
    hints=(
        "What are a rank's parts of m, such that the sum of all ranks' parts is B1 m + (1 - B1) g?",
        "All ranks have the same m: a rank's part is B1 m / n + (1 - B1) times its own gradient.",
        "In a 1-bit step m is what `one_bit_all_reduce` returns of these parts, and zero where v is zero.",
    ),
    wrong=(
        Wrong(
            "the momentum of all, from each",
            diagnosis=r"expected",
            edits=(("B1 * m / n + ", "B1 * m + "),),
        ),
        Wrong(
            "the gradient travels in 1 bit",
            diagnosis=r"expected",
            edits=(
                (
                    "m = one_bit_all_reduce(B1 * m / n + (1 - B1) * gradient, residual, of_server, group)",
                    "m = B1 * m + (1 - B1) * one_bit_all_reduce(gradient, residual, of_server, group)",
                ),
            ),
        ),
        Wrong(
            "zero becomes a sign",
            diagnosis=r"expected",
            edits=(("            m[v == 0] = 0\n", ""),),
        ),
        Wrong(
            "the variance is learned on",
            diagnosis=r"expected",
            edits=(
                (
                    "            m[v == 0] = 0\n",
                    "            m[v == 0] = 0\n            v = B2 * v + (1 - B2) * m**2\n",
                ),
            ),
        ),
        Wrong(
            "nothing is remembered between 1-bit steps",
            diagnosis=r"expected",
            edits=(("gradient, residual, of_server, group)", "gradient, 0 * residual, 0 * of_server, group)"),),
        ),
        Wrong(
            "one exact step too many",
            diagnosis=r"expected",
            edits=(("step < freeze_after", "step <= freeze_after"),),
        ),
        Wrong(
            "it only says that it sends bits",
            diagnosis=r"expected|right, but rank \d sen",
            edits=(
                (
                    "m = one_bit_all_reduce(B1 * m / n + (1 - B1) * gradient, residual, of_server, group)",
                    "dist.all_reduce(gradient, group=group)\n            m = B1 * m + (1 - B1) * gradient",
                ),
            ),
        ),
    ),
)
