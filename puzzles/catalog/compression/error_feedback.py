"""compression.error_feedback: what was not sent is not lost."""

import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.compression.answers.feedback import sums_with_feedback
from reference.compression.plain_memory import sum_with_feedback, top_k

from .gradients import most_in_sum


def gradients_and_residual(case, rank):
    """Gradients of some steps; and what is left of those before."""
    return {
        "gradients": [case.normal(rank, case.length, name=f"step {step}") for step in range(case.steps)],
        "residual": case.normal(rank, case.length, name="residual"),
        "k": case.k,
    }


def of_one_process(case, inputs):
    """A tensor for each rank, one step after the other."""
    residuals, sums = [each["residual"].clone() for each in inputs], []
    for step in range(case.steps):
        gradients = [each["gradients"][step] for each in inputs]
        sums.append(sum_with_feedback(gradients, residuals, lambda x: top_k(x, case.k)))
    return [{"returns": sums, "residual": residual} for residual in residuals]


PUZZLE = Puzzle(
    name="compression.error_feedback",
    title="Error feedback",
    statement="""
        Of a gradient of N elements each rank sends k, and drops all others. Training then stops far from where it
        would have gone: an element that is small in every step never moves at all.

        So let a rank remember what it did not send, its residual, and add that to the next gradient before it chooses
        what to send. Nothing is lost then, it only comes later: all that was sent, and all that is left, are together
        all gradients.

        Given is `top_k(x, k)`: a new tensor, `x` with zeros in all places but those of its k largest magnitudes.

        Args:
            gradients: [N] of this rank, one for each step, float64.
            residual: [N] of this rank: what it did not send before the first of them. Updated in place: afterwards what
                it has not sent at all.
            k: how many elements a rank sends in a step.
            group: n ranks. Any n.

        Returns: for each step a tensor [N], the sum over ranks of what they have sent.

        Budget: one all-reduce in each step. (It still sends the zeros: what it takes to leave these out is another
        puzzle.)
        """,
    function=sums_with_feedback,
    cases=cases(worlds=(3, 1, 4), length=(12,), k=(2,), steps=(4,))
    + cases(worlds=(2, 8), length=(9,), k=(9, 1), steps=(3,))
    + cases(worlds=(4,), members=(0, 2, 3), length=(7,), k=(3,), steps=(3,)),
    drawn=on_any_ranks(length=range(6, 14), k=(1, 2, 5), steps=(2, 3, 4)),
    inputs=gradients_and_residual,
    oracle=of_one_process,
    tolerance=1e-9,
    calls=(dist.all_reduce,),
    given=(top_k,),
    budgets=(
        Budget(Measure.CALLS, target=lambda case: case.steps, why="one all-reduce in each step"),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: case.steps * most_in_sum(case.n, case.length),
            why="what is sent of a step is one tensor of N",
        ),
    ),
    hints=(
        "What does a rank want to send in a step? More than the gradient of that step.",
        "residual + gradient is what it wants; top_k of that is what it sends. What is the new residual?",
        "`residual += gradient`, `sent = top_k(residual, k)`, `residual -= sent`; then sum `sent`, in place.",
    ),
    wrong=(
        Wrong(
            "nothing is remembered",
            diagnosis=r"expected",
            edits=(("        residual -= sent\n", "        residual.zero_()\n"),),
        ),
        Wrong(
            "the residual is of the sum of all ranks",
            diagnosis=r"expected",
            edits=(
                ("        residual -= sent\n        dist.all_reduce", "        dist.all_reduce"),
                ("        sums.append(sent)", "        residual -= sent\n        sums.append(sent)"),
            ),
        ),
        Wrong(
            "chosen by the gradient alone",
            diagnosis=r"expected",
            edits=(
                ("top_k(residual, k)", "torch.where(top_k(gradient, k) != 0, residual, 0)"),
                ("import torch.distributed", "import torch\nimport torch.distributed"),
            ),
        ),
        Wrong(
            "the residual comes twice",
            diagnosis=r"expected",
            edits=(("sent = top_k(residual, k)", "sent = top_k(residual, k) + top_k(residual - gradient, k)"),),
        ),
        Wrong(
            "a new residual that is never kept",
            diagnosis=r"expected",
            edits=(("        residual -= sent\n", "        residual = residual - sent\n"),),
        ),
        Wrong(
            "one half after the other",
            diagnosis=r"right, but a rank makes \d+ calls",
            edits=(
                (
                    "dist.all_reduce(sent, group=group)",
                    "for part in sent.tensor_split(2):\n            dist.all_reduce(part, group=group)",
                ),
            ),
        ),
        Wrong(
            "what was compressed is the sum",
            diagnosis=r"expected",
            edits=(
                (
                    "        sent = top_k(residual, k)\n        residual -= sent\n"
                    "        dist.all_reduce(sent, group=group)\n",
                    "        whole = residual.clone()\n        dist.all_reduce(whole, group=group)\n"
                    "        sent = top_k(whole, k)\n        residual -= sent\n",
                ),
            ),
        ),
    ),
)
